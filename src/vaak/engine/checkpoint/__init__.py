"""Checkpoints on disk: format and verification (files.py), written in the background (writer.py)."""
