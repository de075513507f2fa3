"""Redrawing of Performer features for users of the library; in a YAML it is ``training.feature_redraw_interval``."""

from __future__ import annotations

from typing import Any

from vaak.core.callback import Callback


class FeatureRedrawCallback(Callback):
    """Sets the step's redraw interval before step 1; the redraw itself is part of the step."""

    def __init__(self, interval: int = 100) -> None:
        self.interval = interval

    def on_fit_start(self, trainer: Any) -> None:
        trainer.redraw_interval = self.interval
