"""Several tasks at once; each batch is handled by its own task.

- ``dataset``: the tasks' datasets one after another; a microbatch is of one task (data.py)
- ``model``: the tasks' models, with modules in common (model.py)
- ``losses``: TASK/loss per TASK/unit, so each is divided by its own count in the whole step
- ``meters``: each task's own metrics, and the weighted sum of their losses (metrics.py)
- ``predict``: of pairs of a task's name and its input
- exports: each task in a folder named after it, in a format that it has
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from vaak.config.experiment import Experiment
from vaak.config.tasks import task_class
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.errors import OptionError, UserError
from vaak.core.left_out import SplitContents, join_contents
from vaak.core.storage.files import whole_folder
from vaak.core.task import DataFinding, Meters
from vaak.core.task import Task as AnyTask
from vaak.engine.dry_pass import numberless
from vaak.engine.precision import keeping_generators
from vaak.nn.lora import merged
from vaak.nn.losses import auxiliary_losses
from vaak.runs.folder.directory import TASKS_FOLDER
from vaak.runs.prepared import prepared_folder
from vaak.runs.use import available_formats, declared_formats, explain_refusal, find_writer, usable_formats
from vaak.tasks.base import Task
from vaak.tasks.multitask.config import MultiTaskExperiment
from vaak.tasks.multitask.data import JointDataset, Shares, unwrap_batch
from vaak.tasks.multitask.metrics import JointMeters
from vaak.tasks.multitask.model import WEIGHTED, MultiTaskModel, Uncertainty
from vaak.tasks.multitask.spec import SPEC

log = logging.getLogger("vaak")
Weights = Mapping[str, float] | Literal["uncertainty"]


class JointTask(Task[Any]):
    """Tasks that are trained together, of which each microbatch has one.

    parts
        The tasks by name.
    weights
        Of their losses, by task, 1 where not given; or ``uncertainty``: they are learned.
    shared
        Modules that tasks have together: the name in the model of each task.
    shares
        How often each is trained on (``vaak.data.batching``); None: in proportion to its data.
    """

    def __init__(
        self,
        parts: Mapping[str, AnyTask],
        weights: Weights,
        shared: Sequence[Mapping[str, str]] = (),
        shares: Shares | None = None,
    ) -> None:
        self.inner_tasks, self.shared, self.shares = dict(parts), shared, shares
        self.uncertainty = Uncertainty(list(parts)) if weights == "uncertainty" else None
        self.weights: Mapping[str, float] = {} if isinstance(weights, str) else weights
        self.begins_pretrained = any(part.begins_pretrained for part in self.inner_tasks.values())
        first, *others = self.inner_tasks.values()
        self.evaluation_splits = tuple(
            split for split in first.evaluation_splits if all(split in part.evaluation_splits for part in others)
        )
        self._datasets: dict[str, JointDataset] = {}
        self._model: MultiTaskModel | None = None

    # Data.

    def sources(self) -> list[Path]:
        return [path for part in self.inner_tasks.values() for path in part.sources()]

    def corpora(self) -> NoReturn:
        raise UserError(
            f"several tasks ({', '.join(self.inner_tasks)}) aren't cross-validated together; run vaak crossval on the "
            "file of one"
        )

    def prepare(self) -> None:
        """Prepare the data of each task. Raises UserError for a task that can't be trained with others."""
        for name, part in self.inner_tasks.items():
            if part.objectives or part.logged_terms:
                what = "several objectives" if part.objectives else "weights that follow its terms"
                raise UserError(f"data.tasks.{name}: a model with {what} can't be trained with other tasks")
        for name, part in self.inner_tasks.items():
            with _naming_the_task(name):
                part.prepare()

    def split_contents(self, split: str) -> SplitContents | None:
        """Return the contents of all tasks, as examples; reasons for leaving out begin with the task's name."""
        found = {name: part.split_contents(split) for name, part in self.inner_tasks.items()}
        renamed = [
            SplitContents(
                "examples",
                one.number,
                {f"{name}: {why}": number for why, number in one.left_out.items()},
                {f"{name}: {why}": names for why, names in one.names.items()},
            )
            for name, one in found.items()
            if one is not None
        ]
        return join_contents(renamed) if renamed else None

    def prepare_for_check(self) -> None:
        for name, part in self.inner_tasks.items():
            with _naming_the_task(name):
                part.prepare_for_check()

    def dataset(self, split: str) -> JointDataset:
        if split not in self._datasets:
            datasets = {name: part.dataset(split) for name, part in self.inner_tasks.items()}
            self._datasets[split] = JointDataset(datasets, self.shares)
        return self._datasets[split]

    def data_findings(self, split: str) -> Iterator[DataFinding]:
        for name, part in self.inner_tasks.items():
            for found in part.data_findings(split):
                yield replace(found, example=f"{name}: {found.example}")

    # Training.

    def model(self) -> MultiTaskModel:
        self._model = MultiTaskModel(self.models_of_tasks(), self.shared)
        return self._model

    def models_of_tasks(self) -> dict[str, nn.Module]:
        """Return a new model of each task."""
        return {name: part.model() for name, part in self.inner_tasks.items()}

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        raise UserError(
            "training.distributed.strategy: fsdp isn't possible with several tasks: processes compute microbatches of "
            "different ones at a time, and a divided model needs all of them in the same layer; leave it at ddp"
        )

    def row_names(self) -> dict[str, Sequence[str]]:
        return {
            f"{name}: {kind}": own for name, part in self.inner_tasks.items() for kind, own in part.row_names().items()
        }

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        models: Any = model.tasks
        for name, part in self.inner_tasks.items():
            for weight, kind in part.named_rows(models[name]):
                yield weight, f"{name}: {kind}"

    def loss_modules(self) -> dict[str, nn.Module]:
        own = {} if self.uncertainty is None else {"uncertainty": self.uncertainty}
        further = {
            f"{name}_{key}": module
            for name, part in self.inner_tasks.items()
            for key, module in part.loss_modules().items()
        }
        return {**own, **further}

    @property
    def loss_weights(self) -> Mapping[str, float]:  # type: ignore[override]
        """The weight of every term; their names are found by computing an example of each task."""
        assert self._model is not None, "a model is made before its losses are weighed"
        weights: dict[str, float] = {}
        for name, part in self.inner_tasks.items():
            config = getattr(part, "experiment", None)
            own = auxiliary_losses(config.training.loss, part.auxiliary_losses) if config is not None else {}
            own |= dict(part.loss_weights)
            for term in _list_terms(part, self._model.tasks[name]):
                weight = own.get(term, 1.0)
                key = f"{name}/{term}"
                if self.uncertainty is None:
                    weights[key] = self.weights.get(name, 1.0) * weight
                else:
                    # The plain term is only logged; the one that is weighed by the learned uncertainty is trained.
                    weights |= {key: 0.0, key + WEIGHTED: weight}
        return weights

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        models: Any = model.tasks
        name, own = unwrap_batch(batch)
        found = self.inner_tasks[name].losses(models[name], own)
        terms = {f"{name}/{key}": replace(term, per=f"{name}/{term.per}") for key, term in found.items()}
        return terms if self.uncertainty is None else self.uncertainty(name, terms, batch)

    def meters(self, split: str) -> Meters:
        return JointMeters({name: part.meters(split) for name, part in self.inner_tasks.items()}, split, self.weights)

    def show(self, batch: Batch) -> list[str]:
        name, own = unwrap_batch(batch)
        return self.inner_tasks[name].show(own)

    # Use.

    def predict(self, model: nn.Module, inputs: Iterable[tuple[str, Any]], **options: Any) -> Iterator[Any]:
        """Yield predictions for inputs, each a pair of a task's name and what that task predicts from.

        ``options`` are those of each task's ``predict``. Raises UserError for another input, or another name.
        """
        models: Any = model.tasks
        inputs = map(self._require_pair, inputs)
        for name, group in groupby(inputs, key=lambda pair: pair[0]):
            yield from self.inner_tasks[name].predict(models[name], [one for _, one in group], **options)

    def _require_pair(self, given: Any) -> tuple[str, Any]:
        if not isinstance(given, tuple | list) or len(given) != 2 or given[0] not in self.inner_tasks:
            names = ", ".join(self.inner_tasks)
            raise UserError(f"{given!r} isn't a pair of a task's name ({names}) and what that task predicts from")
        return given[0], given[1]

    def refused_exports(self) -> dict[str, str]:
        found = {}
        for format in self.SPEC.exports:
            if not any(format in available_formats(part) for part in self.inner_tasks.values()):
                reasons = {name: explain_refusal(part, format) for name, part in self.inner_tasks.items()}
                found[format] = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return found

    def export_hf(self, model: nn.Module, folder: Path) -> None:
        """Write a folder for each task that transformers loads, or what the task has."""
        self._export(model, "hf", folder)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write a folder for each task that onnxruntime runs, or what the task has."""
        self._export(model, "onnx", folder)

    def export_peft(self, model: nn.Module, folder: Path) -> None:
        """Write a folder for each task with its low-rank adapters, or what the task has."""
        self._export(model, "peft", folder)

    def export_dcp(self, model: nn.Module, folder: Path) -> None:
        """Write a folder for each task with its weights."""
        self._export(model, "dcp", folder)

    def _export(self, model: nn.Module, format: str, folder: Path) -> None:
        """Write ``folder`` with a folder for each task, completely or not at all: in the format, or in one it has."""
        assert isinstance(model, MultiTaskModel)
        with whole_folder(folder) as made:
            for name, part in self.inner_tasks.items():
                formats, declared = available_formats(part), declared_formats(part)
                own = (
                    format if format in formats else next((one for one in usable_formats(part) if one != "peft"), None)
                )
                if own != format:
                    instead = f"it is written as {own}" if own else "it is left out"
                    log.warning("%s: --format %s: %s; %s", name, format, explain_refusal(part, format), instead)
                if own is not None:
                    inner = model.tasks[name] if declared[own].is_unmerged else merged(model.tasks[name])
                    find_writer(part, own)(inner, made / name)

    def samples(self, model: nn.Module) -> list[str]:
        models: Any = model.tasks
        return [f"{name}: {line}" for name, part in self.inner_tasks.items() for line in part.samples(models[name])]


@contextlib.contextmanager
def _naming_the_task(name: str) -> Iterator[None]:
    """Prefix the option of an error with the name of the task, in this context."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"data.tasks.{name}.{error.key}", error.problem) from error


@torch.no_grad()
def _list_terms(part: AnyTask, model: nn.Module) -> list[str]:
    """Return the names of a task's terms, by its first example of training."""
    dataset, weight = part.dataset("train"), next(model.parameters())
    modes = {module: module.training for module in model.modules()}
    # This look at an example must not change what training draws.
    with keeping_generators(weight.device):
        batch = dataset.collate([[dataset.example(0, np.random.default_rng(0))]]).to(weight.device)
        batch.indices = [[0]]
        batch.tensors = {
            name: tensor.to(weight.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in batch.tensors.items()
        }
        model.eval()
        terms = list(part.losses(model, batch))
    # Each module gets its own mode back: some may have been in evaluation mode before.
    for module, mode in modes.items():
        module.training = mode
    return terms


class MultiTask(JointTask):
    """The tasks of a YAML."""

    SPEC = SPEC

    def __init__(self, experiment: MultiTaskExperiment, directory: Path, folder: Path) -> None:
        self.experiment, self.directory, self.folder = experiment, directory, folder
        self.reference = experiment.reference
        experiments = experiment.data.inner_experiments
        # Modules that are shared read one vocabulary: that of the first task.
        tokenizer = next(iter(experiments)) if experiment.model.shared else None
        super().__init__(
            {name: self._part(name, own, tokenizer) for name, own in experiments.items()},
            experiment.model.loss_weights,
            [
                paths if isinstance(paths, dict) else dict.fromkeys(experiments, paths)
                for paths in experiment.model.shared
            ],
            _get_shares(experiment),
        )

    def _part(self, name: str, own: Experiment[Any, Any], tokenizer: str | None) -> AnyTask:
        """A task in the loop of all; its tokenizer is that of the task ``tokenizer``, where it reads with one."""
        loop = {key: getattr(self.experiment.training, key) for key in TrainingConfig.model_fields if key != "loss"}
        data, cache = own.data, self.experiment.data.cache_dir
        if cache is not None and getattr(data, "cache_dir", cache) is None:
            data = data.model_copy(update={"cache_dir": cache})
        if tokenizer not in (None, name) and getattr(data, "tokenizer", None) is not None:
            trained = prepared_folder(self.directory / TASKS_FOLDER / str(tokenizer)).resolve() / "tokenizer"
            data = data.model_copy(update={"tokenizer": data.tokenizer.model_copy(update={"path": str(trained)})})
        own = own.model_copy(update={"training": own.training.model_copy(update=loop), "data": data})
        task: AnyTask = task_class(own.reference)(own, self.directory / TASKS_FOLDER / name, self.folder)
        return task

    def prepare(self) -> None:
        with numberless(torch.device("cpu")):
            # Made only so that modules that can't be shared are reported here, and not after hours of preparation.
            self.meta_model()
        super().prepare()

    def meta_model(self) -> nn.Module | None:
        """Models as large as the trained ones may become; None if that of a task isn't known."""
        experiments = self.experiment.data.inner_experiments
        models = {name: self._part(name, own, None).meta_model() for name, own in experiments.items()}
        known = {name: model for name, model in models.items() if model is not None}
        return MultiTaskModel(known, self.shared) if len(known) == len(models) else None


def _get_shares(experiment: MultiTaskExperiment) -> Shares | None:
    """Return how often each task is trained on; None: in proportion to its data."""
    sampling = experiment.data.sampling
    if sampling.type == "proportional":
        return None
    if sampling.type == "temperature":
        return Shares(temperature=sampling.temperature)
    return Shares(annealed_over=sampling.epochs or experiment.training.epochs)
