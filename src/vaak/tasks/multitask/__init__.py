"""Several tasks at once: one encoder with several heads, or a model for each (README.md)."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=("tasks", "data.tasks"),
)
METRICS: tuple[Metric, ...] = ()
"""All are those of its tasks."""
