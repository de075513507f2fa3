"""What an example's labels are (labels.py), and features that are stored before training."""
