"""Diarization error rates, and pictures of timelines."""
