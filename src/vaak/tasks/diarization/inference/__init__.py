"""Whole recordings with a trained model: many files, tuning, samples after training."""
