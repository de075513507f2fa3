"""The tasks, one folder each, all with the same files; start with a task's task.py."""

USUAL = "lm"
"""The task whose options are shown where none is named."""
