"""How hard each window of a language model's training text is; measured once and stored with the tokens.

Texts are decoded from the tokens, one window at a time, so memory grows with the different words and not with the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.text.corpora.token_store import TokenStore
from vaak.text.difficulty.measures import MEASURES
from vaak.text.difficulty.store import kept_difficulties
from vaak.text.tokenizers.tokenizer import Tokenizer


class Windows(Protocol):
    """What a dataset must have: its tokens, and which of them are in each example."""

    store: TokenStore
    lengths: np.ndarray
    fingerprint: str

    def ids(self, index: int) -> np.ndarray: ...


def window_difficulties(windows: Windows, measure: str) -> np.ndarray:
    """How hard each window is by ``length``, ``lexical`` or ``morphology``, ``(window,)``, harder ones higher.

    Raises UserError for another measure, and if ``morphology`` finds no inflection.
    """
    if measure not in MEASURES:
        raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
    if measure == "length":
        return windows.lengths
    key = fingerprint_of([windows.fingerprint, windows.store.tokenizer_fingerprint])
    return kept_difficulties(windows.store.folder, key, measure, lambda: _texts(windows), len(windows.lengths))


def _texts(windows: Windows) -> Iterator[str]:
    tokenizer = Tokenizer.load(windows.store.folder.parent / "tokenizer")  # where ``prepare`` puts it
    for index in range(len(windows.lengths)):
        yield tokenizer.decode(windows.ids(index)[1:].tolist())
