"""The names of ``import vaak``: a run in one call, a task of a few functions, a trained run to use."""
