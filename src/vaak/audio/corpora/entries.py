"""The reader of a dataset, and what its ``train``, ``valid`` and ``test`` name: files, folders and patterns."""

from __future__ import annotations

import glob
import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.audio_file import AUDIO_ENDINGS
from vaak.audio.config import DatasetConfig
from vaak.audio.cuts.recordings import ReadRecording
from vaak.config.base import given_dialect
from vaak.core.errors import DataError
from vaak.core.names import list_names, require_known
from vaak.core.splits import SPLITS
from vaak.core.storage.dialects import AS_FOUND, GivenDialect
from vaak.core.storage.remote import is_url
from vaak.core.storage.tables import Table, is_table
from vaak.core.storage.text_lines import open_utf8
from vaak.core.storage.url_cache import fetch_folder, find_copy, localise

_NO_FILE = re.compile(r"^\s*\||\|\s*$|^pipe:|^[A-Za-z][\w+.-]+://")
"""Names that other programs run by a shell, or fetch."""


class CorpusReader(ABC):
    """Reads the ``given`` splits of a dataset; ``files`` are those that decide the result.

    ``lacks_train`` is the message for a corpus without training data. ``roots`` are the folders of ``audio_root``.
    ``dialect`` has the given parts of its tables' dialect.
    ``folders_there`` names the folders of a corpus that has one for each split, for a message.
    """

    given: tuple[str, ...]
    files: list[Path]
    folders_there = ""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Raises DataError for a folder of ``audio_root`` that doesn't exist."""
        self.dataset, self.lacks_train = dataset, lacks_train(dataset)
        self.dialect = given_dialect(dataset.dialect)
        self.roots = tuple(Path(name).expanduser() for name in dataset.audio_root)
        for root in self.roots:
            if not root.is_dir():
                raise DataError(f"datasets, {dataset.name}: audio_root: no such folder: {root}")

    @abstractmethod
    def read(self, split: str) -> Iterator[ReadRecording]:
        """Yield the recordings of a given split; those that can't be read with their problem."""

    def named_files(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that ``files`` name, audio among them: their names there, and where they are."""
        return iter(())

    def require_texts(self) -> None:  # noqa: B027
        """Raises DataError for a table without a column for texts."""


def with_local_copies(dataset: DatasetConfig) -> DatasetConfig:
    """Return a dataset with copies on this machine in the place of URLs of files and folders.

    Raises DataError if nothing is there, StorageError if the service refuses.
    """
    where, changed = f"datasets, {dataset.name}", dict[str, Any]()
    for name in ("corpus_dir", "alignments"):
        url = getattr(dataset, name)
        if url is not None and is_url(url):
            changed[name] = str(fetch_folder(url, f"{where}: {name}"))
    if any(map(is_url, dataset.audio_root)):
        roots = (str(fetch_folder(one, f"{where}: audio_root")) if is_url(one) else one for one in dataset.audio_root)
        changed["audio_root"] = tuple(roots)
    for split in SPLITS:
        if any(map(is_url, getattr(dataset, split))):
            changed[split] = localise(getattr(dataset, split), f"{where}, {split}")
    return dataset.model_copy(update=changed) if changed else dataset


def list_contents(folder: Path) -> str:
    """Return the names in a folder for a message, but for hidden ones, such as a lock: nobody put data there."""
    names = sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
    return list_names(names, most=10) if names else "nothing"


def list_entries(dataset: DatasetConfig) -> dict[str, list[Path]]:
    """Return the files and folders of each split that is given; without any, ``corpus_dir`` is train's.

    If there is a ``corpus_dir``, names and patterns are relative to it. Raises DataError for what doesn't exist, for a
    file that a split names twice, and for a manifest of two splits that can't distinguish them.
    """
    named: dict[str, tuple[str, ...]] = {split: getattr(dataset, split) for split in SPLITS}
    if not any(named.values()) and dataset.corpus_dir is not None:
        named["train"] = (".",)
    root = Path(dataset.corpus_dir or ".").expanduser()
    found = {
        split: [path for name in names for path in _matches(root, name, f"datasets, {dataset.name}, {split}")]
        for split, names in named.items()
        if names
    }
    if not found:
        raise DataError(lacks_train(dataset))
    seen: dict[Path, str] = {}
    for split, paths in found.items():
        for path in paths:
            # A file may be in two splits if its lines say which they belong to; Lhotse's manifests can't.
            before = seen.get(path.resolve())
            if before == split or (before is not None and dataset.type == "cuts"):
                where = split if before == split else f"{before} and in {split}"
                raise DataError(f"datasets, {dataset.name}: {path} is named twice, in {where}; name it once")
            seen[path.resolve()] = split
    return found


def lacks_train(dataset: DatasetConfig) -> str:
    """Return the message if no training data is given."""
    return f"datasets, {dataset.name}: train: give its files or folders (type: {dataset.type})"


def _matches(root: Path, name: str, option: str) -> list[Path]:
    path = root / Path(name).expanduser()
    found = [path] if path.exists() else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not found:
        what = "nothing matches" if glob.has_magic(name) else "no such file or folder:"
        raise DataError(f"{option}: {what} {path}")
    return found


def named_file(folders: Sequence[Path], name: str, where: str) -> Path:
    """Return the file ``name`` of a manifest in the first of ``folders``, or in another that has it (``audio_root``).

    Raises DataError for one outside of all of them: a manifest that someone else wrote must not read other files.
    """
    if "\0" in name:
        raise DataError(f"{where}: {name!r} can't be the name of a file")
    if is_url(name) and (copy := next(filter(None, (find_copy(name, folder) for folder in folders)), None)):
        require_inside(copy, folders, where, name)
        return copy
    if _NO_FILE.search(name):
        raise DataError(
            f"{where}: {name!r} is a command or an address, which is refused: nothing is run, and only "
            "what is below a URL of corpus_dir or audio_root is fetched; give that, or save the audio as a file"
        )
    path = resolve_path(folders, name)
    require_inside(path, folders, where, name)
    return path


def resolve_path(folders: Sequence[Path], name: str) -> Path:
    """Return the path of a file that is named in the first of ``folders``: there, or in another that has it.

    A name may lack the extension of its audio: ``a`` is ``a.wav`` where ``a`` doesn't exist.
    """
    try:
        endings = ("",) if Path(name).suffix.lower() in AUDIO_ENDINGS else ("", *sorted(AUDIO_ENDINGS))
        possible = (folder / f"{name}{ending}" for ending in endings for folder in folders)
        return next((path for path in possible if path.exists()), folders[0] / name)
    except (OSError, ValueError):
        # No file can have such a name.
        return folders[0] / name


def require_inside(path: Path, folders: Sequence[Path], where: str, name: str | None = None) -> None:
    """Raises DataError for a file outside of the folders, the first of which is the manifest's; links are followed.

    ``name`` is how the manifest calls it.
    """
    real, called = path.resolve(), path if name is None else name
    if any(real.is_relative_to(folder.resolve()) for folder in folders):
        return
    is_link = any(Path(os.path.normpath(path)).absolute().is_relative_to(folder.absolute()) for folder in folders)
    outside = f"a link to {real}, outside of" if is_link else "outside of"
    its = f"the folder of the manifest ({folders[0]})" + (" and of audio_root" if len(folders) > 1 else "")
    raise DataError(
        f"{where}: {called} is {outside} {its}, which is refused; if the audio may be there, add its folder to the "
        f"dataset: audio_root: [{real.parent}] (in a pipeline: --audio-root {real.parent})"
    )


NUMBERS = ("offset", "duration", "sampling_rate")


class ManifestLine(NamedTuple):
    """A line's place and object; if it isn't one, ``problem`` says why and the object is empty."""

    where: str
    entry: dict[str, Any]
    problem: DataError | None = None


def manifest_lines(path: Path, given: GivenDialect = AS_FOUND) -> Iterator[ManifestLine]:
    """Yield each line of JSON lines (``.gz``, too) or of a table, without blank ones; ``given`` is its known dialect.

    Raises DataError for a file that can't be read.
    """
    if not is_table(path):
        yield from _json_lines(path)
        return
    for row, cells in Table(path, given=given).entries():
        entry = {name: number_in(value) if name in NUMBERS else value for name, value in cells.items()}
        yield ManifestLine(row.where, entry, row.problem)


def number_in(cell: str) -> float | str | None:
    """Return a cell as a number; anything else is returned unchanged, for a later check."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


def require_columns(there: Iterable[str], columns: dict[str, str], where: str) -> None:
    """Raise DataError for a column that ``columns`` of a dataset names and that isn't there."""
    require_known(columns.values(), there, f"{where}: columns: there is no column")


def rename_columns(entry: dict[str, Any], columns: dict[str, str], where: str) -> dict[str, Any]:
    """Return the entry with our names, too: numbers are numbers, and ``end`` becomes a duration.

    Raises DataError for a column that it doesn't have, and an ``end`` that isn't a number.
    """
    require_columns(entry, columns, where)
    named = {name: entry[column] for name, column in columns.items()}
    named |= {name: number_in(named[name]) for name in (*NUMBERS, "end") if isinstance(named.get(name), str)}
    if "end" in named:
        end, begin = seconds_in(named["end"]), seconds_in(named.get("offset", entry.get("offset"))) or 0.0
        if end is None:
            raise DataError(f"{where}: {columns['end']} is {named['end']!r}; expected the end in seconds")
        named["duration"] = round(end - begin, 9)
        del named["end"]
    return entry | named


def seconds_in(value: Any) -> float | None:
    """Return a number of a line; None for anything else, which the reader of the line refuses."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _json_lines(path: Path) -> Iterator[ManifestLine]:
    try:
        with open_utf8(path) as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}:{number}"
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError) as error:
                    # It isn't JSON, isn't UTF-8, or has too many brackets.
                    yield ManifestLine(where, {}, DataError(f"{where}: this is not JSON: {error}"))
                    continue
                if isinstance(entry, dict):
                    yield ManifestLine(where, entry)
                else:
                    kind = type(entry).__name__
                    yield ManifestLine(where, {}, DataError(f"{where}: a line is an object, not a {kind}"))
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror or error}") from error
