"""Findings on training here, as torch sees it: devices, precision, threads, processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from vaak.core.machine import allowed_cores, format_bytes, has_fast_bf16
from vaak.engine.distributed.launcher import pick_device
from vaak.runs.doctor import DoctorFinding
from vaak.runs.doctor.devices import ABOUT, accelerate_configuration, compiler, precision, weights_and_biases
from vaak.runs.doctor.packages import short


def examine_training() -> Iterator[DoctorFinding]:
    """Yield what training would use on this machine where the YAML leaves it open."""
    device = pick_device("auto")
    yield from cuda_devices()
    yield DoctorFinding(ABOUT, "device", "ok", f"auto uses {device.type}")
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else has_fast_bf16()
    yield precision(device.type, bool(has_bf16))
    yield compiler(device.type)
    yield threads()
    yield processes(device)
    yield weights_and_biases()
    yield from accelerate_configuration(device.type)


def cuda_devices() -> Iterator[DoctorFinding]:
    """Each CUDA device, or why torch sees none on a machine that has one."""
    driver = cuda_driver()
    if not torch.cuda.is_available():
        if driver is not None:
            built = torch.version.cuda
            why = f"torch {torch.__version__} is built without CUDA" if built is None else _why_no_cuda(built)
            advice = "install torch for CUDA: https://pytorch.org/get-started/locally"
            yield DoctorFinding(ABOUT, "CUDA", "warning", f"there is an NVIDIA driver ({driver}), but {why}", advice)
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        said = (
            f"{about.name}, {format_bytes(free)} free of {format_bytes(total)}, capability {about.major}.{about.minor}"
        )
        said += f", CUDA {torch.version.cuda}, driver {driver or 'unknown'}"
        if _is_known(about.major, about.minor):
            yield DoctorFinding(ABOUT, f"cuda:{number}", "ok", said)
        else:
            advice = f"install a torch built for it; this one is for {', '.join(torch.cuda.get_arch_list())}"
            yield DoctorFinding(ABOUT, f"cuda:{number}", "warning", f"{said}; this torch isn't built for it", advice)


def _is_known(major: int, minor: int) -> bool:
    """Whether torch has code for a device: its own, of an older one of its family, or to be compiled for it (PTX)."""
    built = [re.fullmatch(r"(sm|compute)_(\d+)(\d)a?", name) for name in torch.cuda.get_arch_list()]
    architectures = [(found[1], int(found[2]), int(found[3])) for found in built if found]
    binary = any(kind == "sm" and a == major and b <= minor for kind, a, b in architectures)
    return binary or any(kind == "compute" and (a, b) <= (major, minor) for kind, a, b in architectures)


def cuda_driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", proc.read_text())
    except OSError:
        return None
    return found[1] if found else "unknown"


def _why_no_cuda(built: str) -> str:
    try:
        torch.cuda.init()
    except Exception as error:
        return f"torch (CUDA {built}) can't use it: {short(str(error))}"
    return f"torch (CUDA {built}) sees no device; is CUDA_VISIBLE_DEVICES empty?"


def threads() -> DoctorFinding:
    """Return a finding about the number of threads that torch takes on the CPU."""
    number, allowed = torch.get_num_threads(), allowed_cores()
    if number > allowed:
        said = f"torch uses {number} for {allowed} cores"
        advice = f"set training.performance.num_threads: {allowed} (or OMP_NUM_THREADS)"
        return DoctorFinding(ABOUT, "threads", "warning", said, advice)
    return DoctorFinding(ABOUT, "threads", "ok", f"torch uses {number} for {allowed} cores")


def processes(device: torch.device) -> DoctorFinding:
    """Yield how several processes would talk, and how many are of use."""
    distributed = torch.distributed
    if not distributed.is_available():
        return DoctorFinding(
            ABOUT, "processes", "warning", "one: this torch has no torch.distributed", "install another torch"
        )
    backends = [name for name in ("nccl", "gloo") if getattr(distributed, f"is_{name}_available")()]
    number = torch.cuda.device_count() if device.type == "cuda" else 1
    said = f"backends {', '.join(backends) or 'none'}"
    if number > 1:
        said += f"; {number} devices: vaak train FILE --processes {number}"
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1:
        said += f"; {started} processes were started"
    return DoctorFinding(ABOUT, "processes", "ok", said)
