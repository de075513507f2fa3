"""Ogg: the position on its last page is its length; Opus whose first page begins later is moved to 0.

A page has its flags at byte 5 (4: the last one), its position (granule) at 6, its stream at 14, its checksum at 22, the
number of its segments at 26, and then their lengths. A segment of less than 255 bytes ends a packet.

Opus begins with samples that aren't heard (pre-skip). Where positions count from later than 0, as in a recording of a
stream, or one whose encoder counted the pre-skip twice, libsndfile leaves them in; FFmpeg never does.
Source: RFC 3533, RFC 7845.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vaak.audio.containers.contents import Contents, Piece, measure
from vaak.audio.embedded import Part
from vaak.core.errors import DataError

MOST_PAGE_BYTES = 65307
"""The most bytes of a page of Ogg."""
OPUS_HERTZ = 48000
POLYNOMIAL = 0x04C11DB7


class Page(NamedTuple):
    """``head`` is the page's header with the lengths of its segments; ``size`` is that of all of it."""

    place: int
    head: bytes
    size: int

    @property
    def position(self) -> int:
        """The samples up to the end of the last packet that ends on the page; -1 where none does."""
        return int(struct.unpack("<q", self.head[6:14])[0])


def count_pages(file: BinaryIO, path: Path | Part) -> Contents:
    """The contents of a file. Raises DataError if its last page is missing: libsndfile takes the rest for the whole.

    Nothing is counted where libsndfile counts well: only Opus that doesn't begin at 0.
    """
    _require_last_page(file, path)
    file.seek(0)
    start = file.read(MOST_PAGE_BYTES)
    if start[28:36] != b"OpusHead":
        return Contents()
    audio = next((page for page in _pages(file) if page.position > 0), None)
    if audio is None:
        return Contents()
    # A position below the packets' samples means that the end is trimmed, if the first page is also the last. A page
    # that starts in the middle of a packet (flag 1) doesn't tell how long that packet is.
    shift = audio.position - _samples(file, audio)
    if shift <= 0 or audio.head[5] & 1:
        return Contents()
    return Contents(pieces=tuple(_moved(file, shift)))


def _require_last_page(file: BinaryIO, path: Path | Part) -> None:
    file.seek(max(0, measure(file) - MOST_PAGE_BYTES))
    end = file.read()
    start = end.rfind(b"OggS\0")
    if start < 0:
        # Something follows after the last page.
        return
    page = end[start:]
    length = 27 + page[26] + sum(page[27 : 27 + page[26]]) if len(page) > 26 else MOST_PAGE_BYTES
    if len(page) < length or not page[5] & 4:
        raise DataError(
            f"{path}: its last page is missing: it is truncated; download it again, or keep the rest: "
            f"ffmpeg -i {path.name} -c copy whole{path.suffix}"
            if isinstance(path, Path)
            else f"{path}: its last page is missing: it was truncated before it was packed; leave it out"
        )


def _pages(file: BinaryIO) -> Iterator[Page]:
    """Yield the pages, up to the first position without one."""
    place = 0
    while True:
        file.seek(place)
        head = file.read(27)
        if len(head) < 27 or head[:4] != b"OggS":
            return
        head += file.read(head[26])
        size = len(head) + sum(head[27:])
        yield Page(place, head, size)
        place += size


def _samples(file: BinaryIO, page: Page) -> int:
    """Return the samples, at 48 kHz, of the packets that end on the page."""
    file.seek(page.place + len(page.head))
    content = file.read(page.size - len(page.head))
    total = start = end = 0
    for length in page.head[27:]:
        end += length
        if length < 255:
            total += _packet_samples(content[start:end])
            start = end
    return total


def _packet_samples(packet: bytes) -> int:
    """Return the samples of a packet of Opus, at 48 kHz. Source: RFC 6716, section 3.1."""
    if not packet:
        return 0
    coding, frames = packet[0] >> 3, packet[0] & 3
    # Frame sizes by mode: SILK 10 to 60 ms, hybrid 10 or 20 ms, CELT 2.5 to 20 ms.
    size = (
        (480, 960, 1920, 2880)[coding & 3]
        if coding < 12
        else (480, 960)[coding & 1]
        if coding < 16
        else 120 << (coding & 3)
    )
    number = (1, 2, 2, (packet[1] & 63) if len(packet) > 1 else 0)[frames]
    return size * number


def _moved(file: BinaryIO, shift: int) -> Iterator[Piece]:
    """Yield the pages with their positions reduced by ``shift``."""
    for page in _pages(file):
        if page.position <= 0:
            yield page.place, page.size
            continue
        position = struct.pack("<q", page.position - shift)
        # Only the position's bytes differ, and the checksum is computed with its own field set to 0.
        change = bytes(a ^ b for a, b in zip(page.head[6:14], position, strict=True))
        check = struct.unpack("<I", page.head[22:26])[0] ^ _checksum(change, page.size - 14)
        yield page.head[:6] + position + page.head[14:22] + struct.pack("<I", check)
        yield page.place + 26, page.size - 26


def _checksum(content: bytes, zeros: int) -> int:
    """Return the checksum of ``content`` followed by a number of ``zeros``, in bytes.

    Checksums are linear: that of a page whose position is changed is its own, XOR that of the change.
    """
    check = 0
    for byte in content:
        check ^= byte << 24
        for _ in range(8):
            check = _double(check)
    power, square, exponent = 1, 2, 8 * zeros
    while exponent:
        # x to the power of the number of bits.
        if exponent & 1:
            power = _multiply(power, square)
        square, exponent = _multiply(square, square), exponent >> 1
    return _multiply(check, power)


def _double(value: int) -> int:
    return (value << 1 ^ (POLYNOMIAL if value >> 31 else 0)) & 0xFFFFFFFF


def _multiply(first: int, second: int) -> int:
    """Return the product of two polynomials, modulo that of the checksum."""
    product = 0
    while second:
        if second & 1:
            product ^= first
        first, second = _double(first), second >> 1
    return product
