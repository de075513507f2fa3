"""Generates the English–Hindi pairs that Vaak ships; see README.md."""
