"""Checkpoints on disk: format, verified, and written in the background (files.py)."""
