"""One optimizer step, as a function of the state and the data of the step.

    counts   = sum of each unit's count over every microbatch of the step, on every rank
    sums     = what the losses need to know of the whole step, where the task has a first pass, likewise
    for each objective (one, for most tasks):
        loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
        gradient = d loss / d weights, added over ranks once, after every backward
        weights  = what the optimizer makes of it, unless a number in it isn't finite

Counting before computing makes one batch of 32, 4 of 8, and 2 ranks with 16 the same arithmetic. A step is all or
nothing: with several objectives, those before one that fails are rolled back.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from vaak.config.optimization import GradientClippingConfig
from vaak.core.batch import send
from vaak.core.errors import NonFiniteError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.engine.callback import StepReport
from vaak.engine.distributed.exact import sum_in_order
from vaak.engine.distributed.exchange import OwnGradients
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.gradient import LossSums, ObjectiveRunner, Sums, Undo, add_up, copy_buffers, put_back
from vaak.engine.memory import is_out_of_memory
from vaak.engine.non_finite import Diagnosis, NonFinite
from vaak.engine.optim.optimizers import given_found_inf, obeys_found_inf
from vaak.engine.optim.schedules import Freezing, Schedule
from vaak.engine.phases import Clock, Phases
from vaak.engine.precision import LossScale
from vaak.engine.state import State
from vaak.engine.training_data import StepData

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class ObjectiveResult:
    """The result of an objective in a step: its losses, its gradient's norm, and why it was not followed, if so.

    ``in_fp32`` says that mixed precision failed first.
    """

    losses: LossSums
    norm: torch.Tensor
    skipped: str | None
    in_fp32: bool = False


@dataclass(frozen=True)
class Step:
    """All that stays fixed while a run trains; calling it takes a step, which changes the state and nothing else.

    For another schedule, another precision or other objectives, make another Step with ``dataclasses.replace``.
    ``max_skipped`` steps that are not finite are skipped before one ends the run. ``gradients`` are those of each
    objective's parameters, added over ranks. ``step_hooks`` are modules with ``follow_step(sums)``, called after
    a step's update with the sums of its terms over all ranks. ``independent_model()`` is the context of one that
    each rank may call by itself.
    """

    objectives: tuple[ObjectiveRunner, ...]
    gradients: tuple[OwnGradients, ...]
    schedule: Schedule
    clipping: GradientClippingConfig
    freezing: Freezing | None
    step_hooks: tuple[Any, ...]
    redraw_interval: int | None
    max_skipped: int
    seed: int
    ranks: Ranks
    diagnosis: Diagnosis
    independent_model: Callable[[], contextlib.AbstractContextManager[nn.Module]]
    phases: Phases
    clock: Clock

    def __call__(self, state: State, data: StepData) -> StepReport:
        """Take the step that follows ``state.position``.

        Raises NonFiniteError, on every rank, where too many steps weren't finite, and UserError if memory runs
        out; the state is then unchanged.
        """
        assert data.step == state.position.step + 1, f"data of step {data.step} after step {state.position.step}"
        self._set_mode(state, data.step)
        results, found = self._all_or_nothing(state, data)
        # objectives after one that is skipped aren't tried: the last result says what became of the whole step
        skipped, epoch = results[-1].skipped, state.position.epoch
        scale = state.loss_scale.value if state.loss_scale.enabled else None
        if found is not None:
            self._count_as_skipped(state, found)
        if skipped is None:
            if any(one.in_fp32 for one in results):
                state.precision.count_failure(data.step)
            self._follow_weights(state, data.step, [one.losses.sums for one in results])
        state.loss_scale.update(skipped)
        state.position.advance(data.size, data.ends_epoch, data.counts)
        losses, norms = [one.losses for one in results], [one.norm for one in results]
        # objectives have different parameters, so their squares add up to that of the whole gradient
        norm = norms[0] if len(norms) == 1 else _join_norms(norms)
        names = [objective.name for objective in self.objectives]
        seconds, excluded, gap = self.clock.lap()
        return StepReport(
            step=data.step,
            epoch=epoch,
            sums=copy_sums({name: total for own in losses for name, total in own.sums.items()}),
            units={name: unit for own in losses for name, unit in own.units.items()},
            counts=data.counts,
            learning_rate=state.optimizers[0].param_groups[0]["lr"],
            gradient_norm=norm,
            # A skipped step has fewer.
            gradient_norms=dict(zip(names, norms, strict=False)) if len(names) > 1 else {},
            loss_scale=scale,
            skipped=skipped,
            seconds=seconds,
            excluded_seconds=excluded,
            seconds_of_gap=gap,
            ends_epoch=data.ends_epoch,
            splittable=all(own.unsplittable is None for own in losses),
        )

    def _all_or_nothing(self, state: State, data: StepData) -> tuple[list[ObjectiveResult], NonFinite | None]:
        """Follow the gradient of each objective, or of none; where numbers are not finite, return the diagnosis."""
        results: list[ObjectiveResult] = []
        found, undo, modules = None, Undo(), (state.model.module, state.loss.module)
        try:
            for number, objective in enumerate(self.objectives):
                # the running means of a norm: what the first try did to them must not be done twice
                buffers = copy_buffers(*modules) if state.precision.may_try_fp32 else []
                results.append(self._descend(number, state, data, undo))
                if results[-1].skipped == "non_finite" and state.precision.may_try_fp32:
                    put_back(buffers)
                    with state.precision.of_last_try(), state.loss_scale.off():
                        results[-1] = replace(self._descend(number, state, data, undo), in_fp32=True)
                if results[-1].skipped == "non_finite":
                    # Looked into while the weights are those it happened with.
                    with state.precision.of_last_try(), self.independent_model() as model:
                        found = self.diagnosis.of(objective, state, data, model)
                if results[-1].skipped:
                    undo.take_back()
                    break
        except Exception:
            # What is saved then is the state before the step, whole.
            undo.take_back()
            raise
        return results, found

    def _set_mode(self, state: State, step: int) -> None:
        """Set what is frozen, and the rates: functions of the step, also where it is skipped later."""
        if self.freezing is not None:
            self.freezing.apply(step, state.position.epoch)
        model = state.model.module
        if not model.training:
            # Walking the modules in every step would take a tenth of a small one.
            model.train()
        if state.precision.fell_back:
            state.loss_scale.disable()
        set_learning_rates(state.optimizers, self.schedule(step) * state.rate_factor)

    def _descend(self, number: int, state: State, data: StepData, undo: Undo) -> ObjectiveResult:
        """Compute the gradient of an objective over all ranks and update its weights with it, if it is finite."""
        objective, gradients = self.objectives[number], self.gradients[number]
        losses = self._gradient(number, state, data)
        with self.phases.measure("optimizer"):
            tensors = gradients.gradients
            # Unscaling comes before the norm: options bound the gradient itself.
            state.loss_scale.unscale(tensors)
            norm = gradients.norm()
            # a step without a single term, all of whose examples were left out, isn't one for momentum and decay either
            optimizers = state.optimizer.by_objective[number] if losses.sums else []
            if objective is not self.objectives[-1]:
                # The last one changes nothing where it is skipped.
                undo.keep(optimizers)
            ahead = None
            # on CUDA, by kernels that look for numbers that aren't finite: the device needn't be idle until the
            # program has decided
            if norm.is_cuda and optimizers and all(obeys_found_inf(one, gradients.of_others) for one in optimizers):
                ahead = NumbersOnDevice([norm, *losses.sums.values()])
                clip_gradients(tensors, norm, self.clipping)
                with gradients.updating():
                    update_weights(state, optimizers, data.step, ahead.found_inf)
            numbers = read_numbers(losses.sums, norm, ahead)
            skipped = reason_to_skip(state.loss_scale, numbers)
            if skipped is None and ahead is None:
                clip_gradients(tensors, norm, self.clipping, known_norm=numbers[0])
                with gradients.updating():
                    update_weights(state, optimizers, data.step)
            # also after a skipped step: the next one must not add to these gradients
            gradients.clear()
        return ObjectiveResult(losses, norm, skipped)

    def _gradient(self, number: int, state: State, data: StepData) -> LossSums:
        """Leave an objective's gradient, added over ranks, in its parameters; nothing of it, where this raises."""
        objective, gradients = self.objectives[number], self.gradients[number]
        # copied, since an attempt that is repeated would move running statistics twice
        buffers = copy_buffers(state.model.module, state.loss.module) if gradients.may_repeat else []
        gradients.begin()
        try:
            with objective.alone():
                while True:
                    losses = objective.gradient.accumulate(
                        state.chunk_rules, data, gradients, state.loss_scale.value, self._sum_over_ranks
                    )
                    with self.phases.measure("optimizer"):
                        reduced = gradients.reduce(losses.sums, losses.units)
                    if reduced is not None:
                        losses.sums, losses.units = reduced
                        return losses
                    # Exact sums met numbers too large for their scale: again, with a larger one.
                    put_back(buffers)
        except BaseException:
            gradients.clear()
            raise

    def _sum_over_ranks(self, sums: dict[int, Sums]) -> Sums:
        """Add up what a first pass has found in each microbatch of this rank, and over ranks."""
        if self.gradients[0].may_repeat:
            # Exact: in the order of microbatches.
            own = [(number, {name: float(value) for name, value in one.items()}) for number, one in sums.items()]
            totals = sum_in_order(part for parts in self.ranks.gather(own) for part in parts)
        elif self.ranks.world_size == 1:
            return add_up(sums.values())
        else:
            totals = self.ranks.sum({name: float(value) for name, value in add_up(sums.values()).items()})
        return {name: torch.tensor(value, device=self.ranks.device) for name, value in totals.items()}

    @torch.no_grad()
    def _follow_weights(self, state: State, step: int, sums: Sequence[dict[str, torch.Tensor]]) -> None:
        """Update what follows the weights of a step: modules that follow its terms, random features, the average."""
        for hook in self.step_hooks:
            hook.follow_step({name: total for own in sums for name, total in own.items()})
        if self.redraw_interval is not None and step % self.redraw_interval == 0:
            for number, module in enumerate(state.model.module.modules()):
                redraw = getattr(module, "redraw_features", None)
                if redraw is not None:
                    # Seeded, not drawn from where a generator stands: a resume draws the same.
                    redraw(draw_key(Purpose.RANDOM_FEATURES, self.seed, step, number))
        if state.average is not None:
            # Last: it averages what is evaluated and saved.
            state.average.update(step)

    def _count_as_skipped(self, state: State, found: NonFinite) -> None:
        """Count a step that is not finite as skipped. Raises NonFiniteError, on every rank, beyond the maximum."""
        # the finding is on the rank whose batch has it; the others raise, or skip, with the same sentence
        every = self.ranks.gather((found.finding is None, found.sentence(self.diagnosis.directory)))
        # The first rank that found anything decides.
        said = min(every, key=lambda entry: entry[0])[1]
        if state.loss_scale.enabled and state.loss_scale.fixed is not None:
            said += "; if it is an overflow of fp16, lower training.amp_loss_scale or leave it out"
        if state.position.non_finite_steps >= self.max_skipped:
            raise NonFiniteError(said)
        state.position.non_finite_steps += 1
        log.warning("%s; the step is skipped (%d of %d)", said, state.position.non_finite_steps, self.max_skipped)


def _join_norms(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all; that of an objective without a gradient is a 0 on the CPU."""
    device = max((one.device for one in norms), key=lambda device: device.type != "cpu")
    return torch.stack([send(one.float(), device) for one in norms]).square().sum().sqrt()


def copy_sums(sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies: reports are kept for some steps, and the originals would fragment the memory of the next ones."""
    if len({total.dtype for total in sums.values()}) != 1:
        return {name: total.clone() for name, total in sums.items()}
    return dict(zip(sums, torch.stack([*sums.values()]).unbind(), strict=True))


def set_learning_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Give every group ``factor`` times its peak rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor


class NumbersOnDevice:
    """Numbers that a GPU computes, and decides by whether weights are updated, before the program has read them.

    The update is started before the program waits, and changes nothing if ``found_inf`` is 1, since a number isn't
    finite: weights and moments keep their bits. The wait is for the numbers, not for what was started after them.
    """

    def __init__(self, numbers: Sequence[torch.Tensor]) -> None:
        together = torch.stack([number.detach().float() for number in numbers])
        self.found_inf = (~together.isfinite()).any().float()
        self._read = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
        self._read.copy_(together, non_blocking=True)
        self._is_read = torch.cuda.Event()
        self._is_read.record()

    def wait(self) -> list[float]:
        """Return the numbers, once the device has them."""
        self._is_read.synchronize()
        found: list[float] = self._read.tolist()
        return found


def read_numbers(
    sums: dict[str, torch.Tensor], norm: torch.Tensor, ahead: NumbersOnDevice | None = None
) -> list[float]:
    """Return the gradient's norm and the sums of the terms, in this order. On a GPU this waits for the gradients.

    The update has already been started where it is ``ahead``.
    """
    if ahead is not None:
        return ahead.wait()
    if norm.device.type == "cpu":
        return [float(norm), *(float(total) for total in sums.values())]
    numbers: list[float] = torch.stack([norm.float(), *(total.float() for total in sums.values())]).tolist()
    return numbers


def reason_to_skip(loss_scale: LossScale, numbers: list[float]) -> str | None:
    """Return why this step must not reach the weights, ``non_finite`` or ``overflow`` of fp16; None if it may.

    Gradients alone overflow where fp16's loss scale is too high, which the scale learns from. A loss that isn't finite,
    or a gradient that isn't at the lowest scale, comes of something else. Every rank decides alike: the ``numbers``,
    norm and sums, are those of all.
    """
    finite = [math.isfinite(number) for number in numbers]
    if all(finite):
        return None
    # the first number is the gradient's norm
    return "overflow" if all(finite[1:]) and loss_scale.may_overflow else "non_finite"


def update_weights(
    state: State, optimizers: Sequence[Optimizer], step: int, found_inf: torch.Tensor | None = None
) -> None:
    """Let optimizers update the weights, unless ``found_inf`` is 1 on the device.

    Where this raises, the state is not whole: no checkpoint is made of it.
    """
    try:
        with state.changing():
            for optimizer in optimizers:
                with contextlib.nullcontext() if found_inf is None else given_found_inf(optimizer, found_inf):
                    optimizer.step()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"out of memory in the middle of the update of step {step}, so its weights may be half-updated and are not "
            "saved: resume with --resume auto, with a smaller model or training.optimizer.type adafactor or sgd"
        ) from error


def clip_gradients(
    gradients: list[torch.Tensor],
    norm: torch.Tensor,
    clipping: GradientClippingConfig,
    known_norm: float | None = None,
) -> None:
    """Bound gradients in place: first their norm together, then each value.

    ``known_norm`` is the ``norm``, where the program has read it: a GPU then isn't asked for the factor.
    """
    if not gradients:
        return
    if clipping.norm is not None:
        if known_norm is not None and norm.is_cuda and norm.dtype.itemsize <= 4:
            norm = torch.tensor(known_norm, dtype=norm.dtype)
        # a tensor all along, so that a GPU isn't waited for
        factor = (clipping.norm / (norm + 1e-6)).clamp(max=1.0)
        if factor.device == gradients[0].device:
            torch._foreach_mul_(gradients, factor)
        elif (number := float(factor)) != 1:
            torch._foreach_mul_(gradients, number)
    if clipping.value is not None:
        torch._foreach_clamp_min_(gradients, -clipping.value)
        torch._foreach_clamp_max_(gradients, clipping.value)
