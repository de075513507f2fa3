"""Decoding: settings, and minimum Bayes risk."""
