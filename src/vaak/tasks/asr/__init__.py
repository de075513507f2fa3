"""Speech recognition: a transformer that listens and writes, and mixtures of experts on it (README.md)."""
