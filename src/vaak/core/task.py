"""The interface of tasks: what the engine and the loader require of anything that is trained.

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
    """How a tensor of a batch is padded: with ``value`` at the end of ``axis``, up to at most ``longest``.

    ``training.batching.round_lengths`` counts positions of ``step`` elements.
    """

    value: float = 0
    axis: int = 1
    step: int = 1
    longest: int | None = None


MOST_AUDIO_WORKERS = 8
"""The maximum number of workers started by default, since each has its own cache of audio in memory."""


class Dataset:
    """The examples of one split, map-style, and how they are collated.

    lengths
        ``lengths[i]`` is an upper bound of example ``i``'s length (tokens, frames, seconds) after augmentation, known
        without loading it.
    fingerprint
        A hash of the content.
    strata
        The group of each example, ``(example,)``, for stratified plans; or None.
    parts
        The part of each example, ``(example,)``, a number from 0 on; or None. A microbatch has examples of one part.
    shares
        How many microbatches of each part an epoch has, or each step (``StepWeights``); see ``vaak.data.mixing``.
        None: one pass over each part.
    row_capacity
        The maximum length of a packed row; None if rows are never packed.
    draws_globally
        Whether ``example`` calls code that draws from the global generators of Python, NumPy or torch, as many
        libraries do. They are then seeded for each example; False saves that time.
    evaluation_budget
        For long examples: the maximum of rows times longest row in an evaluation batch.
    useful_workers
        The maximum number of workers that help, unless the options give a number; half of the cores are the other
        limit. 0: reading an example is faster than passing it between processes, or examples stay in memory once read.
        MOST_AUDIO_WORKERS if audio is read, augmented or turned into features.
    is_constant
        Whether an example is the same each time it is read, because ``example`` draws nothing.
    has_one_shape
        Whether the tensors of all examples have the same shapes, for which a compiler then makes kernels.
    length_of_position
        The length, in the unit of ``lengths``, of one position as ``training.batching.round_lengths`` counts them; 0
        if lengths don't depend on it.
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
        """Return example ``index``; every random choice must be drawn from ``rng``."""
        missing(self, "example(index, rng)")

    def collate(self, rows: list[list[Any]]) -> Batch:
        """Collate rows into a batch; a row is one example, or several if the plan packs them."""
        missing(self, "collate(rows)")

    @cached_property
    def longest(self) -> float:
        """The largest of ``lengths``."""
        return float(self.lengths.max())

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """Return how to pad the tensors of a batch that are as long as its longest example, by their names.

        Raises UserError if that isn't known.
        """
        raise UserError(
            f"training.batching.round_lengths: {type(self).__name__} doesn't say how its batches are padded; leave it "
            f"out, or write {type(self).__name__}.padding(batch)"
        )

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the difficulty of each example, ``(example,)``, higher for harder ones.

        ``measure`` is ``length``, or another measure of the task. Raises UserError for an unknown one.
        """
        if measure == "length":
            return self.lengths
        raise UserError(f"training.curriculum.difficulty: {type(self).__name__} has no measure {measure}")

    def describe(self, index: int) -> str:
        """Return where example ``index`` comes from (file, line, id), for error messages and records."""
        return f"example {index}"

    def list_bytes(self, indices: Sequence[int]) -> Iterable[tuple[Path, int, int]]:
        """Return the files that these examples are read from, with the first byte and the number of bytes; or none.

        Training by shards (``training.batching.shard_size``) reads them ahead, so they may be approximate.
        """
        return ()

    def get_content(self, index: int) -> str:
        """Return a text that is the same for equal examples, whichever model reads them; "" if unknown."""
        return ""


@dataclass(frozen=True)
class DataFinding:
    """A finding about an example before training; ``kind`` describes it in a word or two.

    A ``problem`` makes training fail or learn errors; a ``warning`` may be intended.
    """

    example: str
    kind: str
    message: str
    mark: Literal["problem", "warning"] = "problem"


class Meters:
    """Metrics of a split: sums over batches and ranks, divided once at the end.

    ``protocol`` has the conditions under which the metrics are computed (stride, normaliser, collar, split).
    """

    protocol: dict[str, str]

    def expect_rehearsal(self) -> None:
        """Expect a rehearsal, whose metrics are discarded, before the first update: outputs may be cut short.

        A model that hasn't learned to stop yet generates up to the maximum length, which takes minutes for nothing.
        """

    def update(self, model: nn.Module, batch: Batch) -> None:
        """Add the sums of a batch: all of them, or none if it raises."""
        missing(self, "update(model, batch)")

    def sums(self) -> dict[str, float]:
        """Return the sums so far, by name; those of ranks are added up."""
        missing(self, "sums()")

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the metrics computed from these sums, by name."""
        missing(self, "results(sums)")

    def pictures(self) -> dict[str, bytes]:
        """Return pictures of the evaluated examples: PNG files by name."""
        return {}

    def audio(self) -> dict[str, bytes]:
        """Return audio to listen to: WAV files by name."""
        return {}

    def tables(self) -> dict[str, str]:
        """Return CSV files by name, which ``vaak eval --output`` writes with the pictures."""
        return {}

    def seen(self) -> dict[str, list[Any]]:
        """Return lists of results of single examples, by name, as JSON; ``summary`` gets those of all processes."""
        return {}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        """Return the data of an evaluation that a run keeps for its report (``vaak.core.summaries``), as JSON.

        ``sums`` and ``seen`` are those of all processes. It stays small, however large the split is.
        """
        return {}


@dataclass(frozen=True)
class Baselines:
    """Metrics of simple methods without a neural network on a split, by the name of the method.

    They have the protocol and the names of ``Task.meters``. ``figure`` is the metric in which a model should beat them,
    and ``higher`` says whether higher values of it are better.
    """

    figure: str
    higher: bool
    figures: dict[str, dict[str, float]]


@dataclass(frozen=True)
class TunedScore:
    """The score of options on development data: in a few words, as a line, and as JSON."""

    short: str
    line: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class TunedOptions:
    """The options that ``vaak tune`` chose for a run, as returned by a task's method ``tune(model, split)``.

    ``section`` is their dotted key, such as ``data.inference``, and ``options`` has all options of it, as JSON.
    ``unit`` is the word for the examples in the plural, such as "recordings".
    """

    section: str
    options: Mapping[str, Any]
    num_examples: int
    unit: str
    before: TunedScore
    after: TunedScore


@dataclass(frozen=True)
class Outputs:
    """A description of the logits of a task's models, which decides whether one model can learn from another.

    ``classes`` has the names of the classes of each group of logits, in order. ``per`` is the unit for which one class
    is chosen. Models of two tasks with the same ``reading`` read the same batches. ``weights`` has the weights of
    groups in the loss that aren't 1.
    """

    classes: dict[str, list[str]]
    per: str
    reading: str
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """One of several objectives that every step optimises, one after another, each over its own parameters.

    ``modules`` names the modules of the model whose parameters it trains. ``losses(model, batch)`` returns its terms,
    as ``Task.losses`` does; objectives have different names of terms. In a step (``batch.step``) without terms, its
    parameters stay unchanged. ``first_pass`` is as in ``Task``.
    """

    name: str
    modules: tuple[str, ...]
    losses: Callable[[nn.Module, Batch], dict[str, Term]]
    first_pass: Callable[[nn.Module, Batch], FirstPass] | None = None


class Task:
    """One kind of model on one kind of data. The engine knows nothing else about it.

    A run makes it as ``Task(experiment, directory, folder)`` (``vaak.tasks.base``).

    evaluation_splits
        The splits that are evaluated during training, in this order.
    grouped_by
        The column whose values stay in one fold of a cross-validation, unless the user names another.
    reference
        The reference with which a configuration finds it (``Experiment.reference``); None for a task made by hand.
    auxiliary_losses
        Names of losses that training.loss.auxiliary may weigh.
    logged_terms
        Names of terms that aren't trained on: sums over the step for logs, and for modules with ``follow_step``.
    first_pass
        For a loss that depends on sums over the whole step that only the model can compute: returns these sums for a
        batch. It is called without gradients on every microbatch of a step, or its chunks, before ``losses``. None for
        most tasks.
    objectives
        The objectives of a task that has several in one step (a discriminator's, then its generator's), instead of
        ``losses``. Each uses the weights that those before it have updated. The step is all or nothing: if a later
        objective fails, or its gradient isn't finite, the updates of the earlier ones are rolled back.
    loss_weights
        Weights of losses that no option sets; the default is 1.
    begins_pretrained
        Whether its model starts from pretrained weights, so that it is evaluated before the first step.
    predict_files
        For a task whose inputs are files: ``predict_files(model, paths, batch_size)`` yields each path with its
        prediction, or with the UserError for a file that can't be read. None: ``predict`` gets the inputs themselves.
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
        """Return the files that ``prepare`` reads. Raises DataError for one that doesn't exist."""
        return []

    def corpora(self) -> Sequence[SplitCorpus[Any, Any, Any]]:
        """Return the corpora that ``prepare`` reads, for cross-validation; their sections are ``DividedSection``."""
        raise UserError(f"{type(self).__name__} has no corpora(), so it can't be cross-validated")

    def examples_at_most(self) -> Iterator[float] | None:
        """Yield the maximum number of examples from each item of the training sources; None: unknown until prepared."""
        return None

    def longest_example(self) -> float | None:
        """Return the maximum length of a training example; None: unknown until prepared."""
        return None

    def prepare(self) -> None:
        """Prepare what training reads (tokenizer, features, manifests). Idempotent; called on the main process only."""

    def prepare_base(self) -> None:
        """Prepare what comes with a pretrained model that is used untrained, such as its tokenizer, without data."""

    def prepare_eval_data(self, own: Any, folder: Path, splits: tuple[str, ...]) -> None:
        """Prepare ``splits`` of this task's data in ``folder``, to evaluate a run on other data than its own.

        ``own`` is the run's experiment, whose tokenizer, speakers and other artifacts are reused.
        """
        raise UserError(f"{type(self).__name__} has no prepare_eval_data: it is evaluated on the run's own data only")

    def dataset(self, split: str) -> Dataset:
        missing(self, "dataset(split)")

    def make_dataset_from(self, data: Any) -> Dataset:
        """Return a dataset of examples that were never prepared (texts, files), for an evaluation."""
        raise UserError(f"{type(self).__name__} has no make_dataset_from(data): give a split's name, or a vaak.Dataset")

    def prepare_for_check(self) -> None:
        """Prepare for ``vaak data check``: unusable data are reported by ``data_findings``, instead of raised."""
        self.prepare()

    def data_findings(self, split: str) -> Iterable[DataFinding]:
        """Return the task's findings about the prepared examples of a split (``vaak data check``).

        It needn't check whether they can be read, or have NaN.
        """
        return ()

    # Training.

    def meta_model(self) -> nn.Module | None:
        """Return a model as large as the trained one may become, before any data are read; None if unknown."""
        return None

    def meta_batch(self) -> Batch | None:
        """Return a microbatch as large as one of training may become; None if unknown."""
        return None

    def model(self) -> nn.Module:
        missing(self, "model()")

    def loss_modules(self) -> dict[str, nn.Module]:
        """Return the loss functions that may have parameters or buffers, by name; always the same objects.

        They are moved, trained and saved with the model.
        """
        return {}

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules whose parameters are gathered one at a time if the model is divided over processes.

        Each is called in every forward pass, and its parameters are used in no other way. By default these are the
        elements of outermost lists of modules of one class that have submodules, such as a transformer's layers. Raises
        UserError for a model that can't be divided, because batches don't all pass through the same blocks.
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
        """Return the losses of a batch by name, each a sum with its unit; the engine weighs, divides and adds them."""
        missing(self, "losses(model, batch)")

    def row_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names of rows of weights, by kind (tokens, labels, speakers), in the order of the rows.

        A run that starts from another run's weights matches such rows by name, not by index.
        """
        return {}

    def named_rows(self, model: nn.Module) -> Iterable[tuple[Tensor | None, str]]:
        """Return the weights whose rows have names, each with their kind in ``row_names``; None for absent weights."""
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
        """Return how much of a split was read and left out; None if that isn't known."""
        return None

    def baselines(self, split: str) -> Baselines:
        """Score methods without a network on a split, once data are prepared (``vaak baseline``)."""
        raise UserError(f"{type(self).__name__} has no baselines")

    def show(self, batch: Batch) -> list[str]:
        """Return a readable line for each row of a batch (its text, its speakers), or an empty list."""
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
        """Return a few lines to look at after training."""
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
    """Raises UserError if what a task gave is not a dataset, or one without its lengths or its fingerprint."""
    if not hasattr(value, "example"):
        require_kind(value, Dataset, where)
    for name in ("lengths", "fingerprint"):
        if not hasattr(value, name):
            raise UserError(
                f"{where} gave {type_and_shape(value)} without {name}, which vaak.Dataset describes: set it"
            )
