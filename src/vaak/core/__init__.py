"""The words every room shares. Nothing here imports torch at run time, so reading a config stays fast."""
