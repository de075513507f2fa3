"""The base of all tasks: how a run constructs them, where prepared data is, and metrics.

Metrics that any task can have: the mean of each loss, and the means of what functions of a batch add up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

import vaak.core.task
from vaak.config.base import Section
from vaak.config.experiment import Experiment
from vaak.config.tasks import TaskSpec
from vaak.core.batch import Batch, Term, read_together
from vaak.core.errors import UserError
from vaak.core.left_out import SplitContents
from vaak.core.splits import SPLITS
from vaak.core.task import Meters
from vaak.engine.checkpoint.dcp import write_dcp
from vaak.engine.snapshot import model_tensors
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.lora import write_own_adapter
from vaak.nn.losses import Loss, make_loss
from vaak.nn.own_network import OwnNetwork
from vaak.nn.stack_checks import find_own_networks
from vaak.runs.prepared import PreparedFolder, Recipe, prepare_folder, prepare_for_run, prepared_folder

log = logging.getLogger("vaak")
AnyExperiment = TypeVar("AnyExperiment", bound=Experiment[Any, Any, Any, Any, Any], default=Experiment[Any, Any])
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
        """Return the mean of each loss, unless a task says more."""
        return LossMeters(self.losses, split, self.experiment.training.loss.auxiliary)


class PreparedTask(Task[AnyExperiment], Generic[AnyExperiment, Folder]):
    """A task whose data is prepared once, and that minimises ``training.loss.main``.

    ``Folder`` is the type of what is prepared.
    """

    PREPARED: ClassVar[type[PreparedFolder]] = PreparedFolder
    also_trained: ClassVar[tuple[str, ...]] = ()
    """Modules of the model that are trained whole where the others have low-rank adapters, and belong to its use."""

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        """Return how the data of ``splits`` (default: all) is prepared."""
        raise NotImplementedError

    def prepare(self) -> None:
        # A mistake in it shows now, and not after hours of preparation.
        self.make_main_loss()
        if find_own_networks(self.experiment.model):  # and one in them
            with torch.random.fork_rng(devices=[]):
                self.meta_model()
        prepare_for_run(self.recipe(), self.directory, self.experiment.data.cache_dir)
        curriculum = self.experiment.training.curriculum
        if curriculum is not None:
            # Measured once, here, and not by every process of a training.
            self.dataset("train").difficulty(curriculum.difficulty)

    def prepare_base(self) -> None:
        """Prepare what a pretrained model brings (tokens, sizes), for its use untrained, without any data."""
        without_data = replace(self.recipe(()), fingerprint=lambda: "without data")
        prepare_folder(without_data, prepared_folder(self.directory))

    @cached_property
    def prepared(self) -> Folder:
        """The prepared data. Raises DataError if there is none."""
        return cast("Folder", self.PREPARED.open(prepared_folder(self.directory), *self.reading))

    def split_contents(self, split: str) -> SplitContents | None:
        return self.prepared.contents(split)

    def prepare_in(self, folder: Path, recipe: Recipe) -> None:
        """Set ``prepared`` to the recipe's data in a folder, which are made unless they exist."""
        self.prepared = cast("Folder", self.PREPARED.make(recipe, folder, *self.reading))

    @property
    def reading(self) -> tuple[Any, ...]:
        """The further fields of ``PREPARED``, which reading prepared data requires."""
        return ()

    @cached_property
    def main_loss(self) -> Loss:
        """The loss of ``training.loss.main``; made when needed: using a trained run executes no user code."""
        return self.make_main_loss()

    def make_main_loss(self) -> Loss:
        """Return a new loss of ``training.loss``. Raises UserError for one that can't be made."""
        training = self.experiment.training
        # A teacher's logits are compared with all of the model's, so they can't be computed in chunks.
        taught = self.experiment.distillation is not None
        return make_loss(training.loss, self.folder, "whole" if taught else training.performance.logits)

    def loss_modules(self) -> dict[str, nn.Module]:
        return self.main_loss.modules()

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        for one in model.modules():
            if isinstance(one, OwnNetwork):
                raise UserError(
                    f"training.distributed.strategy: fsdp divides Vaak's own networks, and {one.key} is {one.name}; "
                    "use ddp or zero1"
                )
        return super().blocks(model)

    def refused_exports(self) -> dict[str, str]:
        model = self.experiment.model
        adapted = getattr(model, "lora", None) or getattr(model, "experts", None)
        return {} if adapted else {"peft": "this model has no low-rank adapters (model.lora)"}

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write the low-rank adapters alone, in peft's format, for the model of the run that this one began with."""
        base = self.experiment.training.checkpoint.init_from
        base = None if base is None else str(Path(base).expanduser().absolute())
        write_own_adapter(model, self.experiment.model.lora, base, folder, self.also_trained)

    def export_dcp(self, model: nn.Module, folder: Path) -> None:
        """Write the weights by their names here, for programs that read ``torch.distributed.checkpoint``."""
        write_dcp(model_tensors(model), folder)


def pad_rows(rows: Sequence[np.ndarray], fill: float = 0, length: int | None = None, dtype: Any = None) -> np.ndarray:
    """Return rows ``(time, ...)`` as one array ``(row, time, ...)``, as long as the longest unless ``length`` is given.

    >>> pad_rows([np.array([1, 2]), np.array([3])], fill=-1).tolist()
    [[1, 2], [3, -1]]
    """
    longest = max(map(len, rows)) if length is None else length
    padded = np.full((len(rows), longest, *rows[0].shape[1:]), fill, dtype or rows[0].dtype)
    for whole, row in zip(padded, rows, strict=True):
        whole[: len(row)] = row
    return padded


def refuse_other_options(own: Any, other: Any, section: str, may_differ: frozenset[str] = frozenset()) -> None:
    """Raises UserError if an option of a section isn't what the run was trained with."""
    for name, value in other:
        trained_with = getattr(own, name)
        if name not in may_differ and value != trained_with:
            raise UserError(f"{section}.{name} is {value}, but the run was trained with {trained_with}")


def without_unread_files(corpus: AnySection, splits: tuple[str, ...], endings: tuple[str, ...] = ("",)) -> AnySection:
    """Return a corpus without the files of splits that aren't requested, if all ``splits`` have separate files.

    ``endings`` are those of the options that name a split's files. Raises UserError if the corpus is a fold's.
    """
    if getattr(corpus, "fold", None):
        raise UserError("the run was trained on a fold of its data; to evaluate others, add fold=null to their options")
    if not all(getattr(corpus, split, ()) for split in splits):
        return corpus
    return corpus.model_copy(
        update={f"{split}{ending}": () for split in SPLITS if split not in splits for ending in endings}
    )


@dataclass(frozen=True)
class RehearsedTexts:
    """How long a rehearsed evaluation's texts may become: a quarter and 8 tokens more than the longest reference.

    A model that hasn't learned to stop would write each to ``limit``, the most tokens of an evaluation's.
    """

    split: str
    longest: int
    limit: int

    @classmethod
    def of_targets(cls, split: str, targets: Tensor, limit: int) -> RehearsedTexts:
        """Choose the lengths by the references ``(row, token)`` of a batch, which has IGNORED in other places."""
        reference = int((targets != IGNORED).sum(1).max())
        return cls(split, min(reference + reference // 4 + 8, limit), limit)

    def report(self, ended: Sequence[bool]) -> None:
        """Say how many texts were cut off here and will be longer in an evaluation; ``ended`` is about each text."""
        cut = len(ended) - sum(ended)
        if cut and self.longest < self.limit:
            log.info(
                "trying the evaluation of %s: %d of %d texts were cut off at %d tokens, by which the longest reference "
                "has long ended; an evaluation lets the model write up to %d (data.decoding.max_new_tokens)",
                self.split,
                cut,
                len(ended),
                self.longest,
                self.limit,
            )


Metric = Callable[[nn.Module, Batch], Any]
"""The losses that ``as_term`` takes: a sum with its unit, or a value for each row."""
EXAMPLE = "example"
"""The unit of rows."""


def as_term(value: Any, batch: Batch, where: str) -> Term:
    """Return a sum with its unit: of ``Term(sum, per)``, of ``(sum, unit)``, or of a tensor with a value for each row.

    Raises UserError for anything else; ``where`` says what gave it.
    """
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        value = Term(*value)
    elif isinstance(value, Tensor) and value.shape == (batch.num_rows,):
        value = Term(value.sum(), EXAMPLE)
    # A bare number is refused: it may be a mean, and sums are divided once, by the counts of the whole step.
    if isinstance(value, Term) and isinstance(value.total, Tensor) and not value.total.ndim:
        return value
    counted = ", ".join(f"{unit} {count:g}" for unit, count in batch.totals().items())
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    hint = "; if it is a mean, leave out .mean()" if isinstance(value, Tensor) and not value.ndim else ""
    raise UserError(
        f"{where} gave a {type(value).__name__}{shape}; expected vaak.Term(sum, per=unit), (sum, unit), or a value for "
        f"each row{hint}; the batch counts {counted}"
    )


class LossMeters(Meters):
    """``loss``, the weighted sum of the means of all losses, and, where there are several, each mean."""

    def __init__(
        self,
        losses: Callable[[nn.Module, Batch], dict[str, Term]],
        split: str,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.protocol = {"split": split}
        self._losses, self._weights, self._sums = losses, weights or {}, _Sums()

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._sums.add(self._losses(model, batch), batch)

    def sums(self) -> dict[str, float]:
        return self._sums.values

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        # Means of the whole set: sums of all batches and ranks have been added before they are divided.
        means = compute_means(sums)
        total = sum(self._weights.get(name, 1.0) * mean for name, mean in means.items())
        return {**(means if len(means) > 1 else {}), "loss": total}


class WithMetrics(Meters):
    """Other meters, and the means of further metrics: functions of the model and a batch, by name."""

    def __init__(self, meters: Meters, metrics: Mapping[str, Metric]) -> None:
        self.protocol = meters.protocol
        self._meters, self._metrics, self._sums = meters, metrics, _Sums("metric ")

    def expect_rehearsal(self) -> None:
        self._meters.expect_rehearsal()

    def update(self, model: nn.Module, batch: Batch) -> None:
        found = {
            name: as_term(metric(model, batch), batch, f"the metric {name}") for name, metric in self._metrics.items()
        }
        self._meters.update(model, batch)
        self._sums.add(found, batch)

    def sums(self) -> dict[str, float]:
        return self._meters.sums() | self._sums.values

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        own = {name: value for name, value in sums.items() if name.startswith("metric ")}
        others = {name: value for name, value in sums.items() if name not in own}
        return self._meters.results(others) | compute_means(own, "metric ")

    def pictures(self) -> dict[str, bytes]:
        return self._meters.pictures()

    def audio(self) -> dict[str, bytes]:
        return self._meters.audio()

    def seen(self) -> dict[str, list[Any]]:
        return self._meters.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return self._meters.summary(sums, seen)

    def tables(self) -> dict[str, str]:
        return self._meters.tables()


class _Sums:
    """The sums of terms, each with the count of its unit, under names that begin with ``prefix``."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix, self.values = prefix, dict[str, float]()

    def add(self, terms: Mapping[str, Term], batch: Batch) -> None:
        totals, added = batch.totals(), dict[str, float]()
        sums = read_together(*(term.total for term in terms.values()))
        for (name, term), total in zip(terms.items(), sums, strict=True):
            if term.per not in totals:
                raise UserError(
                    f"{name} is a sum per {term.per}, but the batch counts {', '.join(totals) or 'nothing'}"
                )
            added[f"{self.prefix}{name} sum"] = float(total)
            added[f"{self.prefix}{name} count"] = totals[term.per]
        for name, value in added.items():
            self.values[name] = self.values.get(name, 0.0) + value


def compute_means(sums: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return each sum over its count; not a number where nothing was counted.

    >>> compute_means({"loss sum": 6.0, "loss count": 3.0})
    {'loss': 2.0}
    """
    names = [name.removesuffix(" sum") for name in sums if name.endswith(" sum")]
    counts = {name: sums[f"{name} count"] for name in names}
    return {
        name.removeprefix(prefix): sums[f"{name} sum"] / counts[name] if counts[name] else math.nan for name in names
    }
