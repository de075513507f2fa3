"""Recordings that a folder's tables and JSON lines list: the options by which they are read, or why they can't be."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.audio_file import is_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.entries import CorpusReader, manifest_lines, resolve_path
from vaak.audio.corpora.layouts import split_named, subfolders
from vaak.core.errors import DataError, UserError
from vaak.core.storage.tables import Table, is_table
from vaak.runs.preflight.doctor.columns import MOST_ROWS_READ, find_columns
from vaak.runs.preflight.doctor.texts import Dialect, parse_dialect_options

log = logging.getLogger("vaak")
FIRST_RECORDINGS = 100
"""Recordings of which one, at least, has to be read where files may be in a layout."""
MOST_FOLDERS = 20
TIMES = frozenset({"offset", "end", "duration"})
"""Columns that say which section of a file a row is."""
Reasons = dict[Path, str]
"""Why recordings that a folder's files name can't be read."""


def options_by_manifests(
    manifests: list[Path], root: Path, dialect: Dialect | None, reasons: Reasons
) -> dict[str, Any] | None:
    """Return the options of the recordings that ``manifests`` list; None if they list none that can be read.

    Where they name recordings all the same, ``reasons`` is told why the first can't be read.
    """
    if manifests and is_table(manifests[0]) and _is_without_header(manifests[0], root, dialect):
        # Its first row is a recording: this is a list of names and texts, not a manifest.
        return None
    named: dict[str, list[str]] = {}
    for path in manifests:
        named.setdefault(split_named(path.name.partition(".")[0]) or "train", []).append(str(path))
    first = [*map(Path, named.get("train", ())), *manifests]
    found = with_dialect({"type": "json", **named, **_columns_in(first, root, dialect)}, dialect)
    whole = found | {"columns": {key: one for key, one in found.get("columns", {}).items() if key not in TIMES}}
    # lhotse's cuts are JSON lines, too, so their own reader tries first.
    cuts = [] if any(map(is_table, manifests)) else [{"type": "cuts", **named}]
    # Columns of times may be in other units, or times in something else: then the table is read without them.
    for options in (*cuts, found, whole):
        if manifests and opens(options):
            return options
    if audio := _audio_column(first, dialect):
        columns = {**found.get("columns", {}), **({} if audio == "audio" else {"audio": audio})}
        attempt = try_reading(found | ({"columns": columns} if columns else {}))
        if attempt.problem is not None:
            reasons[root] = attempt.problem
    return None


def _audio_column(manifests: list[Path], dialect: Dialect | None) -> str | None:
    """The column of the first manifest whose values have the endings of audio, whether or not such files are there."""
    try:
        lines = islice(manifest_lines(manifests[0], parse_dialect_options(dialect)), MOST_ROWS_READ)
        rows = [line.entry for line in lines if line.problem is None]
    except (DataError, IndexError):
        # What can't be read as a table is tried as texts, which says why.
        return None
    named = Counter(key for row in rows for key, value in row.items() if isinstance(value, str) and _is_name(value))
    column, number = max(named.items(), key=lambda one: one[1], default=("", 0))
    return column if number > len(rows) / 2 else None


def _is_name(value: str) -> bool:
    """Return whether a value could name a file of audio."""
    return len(value) < 256 and "\n" not in value and is_audio(Path(value))


def _is_without_header(table: Path, root: Path, dialect: Dialect | None) -> bool:
    """Return whether the first row of a table names a recording that is there."""
    try:
        first = dict.fromkeys(Table(table, given=parse_dialect_options(dialect)).names)
    except DataError:
        return False
    folders = [table.parent, *_find_audio_folders(root)]
    endings = ("", ".wav", ".flac", ".mp3", ".ogg", ".opus")
    named = {f"{name}{ending}": f"{name}{ending}" for name in first for ending in endings}
    return any(True for folder in folders for _ in _names_in(named, folder))


def _columns_in(manifests: list[Path], root: Path, dialect: Dialect | None) -> dict[str, Any]:
    """The columns of the first manifest that have other names than ours, and the folder in which its audio is."""
    try:
        lines = islice(manifest_lines(manifests[0], parse_dialect_options(dialect)), MOST_ROWS_READ)
        rows = [line.entry for line in lines if line.problem is None]
    except (DataError, IndexError):
        return {}
    if not rows:
        return {}
    folders = [manifests[0].parent, *_find_audio_folders(root)]
    # In reverse, so that the first folder wins where several have a file of this name.
    where = {name: one for one in reversed(folders) for row in rows for name in _names_in(row, one)}
    roles = ("audio", "text", "speaker", "language", "start", "end", "duration")
    found = find_columns(list(rows[0]), rows, roles, is_audio=where.__contains__)
    columns = {name: own for name, own in _sections_in(found.columns).items() if own != name}
    log.info("%s: %s", manifests[0], found.describe())
    options: dict[str, Any] = {"columns": columns} if columns else {}
    named = [str(row[found.columns["audio"]]) for row in rows] if "audio" in found.columns else []
    # The folder that has most of them comes first in audio_root.
    elsewhere = Counter(where[name] for name in named if name in where and where[name] != folders[0])
    return options | ({"audio_root": [str(one) for one, _ in elsewhere.most_common()]} if elsewhere else {})


def _sections_in(columns: dict[str, str]) -> dict[str, str]:
    """Return the columns as a manifest of sections has them: a start needs an end, or a duration.

    >>> _sections_in({"audio": "file", "start": "from", "end": "to"})
    {'audio': 'file', 'offset': 'from', 'end': 'to'}
    """
    start, end = columns.get("start"), columns.get("end")
    named = {name: own for name, own in columns.items() if name not in ("start", "end")}
    if start is not None and "duration" in columns:
        return named | {"offset": start}
    return named | ({"offset": start, "end": end} if start is not None and end is not None else {})


def _find_audio_folders(root: Path) -> list[Path]:
    """Return the folders below a folder that have audio, at most ``MOST_FOLDERS``."""
    found: list[Path] = []
    level = subfolders(root)
    for _ in range(3):
        found += [one for one in level if any(map(is_audio, islice(one.iterdir(), FIRST_RECORDINGS)))]
        level = [path for one in level[:FIRST_RECORDINGS] for path in subfolders(one)]
    return found[:MOST_FOLDERS]


def _names_in(row: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield the values of a row that name a file of audio in a folder, with its ending or without."""
    for value in row.values():
        if isinstance(value, str) and 0 < len(value) < 256:
            path = resolve_path((folder,), value)
            try:
                if is_audio(path) and path.is_file():
                    yield value
            except (OSError, ValueError):
                continue


class Attempt(NamedTuple):
    """Whether a recording could be read; ``problem`` is why the first couldn't, None if there were none."""

    opens: bool
    problem: str | None = None


def opens(options: dict[str, Any]) -> bool:
    """Return whether the options describe a corpus of which something can be read."""
    return try_reading(options).opens


def try_reading(options: dict[str, Any]) -> Attempt:
    """Read the first recordings of a corpus with these options, up to one that can be used."""
    problem: str | None = None
    try:
        reader = make_reader(options)
        for one in islice(reader.read(reader.given[0]), FIRST_RECORDINGS):
            if one.cut is not None:
                return Attempt(opens=True)
            problem = problem or (None if one.problem is None else str(one.problem))
    except UserError:
        # These options are one guess of several: the files aren't in this layout.
        pass
    return Attempt(opens=False, problem=problem)


def make_reader(options: dict[str, Any]) -> CorpusReader:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return AudioCorpus(DatasetConfig(**{"name": "data", **plain}), AudioConfig()).reader


def with_dialect(options: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """Return the options with the dialect of tables, where their type reads some."""
    extra: Any = DatasetConfig.model_fields["dialect"].json_schema_extra
    return options | ({"dialect": {**dialect}} if dialect and options["type"] in extra["only_for"] else {})
