"""Findings on training here: devices, precision, the compiler, processes, trackers, accelerate's configuration."""

from __future__ import annotations

import netrc
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from vaak.config.yaml.text import read_yaml
from vaak.config.yaml.tree import to_plain
from vaak.core.errors import UserError
from vaak.core.machine import allowed_cores, format_bytes
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.precision import has_fast_bf16
from vaak.runs.doctor import DoctorFinding
from vaak.runs.doctor.packages import short, try_imports, version_of

ABOUT = "what would run"
REFUSED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA", "TPU")


def examine_training() -> Iterator[DoctorFinding]:
    """Yield what training would use on this machine where the YAML leaves it open."""
    device = pick_device("auto")
    yield from cuda_devices()
    yield DoctorFinding(ABOUT, "device", "ok", f"auto uses {device.type}")
    yield precision(device)
    yield compiler(device)
    yield threads()
    yield processes(device)
    yield weights_and_biases()
    yield from accelerate_configuration()


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


def precision(device: torch.device) -> DoctorFinding:
    """Return which of training.mixed_precision this device can do, and whether it is worth it."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return DoctorFinding(ABOUT, "precision", "ok", "no, bf16 and fp16; auto is bf16")
        return DoctorFinding(ABOUT, "precision", "ok", "no and fp16; auto is no: this device has no hardware for bf16")
    if device.type == "mps":
        return DoctorFinding(ABOUT, "precision", "ok", "no, bf16 and fp16; auto is no")
    fast = "fast here" if has_fast_bf16() else "no faster here: this processor has no instructions for it"
    return DoctorFinding(
        ABOUT, "precision", "ok", f"no and bf16 ({fast}); auto is no on a CPU; fp16 needs an accelerator"
    )


def compiler(device: torch.device) -> DoctorFinding:
    """Whether training.performance.compile can work."""
    lacks = what_compiling_lacks(device)
    if not lacks:
        return DoctorFinding(ABOUT, "compile", "ok", "possible")
    advice = "leave training.performance.compile off, or install what is missing"
    return DoctorFinding(ABOUT, "compile", "warning", f"not possible without {' and '.join(lacks)}", advice)


def what_compiling_lacks(device: torch.device) -> list[str]:
    """Return what torch.compile needs for a device and isn't here."""
    given = os.environ.get("CXX")
    names = [given] if given else ["g++", "clang++", "c++", "cl"]
    lacks = [] if any(map(shutil.which, names)) else [f"C++ compiler ({', '.join(names)})"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacks.append("Python.h (the package python3-dev)")
    if device.type == "cuda":
        triton = try_imports(["triton"])["triton"]
        if not triton.there or triton.error is not None:
            lacks.append("working triton")
    return lacks


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


def weights_and_biases() -> DoctorFinding:
    """Whether Weights & Biases could be logged to. Of a key, only whether there is one."""
    if version_of("wandb") is None:
        return DoctorFinding(ABOUT, "W&B", "ok", "not installed: pip install 'vaak[wandb]'")
    mode = os.environ.get("WANDB_MODE", "online")
    key = "with an API key" if has_wandb_key() else "without an API key"
    said = f"mode {mode}, {key}"
    if mode == "online" and not has_wandb_key():
        advice = "wandb login, or WANDB_MODE=offline; only training.logging.wandb needs it"
        return DoctorFinding(ABOUT, "W&B", "ok", said, advice)
    return DoctorFinding(ABOUT, "W&B", "ok", said)


def has_wandb_key() -> bool:
    """Whether a key is in the environment or where ``wandb login`` puts it."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    given = os.environ.get("NETRC")
    for file in [Path(given)] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            if netrc.netrc(file).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def accelerate_configuration() -> Iterator[DoctorFinding]:
    """Yield what ``accelerate launch`` would do, where ``accelerate config`` has been run."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    folder = Path(home).expanduser() / "accelerate"
    files = [folder / f"default_config.{ending}" for ending in ("yaml", "yml", "json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        yield DoctorFinding(ABOUT, "accelerate", "ok", "no configuration: accelerate launch takes its defaults")
        return
    try:
        values: Any = to_plain(read_yaml(file))  # JSON is YAML, too
    except UserError as error:
        yield DoctorFinding(ABOUT, "accelerate", "warning", short(str(error)), "run accelerate config again")
        return
    kind = str(values.get("distributed_type", "NO"))
    named = {name: values.get(name) for name in ("num_processes", "mixed_precision", "use_cpu")}
    said = ", ".join([kind, *(f"{name} {value}" for name, value in named.items() if value is not None)])
    if kind in REFUSED:
        advice = "run accelerate config again with MULTI_GPU or NO"
        yield DoctorFinding(ABOUT, "accelerate", "warning", f"{said} ({file}); Vaak doesn't train under {kind}", advice)
    elif values.get("use_cpu") and (torch.cuda.is_available() or torch.backends.mps.is_available()):
        advice = "run accelerate config again to use the device"
        yield DoctorFinding(ABOUT, "accelerate", "warning", f"{said} ({file}): the device stays unused", advice)
    elif kind == "MULTI_CPU" and sys.platform == "linux":
        advice = "start several CPU processes with torchrun: accelerate launch may start one only"
        yield DoctorFinding(ABOUT, "accelerate", "warning", f"{said} ({file})", advice)
    else:
        yield DoctorFinding(ABOUT, "accelerate", "ok", f"{said} ({file})")
