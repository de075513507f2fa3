"""Building blocks of networks: one idea and one paper per file. No block writes state in its forward pass."""
