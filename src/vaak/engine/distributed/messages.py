"""The one small message that all ranks exchange before each optimizer step, and how all of them become one.

On the wire it is a row of fixed width, the same for every rank and every step:

    hash of unit names | hash of texts | flags | saved | 16 counts, in the order of the unit names

Names and texts are only sent where a hash says that a rank has others: the names once, a text when a rank requests
something.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SLOTS = 16
"""Number of counts that fit into a row; a run with more units sends all of them as text, in every step."""

ROW = struct.Struct(f"<4q{SLOTS}d")
EVALUATE, SAVE, TOO_MANY = 1, 2, 4
PRESENT = 3
"""The first of the flags' bits that say which counts this rank has."""


@dataclass
class StepMessage:
    """What one rank counts and requests before a step; combined, what all of them do.

    ``counts``: the next step's units on this rank. ``stop``: the reason. ``piece_rules``: in how many pieces
    microbatches are computed from the next step on (microbatch_pieces.py), each with the reason. ``saved``: the step of
    a checkpoint that rank 0 has finished writing.
    """

    counts: dict[str, float] = field(default_factory=dict)
    stop: str | None = None
    evaluate: bool = False
    save: bool = False
    piece_rules: list[list[Any]] = field(default_factory=list)
    saved: int = 0

    def texts(self) -> list[Any]:
        """What doesn't fit into a row."""
        return [self.stop, self.piece_rules]


def combine(messages: Sequence[StepMessage]) -> StepMessage:
    """The messages of all ranks, in their order, as one: counts are added, and what any rank requests is requested.

    >>> combine([StepMessage({"token": 3}), StepMessage({"token": 4}, stop="SIGTERM", save=True)])
    StepMessage(counts={'token': 7.0}, stop='SIGTERM', evaluate=False, save=True, piece_rules=[], saved=0)
    """
    combined = StepMessage(saved=messages[0].saved)
    for message in messages:
        for unit, count in message.counts.items():
            combined.counts[unit] = combined.counts.get(unit, 0.0) + count
        combined.stop = combined.stop or message.stop
        combined.evaluate = combined.evaluate or message.evaluate
        combined.save = combined.save or message.save
        combined.piece_rules += message.piece_rules
    return combined


class Exchange:
    """Turns this rank's message into that of all ranks; every rank calls it equally often.

    ``gather_bytes`` gathers as many bytes of each rank, ``gather`` a JSON value of any length. A rank without a
    microbatch has no units: it lays out its zeros under the names that were used before.
    """

    def __init__(self, gather_bytes: Callable[[bytes], list[bytes]], gather: Callable[[Any], list[Any]]) -> None:
        self._gather_bytes, self._gather = gather_bytes, gather
        self._units: list[str] = []  # the same on every rank

    def __call__(self, message: StepMessage) -> StepMessage:
        """All ranks' messages, combined."""
        units = self._units if message.counts.keys() <= set(self._units) else self._known(message.counts)
        rows = [ROW.unpack(row) for row in self._gather_bytes(_row(message, units))]
        messages = [_message(row, units) for row in rows]
        if any(row[0] != rows[0][0] or row[2] & TOO_MANY for row in rows):
            for other, counts in zip(messages, self._gather(message.counts), strict=True):
                other.counts = counts
            units = self._known(*(other.counts for other in messages))
        self._units = units
        if any(row[1] != rows[0][1] for row in rows):
            texts = self._gather(message.texts())
        else:
            texts = [message.texts()] * len(rows)
        for other, (stop, piece_rules) in zip(messages, texts, strict=True):
            other.stop, other.piece_rules = stop, piece_rules
        return combine(messages)

    def _known(self, *counts: dict[str, float]) -> list[str]:
        return sorted(set(self._units).union(*counts))


def hash_of(value: Any) -> int:
    """64 bits that tell JSON values apart; 0 for what is empty."""
    if not value:
        return 0
    text = json.dumps(value, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _row(message: StepMessage, units: list[str]) -> bytes:
    flags = EVALUATE * message.evaluate | SAVE * message.save | TOO_MANY * (len(units) > SLOTS)
    slots = [0.0] * SLOTS
    for number, unit in enumerate(units[:SLOTS]):
        if unit in message.counts:
            flags |= 1 << PRESENT + number
            slots[number] = message.counts[unit]
    texts = message.texts()
    return ROW.pack(hash_of(units), hash_of(texts if any(texts) else None), flags, message.saved, *slots)


def _message(row: tuple[Any, ...], units: list[str]) -> StepMessage:
    """What a row says; its counts are right where its rank has the same ``units``."""
    flags, saved = row[2:4]
    counts = {unit: row[4 + number] for number, unit in enumerate(units[:SLOTS]) if flags >> PRESENT + number & 1}
    return StepMessage(counts, None, bool(flags & EVALUATE), bool(flags & SAVE), [], saved)
