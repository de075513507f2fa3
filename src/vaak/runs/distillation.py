"""Knowledge distillation: a task that also learns what a teacher, a run trained before, predicts.

    loss = alpha · T² · KL(teacher, student) per unit + (1 - alpha) · the task's own loss + auxiliary losses

Auxiliary are differences of hidden states. Everything else is as in the task itself: evaluations give the metrics of
the labels. The teacher's predictions for every training example may be made once and kept:

FOLDER (RUN/teacher, or CACHE_DIR/FINGERPRINT)
  logits.f32      the logits of unit after unit, all groups next to each other
  places.npy      (example, 2): the first unit of each example in it, and how many it has
  prepared.json   the fingerprint of weights and data, the shapes of the groups; written last: it means "complete"
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.config.experiment import DistillationConfig, Experiment, HiddenConfig
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.machine import GIB
from vaak.core.names import list_names, require_known
from vaak.core.progress import track
from vaak.core.random_keys import Purpose
from vaak.core.storage.files import compute_fingerprint, read_json, write_json
from vaak.core.task import Dataset, Outputs, Task, TaskWrapper
from vaak.data.batching import evaluation_plan
from vaak.data.loader import MicrobatchReader, evaluation_addresses
from vaak.engine.checkpoint.files import about_checkpoint
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.precision import keeping_generators
from vaak.nn.losses import divergence, hidden_difference
from vaak.runs.open_run import open_run
from vaak.runs.prepared import Recipe, artifact_in, prepare_folder

TERM, HIDDEN_TERM = "distillation", "hidden"


def distilled(task: Task, experiment: Experiment[Any, Any], directory: Path) -> Task:
    """Return the task as the experiment trains it: with a teacher, if it has one."""
    return cast("Task", DistilledTask(task, experiment, directory)) if experiment.distillation else task


class DistilledTask(TaskWrapper):
    """A task with a teacher."""

    def __init__(self, task: Task, experiment: Experiment[Any, Any], directory: Path) -> None:
        super().__init__(task)
        assert experiment.distillation is not None
        self.options: DistillationConfig = experiment.distillation
        self.experiment, self.directory = experiment, directory
        self.loss_weights: Mapping[str, float] = {}
        self._hidden: HiddenLoss | None = None

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher. Raises UserError if this task can't learn from it."""
        teacher = Teacher.open(self.options.teacher)
        teacher.require_same_classes(self.outputs)
        return teacher

    @cached_property
    def outputs(self) -> Outputs:
        return self.task.outputs()

    # Data.

    def prepare(self) -> None:
        """Prepare the data, and the teacher's predictions for them, where these are stored."""
        self.task.prepare()
        self._require_teacher_of_this_run()
        dataset = self.task.dataset("train")
        examples = self.teacher.examples(self.task, self.outputs, dataset)
        if self.is_stored:
            store(self.teacher, examples, self._folder, self.experiment.training)
        elif examples is not dataset:
            what = "hidden states are learned" if self.options.hidden else "distillation.stored_gib is too small"
            raise UserError(
                f"{TEACHER_KEY}: {self.teacher.source} reads other batches than this run, which it can only where its "
                f"predictions are stored, and {what}: give both the same tokenizer, max_length, "
                "bos_in_windows and kind of model"
            )

    def _require_teacher_of_this_run(self) -> None:
        """Write down which weights teach. Raises UserError if a run that has begun would resume with others."""
        file = self.directory / "teacher.json"
        about = {"teacher": self.options.teacher, "weights": self.teacher.weights, "source": str(self.teacher.source)}
        if file.exists() and list_checkpoints(self.directory / "checkpoints"):
            before = read_json(file)
            # Compare weights, not the path: a run stands for its best checkpoint, which changes while that run trains.
            if before["weights"] != about["weights"]:
                raise UserError(
                    f"{TEACHER_KEY}: {self.options.teacher} has other weights than when this run began (then "
                    f"{before['source']}): name that checkpoint, if it is still there, or start a new run"
                )
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(file, about)

    @cached_property
    def is_stored(self) -> bool:
        """Whether the teacher's predictions are stored: a function of options and data alone."""
        dataset = self.task.dataset("train")
        if self.options.hidden or not dataset.is_constant:
            return False
        return estimate_size(dataset, self.outputs) <= self.options.stored_gib * GIB

    @cached_property
    def _folder(self) -> Path:
        """The folder of its stored predictions: with a cache, next to prepared data."""
        cache = getattr(self.experiment.data, "cache_dir", None)
        if cache is None:
            return self.directory / "teacher"
        known = [self.teacher.weights, self.task.dataset("train").fingerprint, self.outputs.reading]
        return Path(cache) / f"teacher-{compute_fingerprint(known)}"

    @cached_property
    def stored(self) -> Stored:
        """The predictions on disk."""
        return Stored.open(self._folder)

    # Training.

    def model(self) -> nn.Module:
        """Return the student; by one example, the names of its losses and the widths of hidden states are found."""
        model = self.task.model()
        with keeping_generators(torch.device("cpu")):
            self._look_at(model)
        return model

    @torch.no_grad()
    def _look_at(self, model: nn.Module) -> None:
        dataset = self.task.dataset("train")
        batch = dataset.collate([[dataset.example(0, np.random.default_rng(0))]])
        batch.indices = [[0]]
        # Only names and widths are wanted: in eval mode this pass moves no running statistics.
        model.eval()
        with captured(model, [one.student for one in self.options.hidden]) as own:
            terms = self.task.losses(model, batch)
        model.train()
        # Auxiliary losses keep their own weights; alpha divides only what the labels and what the teacher teaches.
        further = {*self.experiment.training.loss.auxiliary, *self.task.logged_terms}
        labels = dict.fromkeys((name for name in terms if name not in further), 1 - self.options.alpha)
        self.loss_weights = {**labels, TERM: self.options.alpha}
        if self.options.hidden:
            if UNIT not in batch.counts:
                raise UserError(f"{HIDDEN_KEY}: the batches of this task don't count positions; leave it out")
            _, other = self._taught(batch)
            self._hidden = HiddenLoss(self.options.hidden, own, other)

    def loss_modules(self) -> dict[str, nn.Module]:
        return {**self.task.loss_modules(), **({HIDDEN_TERM: self._hidden} if self._hidden is not None else {})}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        # The task needs the model's output twice, for its losses and its logits. Another pass would cost time and have
        # other dropout.
        once = CachedForward(model)
        with captured(model, [one.student for one in self.options.hidden]) as own:
            terms = self.task.losses(once, batch)
        found = in_order(self.task.logits(once, batch), self.outputs)
        wanted, other = self._taught(batch)
        parts = zip(self.outputs.classes, found, wanted, strict=True)
        total = sum(
            self.outputs.weights.get(name, 1.0) * divergence(one, two, self.options.temperature)
            for name, one, two in parts
        )
        terms[TERM] = Term(cast("Tensor", total), self.outputs.per)
        if self._hidden is not None:
            terms[HIDDEN_TERM] = Term(self._hidden(own, other, batch), UNIT)
        return terms

    def _taught(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Return the teacher's logits of a batch, and its hidden states: as they were stored, or computed."""
        if self.is_stored:
            return self.stored.of(batch), []
        with captured(self.teacher.move_to(batch), [one.teacher for one in self.options.hidden]) as hidden:
            logits = self.teacher.logits(batch)
        return in_order(logits, self.outputs), hidden


HIDDEN_KEY = "distillation.hidden"
UNIT = "position"
"""The unit of hidden states, which batches count: rows are padded on the right."""


class CachedForward(nn.Module):
    """A model that is called once: called again, it gives what it gave."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.given: list[Any] = []

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if not self.given:
            self.given.append(self.model(*inputs, **options))
        return self.given[0]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


@contextlib.contextmanager
def captured(model: nn.Module, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """Within this context, the outputs of these modules are put in the list, in the order of the names.

    Raises UserError for a name that no module has, or for one that gives something else than ``(row, time, width)``.
    """
    found: dict[int, Tensor] = {}
    outputs: list[Tensor] = []
    modules = {name: module for name, module in model.named_modules() if name}
    what = f"{HIDDEN_KEY}: {type(model).__name__} has no module"
    require_known(names, modules, what, remedy="see vaak model show", error=UserError)
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(names):
            # The default holds this turn's number; a closure would see the last one's.
            def keep(_: nn.Module, __: Any, output: Any, number: int = number) -> None:
                if not isinstance(output, Tensor) or output.ndim != 3:
                    what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                    raise UserError(
                        f"{HIDDEN_KEY}: {names[number]} gives {what}; expected a module that gives (row, time, width)"
                    )
                found[number] = output

            stack.callback(modules[name].register_forward_hook(keep).remove)
        yield outputs
        missing = [name for number, name in enumerate(names) if number not in found]
        if missing:
            raise UserError(f"{HIDDEN_KEY}: {list_names(missing)} isn't called when the model predicts; name another")
        outputs += [found[number] for number in range(len(names))]


class HiddenLoss(nn.Module):
    """The weighted sum of the differences of hidden states; the student's are projected where widths differ."""

    def __init__(self, options: Sequence[HiddenConfig], student: Sequence[Tensor], teacher: Sequence[Tensor]) -> None:
        """``student`` and ``teacher`` are hidden states of one batch."""
        super().__init__()
        self.weights = [one.weight for one in options]
        widths = [(own.shape[2], other.shape[2]) for own, other in zip(student, teacher, strict=True)]
        self.projections = nn.ModuleList(
            nn.Identity() if one == other else nn.Linear(one, other, bias=False) for one, other in widths
        )

    def forward(self, student: Sequence[Tensor], teacher: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the sum over real positions."""
        total = torch.zeros((), device=student[0].device)
        for weight, project, own, other in zip(self.weights, self.projections, student, teacher, strict=True):
            total = total + weight * hidden_difference(project(own), other, batch.counts[UNIT])
        return total


TEACHER_KEY = "distillation.teacher"
READ_IN_USE = ("model.safetensors", "frozen.safetensors", "average.safetensors")


@dataclass(frozen=True)
class Teacher:
    """A trained model in evaluation mode; ``weights`` hashes its weights, ``source`` is where they are from."""

    task: Task
    model: nn.Module
    weights: str
    source: Path

    @classmethod
    def open(cls, run: str) -> Teacher:
        """Return the teacher of a run or a checkpoint, on the CPU. Raises UserError if it can't be opened."""
        with keeping_generators(torch.device("cpu")):
            try:
                opened = open_run(Path(run).expanduser(), device="cpu")
            except UserError as error:
                raise UserError(f"{TEACHER_KEY}: {error}") from error
        files = about_checkpoint(opened.checkpoint)["files"]
        mark = compute_fingerprint([opened.weights, *(files[name]["sha256"] for name in READ_IN_USE if name in files)])
        return cls(opened.task, opened.model.requires_grad_(False), mark, opened.checkpoint)

    @torch.no_grad()
    def logits(self, batch: Batch) -> dict[str, Tensor]:
        """Return its logits by output, on the device of the batch."""
        return self.task.logits(self.move_to(batch), batch)

    def move_to(self, batch: Batch) -> nn.Module:
        """Return the model, moved to where the batch is."""
        device = next(iter(batch.tensors.values())).device
        if next(self.model.parameters()).device != device:
            self.model.to(device)
        return self.model

    def outputs(self) -> Outputs:
        """Raises UserError for a teacher without logits."""
        return self.task.outputs()

    def require_same_classes(self, student: Outputs) -> None:
        """Raises UserError if it chooses between other things than the student."""
        own = self.outputs()
        if list(own.classes) != list(student.classes):
            raise UserError(
                f"{TEACHER_KEY}: {self.source} predicts {', '.join(own.classes)}, and this run "
                f"{', '.join(student.classes)}: "
                "teacher and student must be of the same task and label columns"
            )
        for name, classes in student.classes.items():
            if own.classes[name] != classes:
                raise UserError(
                    f"{TEACHER_KEY}: {self.source} has other classes of {name} than this run "
                    f"({_difference(own.classes[name], classes)}): train both on the same labels and vocabulary"
                )

    def examples(self, student: Task, own: Outputs, dataset: Dataset) -> Dataset:
        """Return the student's training examples as the teacher reads them: the same, where both read alike.

        Raises UserError if it reads otherwise, and can't read these.
        """
        if self.outputs().reading == own.reading:
            return dataset
        rows = student.readable_elsewhere("train") if dataset.is_constant else None
        if rows is None:
            what = "whose examples are augmented" if not dataset.is_constant else "whose examples it can't read again"
            raise UserError(
                f"{TEACHER_KEY}: {self.source} reads other batches than this run, {what}: give "
                "both the same tokenizer, max_length, bos_in_windows and kind of model"
            )
        return self.task.make_dataset_from(rows)


def _difference(teacher: list[str], student: list[str]) -> str:
    """Return, in words, where two lists of classes differ."""
    for number, (one, other) in enumerate(zip(teacher, student, strict=False)):
        if one != other:
            return f"number {number} is {one!r} there and {other!r} here"
    return f"{len(teacher):,} there, {len(student):,} here"


def in_order(found: Mapping[str, Tensor], outputs: Outputs) -> list[Tensor]:
    """Logits in the order of their names, each with its unit first."""
    return [found[name] for name in outputs.classes]


LOGITS, PLACES_FILE = "logits.f32", "places.npy"


def estimate_size(dataset: Dataset, outputs: Outputs) -> float:
    """About how many bytes the predictions for all examples take, judged by the longest."""
    longest = int(np.argmax(dataset.lengths))
    units = dataset.collate([[dataset.example(longest, np.random.default_rng(0))]]).totals().get(outputs.per, 1.0)
    width = sum(map(len, outputs.classes.values()))
    return 4.0 * width * units * float(np.sum(dataset.lengths, dtype=np.float64)) / float(dataset.lengths[longest])


def store(teacher: Teacher, dataset: Dataset, folder: Path, config: TrainingConfig) -> None:
    """Write the predictions for all examples, unless those of the same weights and data are there."""
    mark = compute_fingerprint([teacher.weights, dataset.fingerprint])
    make = partial(_make, teacher, dataset, config)
    prepare_folder(Recipe(make, lambda: mark, {}), folder)


def _make(teacher: Teacher, dataset: Dataset, config: TrainingConfig, folder: Path) -> dict[str, Any]:
    reader = MicrobatchReader(dataset, (Purpose.EVALUATION, "teacher"), 0, skip_bad=True)
    batch_size, device = config.validation.batch_size or config.batch_size, pick_device(config.device)
    plan, outputs = evaluation_plan(dataset.lengths, batch_size, dataset.evaluation_budget), teacher.outputs()
    places = np.zeros((len(dataset.lengths), 2), dtype=np.int64)
    shapes: list[list[int]] = []
    first = 0
    with open(folder / LOGITS, "wb") as file:
        for address in track(evaluation_addresses(plan, 0, 1), "the teacher's predictions", len(plan)):
            batch = reader[address].batch
            if batch is None:
                continue
            groups = in_order(teacher.logits(batch.to(device)), outputs)
            shapes = [list(group.shape[1:]) for group in groups]
            # Appended as raw numbers: the array may not fit into memory, and is read through a memory map.
            file.write(torch.cat([group.flatten(1) for group in groups], 1).float().cpu().numpy().tobytes())
            for (index,), units in zip(batch.indices, batch.counts[outputs.per].tolist(), strict=True):
                places[index] = first, units
                first += units
    np.save(folder / PLACES_FILE, places)
    return {"shapes": shapes, "units": first}


@dataclass(frozen=True)
class Stored:
    """Stored predictions: ``logits`` ``(unit, all classes)`` of the groups whose ``shapes`` a unit has."""

    logits: np.ndarray
    places: np.ndarray
    shapes: list[list[int]]

    @classmethod
    def open(cls, folder: Path) -> Stored:
        about = artifact_in(folder).read()
        width = sum(int(np.prod(shape)) for shape in about["shapes"])
        logits = np.memmap(folder / LOGITS, dtype=np.float32, mode="r", shape=(about["units"], width))
        return cls(logits, np.load(folder / PLACES_FILE), about["shapes"])

    def of(self, batch: Batch) -> list[Tensor]:
        """Return the logits of each group for the units of a batch, on its device."""
        places = self.places[list(itertools.chain.from_iterable(batch.indices))]
        units = np.concatenate([np.arange(first, first + number) for first, number in places])
        found = torch.from_numpy(self.logits[units]).to(next(iter(batch.tensors.values())).device)
        parts = found.split([int(np.prod(shape)) for shape in self.shapes], dim=1)
        return [part.reshape(len(units), *shape) for part, shape in zip(parts, self.shapes, strict=True)]
