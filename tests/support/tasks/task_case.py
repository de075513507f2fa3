"""A task in its smallest form, for the checks of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaak.config.load import Loaded, load
from vaak.config.tasks import task_class
from vaak.config.training import TrainingConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.task import Task
from vaak.testing import Case

PERFORMER = {"feature_redraw_interval": 2, "loss": {"auxiliary": {"norm_reg": 0.01}}}
"""Training of a Performer."""


@dataclass(frozen=True)
class TaskCase:
    """A task in its smallest form: the YAML besides ``task:`` and ``training:``, and what the checks need to know.

    ``write`` makes the data in a folder, which is FOLDER in the options, and returns inputs for ``predict``.
    """

    task: str
    options: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    write: Callable[[Path], Sequence[Any]] | None = None

    def load(self, folder: Path, **training: Any) -> Loaded:
        """The case's options, with those of ``training`` over its own, as a YAML in ``folder``."""
        file = folder / "case.yml"
        text = yaml_text({"task": self.task, **self.options, "training": {**self.training, **training}})
        file.write_text(text.replace("FOLDER", str(folder / "data")))
        return load([file])

    def prepared(self, folder: Path) -> Case:
        """The case, its data prepared in ``folder``."""
        experiment = self.load(folder).experiment
        about = self.about if self.write is None else {"inputs": self.write(folder / "data"), **self.about}

        def make_task() -> Task:
            task: Task = task_class(self.task)(experiment, folder, folder)
            task.prepare()
            return task

        loop = {name: value for name, value in self.training.items() if name in TrainingConfig.model_fields}
        return Case(make_task, training=loop, **about)


@dataclass(frozen=True)
class ToyCase:
    """A task that no YAML names, for what no task of Vaak's has yet."""

    make_task: Callable[[], Task]
    about: dict[str, Any] = field(default_factory=dict)

    def prepared(self, folder: Path) -> Case:
        """The case; there is nothing to prepare."""
        return Case(self.make_task, **self.about)
