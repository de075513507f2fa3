"""Scores against references: word and speaker errors of transcripts, diarization errors, distances of speech."""
