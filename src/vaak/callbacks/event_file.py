"""A file of TensorBoard's events, written without its package, which only whoever looks at them needs.

Its own writers keep events back for up to two minutes, so that a killed process loses them, and fail on a separate
thread, unnoticed. Here each event is handed to the system at once, like the lines of ``metrics.jsonl``.

Source: TensorFlow, tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto; their numbers of fields are those below.
"""

from __future__ import annotations

import functools
import math
import struct
import time
import wave
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from vaak.core.storage.links import require_no_link

SESSION_START = 1  # SessionLog.START
CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected
RGBA = 4  # what summary.proto calls colour with transparency


class EventFile:
    """A new file of events in ``folder``. A reader drops what older files have at ``first_step`` and beyond.

    Files are read in the order of their names, which hold the second of their making; a clock that jumped back must not
    put a new one before an old one. Raises OSError where it can't be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # a name that sorts after all existing event files
        taken = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
        newest = max((int(second) for second in taken if second.isdigit()), default=0)
        name = f"events.out.tfevents.{max(int(time.time()), newest + 1):010d}.vaak"
        require_no_link(folder / name)
        self.file = open(folder / name, "xb", buffering=0)  # noqa: SIM115
        # From this version on, TensorBoard purges by the event below, and not wherever a step is lower than the last.
        self._write(encode_event(0, encode_bytes(3, b"brain.Event:2")))
        # At this event TensorBoard drops what earlier files have from this step on: a resumed run takes these steps
        # again.
        self._write(encode_event(first_step, encode_bytes(7, encode_whole(1, SESSION_START))))

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step by their tags."""
        self._add(step, {tag: encode_single(2, value) for tag, value in values.items()})

    def add_images(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Write the pictures of a step, PNG files, by their tags."""
        values = {}
        for tag, content in pictures.items():
            width, height = struct.unpack(">II", content[16:24])  # of the first chunk, IHDR
            sizes = encode_whole(1, height) + encode_whole(2, width) + encode_whole(3, RGBA)
            values[tag] = encode_bytes(4, sizes + encode_bytes(4, content))
        self._add(step, values)

    def add_audio(self, step: int, sounds: Mapping[str, bytes]) -> None:
        """Write the audio of a step, WAV files, by their tags."""
        values = {}
        for tag, content in sounds.items():
            with wave.open(BytesIO(content)) as file:
                about = encode_single(1, file.getframerate()) + encode_whole(2, file.getnchannels())
                about += encode_whole(3, file.getnframes())
            audio = encode_bytes(6, about + encode_bytes(4, content) + encode_bytes(5, b"audio/wav"))
            values[tag] = audio + encode_bytes(9, encode_bytes(1, encode_bytes(1, b"audio")))
        self._add(step, values)

    def close(self) -> None:
        self.file.close()

    def _add(self, step: int, values: Mapping[str, bytes]) -> None:
        summary = b"".join(encode_bytes(1, encode_bytes(1, tag.encode()) + value) for tag, value in values.items())
        self._write(encode_event(step, encode_bytes(5, summary)))

    def _write(self, content: bytes) -> None:
        length = struct.pack("<Q", len(content))
        record = length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))
        if self.file.write(record) != len(record):
            raise OSError(f"{self.file.name} took only a part of an event")


def encode_event(step: int, content: bytes) -> bytes:
    """Return an event of now: its time, its step, and what it is about, an encoded field."""
    return encode_key(1, 1) + struct.pack("<d", time.time()) + (encode_whole(2, step) if step else b"") + content


def encode_whole(number: int, value: int) -> bytes:
    """Return a field of Protocol Buffers that holds a whole number of at least 0."""
    return encode_key(number, 0) + encode_varint(value)


def encode_single(number: int, value: float) -> bytes:
    """Return a field that holds a number in single precision; one beyond its range is infinite."""
    try:
        content = struct.pack("<f", value)
    except OverflowError:
        content = struct.pack("<f", math.copysign(math.inf, value))
    return encode_key(number, 5) + content


def encode_bytes(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a text in UTF-8 or another message."""
    return encode_key(number, 2) + encode_varint(len(content)) + content


def encode_key(number: int, wire_type: int) -> bytes:
    """Return what a field begins with."""
    return encode_varint(number << 3 | wire_type)


def encode_varint(value: int) -> bytes:
    """Return a whole number in groups of seven bits, the lowest first.

    >>> encode_varint(300).hex()
    'ac02'
    """
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def masked_crc(content: bytes) -> int:
    """CRC-32C, rotated and offset as record files want it.

    >>> hex(masked_crc(b"123456789"))
    '0xc78ab0e5'
    """
    table, crc = _table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    """The remainder of each byte."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = (remainder >> 1) ^ (CASTAGNOLI if remainder & 1 else 0)
        table.append(remainder)
    return table
