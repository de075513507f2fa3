"""``vaak data``: list, download, prepare corpora (commands.py), simulate conversations (simulate.py), check data."""
