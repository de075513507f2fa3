"""Configurations: typed sections, YAML in, clear errors out. Imports neither torch nor a task."""
