"""``vaak data``: corpora found, fetched and prepared (commands.py), conversations simulated (simulate.py)."""
