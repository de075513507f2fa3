"""Estimates of a configuration's model size and of the cost of training it, before any data are read.

Memory is the state kept between steps, by the optimizer's rule (engine/forecast.py), plus the needs of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vaak.config.load import Loaded
from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.task import Task
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.dry_pass import NEEDS_NUMBERS, DryPass, dry_pass, numberless
from vaak.engine.forecast import StaticMemory, at_rest
from vaak.engine.memory import read_memory
from vaak.engine.optim.schedules import Freezing
from vaak.engine.precision import Precision
from vaak.engine.trained import require_shardable
from vaak.nn.nf4 import num_weights
from vaak.nn.recomputation import set_gradient_checkpointing
from vaak.nn.stack import set_variable_length
from vaak.runs.prepared import is_prepared


@dataclass(frozen=True)
class Branch:
    """A module, or ``repeats`` equal ones in a row: its own tensors, and the parameters in it that no line above had.

    ``same_as`` names the module of a line above that has this one's parameters.
    """

    depth: int
    name: str
    kind: str
    parameters: int
    tensors: dict[str, list[int]] = field(default_factory=dict)
    repeats: int = 1
    same_as: str | None = None


def model_tree(model: nn.Module) -> list[Branch]:
    """Return the lines of a model from its root down."""
    return list(_Walk().lines(model, "model", "", 0, 1))


class _Walk:
    """Goes down a model and remembers where each parameter was seen first."""

    def __init__(self) -> None:
        self.first_seen: dict[int, str] = {}

    def lines(self, module: nn.Module, name: str, path: str, depth: int, repeats: int) -> Iterator[Branch]:
        """Yield the line of a module, then those below it.

        ``module`` is called ``name`` in the module around it and is at ``path`` in the model, ``depth`` levels below
        it; ``repeats`` equal modules stand in this one line.
        """
        kind, parameters = type(module).__name__, list(module.parameters())
        # A parameter in two modules (tied embeddings) counts in the first that has it.
        seen = {self.first_seen[id(parameter)] for parameter in parameters if id(parameter) in self.first_seen}
        number = num_weights(p for p in parameters if id(p) not in self.first_seen)
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        own = {tensor_name: list(tensor.shape) for tensor_name, tensor in tensors}
        if parameters and not number:
            yield Branch(depth, name, kind, 0, own, repeats, " and ".join(sorted(seen)))
            return
        yield Branch(depth, name, kind, number * repeats, own, repeats)
        for parameter in module.parameters(recurse=False):
            self.first_seen.setdefault(id(parameter), path or name)
        for child_name, child, count in _children(module):
            yield from self.lines(child, child_name, f"{path}.{child_name}".lstrip("."), depth + 1, count)
        # Models of vaak.nn.models without a separate head use their embedding as one.
        if not depth and getattr(module, "head", module) is None:
            embeddings = [key for key, child in module.named_children() if isinstance(child, nn.Embedding)]
            yield Branch(1, "head", "Linear", 0, same_as=embeddings[0])


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the children that hold anything; equal ones in a row in a list count as one."""
    held = [
        (name, child)
        for name, child in module._modules.items()
        if child is not None and any(True for _ in (*child.parameters(), *child.buffers()))
    ]
    start = 0
    while start < len(held):
        end = start + 1
        if isinstance(module, nn.ModuleList):
            like = _signature(held[start][1])
            while end < len(held) and _signature(held[end][1]) == like:
                end += 1
        name = held[start][0] if end == start + 1 else f"{held[start][0]}–{held[end - 1][0]}"
        yield name, held[start][1], end - start
        start = end


def _signature(module: nn.Module) -> Any:
    """Return the type and shapes of a module, which modules have in common that are drawn alike."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return type(module), [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]


@dataclass(frozen=True)
class Gathered:
    """Numbers of a divided model that a process holds whole for a time: those outside blocks, and the largest block.

    ``size`` are the bytes of each in training; in an evaluation they have the stored fp32.
    """

    outside: int
    block: int
    size: int = 4

    @classmethod
    def of(cls, model: nn.Module, task: Task, precision: str) -> Gathered | None:
        """Those of a task's model, gathered in 16 bits where it computes so; None where it can't be divided."""
        try:
            require_shardable(task)
            blocks = task.blocks(model)
        except UserError:
            return None
        in_blocks = {id(one) for block in blocks for one in block.parameters()}
        return cls(
            sum(one.numel() for one in model.parameters() if id(one) not in in_blocks),
            max((sum(one.numel() for one in block.parameters()) for block in blocks), default=0),
            4 if precision == "no" else 2,
        )


@dataclass(frozen=True)
class ModelEstimate:
    """The model's tree and sizes; ``work`` is that of the largest microbatch, None where ``unknown`` says why not."""

    tree: list[Branch]
    parameters: int
    trained: int
    rows: int
    work: DryPass | None
    unknown: str
    at_rest: StaticMemory
    gathered: Gathered | None
    limit: int | None
    """Bytes of the device; None where this machine has no such device."""
    device: str
    precision: str

    @property
    def activations(self) -> int:
        """Peak bytes of a microbatch, in addition to the state kept between steps."""
        return max(0, self.work.peak_bytes - self.at_rest.gradients) if self.work else 0

    @property
    def needed(self) -> int | None:
        """Peak bytes of training; None where a microbatch's aren't known."""
        return self.at_rest.total + self.activations if self.work else None

    @property
    def flops(self) -> float | None:
        """Operations of training on one unit (token)."""
        return self.work.flops / self.work.count if self.work else None

    def estimate_on_each(self, processes: int) -> dict[str, int]:
        """Peak bytes of training on each of several processes, by ``training.distributed.strategy``.

        With fsdp, a block computes while the next one is gathered, and its whole gradient stays until it is added up.
        An evaluation holds a block, the received parts of one, and this process's own part. Activations of an
        evaluation, and those that aren't known, are left out.
        """
        gathered, kept = self.gathered, self.at_rest.of_each(processes)
        found = {strategy: kept[strategy] + self.activations for strategy in ("ddp", "zero1")}
        if gathered is not None:
            # Three blocks: the one that computes, the next one, and a whole gradient.
            training = gathered.size * (gathered.outside + 3 * gathered.block) + self.activations
            evaluation = 4 * (gathered.outside + 2 * gathered.block + -(-gathered.block // processes))
            found["fsdp"] = kept["fsdp"] + max(training, evaluation) if processes > 1 else found["ddp"]
        return found

    def as_json(self) -> dict[str, Any]:
        activations = self.activations if self.work else None
        memory = {**asdict(self.at_rest), "activations": activations, "needed": self.needed, "limit": self.limit}
        unit = self.work.unit if self.work else None
        return {
            "parameters": self.parameters,
            "trained": self.trained,
            "flops_per_unit": self.flops,
            "unit": unit,
            "microbatch_rows": self.rows,
            "memory_bytes": memory,
            "device": self.device,
            "precision": self.precision,
            "tree": [asdict(branch) for branch in self.tree],
        }


def describe_device(name: str) -> tuple[str, bool]:
    """Return the kind of device that ``training.device`` names, and whether this machine has one.

    A model is sized for other machines, too: on a laptop for a cluster's GPUs.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return (name, False) if not there.get(name, True) else (pick_device(name).type, True)


def plan_precision(name: str, kind: str, is_here: bool) -> Precision:
    """Return the precision of training on a kind of device, for dry passes, which compute shapes only.

    These run as on a CPU if this machine has no CUDA. A GPU that isn't here is taken to multiply bf16 in hardware, as
    all have since 2020.
    """
    if kind == "cuda" and is_here:
        return Precision(name, torch.device("cuda"))
    planned = Precision("no" if kind == "cuda" else name, torch.device("cpu"))
    if kind == "cuda":
        planned.name = "bf16" if name == "auto" else name
    return planned


def estimate_model(loaded: Loaded) -> ModelEstimate:
    """Estimate the size, work and memory of the model that would be trained, from shapes alone, in a second or two.

    Raises UserError for a task that can't describe its model before its data are prepared.
    """
    experiment, training = loaded.experiment, loaded.experiment.training
    task = loaded.task()
    kind, is_here = describe_device(training.device)
    precision = plan_precision(training.mixed_precision, kind, is_here)
    with numberless(precision.device) as fake:
        model = task.meta_model()
        if model is None and is_prepared(experiment.run_dir):
            model = task.model()
    if model is None:
        raise UserError(
            f"the model of {experiment.task}, its tokenizer's size included, is known once its data are "
            f"prepared: train it, then give {experiment.run_dir / 'config.yml'}"
        )
    # As in training: frozen parameters have no gradients, and checkpointed activations are recomputed.
    Freezing(model, training.freeze)
    set_gradient_checkpointing(model, training.performance.gradient_checkpointing)
    set_variable_length(model, training.performance.attention == "auto")
    rows, work, unknown = 0, None, f"the task {experiment.task} has no meta_batch"
    batch = task.meta_batch()
    if batch is not None:
        # The second microbatch finds the first one's gradients in memory; later ones add nothing.
        rows, passes = batch.num_rows, min(training.gradient_accumulation_steps, 2)
        work, unknown = _dry_run(fake, task, model, batch, precision, passes)
    parameters = list(model.parameters())
    return ModelEstimate(
        tree=model_tree(model),
        parameters=num_weights(parameters),
        trained=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        rows=rows,
        work=work,
        unknown=unknown,
        at_rest=at_rest(model, training),
        gathered=Gathered.of(model, task, precision.name),
        limit=read_memory(torch.device(kind)).limit if is_here else None,
        device=kind,
        precision=precision.name,
    )


def _dry_run(
    fake: FakeTensorMode, task: Task, model: nn.Module, batch: Batch, precision: Precision, passes: int
) -> tuple[DryPass | None, str]:
    """Return what ``passes`` forward and backward passes take, or None and the reason why that isn't known."""
    try:
        with fake:
            return dry_pass(fake, task, model, batch, precision, passes), ""
    except NEEDS_NUMBERS as error:
        return None, f"a shape depends on numbers ({str(error).partition(chr(10))[0]})"
    except DataError as error:
        # A classifier's losses, for example, depend on its classes.
        return None, f"they are known once there are data ({error})"
