"""The types every package shares. Nothing here imports torch at run time, so reading a config stays fast."""
