"""What a run shows on the console: lines, a progress bar, or JSON."""
