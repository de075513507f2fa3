"""Callbacks that set an option of the step, for users of the library: gradient clipping, redraw of Performer features.

In a YAML they are ``training.gradient_clipping`` and ``training.feature_redraw_interval``.
"""

from __future__ import annotations

import logging

from vaak.config.optimization import GradientClippingConfig
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.callback import Callback, Run

log = logging.getLogger("vaak")


class FeatureRedrawCallback(Callback):
    """Sets the step's redraw interval; the redraw itself is part of the step.

    Raises UserError if the configuration says otherwise. A model that draws no features is reported.
    """

    def __init__(self, interval: int = 100) -> None:
        self.interval = interval

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        if config.fixed_projection:
            raise UserError(
                "the callback feature_redraw redraws features, and training.fixed_projection is true; leave one out"
            )
        if config.feature_redraw_interval not in (None, self.interval):
            raise UserError(
                f"the callback feature_redraw has interval {self.interval}, and training.feature_redraw_interval is "
                f"{config.feature_redraw_interval}; leave one out"
            )
        return config.model_copy(update={"feature_redraw_interval": self.interval})

    def on_fit_start(self, trainer: Run) -> None:
        if not any(hasattr(module, "redraw_features") for module in trainer.model.modules()):
            log.warning("the callback feature_redraw has no effect: the model draws no random features (Performer)")


class GradientClippingCallback(Callback):
    """Sets the step's clipping: it changes numbers, so the step does it and not a callback.

    Raises UserError if the configuration asks for another clipping than by default.
    """

    def __init__(self, max_norm: float | None = 1.0, max_value: float | None = None) -> None:
        self.clipping = GradientClippingConfig(norm=max_norm, value=max_value)

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        none = GradientClippingConfig(norm=None)
        if config.gradient_clipping not in (GradientClippingConfig(), none, self.clipping):
            raise UserError(
                f"the callback gradient_clipping clips to {_format_clipping(self.clipping)}, and "
                f"training.gradient_clipping to {_format_clipping(config.gradient_clipping)}; leave one out"
            )
        return config.model_copy(update={"gradient_clipping": self.clipping})


def _format_clipping(clipping: GradientClippingConfig) -> str:
    return f"norm {clipping.norm}, value {clipping.value}"
