"""Compares what torchrun, accelerate launch and the machine say with a run's YAML: contradictions are errors."""

from __future__ import annotations

import logging
import os

import torch

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError

log = logging.getLogger("vaak")

PLUGINS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def world_size() -> int:
    """How many processes were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def with_batches_per_process(config: TrainingConfig, processes: int) -> TrainingConfig:
    """The options of a run that starts on this many processes: as accelerate has it, where they are too many.

    With more processes than microbatches, ``batch_size`` is per process: a step has as many times more microbatches.
    They are then an option of the run like any other, whatever number of processes it resumes on.
    """
    if processes <= config.gradient_accumulation_steps or config.distributed.processes_at_start is not None:
        return config
    return multiplied_by(config, processes)


def multiplied_by(config: TrainingConfig, processes: int) -> TrainingConfig:
    """The options with a step's microbatches times this number of processes, which is noted."""
    distributed = config.distributed.model_copy(update={"processes_at_start": processes})
    steps = config.gradient_accumulation_steps * processes
    return config.model_copy(update={"distributed": distributed, "gradient_accumulation_steps": steps})


def check_launcher(config: TrainingConfig, world_size: int) -> None:
    """Raise UserError where what was launched is not what the YAML asks for, or can't be done."""
    wanted = config.distributed.world_size
    if wanted is not None and wanted != world_size:
        raise UserError(
            f"training.distributed.world_size is {wanted} but {world_size} process(es) were started: start them with "
            f"torchrun --nproc_per_node={wanted} train.py --config FILE, or remove the option"
        )
    if world_size > config.gradient_accumulation_steps:
        raise UserError(
            f"{world_size} processes share the {config.gradient_accumulation_steps} microbatch(es) of a step: set "
            f"training.gradient_accumulation_steps to {world_size} or more, with training.batch_size smaller"
        )
    for variable, name in PLUGINS.items():
        if os.environ.get(variable, "").lower() == "true":
            raise UserError(
                f"accelerate's configuration asks for {name}, which isn't supported; use distributed_type MULTI_GPU"
            )
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no" and not config.performance.compile:
        raise UserError(
            f"accelerate's configuration asks for the compiler {compiler}: set training.performance.compile: true, "
            "or dynamo_backend: no there"
        )


def pick_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is CUDA, else MPS, else the CPU."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and os.environ.get("ACCELERATE_MIXED_PRECISION"):
        if name in ("cuda", "mps"):
            raise UserError(f"training.device is {name} but accelerate's configuration says use_cpu: true; change one")
        return torch.device("cpu")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if name not in available:
        raise UserError(f"unknown device {name!r}; expected auto, cuda, mps or cpu")
    if not available[name]:
        raise UserError(f"training.device is {name} but this machine has none; use device: auto or cpu")
    return torch.device(name)


def say_what_has_no_effect(config: TrainingConfig, device: torch.device, processes: int) -> None:
    """Warn about options that have no effect on this device, and note those that have none with one process."""
    _warn_of_what_a_device_lacks(config, device)
    given = config.distributed
    for name in ("backend", "sync_gradient_barrier", "timeout_minutes") if processes == 1 else ():
        if getattr(given, name) != type(given).model_fields[name].default:
            log.info("training.distributed.%s has no effect: there is one process (torchrun starts several)", name)


def _warn_of_what_a_device_lacks(config: TrainingConfig, device: torch.device) -> None:
    if device.type == "cuda":
        return
    if config.deterministic and device.type == "cpu":
        log.info("training.deterministic has no effect on cpu: its kernels always are deterministic")
    if config.performance.tf32:
        log.warning("training.performance.tf32 is for CUDA only: it has no effect on %s", device.type)
    if config.performance.pin_memory:
        log.warning("training.performance.pin_memory is for CUDA only: it has no effect on %s", device.type)
    if config.distributed.backend == "nccl":
        log.warning("training.distributed.backend nccl is for CUDA only: on %s the processes use gloo", device.type)


def precision_from_launcher(chosen: str, given: bool) -> str:
    """The precision of the YAML, or of accelerate's configuration where the YAML says nothing.

    Raises UserError where both speak and differ. Accelerate's ``no`` is its default, so it contradicts nothing.
    """
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched == "no" or launched == chosen:
        return chosen
    if given:
        raise UserError(
            f"training.mixed_precision is {chosen} but accelerate's configuration says {launched}; change one of them"
        )
    if launched not in ("bf16", "fp16"):
        raise UserError(
            f"accelerate's configuration says mixed_precision: {launched}, which isn't supported; use bf16 or fp16"
        )
    return launched
