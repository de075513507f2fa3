"""Vaak trains speech and language models from one YAML file; a training step is a pure function."""

__version__ = "0.1.0"
