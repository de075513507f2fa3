"""Clocks, and the seconds of each phase of a step."""
