"""A past step of a run, taken again (past_step.py) and shown (step_view.py)."""
