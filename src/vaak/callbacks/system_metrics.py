"""What the run takes of the machine: memory and its pressure, processors, the disk.

All of it depends on the world, so it stands under ``clock`` in the records.
"""

from __future__ import annotations

import logging
import os
import shutil
import time

import torch

from vaak.callbacks.step_log import is_logged
from vaak.callbacks.trackers import reason_of
from vaak.core.callback import Callback, Run, StepReport
from vaak.core.machine import host_memory
from vaak.engine.memory import read_memory

log = logging.getLogger("vaak")

GIBIBYTE = 1 << 30
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
        except Exception as error:  # missing readings are not a reason to stop
            self.works = False
            log.warning("system metrics are left out from now on: %s", reason_of(error))
        else:
            trainer.record("system", {"clock": {name: round(value, 4) for name, value in values.items()}})

    def machine(self) -> dict[str, float]:
        """This process's memory, its share of the processors since the last time (100 is one core), their load."""
        processor_seconds, seconds = time.process_time(), time.monotonic()
        gone = max(seconds - self.seconds, 1e-9)
        values = {
            "process_memory_gib": host_memory().read()[2] / GIBIBYTE,
            "cpu_percent": 100 * (processor_seconds - self.processor_seconds) / gone,
        }
        self.processor_seconds, self.seconds = processor_seconds, seconds
        if hasattr(os, "getloadavg"):
            values["machine_load"] = os.getloadavg()[0]
        return values

    def _device(self, device: torch.device) -> dict[str, float]:
        """The pressure on the memory that training uses; of a GPU, also what is used, and how busy it is."""
        reading = read_memory(device)
        values = {"memory_pressure": reading.pressure, "memory_limit_gib": reading.limit / GIBIBYTE}
        if device.type == "cpu":
            return values
        values |= {"device_memory_gib": reading.own / GIBIBYTE}
        if device.type == "cuda" and self.can_tell_utilisation:
            try:
                values["device_utilisation_percent"] = float(torch.cuda.utilization(device))
            except Exception:  # without nvidia-ml-py, or a driver that doesn't tell
                self.can_tell_utilisation = False
        return values

    def _disk(self, trainer: Run) -> dict[str, float]:
        """The space that is left where checkpoints go."""
        folder = trainer.checkpoints if trainer.checkpoints.exists() else trainer.directory
        free = shutil.disk_usage(folder).free
        needed = CHECKPOINTS_OF_SPACE * checkpoint_bytes(trainer.model)
        if free < needed and not self.warned:
            self.warned = True
            log.warning(
                "%s has %.1f GiB left, too little for %d checkpoints; make space, or lower checkpoint.save_total_limit",
                folder,
                free / GIBIBYTE,
                CHECKPOINTS_OF_SPACE,
            )
        return {"disk_free_gib": free / GIBIBYTE}


def checkpoint_bytes(model: torch.nn.Module) -> int:
    """About how much a checkpoint takes: the weights, and two moments of each."""
    return sum(3 * parameter.nbytes for parameter in model.parameters())
