"""What tasks have in common: how a run constructs them and, for those that prepare data, where the data is."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

from torch import nn
from typing_extensions import TypeVar

import vaak.core.task
from vaak.config.base import Section
from vaak.config.experiment import Experiment
from vaak.config.task_spec import TaskSpec
from vaak.core.errors import UserError
from vaak.core.split_ranges import SPLITS
from vaak.core.task import Meters
from vaak.engine.objective.losses import Loss, make_loss
from vaak.nn.lora import write_own_adapter
from vaak.runs.prepared import PreparedFolder, Recipe, prepare_for_run, prepared_folder
from vaak.tasks.meters import LossMeters

AnyExperiment = TypeVar("AnyExperiment", bound=Experiment[Any, Any, Any, Any, Any], default=Experiment[Any, Any])
Made = TypeVar("Made")
AnySection = TypeVar("AnySection", bound=Section)
Folder = TypeVar("Folder", bound=PreparedFolder, default=PreparedFolder)


class Task(vaak.core.task.Task, Generic[AnyExperiment]):
    """A task that a YAML can name, with ``SPEC`` saying which options it has; without one, any key is an option."""

    SPEC: ClassVar[TaskSpec] = TaskSpec()

    def __init__(self, experiment: AnyExperiment, directory: Path, folder: Path) -> None:
        """``directory`` is the run's; a user's ``./file.py`` in the configuration is relative to ``folder``."""
        self.experiment, self.directory, self.folder = experiment, directory, folder
        self.reference = experiment.reference

    def meters(self, split: str) -> Meters:
        """The mean of each loss, unless a task says more."""
        return LossMeters(self.losses, split, self.experiment.training.loss.auxiliary)


class PreparedTask(Task[AnyExperiment], Generic[AnyExperiment, Folder]):
    """A task whose data is prepared once, and that minimises ``training.loss.main``.

    ``Folder`` is the type of what is prepared.
    """

    PREPARED: ClassVar[type[PreparedFolder]] = PreparedFolder
    also_trained: ClassVar[tuple[str, ...]] = ()
    """Modules of the model that are trained whole where the others have low-rank adapters, and belong to its use."""

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        """How the data of ``splits`` (default: all) is prepared."""
        raise NotImplementedError

    def prepare(self) -> None:
        self.make_main_loss()  # a mistake in it shows now, and not after hours of preparation
        prepare_for_run(self.recipe(), self.directory, self.experiment.data.cache_dir)
        curriculum = self.experiment.training.curriculum
        if curriculum is not None:
            self.dataset("train").difficulty(curriculum.difficulty)  # measured once, for all processes

    @cached_property
    def prepared(self) -> Folder:
        """The prepared data. Raises DataError if there is none."""
        return cast("Folder", self.PREPARED.open(prepared_folder(self.directory), *self.reading))

    @property
    def reading(self) -> tuple[Any, ...]:
        """What reading the prepared data requires: the further fields of ``PREPARED``."""
        return ()

    @cached_property
    def main_loss(self) -> Loss:
        """The loss of ``training.loss.main``; made when needed: using a trained run executes no user code."""
        return self.make_main_loss()

    def make_main_loss(self) -> Loss:
        """A new loss of ``training.loss``. Raises UserError for one that can't be made."""
        return make_loss(self.experiment.training.loss, self.folder)

    def loss_modules(self) -> dict[str, nn.Module]:
        return self.main_loss.modules()

    def refused_exports(self) -> dict[str, str]:
        model = self.experiment.model
        adapted = getattr(model, "lora", None) or getattr(model, "experts", None)
        return {} if adapted else {"peft": "this model has no low-rank adapters (model.lora)"}

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write the low-rank adapters alone, in peft's format, for the model of the run that this one began with."""
        base = self.experiment.training.checkpoint.init_from
        base = None if base is None else str(Path(base).expanduser().absolute())
        write_own_adapter(model, self.experiment.model.lora, base, folder, self.also_trained)


def in_temporary_folder(make: Callable[[Path], Made]) -> Made:
    """What ``make`` makes with files in a folder; they are deleted with it."""
    folder = Path(tempfile.mkdtemp(prefix="vaak-examples-"))
    try:
        made = make(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


def refuse_other_options(own: Any, other: Any, section: str, may_differ: frozenset[str] = frozenset()) -> None:
    """Raises UserError if an option of a section isn't what the run was trained with."""
    for name, value in other:
        trained_with = getattr(own, name)
        if name not in may_differ and value != trained_with:
            raise UserError(f"{section}.{name} is {value}, but the run was trained with {trained_with}")


def without_unread_files(corpus: AnySection, splits: tuple[str, ...], endings: tuple[str, ...] = ("",)) -> AnySection:
    """A corpus without the files of splits that aren't requested, if all ``splits`` have separate files.

    ``endings`` are those of the options that name a split's files. Raises UserError where the corpus is a fold's.
    """
    if getattr(corpus, "fold", None):
        raise UserError("the run was trained on a fold of its data; to evaluate others, add fold=null to their options")
    if not all(getattr(corpus, split, ()) for split in splits):
        return corpus
    return corpus.model_copy(
        update={f"{split}{ending}": () for split in SPLITS if split not in splits for ending in endings}
    )
