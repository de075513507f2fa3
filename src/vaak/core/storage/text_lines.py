r"""Lines of users' texts: ``\n`` and ``\r\n`` end them, and nothing else does.

``str.splitlines`` and Python's own reading of text files also end lines at ``\r``, U+2028, U+0085, form feeds and
further characters, which are inside of what people say, type and scan.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vaak.core.errors import DataError
from vaak.core.storage.archives import open_file

CONVERT = "convert the file (if it is Latin-1: iconv -f latin1 -t utf-8)"


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, without their ends.

    >>> split_lines("a\u2028b\x0c\r\nc\rd\n"), split_lines("a\n\nb"), split_lines("")
    (['a\u2028b\x0c', 'c\rd'], ['a', '', 'b'], [])
    """
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def read_text_lines(path: Path) -> list[str]:
    """Return the lines of a file in UTF-8 or UTF-16. Raises DataError, with the line, where it can't be read."""
    try:
        with open_file(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    encoding = detect_encoding(content[: 1 << 16])
    try:
        return split_lines(content.decode(encoding))
    except UnicodeDecodeError as error:
        line, byte = content.count(b"\n", 0, error.start) + 1, content[error.start]
        called = encoding.removesuffix("-sig").upper()
        raise DataError(f"{path}:{line}: byte {error.start} (0x{byte:02X}) is not {called}; {CONVERT}") from error


@contextmanager
def open_utf8(path: Path) -> Iterator[IO[bytes]]:
    """Open a text, perhaps in an archive, as bytes in UTF-8. UTF-16 and UTF-32 are converted, in memory.

    A ``.gz`` is unpacked while it is read.

    Bytes that aren't valid UTF-8 stay unchanged, for the caller to decode. Raises DataError for a text of another
    encoding, or a ``.gz``, that is damaged.
    """
    with open_file(path) as plain:
        file: Any = gzip.GzipFile(fileobj=plain) if path.suffix.lower() == ".gz" else plain
        try:
            encoding = detect_encoding(file.read(1 << 16))
            file.seek(0)
            if encoding.startswith("utf-8"):
                yield file
            else:
                # readers split at the byte \n, which UTF-16 also has within characters
                yield io.BytesIO(file.read().decode(encoding).removeprefix("\ufeff").encode(errors="surrogatepass"))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: this .gz is damaged: {error}") from error
        except UnicodeError as error:
            if isinstance(error, UnicodeDecodeError) and error.encoding != "utf-8":
                raise DataError(f"{path}: this looks like {error.encoding.upper()}, but isn't: {error}") from error
            raise


def detect_encoding(head: bytes) -> str:
    r"""Return the encoding of a text that begins with these bytes: ``utf-8-sig``, ``utf-16``, ….

    >>> [detect_encoding(text) for text in (b"\xef\xbb\xbfa", "a".encode("utf-16"), "अ आ\n".encode("utf-16-le"), b"a")]
    ['utf-8-sig', 'utf-16', 'utf-16-le', 'utf-8']
    """
    marks = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"))
    for mark, name in (*marks, (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if head.startswith(mark):
            return name
    zeros = head[0::2].count(0), head[1::2].count(0)
    if sum(zeros) > len(head) / 50 and min(zeros) == 0:
        # Zero bytes come from ASCII: from spaces and ends of lines at least.
        return "utf-16-le" if zeros[1] else "utf-16-be"
    return "utf-8"
