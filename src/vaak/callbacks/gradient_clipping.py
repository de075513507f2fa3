"""Gradient clipping for users of the library; in a YAML it is ``training.gradient_clipping``."""

from __future__ import annotations

from vaak.config.optimization import GradientClippingConfig
from vaak.config.training import TrainingConfig
from vaak.core.callback import Callback


class GradientClippingCallback(Callback):
    """Sets the step's clipping: it changes numbers, so the step does it and not a callback."""

    def __init__(self, max_norm: float | None = 1.0, max_value: float | None = None) -> None:
        self.clipping = GradientClippingConfig(norm=max_norm, value=max_value)

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        return config.model_copy(update={"gradient_clipping": self.clipping})
