"""FLAC: the last frame says where it begins, so the length is known without decoding.

A frame begins with a synchronisation code and a header with a checksum:

    11111111 1111100v   v: 0, frames of one size are numbered; 1, the header has the number of the first sample
    size, rate, channels, bits: 16 bits
    the number, as UTF-8 writes characters; the size, if it isn't a usual one; the rate, likewise
    CRC-8 of all this

Source: RFC 9639, section 9.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from vaak.audio.containers.contents import Contents, measure

BYTES_OF_FRAMES, MOST_BYTES_OF_FRAMES = 2**15, 2**18
"""Where the last frame is looked for, from the end of the file; one of 8 channels and 24 bits has about 100,000."""
TOTAL_AT = 18
"""The byte of a file where the rate, the channels, the bits and the total number of samples (36 bits) begin."""
MOST_SAMPLES = 2**36 - 1


class Frame(NamedTuple):
    """``end``: the number of samples up to the end of the frame, which begins at byte ``place``."""

    place: int
    end: int


def _crc_table(polynomial: int) -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value & 0x80 else 0)
        table.append(value & 0xFF)
    return tuple(table)


CRC8 = _crc_table(0x107)


def count_frames(file: BinaryIO) -> Contents:
    """Count the samples of a FLAC file; the header's number may be 0, which says nothing.

    Of frames that end where the header says, no other is looked for. Else the last one counts.
    """
    file.seek(0)
    head = file.read(42)
    # The first metadata block must be STREAMINFO (type 0); the top bit only marks the last block.
    if len(head) < 42 or head[4] & 0x7F:
        return Contents()
    # The largest block: in a file of fixed-size frames, all but the last one have it.
    block = struct.unpack(">H", head[10:12])[0]
    packed = int.from_bytes(head[TOTAL_AT : TOTAL_AT + 8], "big")
    said = packed & MOST_SAMPLES
    size = measure(file)
    last = None
    # Try a short tail first: it holds the last frame of nearly all files.
    for number in (BYTES_OF_FRAMES, MOST_BYTES_OF_FRAMES):
        file.seek(max(42, size - number))
        frames = _frames(file.read(), block)
        last = next(frames, None)
        # Compressed audio can look like a frame header by chance (CRC-8 passes 1 in 256), so a frame that agrees with
        # the file's header wins over a later one that doesn't.
        if last is not None and (last.end == said or any(frame.end == said for frame in frames)):
            return Contents(said=said, held=said)
    if last is None:
        return Contents()
    # libsndfile gets the file with the counted number of samples in its header.
    patched = (packed - said + min(last.end, MOST_SAMPLES)).to_bytes(8, "big")
    pieces = (head[:TOTAL_AT] + patched + head[TOTAL_AT + 8 :], (42, size - 42))
    return Contents(said=said or None, held=last.end, pieces=pieces)


def _frames(content: bytes, block: int) -> Iterator[Frame]:
    """Yield the frames whose headers are in this, the last one first."""
    place = len(content)
    while (place := content.rfind(b"\xff", 0, place)) >= 0:
        if content[place + 1 : place + 2] in (b"\xf8", b"\xf9") and (frame := _read_frame(content, place, block)):
            yield frame


def _read_frame(content: bytes, place: int, block: int) -> Frame | None:
    """Return the frame whose header is at ``place``; None if there is none."""
    header = content[place : place + 16]
    # Values that the format reserves, so not a header: size code 0, channel code above 10, last bit set.
    if len(header) < 6 or header[2] >> 4 == 0 or header[3] >> 4 > 10 or header[3] & 1:
        return None
    number, after = _read_number(header, 4)
    if number is None:
        return None
    code, rate = header[2] >> 4, header[2] & 15
    extra = {6: 1, 7: 2}.get(code, 0)
    size = int.from_bytes(header[after : after + extra], "big") + 1 if extra else _usual_size(code)
    after += extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if rate == 15 or len(header) <= after:
        return None
    check = 0
    for byte in header[:after]:
        check = CRC8[check ^ byte]
    if check != header[after]:
        return None
    first = number if header[1] & 1 else number * block
    return Frame(place, first + size)


def _usual_size(code: int) -> int:
    return 192 if code == 1 else 576 << (code - 2) if code < 6 else 256 << (code - 8)


def _read_number(header: bytes, place: int) -> tuple[int | None, int]:
    """Return a number in UTF-8's encoding, extended to 7 bytes, and where it ends; None if it is invalid."""
    first = header[place]
    length = 8 - (first ^ 0xFF).bit_length()
    if length == 0:
        return first, place + 1
    if not 2 <= length <= 7 or place + length > len(header):
        return None, place
    number = first & (0x7F >> length)
    for byte in header[place + 1 : place + length]:
        if byte >> 6 != 2:
            return None, place
        number = number << 6 | byte & 63
    return number, place + length
