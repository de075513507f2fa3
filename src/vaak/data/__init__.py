"""Batch plans and the loader, for any kind of example."""
