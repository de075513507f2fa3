"""Features of audio, computed in batches (extractors.py) and kept on disk (store.py)."""
