"""A past step of a run, rerun (past_step.py) and shown (step_view.py)."""
