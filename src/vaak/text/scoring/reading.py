"""Transcripts of any system, by the name of the utterance.

JSON lines   {"id": "a", "text": "so it is", "accent": "en"}     keys of other names: see NAMES and TEXTS
tables       the same with a header, .csv and .tsv
texts        a line for each utterance, named by its number; with ``named``, its first word is its name (Kaldi's "text")
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.corpora.json_manifest import TABLES, manifest_lines
from vaak.core.errors import DataError

NAMES = ("id", "name", "utterance", "audio", "file")
TEXTS = ("text", "transcript", "transcription", "sentence", "prediction", "hypothesis", "pred_text")


class Transcripts(NamedTuple):
    """Texts and groups, by name; no groups where none were asked for."""

    texts: dict[str, str]
    groups: dict[str, str]


def read_transcripts(path: Path, group: str | None = None, *, named: bool = False) -> Transcripts:
    """The transcripts of a file; ``group`` is the key of a label. Raises DataError, naming file and line."""
    found = Transcripts({}, {})
    is_structured = path.suffix.lower() in (*TABLES, ".jsonl", ".json", ".gz")
    for where, name, text, label in _structured(path, group) if is_structured else _lines(path, named):
        if name in found.texts:
            raise DataError(f"{where}: there are two texts of {name}")
        found.texts[name] = text
        if label is not None:
            found.groups[name] = label
    if not found.texts:
        raise DataError(f"{path}: there are no texts")
    if group is not None and not found.groups:
        raise DataError(f"{path}: no text has a label {group}")
    return found


def _structured(path: Path, group: str | None) -> Iterator[tuple[str, str, str, str | None]]:
    for where, entry in manifest_lines(path):
        label = None if group is None else entry.get(group)
        name, text = (_value(entry, keys, where) for keys in (NAMES, TEXTS))
        yield where, name, text, None if label in (None, "") else str(label)


def _value(entry: dict[str, Any], keys: tuple[str, ...], where: str) -> str:
    value = next((entry[key] for key in keys if entry.get(key) is not None), None)
    if not isinstance(value, str | int):
        raise DataError(f"{where}: expected a text under {' or '.join(keys[:3])}; there are {', '.join(entry)}")
    return str(value)


def _lines(path: Path, named: bool) -> Iterator[tuple[str, str, str, None]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines, start=1):
        name, _, text = line.partition(" ") if named else (str(number), "", line)
        if not named or line.strip():
            yield f"{path}:{number}", name, text, None
