"""One size of batch, tried: the largest microbatch of its plan, forward, backward and update, on the run's device.

A device with its own allocator reports when it is out of memory, and that is caught. On a CPU the kernel kills
instead, so there a size is tried only where the sizes before it say that it will fit: memory grows by equal amounts for
equal cells, from what the model takes alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vaak.data.batching.planner import planner_of
from vaak.data.plan import LastPlan
from vaak.data.reader import Address, Microbatch
from vaak.engine.gradient import DoesNotFitError
from vaak.engine.memory.device import free_memory, is_out_of_memory, read_memory, reset_peak
from vaak.engine.memory.pressure import thresholds_of
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData, count_units

OUT_OF_MEMORY = "out of memory"
STEPS, MOST_SECONDS = 5, 2.0  # limits of the timing of each size: steps, and seconds after which none starts


@dataclass(frozen=True)
class Trial:
    """The result of trying one size. ``problem`` says why it doesn't fit; None where it does.

    ``memory_bytes`` is what this process uses at worst (of what was only forecast, the forecast); ``per_second`` is how
    much of each unit is trained on; ``holds_all`` says that the whole epoch is one microbatch, or one of each part.
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
        """What trials are compared by: the first unit's rate."""
        return next(iter(self.per_second.values()), 0.0)


class Trials:
    """Tries sizes of ``option`` (``batch_size``, ``max_tokens`` or ``max_duration``) on a trainer's model.

    ``limit`` is the memory in bytes that this process may use; None is all there is. Of either, the fraction below
    critical pressure may be filled.
    """

    def __init__(self, trainer: Trainer, option: str, limit: int | None) -> None:
        self.trainer, self.option, self.limit = trainer, option, limit
        self.device, self.dataset = trainer.ranks.device, trainer.data.dataset
        self.threshold = thresholds_of(self.device, trainer.config.memory.thresholds)[2]
        self.measured: list[tuple[float, int]] = []  # cells and bytes
        # Nothing is learned from being tried, and what doesn't fit is not to be computed in pieces, but known.
        whole = [replace(one, gradient=replace(one.gradient, recovery=False)) for one in trainer.step.objectives]
        self.step = replace(trainer.step, objectives=tuple(whole), schedule=lambda step: 0.0)
        trainer.state.loss_scale.value = 1.0  # nor may fp16 overflow, and so leave the update out

    def available(self) -> int:
        """The bytes that this process may use: what other processes hold is theirs."""
        reading = read_memory(self.device)
        if self.limit is not None:
            return int(self.threshold * self.limit)
        return int(self.threshold * reading.limit) - (reading.used - reading.own)

    def at_rest(self) -> int:
        """The bytes that this process uses without a batch, after the first trial."""
        return self.measured[0][1] if self.measured else 0

    def run(self, size: int) -> Trial:
        """Try one size."""
        planner = self._planner(size)
        cells, rows = self._largest(planner)
        parts = self.dataset.parts
        holds_all = planner.num_microbatches == (1 if parts is None else len(np.unique(parts)))
        expected = self._forecast(cells)
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
            self._remember(cells, used)
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
        """The examples of the first row of a size's largest microbatch, for an error message."""
        _, rows = self._largest(self._planner(size))
        return ", ".join(f"{index} ({self.dataset.describe(index)})" for index in rows[0][:5])

    def _largest(self, planner: LastPlan) -> tuple[float, list[list[int]]]:
        """Cells and rows of the microbatch of the first epoch that has most cells."""
        plan = planner.plan(0)
        cells = plan.cells(self.dataset.lengths)
        position = int(np.argmax(cells))
        return float(cells[position]), plan.microbatch(position)

    def _planner(self, size: int) -> LastPlan:
        """The planner of a size, over all the examples: a curriculum comes to them in the end."""
        config = self.trainer.config
        of_rows = self.option == "batch_size"
        batching = config.batching if of_rows else config.batching.model_copy(update={self.option: size})
        batch_size = size if of_rows else config.batch_size
        return LastPlan(planner_of(self.dataset, batching, batch_size, config.random_seed))

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

    def _remember(self, cells: float, used: int) -> None:
        if not self.measured:
            free_memory(self.device)
            reset_peak(self.device)
            self.measured.append((0.0, read_memory(self.device).own))
        self.measured = sorted([*self.measured, (cells, used)])

    def _forecast(self, cells: float) -> int:
        """The peak bytes of this many cells, by the two largest that were measured, and by the largest."""
        if not self.measured:
            return 0
        (before, least), (last, most) = self.measured[0], self.measured[-1]
        lines = [(before, least), self.measured[-2]]
        slopes = [(most - used) / (last - at) for at, used in lines if last > at]
        return most + int((cells - last) * max([0.0, *slopes]))
