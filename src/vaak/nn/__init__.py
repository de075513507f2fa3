"""Building blocks of networks: one idea and one paper per file. None of them writes state in its forward pass."""
