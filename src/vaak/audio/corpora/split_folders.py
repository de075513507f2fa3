"""A folder with a folder for each split: Train, Dev and Test, in capitals or not.

CORPUS_DIR/
  Train/  Dev/  Test/
    *.jsonl, *.csv, *.tsv     manifests (vaak.audio.corpora.json_manifest), of audio in their folders
    SPEAKER/SPEAKER.json      or a file for each speaker, as in the Speech Accessibility Project
    GROUP/…/NAME.wav, .txt    or audio next to its transcript; GROUP becomes the label etiology

The first of these that a split has is read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.entries import place_of, roots_of
from vaak.audio.corpora.json_manifest import TABLES, JsonReader, reading_of
from vaak.audio.waveforms.recordings import ReadRecording, attempted
from vaak.audio.waveforms.suffixes import is_audio
from vaak.core.errors import DataError
from vaak.core.progress import followed

FOLDERS = {"train": "train", "dev": "valid", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
NAMES = {"train": "Train", "valid": "Dev", "test": "Test"}
"""What folders of splits are usually called."""
MANIFESTS = (".jsonl", *TABLES)
ALIKE = 0.66
"""How alike names are of which one is taken for the other misspelt: dve and dev, but not data and dev."""


class SplitFolderReader(JsonReader):
    """The recordings of a folder's splits (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the folders.

        Raises DataError for a folder that isn't there, has no Train, or has another in place of a Dev, misspelt.
        """
        root = Path(dataset.corpus_dir or dataset.name).expanduser()
        if not root.is_dir():
            raise DataError(f"datasets, {dataset.name}: corpus_dir: no such folder: {root}")
        self._splits = {FOLDERS[one.name.lower()]: one for one in sorted(root.iterdir()) if one.name.lower() in FOLDERS}
        self.there = ", ".join(sorted(one.name for one in root.iterdir())[:10]) or "nothing"
        others = sorted(one.name for one in root.iterdir() if one.is_dir() and one not in self._splits.values())
        for split in ("train", "valid"):
            meant = None if split in self._splits else _meant_for(split, root, others)
            if split not in self._splits and (meant or split == "train"):
                hint = f"; did you mean {meant}? Rename it {NAMES[split]}" if meant else ""
                raise DataError(
                    f"datasets, {dataset.name}: {root} has no folder {NAMES[split]}; it has {self.there}{hint}"
                )
        self.lacks_train, self.given, self._columns = "", tuple(self._splits), dataset.columns
        self._roots = roots_of(dataset)
        found = {split: sorted(one.rglob("*")) for split, one in self._splits.items()}
        self._manifests = {
            split: [path for path in paths if path.suffix.lower() in MANIFESTS] for split, paths in found.items()
        }
        self._others = {
            split: [path for path in paths if path.suffix.lower() == ".json"] or list(filter(is_audio, paths))
            for split, paths in found.items()
        }
        read = [path for split in self.given for path in self._manifests[split] or self._others[split]]
        texts = [path.with_suffix(".txt") for path in read if is_audio(path)]
        self.files = [*read, *(path for path in texts if path.exists())]

    def read(self, split: str) -> Iterator[ReadRecording]:
        if self._manifests[split]:
            yield from super().read(split)
            return
        for path in followed(self._others[split], f"files of {split}"):
            if path.suffix.lower() == ".json":
                for number, entry in enumerate(_files_of(path), start=1):
                    where = f"{path}, file {number}"
                    yield attempted(where, partial(reading_of, entry, (path.parent, *self._roots), where))
            else:
                yield attempted(str(path), partial(self._of_audio, path, self._splits[split]))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            if path.suffix.lower() in MANIFESTS:
                yield from self._named_in(path)
            elif path.suffix.lower() == ".json":
                for entry in _files_of(path):
                    yield str(entry["audio"]), place_of((path.parent, *self._roots), str(entry["audio"]))

    def _of_audio(self, path: Path, root: Path) -> ReadRecording:
        return reading_of(self._beside(path, root), (path.parent, *self._roots), str(path))

    def _beside(self, path: Path, root: Path) -> dict[str, Any]:
        """A file of audio with what is in the text next to it, and the folder it is in."""
        try:
            text = path.with_suffix(".txt").read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path.with_suffix('.txt')}: can't be read, the transcript of {path.name}") from error
        first, *_, name = path.relative_to(root).parts
        group = {} if first == name else {"etiology": first}
        return {"id": "-".join(path.relative_to(root).with_suffix("").parts), "audio": name, "text": text, **group}


def _meant_for(split: str, root: Path, names: list[str]) -> str | None:
    """The first folder with data whose name is nearly one of a split's, such as Deev or development."""
    known = [name for name, own in FOLDERS.items() if own == split]
    for name in names:
        is_alike = difflib.get_close_matches(name.lower(), known, n=1, cutoff=ALIKE) or name.lower().startswith(
            known[0]
        )
        if is_alike and any(
            path.suffix.lower() in (*MANIFESTS, ".json") or is_audio(path) for path in (root / name).rglob("*")
        ):
            return name
    return None


def _files_of(path: Path) -> Iterator[dict[str, Any]]:
    """The recordings of a speaker. Raises DataError for a file of another kind."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        speaker, etiology = about.get("Contact ID", path.stem), about.get("Etiology")
        for one in about["Files"]:
            yield {
                "audio": one["Filename"],
                "text": one["Prompt"]["Transcript"],
                "speaker": speaker,
                **({"etiology": etiology} if etiology else {}),
            }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: expected Etiology and Files, each with Filename and Prompt: Transcript") from error
