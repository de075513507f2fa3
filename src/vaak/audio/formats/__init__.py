"""Annotations and alignments in files: RTTM, UEM, CTM, TextGrid, JSON."""
