"""Several tasks at once: one encoder with several heads, or a model for each (README.md)."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=("tasks", "data.tasks"),
)
