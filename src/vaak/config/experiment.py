"""One run, whole: what is trained, on what, how, and where it is written."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, cast

from pydantic import ValidationInfo, field_validator
from typing_extensions import TypeVar

from vaak.config.base import ResumeClass, Section, option
from vaak.config.catalog import TASKS, load_name
from vaak.config.resolve.global_config import Sides
from vaak.config.training import TrainingConfig

MOST_BYTES = 255
"""Of a folder's name, on every common file system."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Model = TypeVar("Model")
Data = TypeVar("Data")
Audio = TypeVar("Audio", default=dict[str, Any])
Corpus = TypeVar("Corpus", default=Any)


class WandbConfig(Section):
    """Where Weights & Biases keeps the run; it is used when training.logging.wandb is true."""

    bare: ClassVar[str | None] = "project"
    resume_class: ClassVar[ResumeClass | None] = "free"

    project: str = option("Name of the project.", "vaak")
    entity: str | None = option("User or team; null is your default.", None)
    name: str | None = option("Name of the run there; null is this run's name.", None)
    tags: tuple[str, ...] = option("Labels of the run.", ())
    notes: str | None = option("A longer description.", None)
    checkpoints: Literal["none", "best", "all"] = option("Which checkpoints are uploaded as artifacts.", "none")
    mode: Literal["online", "offline", "disabled"] | None = option("null leaves it to WANDB_MODE.", None)


class Experiment(Section, Generic[Model, Data, Audio, Corpus]):
    """A validated configuration; ``Experiment[LanguageModelConfig, LanguageModelDataConfig]`` for a task's types."""

    task: str = option("What is trained.", resume="refused")
    name: str = option(
        "Name of the run, as a folder; not given, it is the name of the YAML.", pattern=r"^[^/\\]+$", resume="free"
    )
    run_dir: Path = option("Folder of the run; not given, it is runs/NAME.", resume="free")
    model: Model = option("The network.")
    global_config: Audio = option("Features of all audio datasets.", {}, validate_default=True, resume="refused")
    datasets: tuple[Corpus, ...] = option("Audio datasets.", (), resume="refused")
    data: Data = option("The data.")
    training: TrainingConfig = option("The loop.", TrainingConfig())
    wandb: WandbConfig = option("Weights & Biases.", WandbConfig())

    @field_validator("name", "run_dir")
    @classmethod
    def _has_no_control_characters(cls, value: str | Path, info: ValidationInfo) -> str | Path:
        named = info.field_name == "name" or "name" in info.data  # else the name is wrong, which run_dir may come from
        if named and _CONTROL.search(str(value)):
            raise ValueError(f"is {json.dumps(str(value))}; a folder's name has no newline or other control character")
        return value

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if name in (".", ".."):
            raise ValueError(f"is {name}, which names no new folder; give another name=")
        size = len(name.encode())
        if size > MOST_BYTES:
            raise ValueError(f"takes {size} bytes in UTF-8, and a folder's name has at most {MOST_BYTES}; shorten it")
        return name

    @property
    def skips_bad_examples(self) -> bool:
        """Whether an example that can't be read is left out and counted; else it ends the run."""
        return getattr(self.data, "on_bad_example", "fail") == "skip"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by task, since the class is made when it is first asked for."""
        return _restored, (self.task, dict(self))


def _restored(task: str, fields: dict[str, Any]) -> Experiment[Any, Any]:
    return experiment_type(task).model_construct(**fields)


@cache
def experiment_type(task: str | None) -> type[Experiment[Any, Any]]:
    """The experiment whose model and data have the types of a task; of no known task, any types."""
    if task is None:
        return Experiment[Any, Any]
    entry = TASKS[task]
    types = tuple(load_name(f"{entry.config}:{name}") for name in (entry.model, entry.data))
    types += tuple(map(load_name, entry.audio)) if entry.audio else (dict[str, Any], Any)
    return cast("type[Experiment[Any, Any]]", Experiment.__class_getitem__(types))


def defaults_of(task: str) -> dict[str, Any]:
    """The task's own defaults, which lie beneath what the user gives."""
    defaults: dict[str, Any] = load_name(f"{TASKS[task].config}:DEFAULTS")
    return defaults


def aliases_of(task: str) -> dict[str, str]:
    """The task's other spellings: dotted key → canonical dotted key."""
    aliases: dict[str, str] = load_name(f"{TASKS[task].config}:ALIASES")
    return aliases


def sides_of(task: str) -> Sides:
    """The sections of the task's model that stand for others."""
    config = TASKS[task].config
    return Sides(load_name(f"{config}:SHARED"), load_name(f"{config}:SIDES"))
