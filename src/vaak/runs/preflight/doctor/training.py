"""Whether training would run here, as torch sees it: on this machine by default, and with a configuration.

A configuration is checked for mistakes, data, device, run directory, disk space and memory. Nothing is prepared,
created or written, and no user code is executed, unless all data are to be read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vaak.config.checks import explain_uncaptured
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded, load
from vaak.core.errors import UserError
from vaak.core.machine import allowed_cores, format_bytes, has_fast_bf16, nearest_existing
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.engine.distributed.launcher import (
    check_launcher,
    check_microbatches,
    pick_device,
    precision_from_launcher,
    with_batches_per_process,
    world_size,
)
from vaak.engine.dry_pass import numberless
from vaak.engine.forecast import at_rest
from vaak.engine.memory import read_memory
from vaak.engine.precision import precision_on
from vaak.nn.nf4 import num_weights
from vaak.runs.folder.directory import (
    checkpoints_elsewhere,
    has_checkpoints,
    holds_a_run,
    is_being_written,
    require_room,
)
from vaak.runs.folder.user_code import require_trust
from vaak.runs.preflight.doctor import DoctorFinding, Mark
from vaak.runs.preflight.doctor.data import examine_data
from vaak.runs.preflight.doctor.devices import (
    WHAT_WOULD_RUN,
    accelerate_configuration,
    compiler,
    find_missing_for_compile,
    has_wandb_key,
    precision,
    weights_and_biases,
)
from vaak.runs.preflight.doctor.packages import get_version, short

CONFIGURATION = "configuration"


def examine_training() -> Iterator[DoctorFinding]:
    """Yield what training would use on this machine where the YAML leaves it open."""
    device = pick_device("auto")
    yield from cuda_devices()
    yield DoctorFinding(WHAT_WOULD_RUN, "device", "ok", f"auto uses {device.type}")
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else has_fast_bf16()
    yield precision(device.type, bool(has_bf16))
    yield compiler(device.type)
    yield threads()
    yield processes(device)
    yield weights_and_biases()
    yield from accelerate_configuration(device.type)


def cuda_devices() -> Iterator[DoctorFinding]:
    """Yield each CUDA device, or why torch sees none on a machine that has one."""
    driver = cuda_driver()
    if not torch.cuda.is_available():
        if driver is not None:
            built = torch.version.cuda
            why = f"torch {torch.__version__} is built without CUDA"
            if built is not None:
                why = f"torch (CUDA {built}) sees no device; is CUDA_VISIBLE_DEVICES empty?"
                # is_available() swallows the reason; init() raises it.
                try:
                    torch.cuda.init()
                except Exception as error:
                    why = f"torch (CUDA {built}) can't use it: {short(str(error))}"
            advice = "install torch for CUDA: https://pytorch.org/get-started/locally"
            yield DoctorFinding(
                WHAT_WOULD_RUN, "CUDA", "warning", f"there is an NVIDIA driver ({driver}), but {why}", advice
            )
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        said = (
            f"{about.name}, {format_bytes(free)} free of {format_bytes(total)}, capability {about.major}.{about.minor}"
        )
        said += f", CUDA {torch.version.cuda}, driver {driver or 'unknown'}"
        if _is_known(about.major, about.minor):
            yield DoctorFinding(WHAT_WOULD_RUN, f"cuda:{number}", "ok", said)
        else:
            advice = f"install a torch built for it; this one is for {', '.join(torch.cuda.get_arch_list())}"
            yield DoctorFinding(
                WHAT_WOULD_RUN, f"cuda:{number}", "warning", f"{said}; this torch isn't built for it", advice
            )


def _is_known(major: int, minor: int) -> bool:
    """Whether torch has code for a device: its own, of an older one of its family, or to be compiled for it (PTX)."""
    built = [re.fullmatch(r"(sm|compute)_(\d+)(\d)a?", name) for name in torch.cuda.get_arch_list()]
    architectures = [(found[1], int(found[2]), int(found[3])) for found in built if found]
    binary = any(kind == "sm" and a == major and b <= minor for kind, a, b in architectures)
    return binary or any(kind == "compute" and (a, b) <= (major, minor) for kind, a, b in architectures)


def cuda_driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's driver; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", proc.read_text())
    except OSError:
        return None
    return found[1] if found else "unknown"


def threads() -> DoctorFinding:
    """Return a finding about the number of threads that torch takes on the CPU."""
    number, allowed = torch.get_num_threads(), allowed_cores()
    if number > allowed:
        said = f"torch uses {number} for {allowed} cores"
        advice = f"set training.performance.num_threads: {allowed} (or OMP_NUM_THREADS)"
        return DoctorFinding(WHAT_WOULD_RUN, "threads", "warning", said, advice)
    return DoctorFinding(WHAT_WOULD_RUN, "threads", "ok", f"torch uses {number} for {allowed} cores")


def processes(device: torch.device) -> DoctorFinding:
    """Return how several processes would communicate, and how many are useful."""
    distributed = torch.distributed
    if not distributed.is_available():
        return DoctorFinding(
            WHAT_WOULD_RUN, "processes", "warning", "one: this torch has no torch.distributed", "install another torch"
        )
    backends = [name for name in ("nccl", "gloo") if getattr(distributed, f"is_{name}_available")()]
    number = torch.cuda.device_count() if device.type == "cuda" else 1
    said = f"backends {', '.join(backends) or 'none'}"
    if number > 1:
        said += f"; {number} devices: vaak train FILE --processes {number}"
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1:
        said += f"; {started} processes were started"
    return DoctorFinding(WHAT_WOULD_RUN, "processes", "ok", said)


def examine_configuration(
    files: Sequence[Path | str], overrides: Sequence[str], trust_code: bool = False, read_data: bool = False
) -> Iterator[DoctorFinding]:
    """Yield what would go wrong if these files were trained here; with ``read_data``, in reading their data too."""
    try:
        loaded = load(files, overrides, trust_code=trust_code)
        if not has_checkpoints(loaded.experiment.run_dir):
            loaded.experiment.spec.require_base(loaded.experiment, loaded.folder)
    except UserError as error:
        for line in str(error).splitlines():
            yield DoctorFinding(CONFIGURATION, "mistake", "problem", line)
        return
    experiment = loaded.experiment
    yield DoctorFinding(
        CONFIGURATION, "file", "ok", f"valid: task {experiment.task}, run {experiment.name} in {experiment.run_dir}"
    )
    for warning in loaded.warnings:
        yield DoctorFinding(CONFIGURATION, "remark", "warning", warning)
    yield from _run_directory(experiment)
    # Without a usable device, the data and the model are examined all the same.
    device = None
    try:
        training = loaded.experiment.training
        precision_from_launcher(training.mixed_precision, "training.mixed_precision" in loaded.given)
        check_launcher(training, world_size())
        check_microbatches(with_batches_per_process(training, world_size()), world_size())
        device = pick_device(training.device)
    except UserError as error:
        yield DoctorFinding(CONFIGURATION, "device", "problem", str(error))
    else:
        yield from _examine_device(experiment, device)
    yield from _trackers(experiment)
    yield from _task(loaded, device)
    if read_data:
        yield from examine_data(loaded)


def _examine_device(experiment: Experiment[Any, Any], device: torch.device) -> Iterator[DoctorFinding]:
    """Yield findings about what the options ask of a device."""
    training = experiment.training
    yield DoctorFinding(
        CONFIGURATION, "device", "ok", f"{device.type}, precision {precision_on(training.mixed_precision, device)}"
    )
    if training.mixed_precision == "fp16" and device.type == "cpu":
        advice = "set mixed_precision: bf16, or no"
        yield DoctorFinding(
            CONFIGURATION, "precision", "warning", "fp16 needs an accelerator; it would train in fp32", advice
        )
    # Where none can be captured, a remark of the configuration says why.
    if training.performance.cuda_graphs and explain_uncaptured(experiment) is None:
        yield DoctorFinding(CONFIGURATION, "CUDA graphs", *_examine_graphs(device))
    lacks = find_missing_for_compile(device.type) if training.performance.compile else []
    if lacks:
        advice = "set training.performance.compile: false"
        said = f"training.performance.compile requires what is missing here: {', '.join(lacks)}"
        yield DoctorFinding(CONFIGURATION, "compile", "problem", said, advice)


def _examine_graphs(device: torch.device) -> tuple[Mark, str, str]:
    if device.type != "cuda":
        said = f"training.performance.cuda_graphs has no effect on {device.type}"
        return "warning", said, "leave it out, or train on an NVIDIA GPU"
    return "ok", "forward and backward of each shape of a batch will be captured", ""


def _run_directory(experiment: Experiment[Any, Any]) -> Iterator[DoctorFinding]:
    """Yield whether the run could be begun or resumed there."""
    run, checkpointing = experiment.run_dir, experiment.training.checkpoint
    checkpoints = checkpoints_elsewhere(checkpointing.save_dir, experiment.name)
    place, said, advice = nearest_existing(run), "", ""
    try:
        require_room(run, checkpoints, resumes=checkpointing.resume is not None)
    except UserError as error:
        # The message ends in its remedy.
        said, _, advice = str(error).rpartition(": ")
    if is_being_written(run):
        said, advice = f"{run} is being written by another process", "wait for it, or give another run_dir="
    elif not place.is_dir() or not os.access(place, os.W_OK):
        said, advice = f"{run} can't be created: {place} can't be written", "give another run_dir="
    if said:
        yield DoctorFinding(CONFIGURATION, "run directory", "problem", said, advice)
        return
    there = holds_a_run(run) or (checkpoints is not None and bool(list_checkpoints(checkpoints)))
    yield DoctorFinding(CONFIGURATION, "run directory", "ok", f"{run} ({'resumes' if there else 'new'})")


def _trackers(experiment: Experiment[Any, Any]) -> Iterator[DoctorFinding]:
    """Yield whether the trackers that are asked for can be used."""
    if not experiment.training.logging.wandb:
        return
    mode = experiment.wandb.mode or os.environ.get("WANDB_MODE", "online")
    if get_version("wandb") is None:
        yield DoctorFinding(
            CONFIGURATION, "W&B", "problem", "asked for, but wandb isn't installed", "pip install 'vaak[wandb]'"
        )
    elif mode == "online" and not has_wandb_key():
        yield DoctorFinding(
            CONFIGURATION, "W&B", "warning", "requested, but no API key is set", "wandb login, or WANDB_MODE=offline"
        )
    else:
        yield DoctorFinding(CONFIGURATION, "W&B", "ok", f"mode {mode}")


def _task(loaded: Loaded, device: torch.device | None) -> Iterator[DoctorFinding]:
    """Yield the task's data and model, as far as ``sources()`` and ``meta_model()`` describe them."""
    experiment = loaded.experiment
    try:
        require_trust(loaded)
        task = loaded.task()
        sources = task.sources()
    except UserError as error:
        yield DoctorFinding(CONFIGURATION, "data", "problem", str(error))
        return
    unreadable = [str(file) for file in sources if not os.access(file, os.R_OK)]
    if unreadable:
        yield DoctorFinding(CONFIGURATION, "data", "problem", f"can't be read: {', '.join(unreadable[:5])}")
    else:
        amount = format_bytes(sum(file.stat().st_size for file in sources))
        yield DoctorFinding(
            CONFIGURATION, "data", "ok", f"{len(sources)} files, {amount}" if sources else "it reads no files"
        )
    try:
        # Shapes alone, which take no memory whatever the model's size.
        with numberless(torch.device("cpu")):
            model = task.meta_model()
    except UserError as error:
        yield DoctorFinding(CONFIGURATION, "model", "problem", str(error))
        return
    if model is not None:
        yield from _space_and_memory(experiment, model, device)


def _space_and_memory(
    experiment: Experiment[Any, Any], model: nn.Module, device: torch.device | None
) -> Iterator[DoctorFinding]:
    """Yield whether the disk holds the checkpoints, and the device the weights with all that is kept for each."""
    training = experiment.training
    number = num_weights(model.parameters())
    rest = at_rest(model, training)
    checkpoint = rest.weights + rest.optimizer + rest.average
    save_dir = training.checkpoint.save_dir
    place = nearest_existing(Path(save_dir) if save_dir else experiment.run_dir)
    yield _space(checkpoint, training.checkpoint.save_total_limit, place)
    needed = rest.total
    said = f"up to {number:,} parameters; weights, gradients and optimizer take {format_bytes(needed)}"
    if device is None:
        return
    limit = read_memory(device).limit
    if needed > limit:
        advice = "take a smaller model, or another optimizer"
        yield DoctorFinding(
            CONFIGURATION, "memory", "problem", f"{said} of {format_bytes(limit)}, without any activations", advice
        )
    else:
        yield DoctorFinding(CONFIGURATION, "memory", "ok", f"{said} of {format_bytes(limit)}, plus activations")


def _space(checkpoint: float, limit: int | None, place: Path) -> DoctorFinding:
    """Whether the checkpoints that are kept fit on the disk: the last ones, the best, and the one being written."""
    free = shutil.disk_usage(place).free
    kept = "all are kept" if limit is None else f"up to {limit + 2} at a time"
    needed = checkpoint * (2 if limit is None else limit + 2)
    said = f"a checkpoint takes {format_bytes(checkpoint)}, {kept}; {format_bytes(free)} are free at {place}"
    if free < checkpoint:
        return DoctorFinding(CONFIGURATION, "space", "problem", said, "make space, or give run_dir= on another disk")
    if free < needed:
        return DoctorFinding(
            CONFIGURATION, "space", "warning", said, "make space, or set training.checkpoint.save_total_limit lower"
        )
    return DoctorFinding(CONFIGURATION, "space", "ok", said)
