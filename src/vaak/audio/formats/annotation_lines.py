"""Lines of annotations (RTTM, UEM, CTM): UTF-8, fields between blanks; each line has its position.

Blank lines and comments, which begin with ``;``, are skipped. Only ASCII white space separates fields, so that a name
may contain any other character.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vaak.core.errors import DataError
from vaak.core.storage.files import demand_file

MISSING = "<NA>"
"""An empty field."""

Annotations = TypeVar("Annotations")


@dataclass(frozen=True)
class Line:
    """One line: ``where`` is ``FILE:LINE``."""

    where: str
    fields: Sequence[str]

    def demand(self, least: int, most: int, what: str) -> None:
        """Raises DataError if the line has fewer or more fields than ``what``: a blank in a name shifts all others."""
        number = len(self.fields)
        if number < least:
            raise DataError(f"{self.where}: {what} requires at least {least} fields, this line has {number}")
        if number > most:
            raise DataError(
                f"{self.where}: {what} has at most {most} fields, this line has {number}; a blank separates fields, so "
                "a name can't contain one: write _ instead"
            )

    def number(self, index: int, what: str) -> float:
        """A field as a finite number. Raises DataError."""
        return number_of(self.fields[index], what, self.where)

    def seconds(self, index: int, what: str) -> float:
        """A field as seconds, 0 or more. Raises DataError."""
        return seconds_of(self.fields[index], what, self.where)

    def name(self, index: int, what: str) -> str:
        """A field as a name. Raises DataError if it is empty."""
        if self.fields[index] == MISSING:
            raise DataError(f"{self.where}: the {what} is empty ({MISSING})")
        return self.fields[index]


def number_of(text: str, what: str, where: str) -> float:
    """A finite number. Raises DataError."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: the {what} is {text!r}, which is not a finite number")
    return value


def seconds_of(text: str, what: str, where: str) -> float:
    """Seconds, 0 or more. Raises DataError."""
    value = number_of(text, what, where)
    if value < 0:
        raise DataError(f"{where}: the {what} is {text} s, which is negative")
    return value


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a file without blank ones. Raises DataError if it can't be read or isn't UTF-8."""
    for number, content in enumerate(read_content(path).split(b"\n"), start=1):
        where = f"{path}:{number}"
        fields = [decoded(field, where) for field in content.split()]
        if fields and not fields[0].startswith(";"):
            yield Line(where, fields)


def read_content(path: str | Path) -> bytes:
    """The text of a file, without UTF-8's byte order mark. Raises DataError."""
    try:
        demand_file(Path(path))
        return Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


def decoded(content: bytes, where: str) -> str:
    """UTF-8 as text. Raises DataError."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        byte = content[error.start]
        raise DataError(f"{where}: byte 0x{byte:02x} is not UTF-8; convert the file to UTF-8") from error


def read_folder(
    path: str | Path, suffix: str, read: Callable[[Path], dict[str, Annotations]]
) -> dict[str, Annotations]:
    """The annotations of a file, or of all files of a folder (and its folders) that end with ``suffix``.

    Raises DataError if a folder has none, or a recording is in two files.
    """
    folder = Path(path)
    if not folder.is_dir():
        return read(folder)
    files = sorted(folder.rglob(f"*{suffix}"))
    if not files:
        raise DataError(f"{folder}: no *{suffix} file in this folder")
    found: dict[str, Annotations] = {}
    origin: dict[str, Path] = {}
    for file in files:
        for recording, entries in read(file).items():
            if recording in found:
                raise DataError(f"{file}: recording {recording} is also in {origin[recording]}; keep one of them")
            found[recording], origin[recording] = entries, file
    return found


def as_field(text: str, what: str, path: Path) -> str:
    """``text``, which can be read again as a field. Raises DataError where it can't."""
    try:
        fits = text.encode().split() == [text.encode()] and text != MISSING and text[0] not in ";\ufeff"
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise DataError(
            f"{path}: can't be written: the {what} {text!r} is empty, or contains a space or invalid characters"
        )
    return text


def as_seconds(seconds: float) -> str:
    """Seconds to the microsecond, with three decimals at least.

    >>> as_seconds(1.5), as_seconds(0.06250049)
    ('1.500', '0.0625')
    """
    whole, _, decimals = f"{seconds:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(3, '0')}"
