"""Callbacks, which observe a run, one idea in a file. vaak.engine.callback describes their interface."""

from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiler import InterbatchProfiler
from vaak.callbacks.step_log import LRMonitorCallback
from vaak.callbacks.step_settings import FeatureRedrawCallback, GradientClippingCallback
from vaak.engine.callback import Callback

__all__ = [
    "AdaptiveMemoryManager",
    "Callback",
    "EarlyStoppingCallback",
    "FeatureRedrawCallback",
    "GradientClippingCallback",
    "InterbatchProfiler",
    "LRMonitorCallback",
]
