"""A sample of the texts that a tokenizer is trained on."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from vaak.core.split_ranges import digest_of


def sample_of(texts: Iterable[str], most: int) -> list[str]:
    """Whole texts, in their order, with at most ``most`` characters in all: those whose content has the lowest hashes.

    So the sample is a function of the texts, and a larger one contains a smaller one. A single text that is too long is
    cut.
    """
    kept: list[tuple[int, int, str]] = []
    total, highest_kept = 0, math.inf
    for number, text in enumerate(texts):
        digest = digest_of(text)
        if digest >= highest_kept:
            continue
        heapq.heappush(kept, (-digest, -number, text))
        total += len(text)
        while total > most and len(kept) > 1:
            dropped = heapq.heappop(kept)
            total, highest_kept = total - len(dropped[2]), -dropped[0]
    ordered = [text for _, _, text in sorted(kept, key=lambda item: -item[1])]
    return [text[:most] for text in ordered]
