"""Positions: sinusoidal, learned, rotary, ALiBi, T5, convolutional. Start with kinds.py."""
