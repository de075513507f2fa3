"""How a device computes: in fp32, bf16 or fp16, with a loss scale, seeded generators, deterministic kernels.

The loss scale keeps fp16 gradients from vanishing. Source: Micikevicius et al., 2018, "Mixed Precision Training",
section 3.2. Differs: one scale and one decision serve all optimizers and ranks (torch's GradScaler decides for each
optimizer), and the same code runs on CUDA, MPS and the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from vaak.config.training import TrainingConfig
from vaak.core.machine import has_fast_bf16

log = logging.getLogger("vaak")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How forward passes compute on a device: ``name`` is ``no``, bf16 or fp16; ``auto`` is resolved.

    It is ``no`` where the device doesn't support the requested precision.

    A step that isn't finite in 16 bits is computed again in fp32. Where that helped ``fp32_after`` times, all further
    ones are computed in fp32: a function of ``failures``, which is part of the run's state.
    """

    def __init__(self, name: str, device: torch.device, fp32_after: int | None = None) -> None:
        self.name = supported(precision_on(name, device), device)
        self.device = device
        self.fp32_after = fp32_after
        self.failures = 0
        self._again = False

    @property
    def fell_back(self) -> bool:
        """Whether the run has left mixed precision for good."""
        return self.name != "no" and self.fp32_after is not None and self.failures >= self.fp32_after

    @property
    def may_try_fp32(self) -> bool:
        """Whether a step that isn't finite may be so in fp32."""
        return self.name != "no" and self.fp32_after is not None and not self.fell_back

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which losses are computed."""
        if self.name == "no" or self._again or self.fell_back:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.name])

    @contextlib.contextmanager
    def of_last_try(self) -> Iterator[None]:
        """Within this context, losses are computed as a step is tried last: in fp32, where that is tried at all."""
        self._again = self.may_try_fp32
        try:
            yield
        finally:
            self._again = False

    def count_failure(self, step: int) -> None:
        """Record that a step was finite in fp32 alone; log it, and once that mixed precision is turned off."""
        self.failures += 1
        log.info("step %d is not finite in %s: it was computed in fp32", step, self.name)
        if self.fell_back:
            log.warning(
                "mixed_precision: %d steps were finite in fp32 but not in %s; training continues in fp32 "
                "(training.fp32_fallback)",
                self.failures,
                self.name,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"failures": self.failures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failures = int(state["failures"])


def precision_on(name: str, device: torch.device) -> str:
    """``name``, or what ``auto`` stands for: bf16 on a GPU that multiplies it in hardware, else ``no``.

    A CPU stays in fp32, with instructions for bf16 too: a recipe's losses are the same on each.
    """
    if name != "auto":
        return name
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "no"


def uses_tf32(config: TrainingConfig, device: torch.device) -> bool:
    """Whether CUDA multiplies fp32 matrices in TF32: as configured, else with mixed precision, unless deterministic."""
    if config.performance.tf32 is not None:
        return config.performance.tf32
    return not config.deterministic and precision_on(config.mixed_precision, device) != "no"


def muon_dtype(device: torch.device) -> torch.dtype:
    """The numbers in which Muon orthogonalises: bf16; fp32 on a CPU that isn't known to multiply bf16 in hardware.

    torch emulates such products there, which takes 15 to 45 times as long as those of fp32.
    """
    return torch.float32 if device.type == "cpu" and not has_fast_bf16() else torch.bfloat16


def precision_in_words(config: TrainingConfig, precision: Precision) -> str:
    """Return how a run computes, for a person, and what ``auto`` would be where that differs.

    >>> precision_in_words(TrainingConfig(mixed_precision="no"), Precision("no", torch.device("cpu")))
    'fp32'
    """
    device, written = precision.device, {"no": "fp32"}
    said = written.get(precision.name, precision.name)
    said += " with TF32" if device.type == "cuda" and uses_tf32(config, device) else ""
    auto = precision_on("auto", device)
    is_auto = auto == precision.name
    return said if is_auto else f"{said} (training.mixed_precision: auto would be {written.get(auto, auto)})"


@functools.cache
def supported(name: str, device: torch.device) -> str:
    """``name``, or ``no`` where the device can't, with a warning: one, for training and all its evaluations."""
    if name == "fp16" and device.type == "cpu":
        reason = "a CPU has no fast fp16"
    elif name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        reason = "this GPU has no bf16"
    elif name == "bf16" and device.type == "mps" and not torch.backends.mps.is_macos_or_newer(14, 0):
        reason = "bf16 on MPS needs macOS 14"
    else:
        if name == "bf16" and device.type == "cpu" and has_fast_bf16() is False:
            log.warning(
                "mixed_precision: this processor has no instructions for bf16, which is slower here than fp32 "
                "(training.mixed_precision=no)"
            )
        return name
    if os.environ.get("RANK", "0") == "0":
        # The others have the same device.
        log.warning("mixed_precision: %s can't be used (%s); fp32 is used instead", name, reason)
    return "no"


class LossScale:
    """The factor on an fp16 loss: halved when a gradient overflows, doubled after 2,000 steps without.

    With ``fixed`` it stays, so an overflow there is a step that isn't finite like any other: the next one would
    overflow as well. Without fp16 (``enabled`` False) it is 1 and costs nothing.
    """

    growth_interval = 2000

    def __init__(self, enabled: bool, fixed: float | None = None) -> None:
        self.enabled = enabled
        self._was_left = False
        self.fixed = fixed
        self.value = (fixed or 65536.0) if enabled else 1.0
        self.steps_since_change = 0

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Within this context, losses are not scaled."""
        enabled, value = self.enabled, self.value
        self.enabled, self.value = False, 1.0
        try:
            yield
        finally:
            self.enabled, self.value = enabled, value

    def disable(self) -> None:
        """Scale no more, until a state that was scaled is restored."""
        self._was_left = self._was_left or self.enabled
        self.enabled, self.value = False, 1.0

    @property
    def may_overflow(self) -> bool:
        """Whether a smaller scale could make a gradient finite."""
        return self.enabled and self.fixed is None and self.value > 1.0

    def unscale(self, gradients: list[torch.Tensor]) -> None:
        """Divide gradients by the scale, in place."""
        if self.enabled and gradients:
            torch._foreach_mul_(gradients, 1.0 / self.value)

    def update(self, skipped: str | None) -> None:
        """Learn from one step: ``skipped`` is ``overflow`` where the scale was too high."""
        if not self.enabled or self.fixed is not None or skipped == "non_finite":
            return
        self.steps_since_change += 1
        if skipped == "overflow":
            self.value, self.steps_since_change = max(self.value / 2, 1.0), 0
        elif self.steps_since_change >= self.growth_interval:
            self.value, self.steps_since_change = self.value * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what it has learned; nothing without fp16, so that a resume with it starts like a new run."""
        return {"value": self.value, "steps_since_change": self.steps_since_change} if self.enabled else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state or not (self.enabled or self._was_left):
            return
        self.enabled, self._was_left = True, False
        self.value = self.fixed or float(state["value"])
        if self.fixed is None:
            self.steps_since_change = int(state["steps_since_change"])


def seed_everything(key: int, device: torch.device) -> None:
    """Seed the generators of Python, NumPy, the CPU and this device.

    ``torch.manual_seed`` would touch every backend there is and take 80 microseconds; this takes a tenth.
    """
    random.seed(key)
    np.random.seed(key)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        torch.cuda.default_generators[index].manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)


def renew_generator(device: torch.device) -> None:
    """Give a CUDA device's generator a state that no CUDA graph reads. It has to be seeded before its next draw."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())


@contextlib.contextmanager
def keeping_generators(device: torch.device) -> Iterator[None]:
    """Restore the state of all generators on exit."""
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    place = (device,) if device.type == "cuda" else ()
    module = torch.get_device_module(device) if device.type in ("cuda", "mps") else None
    on_device = module.get_rng_state(*place) if module else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
        if module:
            module.set_rng_state(on_device, *place)


@contextlib.contextmanager
def keeping_kernels() -> Iterator[None]:
    """Restore on exit how torch chooses its kernels: its threads, TF32, whether they are deterministic.

    All of these are the process's, and the bits of whatever it computes later depend on them.
    """
    matmul, cudnn, memory = torch.backends.cuda.matmul, torch.backends.cudnn, torch.utils.deterministic
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    tf32, others = (matmul.allow_tf32, cudnn.allow_tf32), (cudnn.benchmark, cudnn.deterministic)
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        matmul.allow_tf32, cudnn.allow_tf32 = tf32
        cudnn.benchmark, cudnn.deterministic = others
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def make_deterministic(config: TrainingConfig, device: torch.device) -> None:
    """Choose kernels that give the same bits every time: always on a CPU, on CUDA where the config asks for it."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = uses_tf32(config, device)
    if config.performance.num_threads:
        torch.set_num_threads(config.performance.num_threads)
    if device.type == "cuda" and not config.deterministic:
        torch.set_deterministic_debug_mode("default")
        torch.backends.cudnn.deterministic = False
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same switch as use_deterministic_algorithms, which imports the whole compiler first.
    torch.set_deterministic_debug_mode("warn" if device.type == "mps" else "error")
    if config.performance.compile:
        torch.use_deterministic_algorithms(True, warn_only=device.type == "mps")
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    # Filling fresh memory with NaN finds reads of what was never written; no kernel here does that, and it costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
