"""Lion: the sign of an interpolated momentum.

Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 1::

    c = β₁ m + (1 - β₁) g        θ ← θ - η (sign(c) + λ θ)        m ← β₂ m + (1 - β₂) g
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer


class Lion(Optimizer):
    """Keeps one moment; its rate is usually 3 to 10 times smaller than AdamW's, and its decay as much larger."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; returns what ``closure`` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update([parameter for parameter in group["params"] if parameter.grad is not None], group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        first, second = group["betas"]

        directions = torch._foreach_lerp(momenta, gradients, 1 - first)
        torch._foreach_sign_(directions)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, gradients, 1 - second)
