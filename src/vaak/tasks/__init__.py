"""The tasks, one folder each, all with the same files; start with a task's task.py."""

USUAL_TASK = "lm"
"""The task whose options are shown where none is named."""
