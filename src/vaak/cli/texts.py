"""The texts that an argument of a command means: itself, the lines of a file, or those of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from vaak.core.errors import DataError, UserError

FILE_ENDINGS = (".txt", ".tsv", ".csv", ".json", ".jsonl")


def texts_of(text: str) -> tuple[list[str], Callable[[int], str]]:
    """The texts that an argument means, and where each of them comes from.

    Raises UserError for one that looks like the name of a file that doesn't exist.
    """
    if text == "-":
        return _decoded_lines(sys.stdin.buffer.read(), "standard input"), lambda index: f"standard input:{index + 1}"
    if os.path.isfile(text):  # unlike Path.is_file it takes a text of any length
        return _decoded_lines(Path(text).read_bytes(), text), lambda index: f"{text}:{index + 1}"
    if _names_a_file(text):
        raise UserError(f"file {text} does not exist")
    return text.split("\n"), lambda index: "the text"


def _names_a_file(text: str) -> bool:
    """Whether a text can only be meant as a path: by how it begins or ends, or because its folder is there.

    >>> [_names_a_file(text) for text in ("texts/lines.txt", "./lines", "12/25/2020", "km/h", "https://foo.com/a.txt")]
    [True, True, False, False, False]
    """
    if "://" in text or any(map(str.isspace, text)):
        return False
    folder = text.rpartition("/")[0]
    return (
        text.endswith(FILE_ENDINGS) or text.startswith(("/", "./", "../")) or (bool(folder) and os.path.isdir(folder))
    )


def _decoded_lines(content: bytes, name: str) -> list[str]:
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: this is not UTF-8 ({error.reason}); convert it to UTF-8") from error
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
