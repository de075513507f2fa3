r"""Files in archives (zip, tar, compressed tars), read where they are: nothing is unpacked to the disk.

data.zip/texts/a.txt       a member, named as a file in a folder ``data.zip`` would be
data.tar.gz/**/*.txt       members that match a pattern

A member's name becomes no path, so it can lead nowhere; one that would (``..``, an absolute path, a link) is refused
all the same. A member never gives more bytes than the archive declares, and an archive that declares more than
``MOST_RATIO`` times its own size is refused above ``MOST_BYTES``.
"""

from __future__ import annotations

import bz2
import functools
import glob
import gzip
import io
import json
import logging
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, cast

from vaak.core.errors import DataError

log = logging.getLogger("vaak")

BUFFER = 2**16
LARGE_BYTES = 64 << 20
"""Size in bytes from which a member of a zip is unpacked while it is read, instead of in memory."""
MOST_BYTES, MOST_RATIO = 1 << 30, 200
"""Bytes that any archive may declare, and the multiple of its compressed size that is allowed above that."""
ARCHIVE_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_THROUGH = re.compile(rf"({'|'.join(map(re.escape, ARCHIVE_ENDINGS))})/", re.IGNORECASE)
_HIDDEN = re.compile(r"(^|/)(\.|__MACOSX)")
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
_DAMAGED = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)


class ByteRange(NamedTuple):
    """``size`` bytes of a file, from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}@bytes={self.offset}+{self.size}"

    def open(self) -> BinaryIO:
        """Yield the bytes as a file."""
        return io.BufferedReader(_RawRange(self), BUFFER)


class DeflatedRange(NamedTuple):
    """``size`` bytes, which are ``packed`` compressed ones of a file from ``offset`` on, as in a zip."""

    path: Path
    offset: int
    packed: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}@deflated={self.offset}+{self.packed}+{self.size}"

    def open(self) -> BinaryIO:
        """Return the bytes, unpacked in memory, or while they are read if there are many.

        Raises DataError if their number is different, or they are damaged.
        """
        if self.size > LARGE_BYTES:
            return io.BufferedReader(_RawInflated(self), 2 * BUFFER)
        with ByteRange(self.path, self.offset, self.packed).open() as file:
            packed = file.read()
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One more than there may be: no bomb goes off.
            content = unpacking.decompress(packed, self.size + 1)
        except zlib.error as error:
            raise DataError(f"{self}: the compressed data are damaged: {error}") from error
        if len(content) != self.size:
            raise DataError(f"{self}: {len(content):,} bytes come out, not {self.size:,}; was the file replaced?")
        return io.BytesIO(content)


class PackedRange(NamedTuple):
    """``size`` bytes of what a compressed file unpacks to, from ``offset`` on: a member of a ``.tar.gz``."""

    path: Path
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}@unpacked={self.offset}+{self.size}"

    def open(self) -> BinaryIO:
        """Return the bytes, unpacked while they are read: read in the order of the archive, each is unpacked once."""
        return io.BufferedReader(_RawPacked(self), 2 * BUFFER)


class _Raw(io.RawIOBase):
    """A part of a file, of ``size`` bytes, that can be read from anywhere."""

    def __init__(self, size: int) -> None:
        self.size, self.place = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[whence]
        self.place = max(0, start + offset)
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: Any) -> int:
        number = max(0, min(len(buffer), self.size - self.place))
        done = self.fill(memoryview(buffer)[:number]) if number else 0
        self.place += done
        return done

    def fill(self, buffer: memoryview) -> int:
        """Read bytes from ``place`` on; return how many."""
        raise NotImplementedError


class _RawRange(_Raw):
    """A range of bytes; no handle stays open, so processes share nothing and nothing has to be closed."""

    def __init__(self, part: ByteRange) -> None:
        super().__init__(part.size)
        self.part = part

    def fill(self, buffer: memoryview) -> int:
        with open(self.part.path, "rb", buffering=0) as file:
            file.seek(self.part.offset + self.place)
            return int(file.readinto(buffer) or 0)


class _RawInflated(_Raw):
    """The contents of compressed bytes; seeking backwards starts again from the beginning."""

    def __init__(self, part: DeflatedRange) -> None:
        super().__init__(part.size)
        self.part = part
        self._begin()

    def _begin(self) -> None:
        self._packed, self._unpacked = ByteRange(self.part.path, self.part.offset, self.part.packed).open(), 0
        self._unpacking = zlib.decompressobj(-zlib.MAX_WBITS)

    def _more(self, number: int) -> bytes:
        content = b""
        try:
            while not content and not self._unpacking.eof:
                packed = self._unpacking.unconsumed_tail or self._packed.read(BUFFER)
                if not packed:
                    break
                content = self._unpacking.decompress(packed, number)
        except zlib.error as error:
            raise DataError(f"{self.part}: the compressed data are damaged: {error}") from error
        if not content:
            raise DataError(f"{self.part}: {self._unpacked:,} bytes come out, not {self.size:,}; was it replaced?")
        self._unpacked += len(content)
        return content

    def fill(self, buffer: memoryview) -> int:
        if self.place < self._unpacked:
            self._begin()
        while self._unpacked < self.place:
            self._more(min(BUFFER, self.place - self._unpacked))
        content = self._more(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class _RawPacked(_Raw):
    """A part of a compressed file's contents; the file that was read last continues from its position."""

    def __init__(self, part: PackedRange) -> None:
        super().__init__(part.size)
        self.part = part
        self._file = _Unpacking.take(part.path)

    def fill(self, buffer: memoryview) -> int:
        try:
            self._file.seek(self.part.offset + self.place)
            return int(cast(Any, self._file).readinto(buffer) or 0)
        except _DAMAGED as error:
            raise DataError(f"{self.part.path}: the compressed data are damaged: {error}") from error

    def close(self) -> None:
        if not self.closed:
            _Unpacking.put(self.part.path, self._file)
        super().close()


class _Unpacking:
    """The compressed file that was read last, by this process, where nobody reads it now."""

    _kept: tuple[tuple[Path, int, int, int], IO[bytes]] | None = None

    @staticmethod
    def _key(path: Path) -> tuple[Path, int, int, int]:
        return (path, *read_state(path), os.getpid())

    @classmethod
    def take(cls, path: Path) -> IO[bytes]:
        kept, cls._kept = cls._kept, None
        if kept is not None and kept[0] == cls._key(path):
            return kept[1]
        return cast(IO[bytes], _unpacker(path)(path, "rb"))

    @classmethod
    def put(cls, path: Path, file: IO[bytes]) -> None:
        cls._kept = (cls._key(path), file)


def _unpacker(path: Path) -> Any:
    """Return the function that opens a compressed file; None for an unknown compression."""
    with open(path, "rb") as file:
        return _OPENERS.get(file.read(2))


MOST_TEXT_BYTES = 2**20
"""The most bytes of a member that is read into memory."""


class Member(NamedTuple):
    """A member of a tar or a zip: its name and the range of its bytes."""

    name: str
    range: ByteRange | DeflatedRange | PackedRange

    @property
    def key(self) -> str:
        """The name up to the first dot of its last part, as WebDataset groups members."""
        folder, slash, name = self.name.rpartition("/")
        return f"{folder}{slash}{name.partition('.')[0]}"

    def content(self) -> bytes:
        """Return all bytes. Raises DataError for more than a text has."""
        if self.range.size > MOST_TEXT_BYTES:
            raise DataError(f"{self.range.path}, {self.name}: {self.range.size:,} bytes are more than a label has")
        with self.range.open() as file:
            return file.read()

    def text(self) -> str:
        try:
            return self.content().decode().strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.range.path}, {self.name}: this is not UTF-8: {error.reason}") from error

    def json(self) -> dict[str, Any]:
        """Return an object. Raises DataError for anything else."""
        try:
            value = json.loads(self.content())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.range.path}, {self.name}: this is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{self.range.path}, {self.name}: expected an object, not a {type(value).__name__}")
        return value


def read_tar_members(path: Path, *, packed: bool = False) -> Iterator[Member]:
    """The files of a tar, in order; folders are passed over. A compressed one is read only where ``packed`` allows it.

    Raises DataError for a tar that is cut short, and for a member that is a link, a device or sparse, or whose name
    leads out of the archive.
    """
    try:
        unpack = _unpacker(path)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    if unpack is not None and not packed:
        raise DataError(f"{path}: a compressed tar can't be read from the middle; unpack it: gunzip {path.name}")
    size = path.stat().st_size if unpack is None else None
    try:
        with (unpack or open)(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            declared = 0
            while (one := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # they would all stay in memory
                if one.isdir():
                    continue
                _require_plain(path, one)
                declared += one.size
                _require_no_bomb(path, declared)
                if size is not None and one.offset_data + one.size > size:
                    raise DataError(f"{path}: it ends in the middle of {one.name}; download it again")
                kind = ByteRange if unpack is None else PackedRange
                yield Member(one.name, kind(path, one.offset_data, one.size))
    except _DAMAGED as error:
        raise DataError(f"{path}: this is not a tar, or it is damaged: {error}") from error


def _require_plain(path: Path, one: tarfile.TarInfo) -> None:
    """Raise DataError for a member that isn't a plain file inside the archive."""
    name = PurePosixPath(one.name)
    if not one.isreg() or one.issparse():
        raise DataError(f"{path}: member {one.name} is a link, a device or sparse, which is refused")
    if not name.parts or name.is_absolute() or ".." in name.parts or "\0" in one.name:
        raise DataError(f"{path}: member {one.name} leads out of the archive, which is refused")


def _require_no_bomb(path: Path, declared: int) -> None:
    size = path.stat().st_size
    if declared > MOST_BYTES and declared > MOST_RATIO * size:
        raise DataError(f"{path}: {size:,} bytes would unpack to more than {declared:,}, which is refused; unpack it")


def read_zip_members(path: Path) -> Iterator[Member]:
    """Yield the files of a zip, in order; folders are passed over.

    Raises DataError for a zip that is damaged, for a member whose name leads out of the archive, and for one that is
    encrypted or compressed in another way than usual.
    """
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            declared = 0
            for one in archive.infolist():
                name = PurePosixPath(one.filename)
                if one.is_dir():
                    continue
                is_inside = name.parts and not name.is_absolute() and ".." not in name.parts
                if not is_inside or "\\" in one.filename or ":" in name.parts[0]:
                    raise DataError(f"{path}: member {one.filename} leads out of the archive, which is refused")
                declared += one.file_size
                _require_no_bomb(path, declared)
                if one.flag_bits & 1:
                    raise DataError(f"{path}: member {one.filename} is encrypted; unpack the archive")
                if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(
                        f"{path}: member {one.filename} is compressed in an unusual way; unpack the archive"
                    )
                # Its name and its extra field follow the local header.
                file.seek(one.header_offset + 26)
                lengths = file.read(4)
                start = one.header_offset + 30 + int.from_bytes(lengths[:2], "little")
                start += int.from_bytes(lengths[2:], "little")
                if start + one.compress_size > path.stat().st_size:
                    raise DataError(f"{path}: it ends in the middle of {one.filename}; download it again")
                plain = one.compress_type == zipfile.ZIP_STORED
                packed = DeflatedRange(path, start, one.compress_size, one.file_size)
                yield Member(one.filename, ByteRange(path, start, one.file_size) if plain else packed)
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise DataError(f"{path}: this is not a zip, or it is damaged: {error}") from error


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive by its ending.

    >>> [is_archive(Path(name)) for name in ("a.zip", "a.TAR.gz", "a.csv.gz", "a.xlsx")]
    [True, True, False, False]
    """
    return path.name.lower().endswith(ARCHIVE_ENDINGS)


def find_archive(path: Path) -> tuple[Path, str] | None:
    """Return the archive that a path leads through, and the name of the member in it; None if it leads through none.

    A folder may have the name of an archive; then it is a folder.
    """
    text = str(path)
    for found in _THROUGH.finditer(text):
        # Paths' own methods would cost most of what reading short texts costs.
        archive = text[: found.end() - 1]
        if os.path.isfile(archive):
            return Path(archive), text[found.end() :]
    return None


def list_members(archive: Path) -> dict[str, Member]:
    """Return the members of an archive by name, in its order, without hidden ones and those that a Mac adds.

    Raises DataError for an archive that is damaged or isn't safe.
    """
    try:
        return _list_members(archive, read_state(archive))
    except OSError as error:
        raise DataError(f"{archive}: can't be read: {error.strerror}") from error


@functools.lru_cache(maxsize=4)
def _list_members(archive: Path, state: tuple[int, int]) -> dict[str, Member]:
    is_zip = archive.suffix.lower() == ".zip"
    members = read_zip_members(archive) if is_zip else read_tar_members(archive, packed=True)
    named = dict[str, Member]()
    for one in members:
        name = PurePosixPath(one.name).as_posix()
        # As when it is unpacked, the last one of a name stays; that an earlier one is lost must not be silent.
        if name in named:
            log.warning("%s: two members are called %s; the first is left out", archive, name)
        named[name] = one
    return {name: one for name, one in named.items() if not _HIDDEN.search(name)}


def open_file(path: Path) -> BinaryIO:
    """Open a file, or a member of an archive, to read its bytes. Raises OSError if there is none."""
    found = find_archive(path)
    return open(path, "rb") if found is None else _member(path, *found).range.open()


def _member(path: Path, archive: Path, name: str) -> Member:
    member = list_members(archive).get(name)
    if member is None:
        raise FileNotFoundError(2, "no such member of the archive", str(path))
    return member


def read_state(path: Path) -> tuple[int, int]:
    """Return the size of a file, or of a member of an archive, and when the file was changed (ns); as ``Path.stat``."""
    found = find_archive(path)
    facts = (path if found is None else found[0]).stat()
    return facts.st_size if found is None else _member(path, *found).range.size, facts.st_mtime_ns


def locate_on_disk(path: Path) -> Path:
    """Return the file that holds a file: the archive, of a member; else itself."""
    found = find_archive(path)
    return path if found is None else found[0]


def list_files(folder: Path) -> list[Path]:
    """Return all files of a folder, sorted, or of an archive; archives in a folder are replaced by their members.

    Members are in the order of their archive, in which they are read the fastest. Archives in archives stay
    files, as do those in a folder that can't be read, which are named in the log.
    """
    paths = sorted(one for one in folder.rglob("*") if one.is_file()) if folder.is_dir() else [folder]
    found = list[Path]()
    for path in paths:
        try:
            found += [path / name for name in list_members(path)] if is_archive(path) else [path]
        except DataError as error:
            if path == folder:
                raise
            log.warning("left out: %s", error)
            found.append(path)
    return found


def find_in_archives(pattern: str) -> list[Path] | None:
    """Return the members that ``data.zip/**/*.txt`` or its like names; None if it leads through no archive."""
    parts = Path(pattern).parts
    for place in range(1, len(parts)):
        if not parts[place - 1].lower().endswith(ARCHIVE_ENDINGS):
            continue
        before = Path(*parts[:place])
        archives = (
            [before] if before.is_file() else [Path(one) for one in sorted(glob.glob(str(before), recursive=True))]
        )
        archives = [one for one in archives if is_archive(one) and one.is_file()]
        if archives:
            matches = _pattern("/".join(parts[place:])).fullmatch
            return [one / name for one in archives for name in list_members(one) if matches(name)]
    return None


def _pattern(text: str) -> re.Pattern[str]:
    """Return the expression of a pattern of names: ``**`` is any number of folders.

    >>> [bool(_pattern("**/*.txt").fullmatch(name)) for name in ("a.txt", "b/c/a.txt", "a.csv")]
    [True, True, False]
    >>> bool(_pattern(glob.escape("a[1]*")).fullmatch("a[1]*")), bool(_pattern("*").fullmatch("b/a"))
    (True, False)
    """
    *folders, last = text.split("/")
    before = "".join("(?:[^/]+/)*" if one == "**" else f"{_pattern_of_name(one)}/" for one in folders)
    return re.compile(before + (".*" if last == "**" else _pattern_of_name(last)), re.DOTALL)


def _pattern_of_name(text: str) -> str:
    rules = []
    for token in re.findall(r"\*|\?|\[!?[^\]]+\]|.", text, re.DOTALL):
        if len(token) > 1:
            chosen = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            rules.append(f"[^{chosen[1:]}]" if chosen.startswith("!") else f"[{chosen}]")
        else:
            rules.append({"*": "[^/]*", "?": "[^/]"}.get(token) or re.escape(token))
    return "".join(rules)
