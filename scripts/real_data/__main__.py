"""Assembles the folder of data that ``VAAK_DATA`` names, from its public sources.

    PYTHONPATH=scripts python -m real_data FOLDER [--only hindi read_speech]

Downloads are resumed, files are written complete or not at all, and each is compared with its SHA-256. Started again,
only what is missing or differs is made. Ends with 2 if something is missing or differs.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import urllib.parse
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import soundfile

from real_data.lists import LISTS, Entry, Source, hash_text, hash_value, read_contents, read_sources
from real_data.recipes import FILES, LINES, Work
from vaak.audio.corpora.recipes import fetch
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.storage.files import write_bytes, write_text

SERVER = "https://raw.githubusercontent.com"
DOWNLOADS = ".downloads"
UNREADABLE = (OSError, ValueError, KeyError, ElementTree.ParseError, zipfile.BadZipFile, soundfile.SoundFileError)


def main() -> int:
    """Make all files; 2 if one of them isn't as listed, after a line for each."""
    parser = argparse.ArgumentParser(prog="real_data", description="Assembles the folder of data of docs/results.md.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="SET", help="some of the data sets, by their names")
    parser.add_argument("--server", default=SERVER, help="where SERVER/OWNER/REPOSITORY/COMMIT/PATH is a file")
    parser.add_argument("--lists", type=Path, default=LISTS, help="the folder that says what belongs in FOLDER")
    options = parser.parse_args()
    contents, sources = read_contents(options.lists), read_sources(options.lists)
    names = sorted({entry.data_set for entry in contents})
    if unknown := set(options.only) - set(names):
        raise UserError(f"--only: unknown: {', '.join(sorted(unknown))}; the data sets are {', '.join(names)}")
    wanted = [entry for entry in contents if not options.only or entry.data_set in options.only]
    print(licences(wanted, sources))
    folder = Folder(options.folder, options.lists, contents, sources, options.server)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_text(folder.path / "SOURCES.txt", licences(contents, sources) + "\n")
    num_faults = 0
    with progress("files", len(wanted)) as advance:
        for entry in wanted:
            if fault := folder.make(entry):
                num_faults += 1
                print(f"{entry.file}: {fault}", file=sys.stderr)
            advance(1)
    print(f"{len(wanted) - num_faults} of {len(wanted)} files are as listed")
    if num_faults:
        print(
            f"{num_faults} files are missing or differ: figures that use them won't repeat exactly; start again to try "
            f"them again, without {folder.path / DOWNLOADS} to download them again",
            file=sys.stderr,
        )
        return 2
    if not options.only:
        shutil.rmtree(folder.path / DOWNLOADS, ignore_errors=True)
    return 0


def licences(entries: Iterable[Entry], sources: dict[str, Source]) -> str:
    """A line for each source of the files: the data sets, where it is from, its licence."""
    uses: dict[str, set[str]] = {}
    for entry in entries:
        for name, _ in entry.sources:
            uses.setdefault(name, set()).add(entry.data_set)
    rows = ((", ".join(sorted(sets)), sources[name]) for name, sets in uses.items())
    return "\n".join(f"{sets}: {one.name}, {one.repository} @ {one.commit}: {one.licence}" for sets, one in rows)


@dataclass(frozen=True)
class Folder:
    """The folder, what belongs in it, and the server that has its sources."""

    path: Path
    lists: Path
    contents: list[Entry]
    sources: dict[str, Source]
    server: str

    def make(self, entry: Entry) -> str:
        """Make a file unless it is there as listed; returns what is wrong with it."""
        path = self._inside(entry.file)
        if _as_listed(path, entry):
            return ""
        found = [(address, self._download(*address)) for address in entry.sources]
        faults = [f"{self._url(*address)} isn't there" for address, download in found if download is None]
        paths = [download for _, download in found if download is not None]
        if faults and entry.recipe != "text":
            return faults[0]
        try:
            content = self._content(entry, paths, faults)
        except UNREADABLE as error:
            return f"can't be made from its sources ({type(error).__name__}: {error})"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
        if not faults and not _as_listed(path, entry):
            faults.append("its SHA-256 isn't the listed one")
        return "; ".join(faults)

    def _content(self, entry: Entry, paths: list[Path], faults: list[str]) -> bytes:
        if entry.recipe in FILES:
            return FILES[entry.recipe](Work(entry, paths, self.path, self.contents, self.lists))
        candidates = {hash_value(line): line for line in ("", *LINES[entry.recipe](paths))}
        lines = [candidates.get(one) for one in entry.line_hashes]
        if lost := lines.count(None):
            faults.append(f"{lost:,} of its {len(lines):,} lines aren't in its sources; it is shorter by them")
        return "".join(f"{line}\n" for line in lines if line is not None).encode()

    def _download(self, name: str, path: str) -> Path | None:
        """The file of a source; None if the server doesn't have it."""
        source = self.sources[name]
        target = self._inside(DOWNLOADS, source.repository, source.commit, path)
        fetch(self._url(name, path), target, missing_ok=True, server_checksums=False)
        return target if target.exists() else None

    def _inside(self, *parts: str) -> Path:
        path = self.path.joinpath(*parts)
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise UserError(f"{self.lists}: {'/'.join(parts)} would be outside of {self.path}; correct the list")
        return path

    def _url(self, name: str, path: str) -> str:
        source = self.sources[name]
        return f"{self.server}/{source.repository}/{source.commit}/{urllib.parse.quote(path)}"


def _as_listed(path: Path, entry: Entry) -> bool:
    try:
        return hash_text(path) == entry.digest
    except UNREADABLE:
        return False


if __name__ == "__main__":
    logging.getLogger("vaak").setLevel(logging.ERROR)  # what isn't there is reported with the file that needs it
    try:
        sys.exit(main())
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        sys.exit(130)
