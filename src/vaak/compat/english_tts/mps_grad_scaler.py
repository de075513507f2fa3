"""A gradient scaler for a loop of one's own, with the methods of ``torch.amp.GradScaler``; it works on MPS too."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from vaak.core.errors import UserError
from vaak.engine.devices.precision import LossScale


class MPSGradScaler:
    """Scales fp16 losses, skips steps whose gradients overflow, and adapts the scale: the engine's ``LossScale``.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)          only where gradients are clipped or read before the step
        scaler.step(optimizer)
        scaler.update()

    Differs from torch's: below a scale of 1 it doesn't go, and one decision serves all optimizers of an update.
    """

    def __init__(self, init_scale: float = 65536.0, enabled: bool = True) -> None:
        self._scale = LossScale(enabled)
        if enabled:
            self._scale.value = init_scale
        self._unscaled: set[int] = set()
        self._overflow = False

    def scale(self, outputs: Tensor) -> Tensor:
        """The loss times the scale."""
        return outputs * self._scale.value

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place. Raises UserError when called twice for an update."""
        if id(optimizer) in self._unscaled:
            raise UserError("unscale_ has already been called on this optimizer since the last update()")
        self._unscaled.add(id(optimizer))
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self._scale.unscale(gradients)
        if self._scale.enabled and not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._overflow = True

    def step(self, optimizer: Optimizer) -> Any:
        """Take the optimizer's step and return what it returns; None where a gradient overflowed and none is taken."""
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        return None if self._overflow else optimizer.step()

    def update(self) -> None:
        """Halve the scale after an overflow; double it after 2,000 updates without."""
        self._scale.update("overflow" if self._overflow else None)
        self._unscaled, self._overflow = set(), False

    def get_scale(self) -> float:
        return self._scale.value

    def is_enabled(self) -> bool:
        return self._scale.enabled

    def state_dict(self) -> dict[str, Any]:
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scale.load_state_dict(state)
