"""Recordings of a corpus as utterances: one for each label, and what is left out, with the reason."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vaak.audio.waveforms.reading import EMPTY_TEXT, file_of
from vaak.core.errors import DataError

log = logging.getLogger("vaak")

WITHOUT_TEXT = "utterances without a text"
UNUSABLE = "utterances that can't be used"


@dataclass
class LeftOut:
    """Utterances that are left out, by reason; ``messages`` are what is wrong with those that can't be used.

    ``listed`` has the name of each that ``add`` was told, with what is wrong with it.
    """

    skip_bad: bool
    counts: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    listed: dict[str, list[dict[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, kind: str, reason: str) -> None:
        """Count and list an utterance, for a reason of a kind."""
        self.counts[kind] += 1
        self.listed[kind].append({"name": name, "reason": reason})

    def bad(self, error: DataError, name: str = "") -> None:
        """Count an utterance that can't be used, with a warning; raise the error where none may be skipped."""
        if not self.skip_bad:
            raise DataError(f"{error} (vaak data check lists all such utterances)")
        log.warning("skipped: %s", error)
        self.add(name, UNUSABLE, str(error))
        self.messages.append(str(error))

    def without_text(self, one: Any, recording: Any) -> None:
        """Count an utterance of a recording that has no text; an empty text can't be used.

        Of several in a recording, some may be without: those that have nothing to learn from.
        """
        if one is recording and any(label.text is not None for label in one.supervisions):
            self.bad(DataError(f"{describe(one)}: its text is empty; {EMPTY_TEXT}"), one.id)
        else:
            self.add(one.id, WITHOUT_TEXT, "it has no text")


def utterances_of(cut: Any) -> Iterator[Any]:
    """A cut for each label, where there are several."""
    if len(cut.supervisions) < 2:
        yield cut
        return
    for number, label in enumerate(sorted(cut.supervisions, key=lambda one: one.start)):
        part = section(cut, max(0.0, label.start), min(label.end, cut.duration))
        part.id = f"{cut.id}-{number:04}"
        part.supervisions = [one for one in part.supervisions if one.id == label.id]
        yield part


def section(cut: Any, start: float, end: float) -> Any:
    """The cut from ``start`` to ``end``, in seconds; unlike Lhotse's, with the times of alignments from its start."""
    part = cut.truncate(offset=start, duration=end - start, preserve_id=True)
    for label in part.supervisions:
        label.alignment = {
            kind: [item._replace(start=round(item.start - start, 8)) for item in items]
            for kind, items in (label.alignment or {}).items()
        } or None
    return part


def describe(cut: Any) -> str:
    """The name and the file of an utterance, for messages."""
    return f"{cut.id} ({file_of(cut)})"
