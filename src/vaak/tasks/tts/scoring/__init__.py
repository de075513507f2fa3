"""Scores of synthesised speech."""
