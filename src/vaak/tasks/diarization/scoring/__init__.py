"""Errors of decisions by frames, and pictures of timelines."""
