"""Annotation formats: RTTM, UEM, CTM and TextGrid, read and written line by line."""
