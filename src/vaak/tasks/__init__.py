"""The tasks, one folder each, all with the same files; start with a task's task.py."""
