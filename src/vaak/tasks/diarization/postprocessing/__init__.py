"""From the probabilities of windows to the segments of a recording."""
