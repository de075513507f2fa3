"""Corpora of recordings as Lhotse cuts: by recipe, by manifest, from a folder. Start with corpus.py."""
