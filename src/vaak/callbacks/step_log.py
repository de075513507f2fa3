"""The values of a run: every N steps, of every evaluation and epoch; of the machine; and each group's learning rate.

A logged loss is the mean over all that was counted since the last log (total over count, not a mean of steps). What
has been added up so far is part of the state, so a resumed run logs the same numbers. Memory, processors and the disk
depend on the world, so they stand under ``clock`` in the records.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from typing import Any

import torch

from vaak.callbacks.trackers import describe_error
from vaak.core.machine import GIB, host_memory
from vaak.engine.callback import Callback, Run, StepReport, rate_name
from vaak.engine.memory import read_memory
from vaak.nn.nf4 import num_weights

# Reports that are kept back; each holds tensors.
MOST_UNREAD = 256


def is_logged(trainer: Run, step: int, every: int) -> bool:
    """Return whether a step is logged: every N-th, the first and the last one."""
    return step % every == 0 or step == 1 or step == trainer.total_steps


class LossTally:
    """Totals and counts of each loss over some steps."""

    def __init__(self, sums: dict[str, list[float]] | None = None) -> None:
        self.sums = sums or {}

    def add(self, name: str, mean: float, count: float) -> None:
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] += mean * count
        entry[1] += count

    def means(self, weights: dict[str, float]) -> dict[str, float]:
        """Return each loss over its count, and ``loss``, their weighted sum."""
        return with_total({name: total / count for name, (total, count) in self.sums.items() if count}, weights)


class StepLogCallback(Callback):
    """Writes step, evaluation and epoch records, and once the model's size.

    ``smoothing`` is the weight of the past in smoothed losses, if any.
    """

    def __init__(self, every: int = 50, smoothing: float = 0.0) -> None:
        self.every = every
        self.unread: list[StepReport] = []
        self.window, self.epoch, self.smoothed = LossTally(), LossTally(), Smoothed(smoothing)
        self.seconds, self.excluded, self.counts = 0.0, 0.0, dict[str, float]()
        self.gap, self.steps = 0.0, 0
        self.skipped = {"overflow": 0, "non_finite": 0}

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        self.unread.append(report)
        if is_logged(trainer, report.step, self.every):
            self._read()
            trainer.record("step", self._step_values(trainer, report))
            self.window, self.seconds, self.excluded, self.counts = LossTally(), 0.0, 0.0, {}
            self.gap, self.steps = 0.0, 0
            if report.step == 1:
                all_weights = list(trainer.model.parameters())
                # These are the parameters that are trained at first.
                trained = [weights for weights in all_weights if weights.requires_grad]
                sizes = {"parameters": num_weights(all_weights), "trained_parameters": num_weights(trained)}
                trainer.record("model", sizes)
        elif len(self.unread) == MOST_UNREAD:
            self._read()

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        trainer.record("evaluation", {"scheduled": trainer.scheduled_evaluation, **metrics})

    def epoch_figures(self, trainer: Run) -> dict[str, float]:
        """Return the mean of each loss since the epoch began."""
        self._read()
        return {f"train_{name}": mean for name, mean in self.epoch.means(trainer.loss_weights).items()}

    def on_epoch_end(self, trainer: Run, epoch: int, metrics: dict[str, float]) -> None:
        means = self.epoch_figures(trainer)
        trainer.record(
            "epoch", {"epoch": epoch, **means, "total_steps": trainer.total_steps, **trainer.position.totals}
        )
        self.epoch = LossTally()

    def _read(self) -> None:
        """Add up the reports not yet read: one wait for the device, however many there are."""
        tensors = [mean for report in self.unread for mean in report.losses.values()]
        numbers = iter(torch.stack(tensors).tolist() if tensors else [])
        for report in self.unread:
            means = {name: next(numbers) for name in report.losses}
            self.seconds += report.seconds
            self.excluded += report.excluded_seconds
            self.gap += report.seconds_of_gap
            self.steps += 1
            for unit, count in report.counts.items():
                self.counts[unit] = self.counts.get(unit, 0.0) + count
            if report.skipped is not None:
                self.skipped[report.skipped] += 1
            if report.skipped == "non_finite":
                # Counted; in a mean it would hide all others.
                continue
            for name, unit in report.units.items():
                count = report.counts.get(unit, 0.0)
                self.window.add(name, means[name], count)
                self.epoch.add(name, means[name], count)
                if count and self.smoothed.decay:
                    self.smoothed.add(name, means[name])
        self.unread = []

    def _step_values(self, trainer: Run, report: StepReport) -> dict[str, Any]:
        values: dict[str, Any] = self.window.means(trainer.loss_weights)
        if smoothed := self.smoothed.means():
            means = with_total(smoothed, trainer.loss_weights)
            values |= {f"smoothed_{name}": mean for name, mean in means.items()}
        values |= {"learning_rate": report.learning_rate, "gradient_norm": float(report.gradient_norm)}
        values |= {f"gradient_norm/{name}": float(norm) for name, norm in report.gradient_norms.items()}
        if report.loss_scale is not None:
            values |= {"loss_scale": report.loss_scale, "overflows": self.skipped["overflow"]}
        if self.skipped["non_finite"]:
            values["non_finite_steps"] = self.skipped["non_finite"]
        # An evaluation between steps doesn't slow the steps down.
        training = self.seconds - self.excluded
        values["clock"] = {"seconds": round(self.seconds, 4)} | {
            rate_name(unit): round(count / training, 1) for unit, count in self.counts.items() if count and training > 0
        }
        values["clock"]["gap_ms"] = round(1000 * self.gap / max(1, self.steps), 3)
        return values

    def state_dict(self) -> dict[str, Any]:
        self._read()
        tallies = {"window": self.window.sums, "epoch": self.epoch.sums, "smoothed": self.smoothed.sums}
        return {**tallies, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.window, self.epoch = LossTally(state["window"]), LossTally(state["epoch"])
        self.smoothed.sums, self.skipped = state["smoothed"], state["skipped"]
        self.unread, self.seconds, self.excluded, self.counts = [], 0.0, 0.0, {}
        self.gap, self.steps = 0.0, 0


def with_total(parts: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """``loss``, the weighted sum of all losses, and each of them; without losses it is NaN.

    >>> with_total({"main": 2.0, "z_loss": 3.0}, {"z_loss": 0.1})
    {'loss': 2.3, 'main': 2.0, 'z_loss': 3.0}
    """
    total = sum(weights.get(name, 1.0) * mean for name, mean in parts.items())
    return {"loss": total if parts else math.nan, **parts}


class Smoothed:
    """Exponential averages by name, corrected for having begun at zero; the past weighs ``decay`` in each step.

    Source: Kingma and Ba 2015, section 3 (the bias correction). A value that isn't finite is ignored: it would stay in
    the average for ever.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.sums: dict[str, list[float]] = {}
        """Name to the weighted sum of its values, and the sum of the weights."""

    def add(self, name: str, value: float) -> None:
        """Add the value of a step."""
        if not math.isfinite(value):
            return
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] = self.decay * entry[0] + (1 - self.decay) * value
        entry[1] = self.decay * entry[1] + (1 - self.decay)

    def means(self) -> dict[str, float]:
        """Return the averages.

        >>> smoothed = Smoothed(0.5)
        >>> for value in (4.0, 1.0):
        ...     smoothed.add("loss", value)
        >>> smoothed.means()
        {'loss': 2.0}
        """
        return {name: total / weight for name, (total, weight) in self.sums.items()}


log = logging.getLogger("vaak")
CHECKPOINTS_OF_SPACE = 2


class SystemMetricsCallback(Callback):
    """Writes a ``system`` record with each step record, and warns once where the disk is nearly full."""

    main_process_only = True

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.processor_seconds, self.seconds = time.process_time(), time.monotonic()
        self.can_tell_utilisation = True
        self.warned = False
        self.works = True

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if not self.works or not is_logged(trainer, report.step, self.every):
            return
        try:
            values = self.machine() | self._device(trainer.ranks.device) | self._disk(trainer)
        except Exception as error:
            # Missing readings are not a reason to stop.
            self.works = False
            log.warning("system metrics are left out from now on: %s", describe_error(error))
        else:
            trainer.record("system", {"clock": {name: round(value, 4) for name, value in values.items()}})

    def machine(self) -> dict[str, float]:
        """Return this process's memory, its CPU use since the last call (100 is one core), and the machine's load."""
        processor_seconds, seconds = time.process_time(), time.monotonic()
        gone = max(seconds - self.seconds, 1e-9)
        values = {
            "process_memory_gib": host_memory().read()[2] / GIB,
            "cpu_percent": 100 * (processor_seconds - self.processor_seconds) / gone,
        }
        self.processor_seconds, self.seconds = processor_seconds, seconds
        if hasattr(os, "getloadavg"):
            values["machine_load"] = os.getloadavg()[0]
        return values

    def _device(self, device: torch.device) -> dict[str, float]:
        """Return the pressure on the memory that training uses; for a GPU, also the memory used and its utilisation."""
        reading = read_memory(device)
        values = {"memory_pressure": reading.pressure, "memory_limit_gib": reading.limit / GIB}
        if device.type == "cpu":
            return values
        values |= {"device_memory_gib": reading.own / GIB}
        if device.type == "cuda" and self.can_tell_utilisation:
            try:
                values["device_utilisation_percent"] = float(torch.cuda.utilization(device))
            # nvidia-ml-py is missing, or the driver doesn't report it.
            except Exception:
                self.can_tell_utilisation = False
        return values

    def _disk(self, trainer: Run) -> dict[str, float]:
        """Return the space that is left where checkpoints go."""
        folder = trainer.checkpoints if trainer.checkpoints.exists() else trainer.directory
        free = shutil.disk_usage(folder).free
        # of a checkpoint: the weights, and two moments of each
        needed = CHECKPOINTS_OF_SPACE * sum(3 * parameter.nbytes for parameter in trainer.model.parameters())
        if free < needed and not self.warned:
            self.warned = True
            log.warning(
                "%s has %.1f GiB left, too little for %d checkpoints; make space, or lower checkpoint.save_total_limit",
                folder,
                free / GIB,
                CHECKPOINTS_OF_SPACE,
            )
        return {"disk_free_gib": free / GIB}


class LRMonitorCallback(Callback):
    """Records each parameter group's rate every ``every`` steps, as ``learning_rates`` in ``metrics.jsonl``."""

    main_process_only = True

    def __init__(self, every: int = 50) -> None:
        self.every = every

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step % self.every == 0:
            rates = enumerate(trainer.learning_rates())
            trainer.record("learning_rates", {f"learning_rate/{number}": rate for number, rate in rates})
