"""What is minimised: losses by name (losses.py), and the objectives of a step (descent.py)."""
