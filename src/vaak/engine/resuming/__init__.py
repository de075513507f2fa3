"""Saving and resuming a run: which checkpoint, what is restored, what may have changed."""
