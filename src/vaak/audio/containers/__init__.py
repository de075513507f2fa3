"""Counts of what audio files hold: headers are compared with them, and not believed."""
