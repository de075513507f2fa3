"""The model, loss functions and objectives that a run trains, and its state, step and weights at the start.

Weights are drawn by the task, or copied from another run (``training.checkpoint.init_from``). ``init_except`` names
those that aren't copied, such as the head of a model that is to learn other classes. ``init_rename`` maps the other
run's parameter names to those of this model.
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
from vaak.nn.recomputation import RECOMPUTES, set_gradient_checkpointing
from vaak.nn.stack import set_variable_length

LOSS_PREFIX = "loss."
"""The prefix of the names of loss functions' parameters, which may coincide with the model's."""
log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Trained:
    """A model as saved (``module``) and as called (``forward``), with its trained parameters.

    ``parameters`` has the trained parameters of each objective. ``folder`` is where a user's ``./file.py`` is looked
    for. ``forward`` is a ``ShardedModel`` if the model is divided over ranks (``strategy: fsdp``); ``updated`` has the
    parameters that this rank updates if only the update is (``zero1``). ``graphs`` captures CUDA graphs, if asked for.
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
        """Within this context, give a model that each rank may call independently, or not at all.

        It has the averages of weights, if ``average`` is given. If the model is divided over ranks, every rank has to
        enter the context, and leaves it when all are done.
        """
        if isinstance(self.forward, ShardedModel):
            return self.forward.independent(average.state_dict() if average else {})
        return self._averaged(average) if average else contextlib.nullcontext(self.module)

    @contextlib.contextmanager
    def _averaged(self, average: WeightAverage) -> Iterator[nn.Module]:
        with average.applied():
            yield self.module

    def gradients(self, parameters: Sequence[nn.Parameter], ranks: Ranks, reduction: str) -> OwnGradients:
        """Return the buckets that hold these parameters' gradients and sum them over ranks."""
        if isinstance(self.forward, ShardedModel):
            return ShardedGradients(parameters, self.forward)
        if self.updated is not None:
            return DividedUpdate(parameters, ranks)
        return ranks.gradients(parameters, reduction)


def make_model(task: Task) -> nn.Module:
    """Return the model that a task makes. Raises UserError if ``Task.model`` returns anything else."""
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
    """Build the task's model on its device, or this rank's part of it, with weights drawn from the random seed.

    If it is compiled, then once for batches of any shape, or for each shape where examples have one
    (``has_one_shape``). ``precision`` is that of forward passes; ``folder`` is where a user's files are looked for.

    Raises UserError where nothing is trained, objectives don't share the parameters out among them, or the model can't
    be divided over ranks as the config asks.
    """
    device = ranks.device
    make_deterministic(config, device)
    keep_freed_memory(device)
    seed_everything(draw_key(Purpose.INITIALISE, config.random_seed), device)
    is_sharded = config.distributed.strategy == "fsdp" and ranks.world_size > 1
    model, parts = _make_in_parts(task, config, ranks) if is_sharded else (make_model(task).to(device), None)
    _configure_model(model, config)
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
    parameters = _assign_parameters(objectives, model, losses)
    check_groups([item for own in parameters for item in own], config.optimizer)
    updated = _assign_update(parameters, ranks) if config.distributed.strategy == "zero1" else None
    graphs = _make_graphs(config, device)
    return Trained(model, forward, losses, freezing, objectives, tuple(parameters), folder, updated, graphs)


def _make_in_parts(task: Task, config: TrainingConfig, ranks: Ranks) -> tuple[nn.Module, dict[str, Tensor] | None]:
    """Build the task's model as this rank's part of it, since the whole may fit nowhere; log why, if it can't be."""
    num_parts = config.distributed.shard_size or ranks.world_size
    model, parts, why = made_in_parts(partial(make_model, task), ranks.rank % num_parts, num_parts)
    if parts is None and ranks.is_main:
        log.info("at the start, each process has the whole model for a moment: %s", why)
    return model, parts


def _configure_model(model: nn.Module, config: TrainingConfig) -> None:
    """Put a model into training mode, with the options that decide how its forward pass is computed."""
    # from_pretrained returns models in evaluation mode, without dropout.
    model.train()
    recompute = config.performance.gradient_checkpointing
    if not set_gradient_checkpointing(model, recompute) and recompute:
        log.warning("%s has no effect: the model has no stack of vaak.nn, nor a network of transformers", RECOMPUTES)
    set_variable_length(model, config.performance.attention == "auto")
    if config.distributed.reduction == "exact":
        require_no_running_statistics(model)


def _assign_parameters(
    objectives: Sequence[Objective], model: nn.Module, losses: nn.ModuleDict
) -> list[list[NamedParameter]]:
    """Return the trained parameters of each objective; those of loss functions belong to the only one.

    Raises UserError for loss functions with parameters if there are several objectives.
    """
    named = {id(item.parameter): item for item in trained_parameters(model)}
    parameters = [[named[id(one)] for one in list_parameters(objective, model)] for objective in objectives]
    of_losses = [
        NamedParameter(LOSS_PREFIX + item.name, item.parameter, item.module, item.is_embedding, item.is_head)
        for item in trained_parameters(losses)
    ]
    if of_losses and len(objectives) > 1:
        raise UserError(
            f"the loss functions' parameters ({of_losses[0].name}, ...) belong to no objective: make them part of the "
            "model"
        )
    parameters[0] += of_losses
    return parameters


def _assign_update(parameters: list[list[NamedParameter]], ranks: Ranks) -> frozenset[nn.Parameter] | None:
    """Return the parameters that this rank updates for all; None where there is only one rank."""
    if ranks.world_size == 1:
        return None
    divided = (assign_to_ranks([item.parameter for item in own], ranks.world_size) for own in parameters)
    return frozenset(one for parts in divided for one in parts[ranks.rank])


def _make_graphs(config: TrainingConfig, device: torch.device) -> ShapeGraphs | None:
    """Return the CUDA graphs of training, none captured yet; None unless the config asks for them and CUDA is used."""
    if not config.performance.cuda_graphs:
        return None
    if device.type != "cuda":
        log.warning("training.performance.cuda_graphs has no effect on %s: CUDA alone has graphs", device.type)
        return None
    return ShapeGraphs(device, config.performance.cuda_graph_shapes, config.deterministic)


def require_shardable(task: Task) -> None:
    """Raise UserError for a task whose training step isn't possible with a model that is divided over ranks."""
    why = "descends on several objectives in a step" if len(task.objectives) > 1 else ""
    why = "has a first pass over each step" if task.first_pass is not None else why
    if any(True for module in task.loss_modules().values() for _ in module.parameters()):
        why = "has loss functions with parameters"
    if why:
        raise UserError(f"training.distributed.strategy: fsdp isn't possible: this task {why}; leave it at ddp")


def require_no_running_statistics(model: nn.Module) -> None:
    """Raise UserError for a module whose buffers change in forward passes, as each rank sees only its own batches."""
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
    """Make the state at the start of a run.

    ``trained`` has the modules and their parameters; ``config`` says which optimizer, average of weights and plateau
    schedule there are; ``precision`` whether the loss is scaled. ``chunk_rules`` say how microbatches are split after
    an out-of-memory error. ``callbacks`` may have a state, too.
    """
    everything = trained.all_parameters
    names = {item.parameter: item.name for item in everything}
    optimizers = [build_parameter_optimizers(own, config.optimizer, trained.folder) for own in trained.parameters]
    # Averages cover only trained parameters; the others equal their average.
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
    """What a step uses besides the model and its data; ``phases`` and ``clock`` only measure time."""

    ranks: Ranks
    precision: Precision
    loss_weights: dict[str, float]
    phases: Phases
    clock: Clock
    directory: Path


def make_step(
    trained: Trained, config: TrainingConfig, data: TrainingData, around: StepContext, total_steps: int
) -> Step:
    """Make the step of a run that ends after ``total_steps``.

    ``trained`` has the model and its objectives, ``config`` the training options, ``data`` the training data, and
    ``around`` the ranks, the precision and the clocks.
    """
    runners = [_make_runner(trained, number, config, data, around) for number in range(len(trained.objectives))]
    scheduler = config.scheduler
    if scheduler.first_cycle_epochs is not None:
        first_cycle = scheduler.first_cycle_epochs * data.steps_per_epoch
        scheduler = scheduler.model_copy(update={"first_cycle_steps": first_cycle})
    return Step(
        objectives=tuple(runners),
        gradients=tuple(
            trained.gradients(one.parameters, around.ranks, config.distributed.reduction) for one in runners
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


def _make_runner(
    trained: Trained, number: int, config: TrainingConfig, data: TrainingData, around: StepContext
) -> ObjectiveRunner:
    """Return what computes the gradient of the objective with this number; the arguments are those of ``make_step``."""
    objective = trained.objectives[number]
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
    return ObjectiveRunner(objective.name, gradient, own, others)


def _make_compiler(config: TrainingConfig, has_one_shape: bool) -> Callable[[Any], Any] | None:
    """Return the function that compiles a model, or its blocks, for training; None unless the config asks for it.

    It compiles once for all shapes, or, if all examples have one shape, for each shape of a batch: then the kernels of
    a microbatch don't depend on the ones before it, and a resumed run computes the same bits.
    """
    mode = config.performance.compile
    if mode is False:
        return None
    return partial(torch.compile, mode=None if mode is True else mode, dynamic=not has_one_shape)


RENAME = "training.checkpoint.init_rename"


class NamedRows(NamedTuple):
    """Weights whose rows have names, such as those of tokens or classes (``Task.named_rows``).

    ``weights`` has pairs of a weight and the kind of its rows. For each kind, ``own`` lists the names in this model,
    and ``source`` those in the run whose weights it takes.
    """

    weights: Sequence[tuple[Tensor | None, str]]
    own: Mapping[str, Sequence[str]]
    source: Mapping[str, Sequence[str]]


def initialise(model: nn.Module, options: CheckpointConfig, rows: NamedRows | None = None) -> None:
    """Copy the weights of ``options.init_from``, if given, into the model; ``rows`` are matched by their names.

    A row whose name the source lacks keeps its random values. Raises CheckpointError for weights of another model, and
    UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    own, folder = model_tensors(model), Path(options.init_from)
    source = folder if is_dcp(folder) else resolve_checkpoint(folder)
    patterns = [compile_pattern(match, own, "training.checkpoint.init_except") for match in options.init_except]
    # The source may lack this model's adapters; its weights then get the names that they have next to adapters.
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
    """A weight with its rows in the order of this model; ``is_known``, of the same shape, is False in drawn rows."""

    values: Tensor
    is_known: Tensor


def _arrange_rows(
    weights: Mapping[str, Tensor], model: nn.Module, rows: NamedRows, source: Path
) -> dict[str, _ArrangedRows]:
    """Reorder rows of the source's weights to this model's names, where these differ, and log the difference.

    Returns the reordered weights by parameter name.
    """
    found: dict[str, _ArrangedRows] = {}
    logged: set[str] = set()
    names: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        # Tied tensors go by the name of the first, as in a checkpoint.
        names.setdefault(id(tensor), name)
    for wanted, kind in rows.weights:
        name = names.get(id(wanted), "")
        ours, theirs = rows.own.get(kind), rows.source.get(kind)
        if wanted is None or name not in weights or ours is None or theirs is None or list(ours) == list(theirs):
            continue
        values = weights[name]
        places = {one: place for place, one in enumerate(theirs)}
        if len(values) < len(theirs) or len(wanted) < len(ours) or len(places) < len(theirs):
            log.warning("%s: rows of %s are copied in order, because their names aren't unique", source, name)
            continue
        # Rows without a name pad the table, and are copied in order.
        beyond = [place if len(theirs) <= place < len(values) else -1 for place in range(len(ours), len(wanted))]
        index = torch.tensor([*(places.get(one, -1) for one in ours), *beyond])
        known = (index >= 0).view(-1, *[1] * (values.ndim - 1)).expand(len(index), *values.shape[1:])
        found[name] = _ArrangedRows(values[index.clamp(min=0)], known)
        if kind not in logged:
            logged.add(kind)
            tell_rows(kind, ours, theirs, source)
    return found


def tell_rows(kind: str, ours: Sequence[str], theirs: Sequence[str], source: Path | str) -> None:
    """Log which rows of ``source``, whose names of a ``kind`` are ``theirs``, are taken for those named ``ours``."""
    new, left = ([one for one in side if one not in set(other)] for side, other in ((ours, theirs), (theirs, ours)))
    # One rank warns, as all of them take the same rows.
    say = log.warning if os.environ.get("RANK", "0") == "0" else log.info
    say(
        "%s: its %s differ: %d of %d rows are taken by name%s%s",
        *(source, kind, len(ours) - len(new), len(ours)),
        f"; newly drawn: {quote_names(new)}" if new else "",
        f"; not taken: {quote_names(left)}" if left else "",
    )


def _rename_weights(weights: Mapping[str, Tensor], rules: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename weights by the rules (a pattern and its replacement), applied one after another.

    Raises UserError for a rule that matches no name, and if two weights would have the same name.
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
