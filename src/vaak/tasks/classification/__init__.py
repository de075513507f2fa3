"""Text classification: labelled texts in, a model that labels texts out (README.md)."""
