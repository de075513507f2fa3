"""Findings on what would run here as the system knows it, without importing torch, which takes seconds.

Source: ``nvidia-smi --help-query-gpu``; torch's own ``version.py`` says what it was built for.
"""

from __future__ import annotations

import importlib.util
import netrc
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.core.machine import allowed_cores, format_bytes, has_fast_bf16, host_memory
from vaak.runs.preflight.doctor import DoctorFinding
from vaak.runs.preflight.doctor.packages import get_version, look_up, short, try_imports

WHAT_WOULD_RUN = "what would run"
DEVICE_TIMEOUT_SECONDS = 5.0
REFUSED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA", "TPU")
_QUERY = "name,memory.free,memory.total,compute_cap,driver_version"
DeviceKind = Literal["cuda", "mps", "cpu"]


@dataclass(frozen=True)
class Device:
    """A device: its kind, its name, its memory in bytes, and, of CUDA, capability and driver."""

    kind: DeviceKind
    name: str
    total: int
    free: int
    capability: tuple[int, int] = (0, 0)
    driver: str = ""

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bf16 in hardware."""
        return self.capability >= (8, 0) if self.kind == "cuda" else self.kind == "cpu" and bool(has_fast_bf16())


def nvidia_devices() -> list[Device]:
    """Return the GPUs that ``nvidia-smi`` names; none if the program is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEVICE_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [device for row in rows if (device := _parse_device(row)) is not None]


def _parse_device(row: list[str]) -> Device | None:
    try:
        name, free, total, capability, driver = row
        major, _, minor = capability.partition(".")
        return Device("cuda", name, int(total) << 20, int(free) << 20, (int(major), int(minor)), driver)
    except ValueError:
        # [N/A] for a device without separate memory.
        return None


def get_torch_cuda() -> str | None:
    """Return the version of CUDA that torch was built for; None for a build without, or without torch."""
    found = importlib.util.find_spec("torch")
    try:
        text = (Path(str(found.origin)).parent / "version.py").read_text() if found is not None else ""
    except OSError:
        return None
    version = re.search(r"^cuda(?:: \S+(?: \| None)?)? = '([\d.]+)'", text, re.MULTILINE)
    return version[1] if version else None


def devices_here() -> list[Device]:
    """Return what ``training.device: auto`` would use: the GPUs, where torch is built for them, or the processor."""
    if get_torch_cuda() is not None and (devices := nvidia_devices()):
        return devices
    here = processor()
    is_apples = sys.platform == "darwin" and platform.machine() == "arm64"
    return [replace(here, kind="mps", name="Apple's GPU") if is_apples else here]


def processor() -> Device:
    """Return the processor, with the machine's memory."""
    used, limit, _ = host_memory().read()
    return Device("cpu", f"{allowed_cores()} cores", limit, limit - used)


def examine_devices() -> Iterator[DoctorFinding]:
    """Yield what training would use here; whether torch can use it too, only an import shows (``--thorough``)."""
    there, built = nvidia_devices(), get_torch_cuda()
    if there and built is None:
        advice = "install torch for CUDA: https://pytorch.org/get-started/locally"
        said = f"there is {there[0].name} (driver {there[0].driver}), but torch is built without CUDA"
        yield DoctorFinding(WHAT_WOULD_RUN, "CUDA", "warning", said, advice)
    devices = devices_here()
    for number, device in enumerate(devices if devices[0].kind == "cuda" else ()):
        major, minor = device.capability
        said = f"{device.name}, {format_bytes(device.free)} free of {format_bytes(device.total)}"
        said += f", capability {major}.{minor}, CUDA {built}, driver {device.driver}"
        yield DoctorFinding(WHAT_WOULD_RUN, f"cuda:{number}", "ok", said)
    first = devices[0]
    several = f"; all {len(devices)}: vaak train FILE --processes {len(devices)}"
    yield DoctorFinding(WHAT_WOULD_RUN, "device", "ok", f"auto uses {first.kind}{several if len(devices) > 1 else ''}")
    yield precision(first.kind, first.has_bf16)
    yield compiler(first.kind, thorough=False)
    yield weights_and_biases()
    yield from accelerate_configuration(first.kind)


def precision(kind: str, has_bf16: bool) -> DoctorFinding:
    """Return which of training.mixed_precision a device can do, and whether it is worth it."""
    said = {
        ("cuda", True): "no, bf16 and fp16; auto is bf16",
        ("cuda", False): "no and fp16; auto is no: this device has no hardware for bf16",
        ("mps", has_bf16): "no, bf16 and fp16; auto is no",
    }.get((kind, has_bf16))
    if said is None:
        fast = "fast here" if has_bf16 else "no faster here: this processor has no instructions for it"
        said = f"no and bf16 ({fast}); auto is no on a CPU; fp16 needs an accelerator"
    return DoctorFinding(WHAT_WOULD_RUN, "precision", "ok", said)


def compiler(kind: str, thorough: bool = True) -> DoctorFinding:
    """Return whether training.performance.compile can work."""
    lacks = find_missing_for_compile(kind, thorough)
    if not lacks:
        return DoctorFinding(WHAT_WOULD_RUN, "compile", "ok", "possible")
    advice = "leave training.performance.compile off, or install what is missing"
    return DoctorFinding(WHAT_WOULD_RUN, "compile", "warning", f"not possible without {' and '.join(lacks)}", advice)


def find_missing_for_compile(kind: str, thorough: bool = True) -> list[str]:
    """Return the missing requirements of torch.compile for a kind of device."""
    given = os.environ.get("CXX")
    names = [given] if given else ["g++", "clang++", "c++", "cl"]
    lacks = [] if any(map(shutil.which, names)) else [f"C++ compiler ({', '.join(names)})"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        lacks.append("Python.h (the package python3-dev)")
    if kind == "cuda":
        triton = (try_imports if thorough else look_up)(["triton"])["triton"]
        if not triton.there or triton.error is not None:
            lacks.append("working triton")
    return lacks


def weights_and_biases() -> DoctorFinding:
    """Return whether Weights & Biases could be logged to. For a key, only its presence is shown."""
    if get_version("wandb") is None:
        return DoctorFinding(WHAT_WOULD_RUN, "W&B", "ok", "not installed: pip install 'vaak[wandb]'")
    mode = os.environ.get("WANDB_MODE", "online")
    key = "with an API key" if has_wandb_key() else "without an API key"
    said = f"mode {mode}, {key}"
    if mode == "online" and not has_wandb_key():
        advice = "wandb login, or WANDB_MODE=offline; only training.logging.wandb needs it"
        return DoctorFinding(WHAT_WOULD_RUN, "W&B", "ok", said, advice)
    return DoctorFinding(WHAT_WOULD_RUN, "W&B", "ok", said)


def has_wandb_key() -> bool:
    """Return whether a key is in the environment or where ``wandb login`` puts it."""
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


def accelerate_configuration(kind_of_device: str) -> Iterator[DoctorFinding]:
    """Yield what ``accelerate launch`` would do, where ``accelerate config`` has been run."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    folder = Path(home).expanduser() / "accelerate"
    files = [folder / f"default_config.{ending}" for ending in ("yaml", "yml", "json")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        yield DoctorFinding(
            WHAT_WOULD_RUN, "accelerate", "ok", "no configuration: accelerate launch takes its defaults"
        )
        return
    try:
        # JSON is YAML, too.
        values: Any = read_yaml(file)
    except UserError as error:
        yield DoctorFinding(WHAT_WOULD_RUN, "accelerate", "warning", short(str(error)), "run accelerate config again")
        return
    kind = str(values.get("distributed_type", "NO"))
    named = {name: values.get(name) for name in ("num_processes", "mixed_precision", "use_cpu")}
    said = ", ".join([kind, *(f"{name} {value}" for name, value in named.items() if value is not None)])
    if kind in REFUSED:
        advice = "run accelerate config again with MULTI_GPU or NO"
        yield DoctorFinding(
            WHAT_WOULD_RUN, "accelerate", "warning", f"{said} ({file}); Vaak doesn't train under {kind}", advice
        )
    elif values.get("use_cpu") and kind_of_device != "cpu":
        advice = "run accelerate config again to use the device"
        yield DoctorFinding(
            WHAT_WOULD_RUN, "accelerate", "warning", f"{said} ({file}): the device stays unused", advice
        )
    elif kind == "MULTI_CPU" and sys.platform == "linux":
        advice = "start several CPU processes with torchrun: accelerate launch may start one only"
        yield DoctorFinding(WHAT_WOULD_RUN, "accelerate", "warning", f"{said} ({file})", advice)
    else:
        yield DoctorFinding(WHAT_WOULD_RUN, "accelerate", "ok", f"{said} ({file})")
