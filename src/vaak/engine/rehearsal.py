"""Before the first step: the smallest and the largest microbatch, forward and backward, without changing anything.

Errors of shape and too little memory show in the first seconds, not when the largest batch comes up after two hours.
So does a term that is a mean of a whole batch where it has to be a sum: it would train, at a rate that nobody chose.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from vaak.config.metric_names import watched_metrics
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.loader import Address
from vaak.data.plan import Plan
from vaak.engine.distributed.exchange import OwnGradients
from vaak.engine.evaluation import Evaluator
from vaak.engine.gradient import ObjectiveRunner, drop_gradients, restored
from vaak.engine.memory import free_memory, is_out_of_memory
from vaak.engine.precision import keeping_generators, seed_everything
from vaak.engine.state import State, Weights
from vaak.engine.step import Step
from vaak.engine.training_data import StepData, TrainingData, count_units

log = logging.getLogger("vaak")


@progress("trying the largest batch")
def rehearse(step: Step, state: State, data: TrainingData, last_epoch: int) -> None:
    """Run both through the model, for each objective, and allocate what the optimizers keep.

    Raises what the first step would have raised. Weights, buffers and the state of optimizers don't change. Before the
    first step of a run, a term that looks like a mean is reported.
    """
    epoch = state.position.epoch
    if data.config.curriculum is not None:
        # Its hard examples, which may be the long ones, come last.
        epoch = max(epoch, last_epoch)
    plan = data.planner.plan(epoch)
    padded_sizes = plan.padded_sizes(data.dataset.lengths, data.multiple)
    first, last = int(np.argmin(padded_sizes)), int(np.argmax(padded_sizes))
    largest = _microbatch(data, state, epoch, plan, last)
    # all may be of one size; and a compiled model, whose kernels another size may need, is compiled when that comes up
    is_alone = last == first or data.config.performance.compile is not False
    smallest = largest if is_alone else _microbatch(data, state, epoch, plan, first)
    model = state.model.module
    with restored(model, state.loss.module):
        model.train()
        if step.freezing is not None:
            step.freezing.apply(state.position.step + 1, state.position.epoch)
        for number, objective in enumerate(step.objectives):
            _run(objective, state, smallest)
            # the moments take their memory now, so that the largest batch is tried next to them
            with step.gradients[number].updating():
                for optimizer in state.optimizer.by_objective[number] if not state.optimizer.of_user else ():
                    allocate_optimizer_state(optimizer, objective.gradient.forward.precision.device)
            drop_gradients(objective.parameters)
            if last != first:
                _run(objective, state, largest)
                drop_gradients(objective.parameters)
    if state.position.step > 0:
        return
    with step.independent_model() as model:
        if not step.ranks.is_main:
            return
        batch = largest.microbatches[0].batch
        chosen = largest if batch is not None and batch.num_rows > 1 else smallest
        batch = chosen.microbatches[0].batch
        is_whole = all(len(one.gradient.split(state.chunk_rules, chosen)) == 1 for one in step.objectives)
        if batch is not None and is_whole:
            # One that had to be split may not fit whole.
            warn_of_means(step.objectives, replace(state, model=Weights(model)), batch, step.seed)


@progress("trying the evaluations")
def rehearse_evaluations(evaluator: Evaluator, state: State, model: nn.Module) -> None:
    """Evaluate the longest batch of each split, and discard the results.

    Raises what the first evaluation would have raised. A metric that training needs and isn't among them is
    logged.
    """
    step, names = state.position.step + 1, list[set[str]]()
    for split in evaluator.task.evaluation_splits:
        divide = partial(state.chunk_rules.divide_evaluation, step, split)
        names.append(evaluator.rehearse(model, split, state.chunk_rules.count_for_evaluation(step, split), divide))
    if names and all(names):
        known = set().union(*names)
        metrics = {name.partition("/")[0] for name in known}
        # No more than a warning: some metrics come of certain examples only (translations, say), and one batch may have
        # none. If it is a mistake, the first evaluation ends the run, and nothing of it is lost.
        for key, metric in watched_metrics(evaluator.config).items():
            if metric not in known and metric.partition("/")[0] not in metrics:
                log.warning(
                    "%s is %s, which a first batch of evaluation did not give (it gives %s): if no evaluation does, "
                    "the run ends at the first one",
                    key,
                    metric,
                    ", ".join(sorted(known)),
                )


def _microbatch(data: TrainingData, state: State, epoch: int, plan: Plan, position: int) -> StepData:
    """Return a microbatch of a plan as if it were all of the next step.

    It is the one at ``position`` of ``plan``, the plan of ``epoch`` that ``data`` has; ``state`` says which step is
    next.
    """
    address = Address(state.position.step + 1, 0, epoch, plan.microbatch(position), plan.occurrence(position))
    fetched = [data.reader[address]]
    return StepData(address.step, fetched, count_units(fetched), is_rehearsal=True)


def _run(objective: ObjectiveRunner, state: State, data: StepData) -> None:
    """Forward and backward; where memory runs out, later steps are split as this one is."""
    with objective.alone():
        objective.gradient.accumulate(state.chunk_rules, data, OwnGradients(objective.parameters))


def allocate_optimizer_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Have an optimizer that has no state yet make it, all zero, as its first step would begin with.

    The first update is where memory is most likely to run out, and in the middle of it weights can't be put back.
    Gradients of zero and a rate of zero leave the weights unchanged. Raises UserError where memory runs out.
    """
    if optimizer.state:
        return
    for tried_before in (False, True):
        shortage = _make_state(optimizer)
        if shortage is None:
            return
        # Tried again only here, outside of the except block, which keeps what the failed update had allocated.
        optimizer.state.clear()
        free_memory(device)
        if tried_before:
            raise UserError(
                f"out of memory: the state of the optimizer {type(optimizer).__name__} does not fit next to the model "
                f"({shortage}); use a smaller model, or training.optimizer.type adafactor or sgd"
            )


def _make_state(optimizer: torch.optim.Optimizer) -> str | None:
    """Make the state; return why memory ran out, if it did.

    It is a return value, not an exception: an exception's traceback would keep alive what is to be freed.
    """
    before = [dict(group) for group in optimizer.param_groups]
    gradients = [parameter.grad for group in before for parameter in group["params"] if parameter.grad is not None]
    for gradient in gradients:
        gradient.zero_()
    for group in optimizer.param_groups:
        group |= {"lr": 0.0, "weight_decay": 0.0}
    try:
        # a real step at rate 0: only the optimizer itself knows which state it makes, and what it takes meanwhile
        optimizer.step()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return str(error).partition("\n")[0]
    finally:
        for group, options in zip(optimizer.param_groups, before, strict=True):
            group.update(options)
    for state in optimizer.state.values():
        # the rehearsed step counts, too (step, moments decayed from 0): back to a state before any
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                value.zero_()
            elif isinstance(value, int | float):
                state[name] = 0
    return None


ROW_UNIT = "row"
MEAN_TOLERANCE = 0.02
"""Relative to a term: sums in 16 bits differ by less, and a mean's halves add up to about twice the whole."""
UNIT_TOLERANCE = 1e-3
"""Within this, the mean over a unit is told from that over another one."""


def averaged_over(
    whole: float, parts: Sequence[float], sizes: Sequence[Mapping[str, float]], tolerance: float
) -> str | None:
    """Return the unit over which a batch's term is the mean of its chunks' terms; None where it is not one.

    ``whole`` is the term of the batch and ``parts`` are those of its chunks, whose counts by unit are ``sizes``.
    Numbers are equal that differ by ``tolerance`` relative to the whole, or to 1 where it is smaller.

    >>> averaged_over(3.0, [2.0, 6.0], [{"token": 6, "row": 1}, {"token": 2, "row": 1}], 1e-9)
    'token'
    >>> averaged_over(8.0, [2.0, 6.0], [{"token": 6, "row": 1}, {"token": 2, "row": 1}], 1e-9)
    """
    if adds_up(whole, parts, tolerance):
        return None
    means = {}
    for unit in sizes[0]:
        counts = [size[unit] for size in sizes]
        if sum(counts):
            means[unit] = sum(count * part for count, part in zip(counts, parts, strict=True)) / sum(counts)
    closest = min(means, key=lambda unit: abs(means[unit] - whole), default=None)
    return closest if closest is not None and adds_up(whole, [means[closest]], tolerance) else None


def adds_up(whole: float, parts: Sequence[float], tolerance: float) -> bool:
    """Return whether the sum of ``parts`` is ``whole``, up to ``tolerance``; NaN never is."""
    return abs(sum(parts) - whole) <= tolerance * max(1.0, abs(whole))


def measure_sizes(chunks: Sequence[Batch]) -> list[dict[str, float]]:
    """How many of each unit that is counted, and of rows, each chunk has."""
    return [{**chunk.totals(), ROW_UNIT: float(chunk.num_rows)} for chunk in chunks]


def warn_of_means(objectives: Sequence[ObjectiveRunner], state: State, batch: Batch, seed: int) -> None:
    """Warn of each term of ``batch`` that looks like a mean: that of the whole against those of its two halves.

    They are computed in evaluation mode and without gradients, with draws that depend on ``seed``; generators, modes
    and buffers are then as before. Terms that aren't splittable are passed over, and so is what can't be computed like
    this: a loss of gradients, a model that has no losses in evaluation, a batch that can't be split.
    """
    for objective in objectives:
        with contextlib.suppress(Exception), _undisturbed(objective, state):
            halves = batch.split(2)
            if len(halves) < 2:
                return
            whole = _terms(objective, state, batch, seed)
            parts = [_terms(objective, state, half, seed) for half in halves]
            splittable = {name: term for name, term in whole.items() if term.splittable}
            found = {
                name: _reason_for_mean(term, [part[name] for part in parts], halves)
                for name, term in splittable.items()
            }
            if any(found.values()):
                # They may differ because the loss is random.
                others = _terms(objective, state, batch, seed + 1)
                found = {
                    name: why
                    for name, why in found.items()
                    if abs(_value(whole[name]) - _value(others[name])) <= MEAN_TOLERANCE * abs(_value(whole[name]))
                }
            for name, why in found.items():
                if why:
                    _warn(name, whole[name].per, why)


def _reason_for_mean(whole: Term, parts: Sequence[Term], halves: Sequence[Batch]) -> str:
    """Return what speaks for a mean; empty where nothing does."""
    total = _value(whole)
    if not total:
        return ""
    relative = [_value(part) / total for part in parts]
    if adds_up(1.0, relative, MEAN_TOLERANCE):
        return ""
    unit, ratio = averaged_over(1.0, relative, measure_sizes(halves), UNIT_TOLERANCE), sum(relative)
    if unit is not None:
        return f"it is the mean over each {unit} of its batch"
    return f"those of a batch's two halves add up to {ratio:.2f} times that of the batch" if 1.8 < ratio < 2.2 else ""


def _warn(name: str, per: str, why: str) -> None:
    log.warning(
        "the loss %s looks like a mean, not a sum (%s): a Term's total is a sum, which is divided by the count of %s "
        "in the whole step, so a mean is divided twice. Multiply it by what it was divided by, or give its Term "
        "splittable=False if it is not a sum over examples",
        name,
        why,
        per,
    )


def _terms(objective: ObjectiveRunner, state: State, batch: Batch, seed: int) -> dict[str, Term]:
    forward = objective.gradient.forward
    seed_everything(draw_key(Purpose.CHECK, seed, "mean"), forward.precision.device)
    with forward.precision.autocast():
        return forward.losses(state.model.module, batch.to(forward.precision.device))


def _value(term: Term) -> float:
    return float(term.total)


@contextlib.contextmanager
def _undisturbed(objective: ObjectiveRunner, state: State) -> Iterator[None]:
    """Evaluation mode without gradients; on exit, modes, buffers and generators are as before."""
    both = (state.model.module, state.loss.module)
    modes = [(module, module.training) for one in both for module in one.modules()]
    try:
        with restored(*both), torch.no_grad(), keeping_generators(objective.gradient.forward.precision.device):
            for one in both:
                one.eval()
            yield
    finally:
        for module, mode in modes:
            module.training = mode
