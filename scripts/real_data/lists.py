"""Lists of the files that belong in the folder, and where each comes from. Three files:

sources.tsv     name, repository, commit, licence
contents.tsv    file, recipe, its sources (``name:path``, separated by blanks), SHA-256, remark
lines.bin       the hashes of the lines of all files of text, in the order of ``contents.tsv``

The remark is the number of lines of a file of text, the gender and the part of the corpus (or accent) of a recording.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import soundfile

from vaak.core.storage.files import hash_file, write_bytes, write_text

LISTS = Path(__file__).with_name("lists")
HASH_BYTES = 5


@dataclass(frozen=True)
class Source:
    """A public repository at one commit."""

    name: str
    repository: str
    commit: str
    licence: str


@dataclass
class Entry:
    """A file of the folder. ``hashes`` are those of its lines, if it is chosen line by line."""

    file: str
    recipe: str
    sources: list[tuple[str, str]]
    digest: str
    remark: str
    hashes: bytes = b""

    @property
    def data_set(self) -> str:
        return self.file.partition("/")[0]

    @property
    def line_hashes(self) -> list[bytes]:
        return [self.hashes[begin : begin + HASH_BYTES] for begin in range(0, len(self.hashes), HASH_BYTES)]


def hash_value(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=HASH_BYTES).digest()


def hash_text(path: Path) -> str:
    """The file's SHA-256; that of the decoded samples for audio, because encoders differ."""
    if path.suffix not in (".flac", ".wav"):
        return hash_file(path)
    return samples_digest(soundfile.read(path, dtype="int16")[0])


def samples_digest(samples: np.ndarray) -> str:
    return hashlib.sha256(samples.astype("<i2").tobytes()).hexdigest()


def read_sources(lists: Path) -> dict[str, Source]:
    return {row[0]: Source(*row) for row in _rows(lists / "sources.tsv")}


def read_contents(lists: Path) -> list[Entry]:
    hashes = BytesIO((lists / "lines.bin").read_bytes())
    entries = []
    for file, recipe, sources, digest, remark in _rows(lists / "contents.tsv"):
        pairs = [(name, path) for name, _, path in (source.partition(":") for source in sources.split())]
        entries.append(Entry(file, recipe, pairs, digest, remark))
        if remark.isdigit():
            entries[-1].hashes = hashes.read(HASH_BYTES * int(remark))
    return entries


def write_contents(lists: Path, entries: list[Entry]) -> None:
    rows = [
        (one.file, one.recipe, " ".join(f"{name}:{path}" for name, path in one.sources), one.digest, one.remark)
        for one in entries
    ]
    write_text(lists / "contents.tsv", "".join("\t".join(row) + "\n" for row in rows))
    write_bytes(lists / "lines.bin", b"".join(entry.hashes for entry in entries))


def _rows(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
