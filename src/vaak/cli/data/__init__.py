"""``vaak data``: list, download and prepare corpora (commands.py), simulate conversations (simulate.py)."""
