"""Gradient clipping for users of the library; in a YAML it is ``training.gradient_clipping``."""

from __future__ import annotations

from typing import Any

from vaak.core.callback import Callback


class GradientClippingCallback(Callback):
    """Sets the step's clipping before step 1: clipping changes numbers, so the step does it and not a callback."""

    def __init__(self, max_norm: float | None = 1.0, max_value: float | None = None) -> None:
        self.max_norm, self.max_value = max_norm, max_value

    def on_fit_start(self, trainer: Any) -> None:
        trainer.clip_norm, trainer.clip_value = self.max_norm, self.max_value
