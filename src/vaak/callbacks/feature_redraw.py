"""Redrawing of Performer features for users of the library; in a YAML it is ``training.feature_redraw_interval``."""

from __future__ import annotations

import logging

from vaak.config.training import TrainingConfig
from vaak.core.callback import Callback, Run
from vaak.core.errors import UserError

log = logging.getLogger("vaak")


class FeatureRedrawCallback(Callback):
    """Sets the step's redraw interval; the redraw itself is part of the step.

    Raises UserError where the configuration says otherwise. A model that draws no features is reported.
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
