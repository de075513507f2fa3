"""What training keeps of its texts and pairs: nothing that an evaluation has too, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from vaak.core.split_ranges import digest_of

Sides = tuple[tuple[str, ...], ...]
"""The texts of a document or a pair, by side: ``((text,),)``, or ``((source,), targets)``."""

Reason = Literal["empty", "also_in_evaluation", "duplicates"]


class Kept:
    """Says of each document or pair of the training files why it is dropped; 8 bytes of digest for each are kept."""

    def __init__(self, evaluated: Iterable[Sides], *, deduplicate: bool) -> None:
        """``evaluated`` is what evaluations have."""
        self._deduplicate = deduplicate
        self._seen: set[int] = set()
        self._evaluated: tuple[set[int], ...] = (set(), set())
        for sides in evaluated:
            for digests, texts in zip(self._evaluated, sides, strict=False):
                digests.update(map(digest_of, texts))

    def why_dropped(self, sides: Sides) -> Reason | None:
        """The reason, or None for what is kept, and then remembered. A side in an evaluation is enough."""
        for digests, texts in zip(self._evaluated, sides, strict=False):
            if any(digest_of(text) in digests for text in texts):
                return "also_in_evaluation"
        digest = digest_of("\0".join(text for texts in sides for text in texts))
        if digest in self._seen:
            return "duplicates"
        if self._deduplicate:
            self._seen.add(digest)
        return None
