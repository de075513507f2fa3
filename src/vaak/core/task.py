"""What can be trained: the questions the engine asks a task, and the questions the loader asks its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from vaak.core.batch import Batch, Term

if TYPE_CHECKING:
    import numpy as np
    from torch import nn


class Dataset(Protocol):
    """The examples of one split, map-style, and how they are put together.

    ``lengths[i]`` is an upper bound of example ``i``'s length (tokens, frames, seconds) after augmentation, known
    without loading it; ``strata`` gives each example's group for stratified plans, or is None; ``row_capacity`` is the
    length that a packed row may have, or None where rows are never packed; ``fingerprint`` changes with the content.

    ``draws_globally`` says that ``example`` calls what draws from Python's, NumPy's or torch's own generators, as many
    libraries do. They are then seeded for each example; one that is False saves the time.

    A dataset of long examples may have ``evaluation_budget``: as much as rows times the longest of them may be in a
    batch of evaluation.
    """

    lengths: np.ndarray
    strata: np.ndarray | None
    row_capacity: int | None
    fingerprint: str
    draws_globally: bool

    def example(self, index: int, rng: np.random.Generator) -> Any:
        """Example ``index``; every random choice is drawn from ``rng`` and from nothing else."""
        ...

    def collate(self, rows: list[list[Any]]) -> Batch:
        """A batch of rows; each row holds one example, or several where a plan packs them."""
        ...

    def difficulty(self, measure: str) -> np.ndarray:
        """How hard each example is by a measure of the task's, harder ones higher.

        Raises UserError for a measure that it doesn't have.
        """
        ...

    def describe(self, index: int) -> str:
        """Where example ``index`` comes from (file, line, id), for error messages and records."""
        ...


class Meters(Protocol):
    """Sums over a split, added up over batches and ranks and divided once at the end.

    ``protocol`` says under which conditions the figures were made (stride, normaliser, collar, split).
    """

    protocol: dict[str, str]

    def update(self, model: nn.Module, batch: Batch) -> None:
        """Add one batch's sums: all of them, or none where it raises."""
        ...

    def sums(self) -> dict[str, float]:
        """The sums so far: additive, so ranks' sums are added key by key."""
        ...

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        """The figures that these sums give."""
        ...


@runtime_checkable
class Illustrated(Protocol):
    """Meters that have something to look at."""

    def pictures(self) -> dict[str, bytes]:
        """PNG files by name, of what these meters were shown."""
        ...


class Task(Protocol):
    """One kind of model on one kind of data. The engine knows nothing else of it."""

    evaluation_splits: tuple[str, ...]

    def prepare(self) -> None:
        """Make what training reads (tokenizer, features, manifests), once; idempotent; on the main process only."""
        ...

    def dataset(self, split: str) -> Dataset: ...

    def model(self) -> nn.Module: ...

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """The named losses of a batch, each a sum with its unit; the engine weighs, normalises and adds them."""
        ...

    def meters(self, split: str) -> Meters: ...

    def show(self, batch: Batch) -> list[str]:
        """A line for each row of a batch, for a reader: its text, its speakers."""
        ...

    def predict(self, model: nn.Module, inputs: Iterable[Any]) -> Iterable[Any]:
        """What a trained model makes of new inputs."""
        ...

    def showcase(self, model: nn.Module) -> list[str]:
        """A few lines to look at after training."""
        ...


@dataclass(frozen=True)
class Objective:
    """One of several objectives that every step descends on, one after another, each over parameters of its own.

    ``modules`` names the model's modules whose parameters it trains. ``losses(model, batch)`` gives its terms, as
    ``Task.losses`` does; their names differ from those of the other objectives.
    """

    name: str
    modules: tuple[str, ...]
    losses: Callable[[nn.Module, Batch], dict[str, Term]]


@runtime_checkable
class SeveralObjectives(Protocol):
    """A task that descends on several objectives in one step (a discriminator's, then its generator's).

    They are taken in this order, each with the weights that the ones before it left. The step is all or nothing: where
    a later objective has no finite gradient or fails, the updates of the earlier ones are taken back.
    """

    objectives: tuple[Objective, ...]


@runtime_checkable
class HasLossModules(Protocol):
    """A task whose losses have parameters or buffers of their own; they are moved, trained and saved with the model."""

    def loss_modules(self) -> dict[str, nn.Module]:
        """The modules by name, the same objects each time."""
        ...
