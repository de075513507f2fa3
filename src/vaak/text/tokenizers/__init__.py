"""Tokenizers: used (tokenizer.py), trained (training.py), and the form texts are normalised to."""
