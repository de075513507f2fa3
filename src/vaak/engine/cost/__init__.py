"""What a model costs: FLOPs, and memory by a dry pass."""
