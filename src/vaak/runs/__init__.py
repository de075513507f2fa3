"""Puts a run together: config to task by the catalog, to trainer, callbacks and run directory."""
