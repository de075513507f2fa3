"""Utterances of a corpus: read, trimmed, and with the durations of their symbols."""
