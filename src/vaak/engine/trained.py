"""The model, loss functions and objectives that a run trains; and its state, step and weights at the start.

New weights are randomly initialised by the task, or another run's. ``training.checkpoint.init_except`` names what is
not taken over: the head of a model that is to learn other classes. ``init_rename`` gives the other run's parameters the
names that they have in this model.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vaak.config.training import CheckpointConfig, TrainingConfig
from vaak.core.batch import require_kind
from vaak.core.errors import CheckpointError, UserError
from vaak.core.matching import quote_names
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Objective, Task
from vaak.engine.callback import Callback
from vaak.engine.checkpoint.dcp import is_dcp, read_dcp
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint
from vaak.engine.distributed.exchange import OwnGradients
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.distributed.sharding import (
    DividedUpdate,
    ShardedGradients,
    ShardedModel,
    assign_to_ranks,
    made_in_parts,
    slice_for_rank,
)
from vaak.engine.gradient import (
    Forward,
    GradientPass,
    ObjectiveRunner,
    Replayed,
    list_objectives,
    list_parameters,
)
from vaak.engine.graphs import ShapeGraphs
from vaak.engine.memory import keep_freed_memory
from vaak.engine.non_finite import Diagnosis
from vaak.engine.optim.optimizer_state import OptimizerStates, WeightAverage
from vaak.engine.optim.optimizers import NamedParameter, build_parameter_optimizers, check_groups, trained_parameters
from vaak.engine.optim.schedules import Freezing, Plateau, compile_pattern, make_schedule
from vaak.engine.phases import Clock, Phases
from vaak.engine.precision import LossScale, Precision, make_deterministic, seed_everything
from vaak.engine.snapshot import load_weights, model_tensors
from vaak.engine.state import Best, CallbackStates, ChunkRules, LastEvaluation, Position, State, Weights
from vaak.engine.step import Step
from vaak.engine.training_data import TrainingData
from vaak.nn.lora import added_by_lora, take_lengths, without_lora
from vaak.nn.new_tokens import take_new_rows
from vaak.nn.stack import RECOMPUTES, set_gradient_checkpointing, set_variable_length

LOSS_PREFIX = "loss."
"""The prefix of the names of loss functions' parameters, which may coincide with the model's."""
log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Trained:
    """A model as saved (``module``) and as called (``forward``), with its trained parameters.

    ``parameters`` are those of each objective. ``folder`` is where a user's ``./file.py`` is looked for. Divided over
    ranks, ``forward`` is a ``ShardedModel``; where only the update is, ``updated`` is this rank's part. ``graphs`` are
    those that are captured in training.
    """

    module: nn.Module
    forward: nn.Module
    losses: nn.ModuleDict
    freezing: Freezing | None
    objectives: tuple[Objective, ...]
    parameters: tuple[list[NamedParameter], ...]
    folder: Path
    updated: frozenset[nn.Parameter] | None = None
    graphs: ShapeGraphs | None = None

    @property
    def all_parameters(self) -> list[NamedParameter]:
        return [item for own in self.parameters for item in own]

    def independent(self, average: WeightAverage | None = None) -> contextlib.AbstractContextManager[nn.Module]:
        """Within this context, a model that each rank may call as it likes, or not; with averages of weights if given.

        Where it is divided over ranks, every rank enters, and leaves when all are done.
        """
        if isinstance(self.forward, ShardedModel):
            return self.forward.independent(average.state_dict() if average else {})
        return self._averaged(average) if average else contextlib.nullcontext(self.module)

    @contextlib.contextmanager
    def _averaged(self, average: WeightAverage) -> Iterator[nn.Module]:
        with average.applied():
            yield self.module

    def gradients(self, parameters: Sequence[nn.Parameter], ranks: Ranks, reduction: str) -> OwnGradients:
        """Return the holder of these parameters' gradients."""
        if isinstance(self.forward, ShardedModel):
            return ShardedGradients(parameters, self.forward)
        if self.updated is not None:
            return DividedUpdate(parameters, ranks)
        return ranks.gradients(parameters, reduction)


def make_model(task: Task) -> nn.Module:
    """The model that a task makes. Raises UserError where it makes none."""
    model = task.model()
    require_kind(model, nn.Module, f"{type(task).__name__}.model()", "a torch.nn.Module")
    return model


def make_trained(
    task: Task,
    config: TrainingConfig,
    ranks: Ranks,
    precision: str,
    folder: Path = Path(),
    has_one_shape: bool = False,
) -> Trained:
    """The task's model on its device, or this rank's part of it, as the random seed makes it.

    It is compiled, if at all, for batches of any shape, or for each, where examples have one (``has_one_shape``).

    Raises UserError where nothing is trained, objectives don't share the parameters out among them, or the model can't
    be divided over ranks as the config asks. ``precision`` is that of forward passes.
    """
    device = ranks.device
    make_deterministic(config, device)
    keep_freed_memory(device)
    seed_everything(draw_key(Purpose.INITIALISE, config.random_seed), device)
    is_sharded, parts = config.distributed.strategy == "fsdp" and ranks.world_size > 1, None
    if is_sharded:
        # It may not fit anywhere whole.
        num_parts = config.distributed.shard_size or ranks.world_size
        model, parts, why = made_in_parts(partial(make_model, task), ranks.rank % num_parts, num_parts)
        if parts is None and ranks.is_main:
            log.info("at the start, each process has the whole model for a moment: %s", why)
    else:
        model = make_model(task).to(device)
    # What from_pretrained gives is in evaluation mode, without dropout.
    model.train()
    recompute = config.performance.gradient_checkpointing
    if not set_gradient_checkpointing(model, recompute) and recompute:
        log.warning("%s has no effect: the model has no stack of vaak.nn", RECOMPUTES)
    set_variable_length(model, config.performance.attention == "auto")
    if config.distributed.reduction == "exact":
        require_no_running_statistics(model)
    losses = nn.ModuleDict(task.loss_modules()).to(device)
    freezing = Freezing(model, config.freeze) if config.freeze else None
    compiler = _make_compiler(config, has_one_shape)
    forward: nn.Module = model
    if is_sharded:
        require_shardable(task)
        blocks = task.blocks(model)
        forward = ShardedModel(model, blocks, ranks, config.distributed, precision, parts)
        if compiler is not None:
            forward.compile_blocks(blocks, compiler)
    elif compiler is not None:
        forward = compiler(model)
    objectives = list_objectives(task, model)
    named = {id(item.parameter): item for item in trained_parameters(model)}
    parameters = [[named[id(one)] for one in list_parameters(objective, model)] for objective in objectives]
    extra = [
        NamedParameter(LOSS_PREFIX + item.name, item.parameter, item.module, item.is_embedding, item.is_head)
        for item in trained_parameters(losses)
    ]
    if extra and len(objectives) > 1:
        raise UserError(
            f"the loss functions' parameters ({extra[0].name}, ...) belong to no objective: make them part of the model"
        )
    parameters[0] += extra
    check_groups([item for own in parameters for item in own], config.optimizer)
    updated = None
    if config.distributed.strategy == "zero1" and ranks.world_size > 1:
        divided = (assign_to_ranks([item.parameter for item in own], ranks.world_size) for own in parameters)
        updated = frozenset(one for parts in divided for one in parts[ranks.rank])
    graphs = _make_graphs(config, device)
    return Trained(model, forward, losses, freezing, objectives, tuple(parameters), folder, updated, graphs)


def _make_graphs(config: TrainingConfig, device: torch.device) -> ShapeGraphs | None:
    """Return where CUDA graphs of training are kept; None where none are asked for, or the device has none."""
    if not config.performance.cuda_graphs:
        return None
    if device.type != "cuda":
        log.warning("training.performance.cuda_graphs has no effect on %s: CUDA alone has graphs", device.type)
        return None
    return ShapeGraphs(device, config.performance.cuda_graph_shapes, config.deterministic)


def require_shardable(task: Task) -> None:
    """Raise UserError for a task whose steps a model that is divided over ranks can't take."""
    why = "descends on several objectives in a step" if len(task.objectives) > 1 else ""
    why = "has a first pass over each step" if task.first_pass is not None else why
    if any(True for module in task.loss_modules().values() for _ in module.parameters()):
        why = "has loss functions with parameters"
    if why:
        raise UserError(f"training.distributed.strategy: fsdp isn't possible here: this task {why}; leave it at ddp")


def require_no_running_statistics(model: nn.Module) -> None:
    """Raise UserError for a module whose state follows each forward pass: a rank has seen its own alone."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise UserError(
                f"training.distributed.reduction: exact isn't possible with {name} ({type(module).__name__}): its "
                "statistics depend on the batches of one process; use another norm, or leave reduction at float"
            )


def make_state(
    trained: Trained,
    config: TrainingConfig,
    precision: Precision,
    chunk_rules: ChunkRules,
    callbacks: Sequence[Callback],
) -> State:
    """The state at the start of a run.

    ``trained`` has the modules and their parameters, ``config`` the optimizer and all else that has a state,
    ``precision`` whether the loss is scaled. ``chunk_rules`` say how microbatches are split, and ``callbacks`` may have
    a state, too.
    """
    everything = trained.all_parameters
    names = {item.parameter: item.name for item in everything}
    optimizers = [build_parameter_optimizers(own, config.optimizer, trained.folder) for own in trained.parameters]
    # averages cover only these: parameters that training never changes equal their average
    own = [item.parameter for item in everything]
    plateau = config.scheduler.type == "plateau"
    return State(
        model=Weights(trained.module),
        loss=Weights(trained.losses),
        optimizer=OptimizerStates(
            names, optimizers, of_user=config.optimizer.is_users(config.optimizer.type), updated=trained.updated
        ),
        average=WeightAverage(trained.module, config.ema, own) if config.ema else None,
        loss_scale=LossScale(precision.name == "fp16", config.amp_loss_scale),
        precision=precision,
        position=Position(),
        best=Best(config.checkpoint),
        plateau=Plateau(config.scheduler, config.optimizer.lr) if plateau else None,
        metrics=LastEvaluation(),
        chunk_rules=chunk_rules,
        callbacks=CallbackStates(callbacks),
    )


@dataclass(frozen=True)
class StepContext:
    """The surroundings of a step: ranks, precision and the weights of losses; and clocks, which change no number."""

    ranks: Ranks
    precision: Precision
    loss_weights: dict[str, float]
    phases: Phases
    clock: Clock
    directory: Path


def make_step(
    trained: Trained, config: TrainingConfig, data: TrainingData, around: StepContext, total_steps: int
) -> Step:
    """The step of a run that ends after ``total_steps``.

    ``trained`` has the model and its objectives, ``config`` the training options, ``data`` the training data, and
    ``around`` the ranks, the precision and the clocks.
    """
    descents = []
    for number, objective in enumerate(trained.objectives):
        forward = Forward(
            objective.losses, trained.forward, around.precision, config.random_seed, number, objective.first_pass
        )
        is_sharded = isinstance(trained.forward, ShardedModel)
        gradient = GradientPass(
            forward,
            around.loss_weights,
            config.memory.recovery,
            around.phases,
            data.padded_size,
            data.dataset.describe,
            around.ranks.most if is_sharded else None,
            data.dummy_batch,
            Replayed(trained.graphs, (trained.module, trained.losses)) if trained.graphs is not None else None,
        )
        own = [item.parameter for item in trained.parameters[number]]
        others = [item.parameter for item in trained.all_parameters if item not in trained.parameters[number]]
        descents.append(ObjectiveRunner(objective.name, gradient, own, others))
    scheduler = config.scheduler
    if scheduler.first_cycle_epochs is not None:
        # Given in epochs: as one of steps.
        first_cycle = scheduler.first_cycle_epochs * data.steps_per_epoch
        scheduler = scheduler.model_copy(update={"first_cycle_steps": first_cycle})
    return Step(
        objectives=tuple(descents),
        gradients=tuple(
            trained.gradients(one.parameters, around.ranks, config.distributed.reduction) for one in descents
        ),
        schedule=make_schedule(scheduler, total_steps, config.optimizer.lr, trained.folder),
        clipping=config.gradient_clipping,
        freezing=trained.freezing,
        step_hooks=tuple(module for module in trained.module.modules() if hasattr(module, "follow_step")),
        redraw_interval=None if config.fixed_projection else config.feature_redraw_interval,
        max_skipped=config.non_finite.max_skipped,
        seed=config.random_seed,
        ranks=around.ranks,
        diagnosis=Diagnosis(around.directory, around.ranks.rank),
        independent_model=trained.independent,
        phases=around.phases,
        clock=around.clock,
    )


def _make_compiler(config: TrainingConfig, has_one_shape: bool) -> Callable[[Any], Any] | None:
    """Return the function that compiles a model, or its blocks, for training; None unless the config asks for it.

    It compiles once for all shapes, or for each shape of a batch if examples have one: then a microbatch is computed by
    the same kernels whatever was computed before it, as in a run that wasn't interrupted.
    """
    mode = config.performance.compile
    if mode is False:
        return None
    return partial(torch.compile, mode=None if mode is True else mode, dynamic=not has_one_shape)


RENAME = "training.checkpoint.init_rename"


class NamedRows(NamedTuple):
    """Weights whose rows stand for something (``Task.named_rows``), with the names on both sides, by kind.

    ``own`` are the names of the model that begins, ``source`` those of the run whose weights it takes.
    """

    weights: Sequence[tuple[Tensor | None, str]]
    own: Mapping[str, Sequence[str]]
    source: Mapping[str, Sequence[str]]


def initialise(model: nn.Module, options: CheckpointConfig, rows: NamedRows | None = None) -> None:
    """Copy the weights of ``options.init_from`` into the model, if any are asked for; rows with names by these.

    A row whose name the source doesn't have keeps its random values. Raises CheckpointError where they are from another
    model, and UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    own, folder = model_tensors(model), Path(options.init_from)
    source = folder if is_dcp(folder) else resolve_checkpoint(folder)
    patterns = [compile_pattern(match, own, "training.checkpoint.init_except") for match in options.init_except]
    # the source may lack the adapters that this model has; its weights get the names that they have next to these
    weights = read_dcp(folder) if is_dcp(folder) else load_checkpoint(source, weights_only=True).model
    found = without_lora(_rename_weights(weights, options.init_rename), model)
    added = {name for name in added_by_lora(model) if name in own and name not in found}
    drawn = {name: one for name, one in own.items() if name in added or any(each.search(name) for each in patterns)}
    kept = {name: tensor for name, tensor in found.items() if not any(one.search(name) for one in patterns)}
    arranged = {} if rows is None else _arrange_rows(kept, model, rows, source)
    before = {name: own[name].clone() for name in arranged}
    try:
        load_weights(model, kept | {name: one.values for name, one in arranged.items()} | drawn, source)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; training.checkpoint.init_except lists what to initialise from scratch"
        ) from None
    with torch.no_grad():
        for name, one in arranged.items():
            is_known = slice_for_rank(one.is_known.contiguous().to(own[name].device), own[name])
            own[name].copy_(torch.where(is_known, own[name], before[name]))
    take_lengths(model, added)
    take_new_rows(model, added)


class _ArrangedRows(NamedTuple):
    """A weight whose rows are in another order, and where ``is_known``, of its shape, they have values."""

    values: Tensor
    is_known: Tensor


def _arrange_rows(
    weights: Mapping[str, Tensor], model: nn.Module, rows: NamedRows, source: Path
) -> dict[str, _ArrangedRows]:
    """The source's weights with rows in the order of the model's names, where names differ; logs what that means."""
    found: dict[str, _ArrangedRows] = {}
    said: set[str] = set()
    names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        # Tied tensors have the name of the first, as in a checkpoint.
        names.setdefault(id(tensor), name)
    for wanted, kind in rows.weights:
        name = names.get(id(wanted), "")
        ours, theirs = rows.own.get(kind), rows.source.get(kind)
        if wanted is None or name not in weights or ours is None or theirs is None or list(ours) == list(theirs):
            continue
        values = weights[name]
        places = {one: place for place, one in enumerate(theirs)}
        if len(values) < len(theirs) or len(wanted) < len(ours) or len(places) < len(theirs):
            log.warning("%s: rows of %s are taken by their places: their names don't tell them apart", source, name)
            continue
        # rows beyond the names fill a table up: these are taken by their places
        beyond = [place if len(theirs) <= place < len(values) else -1 for place in range(len(ours), len(wanted))]
        index = torch.tensor([*(places.get(one, -1) for one in ours), *beyond])
        known = (index >= 0).view(-1, *[1] * (values.ndim - 1)).expand(len(index), *values.shape[1:])
        found[name] = _ArrangedRows(values[index.clamp(min=0)], known)
        if kind not in said:
            said.add(kind)
            tell_rows(kind, ours, theirs, source)
    return found


def tell_rows(kind: str, ours: Sequence[str], theirs: Sequence[str], source: Path | str) -> None:
    """Log which rows of a ``source``, whose names of a ``kind`` are ``theirs``, become those of ``ours``."""
    new, left = ([one for one in side if one not in set(other)] for side, other in ((ours, theirs), (theirs, ours)))
    # The other processes do the same.
    say = log.warning if os.environ.get("RANK", "0") == "0" else log.info
    say(
        "%s: its %s are others: %d of %d rows are taken by name%s%s",
        *(source, kind, len(ours) - len(new), len(ours)),
        f"; newly drawn: {quote_names(new)}" if new else "",
        f"; not taken: {quote_names(left)}" if left else "",
    )


def _rename_weights(weights: Mapping[str, Tensor], rules: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights under the names that the rules, one after another, make of theirs.

    Raises UserError for a rule that matches no name, and where two weights would have one name.
    """
    names = {name: name for name in weights}
    for match, replacement in rules.items():
        pattern = compile_pattern(match, names.values(), RENAME)
        try:
            names = {name: pattern.sub(replacement, new) for name, new in names.items()}
        except (re.error, IndexError) as error:
            raise UserError(f"{RENAME}: {replacement!r} can't replace {match!r}: {error}") from error
    renamed = {new: weights[name] for name, new in names.items()}
    if len(renamed) < len(names):
        twice = next(new for new in renamed if list(names.values()).count(new) > 1)
        raise UserError(f"{RENAME} gives two parameters the name {twice}")
    return renamed
