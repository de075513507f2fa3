"""Gradient clipping for users of the library; in a YAML it is ``training.gradient_clipping``."""

from __future__ import annotations

from vaak.config.optimization import GradientClippingConfig
from vaak.config.training import TrainingConfig
from vaak.core.callback import Callback
from vaak.core.errors import UserError


class GradientClippingCallback(Callback):
    """Sets the step's clipping: it changes numbers, so the step does it and not a callback.

    Raises UserError where the configuration asks for another clipping than by default.
    """

    def __init__(self, max_norm: float | None = 1.0, max_value: float | None = None) -> None:
        self.clipping = GradientClippingConfig(norm=max_norm, value=max_value)

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        none = GradientClippingConfig(norm=None)
        if config.gradient_clipping not in (GradientClippingConfig(), none, self.clipping):
            raise UserError(
                f"the callback gradient_clipping clips to {_shown(self.clipping)}, and training.gradient_clipping to "
                f"{_shown(config.gradient_clipping)}; leave one out"
            )
        return config.model_copy(update={"gradient_clipping": self.clipping})


def _shown(clipping: GradientClippingConfig) -> str:
    return f"norm {clipping.norm}, value {clipping.value}"
