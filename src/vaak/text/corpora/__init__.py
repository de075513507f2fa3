"""Corpora of texts and of pairs: read, cleaned, split, and kept as tokens on disk."""
