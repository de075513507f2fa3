"""Redrawing of Performer features for users of the library; in a YAML it is ``training.feature_redraw_interval``."""

from __future__ import annotations

from vaak.config.training import TrainingConfig
from vaak.core.callback import Callback


class FeatureRedrawCallback(Callback):
    """Sets the step's redraw interval; the redraw itself is part of the step."""

    def __init__(self, interval: int = 100) -> None:
        self.interval = interval

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        return config.model_copy(update={"feature_redraw_interval": self.interval})
