"""Tasks: the interface that the engine and the loader require of whatever is to be trained.

These are base classes, with defaults for everything that a task may leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from vaak.core.batch import Batch, FirstPass, Term, require_kind, type_and_shape
from vaak.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from vaak.core.corpus import SplitCorpus
    from vaak.core.left_out import SplitContents


class Padding(NamedTuple):
    """How a tensor of a batch is made longer along ``axis``: by ``value`` at its end.

    ``step`` positions of it are one of those that ``training.batching.round_lengths`` counts; it is never made longer
    than ``longest``.
    """

    value: float = 0
    axis: int = 1
    step: int = 1
    longest: int | None = None


MOST_AUDIO_WORKERS = 8
"""The most loading processes that are started unasked: each has its own cache of audio in memory."""


class Dataset:
    """The examples of one split, map-style, and how they are put together.

    lengths
        ``lengths[i]`` is an upper bound of example ``i``'s length (tokens, frames, seconds) after augmentation, known
        without loading it.
    fingerprint
        Changes with the content.
    strata
        Each example's group, for stratified plans, or None.
    parts
        Each example's part, a number from 0 on, or None: examples of two parts are never in one microbatch.
    shares
        How many microbatches of each part an epoch has, or each step (``StepWeights``), see ``vaak.data.mixing``;
        None: one pass over each.
    row_capacity
        The length that a packed row may have, or None where rows are never packed.
    draws_globally
        Whether ``example`` calls code that draws from the global generators of Python, NumPy or torch, as many
        libraries do. They are then seeded for each example; False saves the time.
    evaluation_budget
        For long examples: the maximum of rows times longest row in a batch of evaluation.
    useful_workers
        Number of loading processes that help at most, where the options leave it open; half of the cores are the other
        limit. 0: an example is read in less time than it takes to hand it over, or examples are kept in memory once
        read. MOST_AUDIO_WORKERS where audio is read, changed or made into features.
    is_constant
        Whether an example is the same whenever it is read: ``example`` draws nothing.
    has_one_shape
        Whether tensors of all examples have the same shapes; a compiler then makes kernels for these.
    length_of_position
        What one of the positions that ``training.batching.round_lengths`` counts is in the unit of ``lengths``; 0 where
        they don't depend on it.
    """

    lengths: np.ndarray
    fingerprint: str
    strata: np.ndarray | None = None
    parts: np.ndarray | None = None
    shares: Callable[..., Any] | None = None
    row_capacity: int | None = None
    draws_globally: bool = True
    evaluation_budget: float | None = None
    useful_workers: int = 0
    is_constant: bool = False
    has_one_shape: bool = False
    length_of_position: float = 1

    def example(self, index: int, rng: np.random.Generator) -> Any:
        """Example ``index``; every random choice is drawn from ``rng`` only."""
        missing(self, "example(index, rng)")

    def collate(self, rows: list[list[Any]]) -> Batch:
        """A batch of rows; each row holds one example, or several where a plan packs them."""
        missing(self, "collate(rows)")

    @cached_property
    def longest(self) -> float:
        """The largest of ``lengths``."""
        return float(self.lengths.max())

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """Return how to pad those tensors of a batch that are as long as its longest example, by their names.

        Raises UserError where that isn't known.
        """
        raise UserError(
            f"training.batching.round_lengths: {type(self).__name__} doesn't say how its batches are padded; leave it "
            f"out, or write {type(self).__name__}.padding(batch)"
        )

    def difficulty(self, measure: str) -> np.ndarray:
        """Return each example's difficulty, higher for harder ones, by ``length`` or another measure of the task.

        Raises UserError for a measure that it doesn't have.
        """
        if measure == "length":
            return self.lengths
        raise UserError(f"training.curriculum.difficulty: {type(self).__name__} has no measure {measure}")

    def describe(self, index: int) -> str:
        """Where example ``index`` comes from (file, line, id), for error messages and records."""
        return f"example {index}"

    def list_bytes(self, indices: Sequence[int]) -> Iterable[tuple[Path, int, int]]:
        """The files that these examples are read from, each with the first byte and the number of bytes; or none.

        They are read ahead where training comes by shards (``training.batching.shard_size``), and may be rough.
        """
        return ()

    def get_content(self, index: int) -> str:
        """Identify example ``index``, however a model reads it, so that only equal ones are compared; "" if unknown."""
        return ""


@dataclass(frozen=True)
class DataFinding:
    """Something to know about an example, by its name, before training; ``kind`` is a word or two for it.

    A ``problem`` makes training fail or learn what is wrong; a ``warning`` may be right.
    """

    example: str
    kind: str
    message: str
    mark: Literal["problem", "warning"] = "problem"


class Meters:
    """Sums over a split, added up over batches and ranks and divided once at the end.

    ``protocol`` says under which conditions the metrics were made (stride, normaliser, collar, split).
    """

    protocol: dict[str, str]

    def expect_rehearsal(self) -> None:
        """Called before the first update, when metrics will be discarded: the model's output may be cut short.

        A model that hasn't learned to stop yet writes on to the greatest length, which shows nothing and takes minutes.
        """

    def update(self, model: nn.Module, batch: Batch) -> None:
        """Add one batch's sums: all of them, or none where it raises."""
        missing(self, "update(model, batch)")

    def sums(self) -> dict[str, float]:
        """The sums so far: additive, so ranks' sums are added key by key."""
        missing(self, "sums()")

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics that these sums give."""
        missing(self, "results(sums)")

    def pictures(self) -> dict[str, bytes]:
        """PNG files by name, of what these meters were shown."""
        return {}

    def audio(self) -> dict[str, bytes]:
        """WAV files by name, to listen to."""
        return {}

    def tables(self) -> dict[str, str]:
        """CSV files by name, which ``vaak eval --output`` writes with the pictures."""
        return {}

    def seen(self) -> dict[str, list[Any]]:
        """Lists of what single examples gave, by name, as JSON: those of all processes are joined for ``summary``."""
        return {}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        """Return the data of an evaluation that a run keeps for its report (``vaak.core.summaries``), as JSON.

        ``sums`` and ``seen`` are those of all processes. It stays small, however large the split is.
        """
        return {}


@dataclass(frozen=True)
class Baselines:
    """Metrics that methods without a network reach on a split, by the name of the method.

    They are made under the protocol of ``Task.meters``, and named as its results are. ``figure`` is the one that a
    model is to beat, and ``higher`` says whether more of it is better.
    """

    figure: str
    higher: bool
    figures: dict[str, dict[str, float]]


@dataclass(frozen=True)
class TunedScore:
    """How good options are on development data: in a few words, as a line, and as JSON."""

    short: str
    line: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TunedOptions:
    """The options that ``vaak tune`` chose for a run, as returned by a task's method ``tune(model, split)``.

    ``section`` is their dotted key, such as ``data.inference``, and ``options`` are all of it, as JSON. ``unit`` says
    what the examples are, in the plural: "recordings".
    """

    section: str
    options: Mapping[str, Any]
    num_examples: int
    unit: str
    before: TunedScore
    after: TunedScore


@dataclass(frozen=True)
class Outputs:
    """A description of the logits of a task's models: whether one model can learn from another depends on it.

    ``classes`` names what each group of logits chooses between, in their order. ``per`` is the unit that has one
    choice. Models of two tasks with the same ``reading`` read the same batches. ``weights`` are those of the
    groups in the loss, where they aren't 1.
    """

    classes: dict[str, list[str]]
    per: str
    reading: str
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """One of several objectives that every step descends on, one after another, each over its own parameters.

    ``modules`` names the model's modules whose parameters it trains. ``losses(model, batch)`` gives its terms, as
    ``Task.losses`` does; their names differ from those of the other objectives. In a step (``batch.step``) without any
    terms, its parameters stay unchanged. ``first_pass`` is as in ``Task``.
    """

    name: str
    modules: tuple[str, ...]
    losses: Callable[[nn.Module, Batch], dict[str, Term]]
    first_pass: Callable[[nn.Module, Batch], FirstPass] | None = None


class Task:
    """One kind of model on one kind of data. The engine knows nothing else about it.

    A run makes it as ``Task(experiment, directory, folder)`` (``vaak.tasks.base``).

    evaluation_splits
        What an evaluation during training evaluates, in this order.
    grouped_by
        The column whose values stay in one fold of a cross-validation, unless another is asked for.
    reference
        How a configuration finds it (``Experiment.reference``); None for one made by hand.
    auxiliary_losses
        Names of losses that training.loss.auxiliary may weigh.
    logged_terms
        Names of terms that are not trained on: sums over the step for logs, and for modules with ``follow_step``.
    first_pass
        For a loss that depends on sums over the whole step which only the model knows: these sums for a batch. It is
        called without gradients on every microbatch of a step, or on its chunks, before ``losses`` is. None for most.
    objectives
        For a task that descends on several in one step (a discriminator's, then its generator's), in place of
        ``losses``. Each finds the weights that those before it left. The step is all or nothing: where the gradient
        of a later one is not finite, or it fails, the updates of the earlier ones are rolled back.
    loss_weights
        Weights of its losses that no option gives; 1 where neither does.
    begins_pretrained
        Whether its model begins with the weights of a pretrained one, so that it is evaluated before the first step.
    predict_files
        For a task whose inputs are files: ``predict_files(model, paths, batch_size)`` yields each path with its
        prediction, or with the UserError that says why it can't be read. None: ``predict`` gets the inputs themselves.
    inner_tasks
        The tasks that this one trains together, by name. Their models are ``tasks.NAME`` of this task's model.
    """

    evaluation_splits: tuple[str, ...] = ("valid",)
    grouped_by: str | None = None
    reference: str | None = None
    auxiliary_losses: tuple[str, ...] = ()
    logged_terms: tuple[str, ...] = ()
    first_pass: Callable[[nn.Module, Batch], FirstPass] | None = None
    objectives: tuple[Objective, ...] = ()
    loss_weights: Mapping[str, float] = MappingProxyType({})
    begins_pretrained: bool = False
    predict_files: Any = None
    inner_tasks: Mapping[str, Task] = MappingProxyType({})

    # Data.

    def sources(self) -> list[Path]:
        """The files that ``prepare`` reads. Raises DataError for one that isn't there."""
        return []

    def corpora(self) -> Sequence[SplitCorpus[Any, Any, Any]]:
        """Return the corpora that ``prepare`` reads, for cross-validation; their sections are ``DividedSection``."""
        raise UserError(f"{type(self).__name__} has no corpora(), so it can't be cross-validated")

    def examples_at_most(self) -> Iterator[float] | None:
        """For each item of the training sources, how many examples it becomes at most; None: only preparing tells."""
        return None

    def longest_example(self) -> float | None:
        """The greatest length that a training example can have; None: only preparing tells."""
        return None

    def prepare(self) -> None:
        """Make what training reads (tokenizer, features, manifests), once; idempotent; on the main process only."""

    def prepare_base(self) -> None:
        """Prepare what a pretrained model that is used untrained brings, such as its tokens, without any data."""

    def prepare_eval_data(self, own: Any, folder: Path, splits: tuple[str, ...]) -> None:
        """Prepare ``splits`` of this task's data in ``folder``, where they aren't the data that a run was trained on.

        ``own`` is the run's experiment; its tokenizer, speakers and other artifacts of its data are reused.
        """
        raise UserError(f"{type(self).__name__} has no prepare_eval_data: it is evaluated on the run's own data only")

    def dataset(self, split: str) -> Dataset:
        missing(self, "dataset(split)")

    def make_dataset_from(self, data: Any) -> Dataset:
        """A dataset of examples that were never prepared (texts, files), to be evaluated on."""
        raise UserError(f"{type(self).__name__} has no make_dataset_from(data): give a split's name, or a vaak.Dataset")

    def prepare_for_check(self) -> None:
        """``prepare`` for ``vaak data check``: unusable data are reported by ``data_findings``, not raised."""
        self.prepare()

    def data_findings(self, split: str) -> Iterable[DataFinding]:
        """Return the task's findings on the prepared examples of a split (``vaak data check``).

        That they can be read, and have no NaN, needn't be checked here.
        """
        return ()

    # Training.

    def meta_model(self) -> nn.Module | None:
        """A model as large as the trained one may become, before any data are read; None if unknown."""
        return None

    def meta_batch(self) -> Batch | None:
        """A microbatch as large as one of training may become; None if unknown."""
        return None

    def model(self) -> nn.Module:
        missing(self, "model()")

    def loss_modules(self) -> dict[str, nn.Module]:
        """The loss functions that may have parameters or buffers, by name, the same objects each time.

        They are moved, trained and saved with the model.
        """
        return {}

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The modules that a model divided over processes is gathered by, one at a time.

        Each of them is called, and its parameters are used in no other way. Here, they are the elements of the lists of
        modules of one class that aren't within another one, if they have parts: a transformer's layers. Raises
        UserError where a model can't be divided: every batch has to pass through the same blocks.
        """
        from torch import nn

        lists = {
            name: list(module)
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len({type(one) for one in module}) == 1
            if not isinstance(module[0], nn.ModuleList | nn.ModuleDict)  # which are never called
        }
        outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
        blocks = [one for name in outer for one in lists[name]]
        return [one for one in blocks if {*one.children()} and any(True for _ in one.parameters())]

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """The named losses of a batch, each a sum with its unit; the engine weighs, normalises and adds them."""
        missing(self, "losses(model, batch)")

    def row_names(self) -> Mapping[str, Sequence[str]]:
        """Return names by kind (tokens, labels, speakers), each in the order of the rows of weights that it names.

        A run that begins with another's weights matches such rows by these names, not by their places.
        """
        return {}

    def named_rows(self, model: nn.Module) -> Iterable[tuple[Tensor | None, str]]:
        """The weights whose rows stand for something, each with the kind in ``row_names``; None for absent ones."""
        return ()

    def outputs(self) -> Outputs:
        """Describe the ``logits``; only a task that has both can be distilled."""
        raise UserError(f"{type(self).__name__} has no logits: a run of this task can neither teach nor be taught")

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The logits by the names of ``outputs().classes``, each ``(unit, ..., class)``, in the order of the rows.

        The model is called once, and as ``losses`` calls it.
        """
        missing(self, "logits(model, batch)")

    def readable_elsewhere(self, split: str) -> list[Any] | None:
        """The examples of a split for ``make_dataset_from``, for a teacher that reads otherwise; None: it can't."""
        return None

    def meters(self, split: str) -> Meters:
        missing(self, "meters(split)")

    def split_contents(self, split: str) -> SplitContents | None:
        """Return how much of a split was read and left out; None where that isn't known."""
        return None

    def baselines(self, split: str) -> Baselines:
        """Score methods without a network on a split, once data are prepared (``vaak baseline``)."""
        raise UserError(f"{type(self).__name__} has no baselines")

    def show(self, batch: Batch) -> list[str]:
        """A readable line for each row of a batch (its text, its speakers), or an empty list."""
        return []

    # Use.

    def predict(self, model: nn.Module, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return a trained model's predictions for new inputs."""
        raise UserError(f"{type(self).__name__} has no predict(model, inputs)")

    def refused_exports(self) -> dict[str, str]:
        """Formats that this run can't be written in, though the task has an ``export_FORMAT``, each with the reason."""
        return {}

    def refused_endpoints(self) -> dict[str, str]:
        """Endpoints that this run doesn't answer, though its task declares them (``SPEC``), each with the reason."""
        return {}

    def left_out_of_exports(self) -> list[str]:
        """Return the options of this run that no export can carry, one per line."""
        return []

    def samples(self, model: nn.Module) -> list[str]:
        """A few lines to look at after training."""
        return []

    def examples_to_try(self, number: int) -> list[tuple[str, str]]:
        """At most a ``number`` of validation texts, each with its reference, where evaluations keep no texts."""
        return []


class TaskWrapper:
    """A task that is another one except for what a subclass says."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)


def missing(whose: object, method: str) -> NoReturn:
    """Raises UserError naming a method that a subclass must define."""
    raise UserError(f"{type(whose).__name__} has no {method}, which vaak.core.task describes")


def require_dataset(value: object, where: str) -> None:
    """Raises UserError where what a task gave is not a dataset, or one without its lengths or its fingerprint."""
    if not hasattr(value, "example"):
        require_kind(value, Dataset, where)
    for name in ("lengths", "fingerprint"):
        if not hasattr(value, name):
            raise UserError(
                f"{where} gave {type_and_shape(value)} without {name}, which vaak.Dataset describes: set it"
            )
