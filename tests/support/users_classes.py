"""Classes as a user writes them, as text for a file of a test."""

from __future__ import annotations

CHARACTERS = """\
class Characters:
    def __init__(self, unknown="?"):
        self.unknown, self.characters = unknown, [unknown]

    def train(self, texts):
        self.characters = [self.unknown, *sorted({one for text in texts for one in text} - {self.unknown})]

    def encode(self, text):
        return [max(self.characters.index(one) if one in self.characters else 0, 0) for one in text]

    def decode(self, ids):
        return "".join(self.characters[one] for one in ids)

    def __len__(self):
        return len(self.characters)

    def state_dict(self):
        return {"characters": self.characters}

    def load_state_dict(self, state):
        self.characters = state["characters"]
"""
"""A tokenizer of characters."""
