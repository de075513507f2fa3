"""Measures of the difficulty of texts, and their storage."""
