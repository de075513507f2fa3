"""Several tasks at once: one encoder with several heads, or a model for each (README.md)."""
