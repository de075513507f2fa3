"""How hard each of many texts is, measured once and stored in a file next to them.

    FOLDER/difficulty-MEASURE-KEY.bin    float64, one per text; KEY is a hash of the texts

Texts are read one at a time, twice, so memory grows with the different words and not with the text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from vaak.core.progress import followed
from vaak.core.storage.files import write_bytes
from vaak.text.difficulty.measures import count_words

DECIMALS = 6  # rounded, so that machines whose logarithms differ in the last bit agree about the order


def kept_difficulties(
    folder: Path, key: str, measure: str, texts: Callable[[], Iterable[str]], number: int
) -> np.ndarray:
    """How hard each of ``number`` texts is by ``lexical`` or ``morphology``, ``(text,)``, harder ones higher.

    They are kept in ``folder`` under ``key``, and computed by ``measure`` from ``texts`` where they aren't there.

    Raises UserError for another measure, and if ``morphology`` finds no inflection.
    """
    path = folder / f"difficulty-{measure}-{key}.bin"
    known = _read(path, number)
    if known is not None:
        return known
    counts = count_words(followed(texts(), "counting words", number), measure)
    difficulty = {"lexical": counts.lexical, "morphology": counts.morphology}[measure]
    difficulties = np.fromiter(map(difficulty, followed(texts(), "measuring difficulty", number)), "<f8", number)
    difficulties = np.round(difficulties, DECIMALS)
    with contextlib.suppress(OSError):  # if the folder can't be written, it is measured again next time
        write_bytes(path, difficulties.tobytes())
    return difficulties


def _read(path: Path, number: int) -> np.ndarray | None:
    """The numbers in a file; None if there is none or it has another size."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return np.frombuffer(content, "<f8") if len(content) == 8 * number else None
