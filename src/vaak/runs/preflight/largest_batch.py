"""The largest batch that a model can be trained on here, and the quickest, found by trying.

A trial is the largest microbatch of a size's plan: forward, backward and update, on the run's device. A device with
its own allocator reports when it is out of memory, and that is caught. On a CPU the kernel kills instead, so there a
size is tried only where the sizes before it say that it will fit: memory grows by equal amounts for equal padded sizes,
from the model's own size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vaak.config.load import Loaded
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.data.batching import whole_planner
from vaak.data.loader import Address, Microbatch
from vaak.data.plan import LastPlan
from vaak.engine.gradient import DoesNotFitError
from vaak.engine.memory import choose_thresholds, free_memory, is_out_of_memory, read_memory, reset_peak
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData, count_units
from vaak.runs.start import temporary_trainer

OUT_OF_MEMORY = "out of memory"
# Limits of the timing of each size: steps, and seconds after which none starts.
STEPS, MOST_SECONDS = 5, 2.0


@dataclass(frozen=True)
class Trial:
    """The result of trying one size. ``problem`` says why it doesn't fit; None if it does.

    ``memory_bytes`` is this process's peak, measured or forecast. ``per_second`` has the rate of training in each unit.
    ``holds_all`` is True if the whole epoch is one microbatch, or one of each part.
    """

    size: int
    rows: int
    memory_bytes: int
    per_second: dict[str, float]
    problem: str | None = None
    holds_all: bool = False

    @property
    def fits(self) -> bool:
        return self.problem is None

    @property
    def rate(self) -> float:
        """The rate by which trials are compared: the first unit's."""
        return next(iter(self.per_second.values()), 0.0)


class Trials:
    """Tries sizes of ``option`` (``batch_size``, ``max_tokens`` or ``max_duration``) on a trainer's model.

    ``limit`` is the memory in bytes that this process may use; None is all there is. Of either, the fraction below
    critical pressure may be filled.
    """

    def __init__(self, trainer: Trainer, option: str, limit: int | None) -> None:
        self.trainer, self.option, self.limit = trainer, option, limit
        self.device, self.dataset = trainer.ranks.device, trainer.data.dataset
        self.threshold = choose_thresholds(self.device, trainer.config.memory.thresholds)[2]
        # Padded size and bytes.
        self.measured: list[tuple[float, int]] = []
        # Nothing is learned from being tried, and what doesn't fit is not to be computed in chunks, but known.
        whole = [replace(one, gradient=replace(one.gradient, recovery=False)) for one in trainer.step.objectives]
        self.step = replace(trainer.step, objectives=tuple(whole), schedule=lambda step: 0.0)
        # An overflow in fp16 would leave the update out, and with it the optimizer's state.
        trainer.state.loss_scale.value = 1.0

    def available(self) -> int:
        """Return the bytes that this process may use, without those that other processes hold."""
        reading = read_memory(self.device)
        if self.limit is not None:
            return int(self.threshold * self.limit)
        return int(self.threshold * reading.limit) - (reading.used - reading.own)

    def at_rest(self) -> int:
        """Return the bytes that this process uses without a batch, after the first trial."""
        return self.measured[0][1] if self.measured else 0

    def run(self, size: int) -> Trial:
        """Try one size."""
        planner = self._planner(size)
        padded_size, rows = self._largest(planner)
        parts = self.dataset.parts
        holds_all = planner.num_microbatches == (1 if parts is None else len(np.unique(parts)))
        expected = self._forecast(padded_size)
        if self.device.type == "cpu" and expected > self.available():
            return Trial(size, len(rows), expected, {}, "too large by forecast", holds_all)
        microbatch = self.trainer.data.reader[Address(1, 0, 0, rows)]
        free_memory(self.device)
        reset_peak(self.device)
        seconds, problem = self._attempt(microbatch)
        used = read_memory(self.device).own
        for gradients in self.step.gradients:
            gradients.clear()
        if problem is None:
            problem = "too large" if used > self.available() else None
            # The first step has made the optimizer's state, so this is what is used without a batch: padded size 0.
            if not self.measured:
                free_memory(self.device)
                reset_peak(self.device)
                self.measured.append((0.0, read_memory(self.device).own))
            self.measured = sorted([*self.measured, (padded_size, used)])
        counts = microbatch.batch.totals() if microbatch.batch else {}
        rates = {unit: count / seconds for unit, count in counts.items()} if problem is None else {}
        return Trial(size, len(rows), used, rates, problem, holds_all)

    def most(self) -> int:
        """The largest size that is of use: one that holds all the data, or that the option can have if it is less."""
        lengths, config = self.dataset.lengths, self.trainer.config
        whole = len(lengths) if self.option == "batch_size" else math.ceil(len(lengths) * float(lengths.max()))
        options = type(config if self.option == "batch_size" else config.batching).model_fields
        limits: list[int] = [bound.le for bound in options[self.option].metadata if getattr(bound, "le", None)]
        return min([whole, *limits])

    def names(self, size: int) -> str:
        """Return the examples of the first row of a size's largest microbatch, for an error message."""
        _, rows = self._largest(self._planner(size))
        return ", ".join(f"{index} ({self.dataset.describe(index)})" for index in rows[0][:5])

    def _largest(self, planner: LastPlan) -> tuple[float, list[list[int]]]:
        """Return the padded size and the rows of the largest microbatch of the first epoch."""
        plan = planner.plan(0)
        padded_sizes = plan.padded_sizes(self.dataset.lengths, self.trainer.data.multiple)
        position = int(np.argmax(padded_sizes))
        return float(padded_sizes[position]), plan.microbatch(position)

    def _planner(self, size: int) -> LastPlan:
        """Return the planner of a size, over all the examples: a curriculum comes to them in the end."""
        config = self.trainer.config
        of_rows = self.option == "batch_size"
        batching = config.batching if of_rows else config.batching.model_copy(update={self.option: size})
        batch_size = size if of_rows else config.batch_size
        return LastPlan(whole_planner(self.dataset, batching, batch_size, config.random_seed))

    def _attempt(self, microbatch: Microbatch) -> tuple[float, str | None]:
        """Seconds of a microbatch in the quickest of some steps, after one that frees memory; or what went wrong."""
        quickest = float("inf")
        # As in training: the second microbatch of a step, and all later ones, find gradients there already.
        microbatches = [microbatch] * min(self.trainer.config.gradient_accumulation_steps, 2)
        try:
            begun = self._step(microbatches)
            now = begun
            for _ in range(STEPS):
                before, now = now, self._step(microbatches)
                quickest = min(quickest, (now - before) / len(microbatches))
                if now - begun > MOST_SECONDS:
                    break
        except Exception as error:
            if not isinstance(error, DoesNotFitError) and not is_out_of_memory(error):
                raise
            return quickest, OUT_OF_MEMORY
        return quickest, None

    def _step(self, microbatches: list[Microbatch]) -> float:
        """Take the run's first step; return the time at which the device was done with it."""
        state = self.trainer.state
        state.position.load_state_dict({})
        self.step(state, StepData(1, microbatches, count_units(microbatches)))
        synchronize: Any = getattr(torch, self.device.type).synchronize
        synchronize()
        return time.perf_counter()

    def _forecast(self, padded_size: float) -> int:
        """Return the peak bytes at this padded size, by the two largest that were measured, and by the largest."""
        if not self.measured:
            return 0
        (before, least), (last, most) = self.measured[0], self.measured[-1]
        lines = [(before, least), self.measured[-2]]
        slopes = [(most - used) / (last - at) for at, used in lines if last > at]
        return most + int((padded_size - last) * max([0.0, *slopes]))


# The largest is found to one part in this number.
PRECISION = 16
AS_QUICK = 0.97  # of the highest rate; the smallest batch that reaches it is called the quickest


@dataclass(frozen=True)
class Advice:
    """The trials and their result: sizes of ``option``, and the accumulation that keeps the effective batch."""

    option: str
    device: str
    available_bytes: int
    trials: list[Trial]
    largest: int
    quickest: int
    size: int
    accumulation: int

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with the options to take as ``advice``."""
        values = {name: value for name, value in vars(self).items() if name not in ("size", "accumulation")}
        values["trials"] = [{**vars(trial), "fits": trial.fits} for trial in self.trials]
        return values | {"advice": {self.option: self.size, "training.gradient_accumulation_steps": self.accumulation}}


def find_batch_size(
    loaded: Loaded,
    limit: int | None = None,
    up_to: int | None = None,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Advice:
    """Return the sizes that fit, of ``training.batch_size`` or of the budget of bucketed batches.

    Nothing is written into the run directory. ``limit`` is in bytes; ``up_to`` the largest size to try; ``tell`` is
    called with each trial.

    Raises UserError if not even one example fits, naming it.
    """
    training = loaded.experiment.training
    option = budget_option(training)
    with temporary_trainer(loaded) as trainer:
        trials = Trials(trainer, option, limit)
        # No batch holds the longest example if the budget is below it.
        smallest = 1 if option == "batch_size" else math.ceil(float(trainer.data.reader.dataset.lengths.max()))
        most = max(min(up_to or trials.most(), trials.most()), smallest)
        tried: list[Trial] = []
        with progress("trying batch sizes", 1.0) as advance:

            def told(trial: Trial) -> None:
                before = share_done(tried, most) if tried else 0.0
                tried.append(trial)
                advance(share_done(tried, most) - before)
                tell(trial)

            search(trials, smallest, most, told)
        fitting = [trial for trial in tried if trial.fits]
        if not fitting:
            raise UserError(_nothing_fits(trials, tried[0]))
        quickest = min(trial.size for trial in fitting if trial.rate >= AS_QUICK * max(t.rate for t in fitting))
        given = training.batch_size if option == "batch_size" else getattr(training.batching, option)
        size, accumulation = keep_effective(given, training.gradient_accumulation_steps, quickest, option)
        prefix = "training" if option == "batch_size" else "training.batching"
        return Advice(
            option=f"{prefix}.{option}",
            device=trainer.ranks.device.type,
            available_bytes=trials.available(),
            trials=tried,
            largest=max(trial.size for trial in fitting),
            quickest=quickest,
            size=size,
            accumulation=accumulation,
        )


def _nothing_fits(trials: Trials, trial: Trial) -> str:
    what_helps = (
        "shorten the example or leave it out, take a smaller model, or set training.performance.gradient_checkpointing "
        "or training.mixed_precision: bf16"
    )
    if trial.problem == OUT_OF_MEMORY:
        return f"out of memory: example {trials.names(trial.size)} does not fit even alone; {what_helps}"
    sizes = (trial.memory_bytes, trials.at_rest(), trials.available())
    needed, at_rest, available = (size / 2**30 for size in sizes)
    return (
        f"not even one row fits in memory: example {trials.names(trial.size)} needs {needed:.2f} GiB, of which "
        f"{at_rest:.2f} without any data, but {available:.2f} GiB are available; {what_helps}"
    )


def budget_option(training: TrainingConfig) -> str:
    """Return the option that says how large a batch is."""
    for name in ("max_tokens", "max_duration"):
        if training.batching.type == "bucketed" and getattr(training.batching, name) is not None:
            return name
    return "batch_size"


def search(trials: Trials, smallest: int, up_to: int, tell: Callable[[Trial], None]) -> list[Trial]:
    """Double until a size doesn't fit (or holds all there is), then halve what is between."""
    tried: list[Trial] = []

    def fits(size: int) -> bool:
        tried.append(trials.run(size))
        tell(tried[-1])
        return tried[-1].fits

    fitting, size = 0, smallest
    while fits(size):
        fitting = size
        # Once a batch holds all the data, a larger size gives the same one.
        if tried[-1].holds_all or size >= up_to:
            return tried
        size = min(2 * size, up_to)
    while fitting and size - fitting > max(1, fitting // PRECISION):
        middle = (fitting + size) // 2
        if fits(middle):
            fitting = middle
        else:
            size = middle
    return tried


def share_done(tried: Sequence[Trial], most: float) -> float:
    """Return the part of the search that is done after some trials, as far as one can know; it may end sooner.

    ``most`` is the size at which it ends if all of them fit.

    >>> [share_done([Trial(size, size, 0, {}) for size in (1, 2, 4, 8)[:number]], 16) for number in (1, 2, 4)]
    [0.2, 0.4, 0.8]
    """
    fitting = max((trial.size for trial in tried if trial.fits), default=0)
    refused = min((trial.size for trial in tried if not trial.fits), default=None)
    if refused is None:
        left = math.log2(max(most / fitting, 1))
    elif fitting:
        left = math.log2(max((refused - fitting) / max(1, fitting // PRECISION), 1))
    else:
        left = 0
    return len(tried) / (len(tried) + math.ceil(left))


def keep_effective(given: float, accumulation: int, most: int, option: str) -> tuple[int, int]:
    """A size of at most ``most``, and the accumulation that makes of it the effective batch of the configuration.

    Rows are divided without remainder; a budget is filled as far as it goes.

    >>> keep_effective(32, 2, 20, "batch_size"), keep_effective(4096, 1, 1500, "max_tokens")
    ((16, 4), (1365, 3))
    """
    effective = int(given * accumulation)
    if option != "batch_size":
        steps = math.ceil(effective / most)
        return effective // steps, steps
    size = next(size for size in range(min(most, effective), 0, -1) if effective % size == 0)
    return size, effective // size
