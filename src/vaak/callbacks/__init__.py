"""Callbacks, which watch a run, one file each. What a callback may do is described in vaak.core.callback."""

from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.feature_redraw import FeatureRedrawCallback
from vaak.callbacks.gradient_clipping import GradientClippingCallback
from vaak.callbacks.lr_monitor import LRMonitorCallback
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.callbacks.profiling.interbatch_profiler import InterbatchProfiler
from vaak.core.callback import Callback

__all__ = [
    "AdaptiveMemoryManager",
    "Callback",
    "EarlyStoppingCallback",
    "FeatureRedrawCallback",
    "GradientClippingCallback",
    "InterbatchProfiler",
    "LRMonitorCallback",
]
