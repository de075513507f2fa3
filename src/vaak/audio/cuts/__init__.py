"""Lhotse's cuts: made of recordings, stored, read as audio, given as examples. Start with reading.py."""
