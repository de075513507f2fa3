"""fp32, bf16 and fp16 as the run's numbers allow, and the loss scale that keeps fp16 gradients from vanishing.

Source: Micikevicius et al., 2018, "Mixed Precision Training", section 3.2.
Differs: one scale and one decision serve all optimizers and ranks (torch's GradScaler decides for each optimizer), and
the same code runs on CUDA, MPS and the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

import torch

log = logging.getLogger("vaak")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How forward passes compute on a device: ``name`` is ``no``, bf16 or fp16, after any fallback."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = supported(name, device)
        self.device = device

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which losses are computed."""
        if self.name == "no":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.name])


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
        return name
    log.warning("mixed_precision: %s can't be used (%s); training continues in fp32", name, reason)
    return "no"


class LossScale:
    """The factor on an fp16 loss: halved when a gradient overflows, doubled after 2,000 steps without.

    With ``fixed`` it stays, so an overflow there is a step that isn't finite like any other: the next one would
    overflow as well. Without fp16 (``enabled`` False) it is 1 and costs nothing.
    """

    growth_interval = 2000

    def __init__(self, enabled: bool, fixed: float | None = None) -> None:
        self.enabled = enabled
        self.fixed = fixed
        self.value = (fixed or 65536.0) if enabled else 1.0
        self.steps_since_change = 0

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
        """What it has learned; nothing without fp16, so that a resume with it starts like a new run."""
        return {"value": self.value, "steps_since_change": self.steps_since_change} if self.enabled else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self.enabled and self.fixed is None:
            self.value = float(state["value"])
            self.steps_since_change = int(state["steps_since_change"])
