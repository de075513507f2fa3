"""How hard each window of a language model's training text is; measured once and kept beside the tokens.

    FOLDER/train/difficulty-MEASURE-KEY.bin    float64, one a window; KEY hashes the windows and the tokenizer

Texts are decoded from the tokens, one window at a time, so memory grows with the different words and not with the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from vaak.core.errors import UserError
from vaak.core.files import fingerprint_of, write_bytes
from vaak.text.difficulty import MEASURES, count_words
from vaak.text.token_store import TokenStore
from vaak.text.tokenizers import Tokenizer

DECIMALS = 6  # rounded, so that machines whose logarithms differ in the last bit agree about the order


class Windows(Protocol):
    """What is asked of a dataset: its tokens, and which of them each example holds."""

    store: TokenStore
    lengths: np.ndarray
    fingerprint: str

    def ids(self, index: int) -> np.ndarray: ...


def window_difficulties(windows: Windows, measure: str) -> np.ndarray:
    """How hard each window is by ``length``, ``lexical`` or ``morphology``, ``(window,)``, harder ones higher.

    Raises UserError for another measure, and where ``morphology`` finds no inflection.
    """
    if measure not in MEASURES:
        raise UserError(f"there is no difficulty {measure}; choose from {', '.join(MEASURES)}")
    if measure == "length":
        return windows.lengths
    key = fingerprint_of([windows.fingerprint, windows.store.tokenizer_fingerprint])
    path = windows.store.folder / f"difficulty-{measure}-{key}.bin"
    known = _read(path, len(windows.lengths))
    if known is not None:
        return known
    counts = count_words(_texts(windows), measure)
    difficulty = {"lexical": counts.lexical, "morphology": counts.morphology}[measure]
    measured = (difficulty(text) for text in _texts(windows))
    difficulties = np.round(np.fromiter(measured, "<f8", len(windows.lengths)), DECIMALS)
    with contextlib.suppress(OSError):  # a folder that can't be written costs the time to measure again
        write_bytes(path, difficulties.tobytes())
    return difficulties


def _read(path: Path, num_windows: int) -> np.ndarray | None:
    """The numbers in a file; None where there is none or it is of another size."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return np.frombuffer(content, "<f8") if len(content) == 8 * num_windows else None


def _texts(windows: Windows) -> Iterator[str]:
    tokenizer = Tokenizer.load(windows.store.folder.parent / "tokenizer")  # where ``prepare`` puts it
    for index in range(len(windows.lengths)):
        yield tokenizer.decode(windows.ids(index)[1:].tolist())
