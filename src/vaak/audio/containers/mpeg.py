"""MP3 and MP2: frames are counted, one after another; nothing is decoded.

The first frame may be no audio but say how many there are (Xing, Info, VBRI), with the samples that the encoder put
before and after (LAME). Without it, libsndfile takes the length from the bit rate of the first frame, which is wrong
where the rate changes. Then it reads the frames alone, as many as were counted; or after a frame with the right number.
"""

from __future__ import annotations

import functools
import struct
from typing import BinaryIO, NamedTuple

from vaak.audio.containers.contents import Contents

KBITS = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates by version (2 is 2.5, too) and layer; layer 3 of version 2 has those of layer 2."""
HERTZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Rates by the two bits of the version."""
DECODER_DELAY = 529
"""Samples by which a decoder is late; they belong to the delay that LAME writes down, and aren't in its padding."""
WRITERS = (b"LAME", b"Lavf", b"Lavc")
"""Encoders of which FFmpeg believes what they added; of others, nothing is cut off."""
LONGEST_JUNK = 2**17
"""Bytes between a tag and the first frame."""


def _frame_sizes() -> list[int]:
    """Frame sizes in bytes by the header's second and third byte; 0 for invalid headers and for free format."""
    sizes = [0] * 2**16
    for second in range(0xE0, 0x100):
        # Bits: three of the sync code, two of the version (1 is reserved), two of the layer (4 is reserved, as counted
        # here), one for the checksum.
        version, layer = second >> 3 & 3, 4 - (second >> 1 & 3)
        if version == 1 or layer == 4:
            continue
        kbits = KBITS[1 if version == 3 else 2, layer if version == 3 else min(layer, 2)]
        for third in range(256):
            bits, rate, padding = third >> 4, third >> 2 & 3, third >> 1 & 1
            # A bit rate of 0 is free format, 15 is invalid, and a rate of 3 is reserved.
            if 1 <= bits <= 14 and rate < 3:
                per_second = 1000 * kbits[bits - 1]
                hertz = HERTZ[version][rate]
                # Bytes are samples / 8 · bit rate / rate: 1152 samples give 144, 576 give 72; layer 1 counts slots of 4
                # bytes, 12 for 384.
                if layer == 1:
                    sizes[second << 8 | third] = (12 * per_second // hertz + padding) * 4
                else:
                    halved = layer == 3 and version != 3
                    sizes[second << 8 | third] = (72 if halved else 144) * per_second // hertz + padding
    return sizes


FRAME_SIZES = _frame_sizes()
SAME = 0xFE0C
"""The bits of second and third byte that all frames of a stream have in common: version, layer, rate."""


class Gapless(NamedTuple):
    """Samples that an encoder put before and after, as LAME writes them down."""

    delay: int = 0
    padding: int = 0

    @property
    def cut(self) -> int:
        """Samples that a decoder removes at both ends."""
        if not self.delay and not self.padding:
            return 0
        return self.delay + DECODER_DELAY + max(0, self.padding - DECODER_DELAY)


class Summary(NamedTuple):
    """A frame that holds the number of frames; ``size`` is its own, ``extra`` is LAME's tag."""

    size: int
    num_frames: int | None
    gapless: Gapless = Gapless()
    extra: bytes = b""


def _describe_odd(before: bytes, between: int, is_cut: bool) -> str:
    """Describe the bytes of a file outside its frames: zeros before the first one are padding."""
    found = []
    if any(before):
        found.append(f"{len(before):,} bytes before its first frame are not audio")
    if between:
        found.append(f"{between:,} bytes between its frames are not audio: it is damaged there")
    if is_cut:
        found.append("its last frame is cut short, and isn't read")
    return "; ".join(found)


def may_begin(head: bytes) -> bool:
    """Return whether a file with this beginning may be MPEG audio: it starts with a frame or a tag."""
    return head[:3] == b"ID3" or (len(head) > 2 and head[0] == 0xFF and FRAME_SIZES[head[1] << 8 | head[2]] > 0)


def count_frames(file: BinaryIO) -> Contents:
    """Count the samples of MPEG audio; nothing is counted in a file without frames."""
    file.seek(0)
    content = file.read()
    begin = _skip_tags(content)
    first = _find_frame(content, begin, LONGEST_JUNK)
    if first is None:
        return Contents()
    kind = content[first + 1] << 8 | content[first + 2]
    summary = _read_summary(content, first)
    # Search again: junk may follow the summary frame too.
    start = _find_frame(content, first + summary.size, LONGEST_JUNK, kind) if summary else first
    number, end, between = (0, 0, 0) if start is None else _walk(content, start, kind)
    if start is None or not number:
        return Contents()
    per_frame = _samples_per_frame(content[first + 1])
    said, note = None, _describe_odd(content[begin:first], between, end > len(content))
    end = min(end, len(content))
    if summary is not None and summary.num_frames:
        said = summary.num_frames * per_frame - summary.gapless.cut
    if summary is None or not summary.gapless.delay:
        # Without a Xing frame libsndfile takes the length from the size of the first frame, and reads no further. So
        # frames are added that nobody reads, until that is enough.
        one = content[start : start + FRAME_SIZES[content[start + 1] << 8 | content[start + 2]]]
        missing = max(0, number - (end - start) // len(one)) + 4
        return Contents(said=said, held=number * per_frame, pieces=((start, end - start), one * missing), note=note)
    # The summary is right: libsndfile reads the file unchanged, and removes the encoder's delay and padding.
    if summary.num_frames == number:
        return Contents(said=said, note=note)
    header = _make_summary(content[first : first + 4], number, summary)
    return Contents(said=said, pieces=(header, (start, end - start)), note=note)


def _skip_tags(content: bytes) -> int:
    """Where audio begins after ID3v2 tags, whose sizes have seven bits in a byte."""
    place = 0
    while content[place : place + 3] == b"ID3" and len(content) >= place + 10:
        size = 0
        for byte in content[place + 6 : place + 10]:
            size = size << 7 | byte & 127
        # Flag 16: a footer of 10 bytes, like the header.
        place += 10 + size + (10 if content[place + 5] & 16 else 0)
    return place


def _find_frame(content: bytes, start: int, most: int, kind: int | None = None) -> int | None:
    """Where the first frame begins that is followed by another of its kind, or by the end."""
    place, limit = start - 1, min(len(content) - 3, start + most)
    while (place := content.find(b"\xff", place + 1, limit)) >= 0:
        found = content[place + 1] << 8 | content[place + 2]
        size = FRAME_SIZES[found]
        if not size or (kind is not None and (found ^ kind) & SAME):
            continue
        after = place + size
        # The last frame has no other one after it, but ends exactly with the file.
        if after == len(content):
            return place
        if after + 2 < len(content) and content[after] == 0xFF:
            following = content[after + 1] << 8 | content[after + 2]
            if FRAME_SIZES[following] and not (following ^ found) & SAME:
                return place
    return None


@functools.lru_cache(8)
def _sizes_in_stream(same: int) -> dict[bytes, int]:
    """Bytes of a frame by the first three of its header, for frames of one stream."""
    own = ((found, size) for found, size in enumerate(FRAME_SIZES) if size and (found & SAME) == same)
    return {bytes((255, found >> 8, found & 255)): size for found, size in own}


def _walk(content: bytes, start: int, kind: int) -> tuple[int, int, int]:
    """The number of whole frames from ``start`` on, where the last one ends or would, and the bytes between frames."""
    size_after = _sizes_in_stream(kind & SAME).get
    number, place, last, between, end = 0, start, start, 0, len(content) - 2
    while place < end:
        if size := size_after(content[place : place + 3]):
            # At a constant rate this is all of them.
            alike = _count_alike(content, place, size)
            place += alike * size
            number += alike
        while size := size_after(content[place : place + 3]):
            place += size
            number += 1
        # Bytes after the last frame, such as an ID3v1 tag, don't count as between frames.
        if number:
            last = place
        if place >= end:
            break
        found = _find_frame(content, place + 1, len(content), kind)
        if found is None:
            break
        between += found - place
        place = found
    if last > len(content):
        # The last frame is cut short.
        number -= 1
    return number, last, between


def _count_alike(content: bytes, place: int, size: int) -> int:
    """How many frames from ``place`` on have the header of the first in their first three bytes, up to a few thousand.

    Each is then of the same ``size``.
    """
    last = place + 4096 * size
    columns = [content[one : min(last, len(content) - 2 + one - place) : size] for one in range(place, place + 3)]
    return min(len(column) - len(column.lstrip(column[:1])) for column in columns)


def _samples_per_frame(second: int) -> int:
    layer, halved = 4 - (second >> 1 & 3), second >> 3 & 3 != 3
    return 384 if layer == 1 else 576 if layer == 3 and halved else 1152


def _side_bytes(header: bytes) -> int:
    """Bytes between the header of a frame of layer 3 and a Xing header."""
    is_mono, is_first = header[3] >> 6 == 3, header[1] >> 3 & 3 == 3
    return (17 if is_mono else 32) if is_first else (9 if is_mono else 17)


def _read_summary(content: bytes, first: int) -> Summary | None:
    """Return the header in the first frame that describes the others; None if it is audio."""
    header = content[first : first + 4]
    size = FRAME_SIZES[header[1] << 8 | header[2]]
    frame = content[first : first + size]
    # VBRI has a fixed offset; Xing follows the side information, whose size depends on version and channels.
    if frame[36:40] == b"VBRI" and len(frame) >= 54:
        return Summary(size, struct.unpack(">I", frame[50:54])[0])
    place = 4 + _side_bytes(header)
    if frame[place : place + 4] not in (b"Xing", b"Info") or len(frame) < place + 8:
        return None
    flags = struct.unpack(">I", frame[place + 4 : place + 8])[0]
    place += 8
    number = struct.unpack(">I", frame[place : place + 4])[0] if flags & 1 and len(frame) >= place + 4 else None
    # Skip the optional fields: number of frames, number of bytes, a seek table of 100 bytes, quality.
    place += 4 * (flags & 1) + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    extra = frame[place : place + 36]
    if len(extra) < 24 or extra[:4] not in WRITERS:
        return Summary(size, number)
    # 12 bits each of delay and padding, at byte 21 of LAME's tag.
    packed = int.from_bytes(extra[21:24], "big")
    return Summary(size, number, Gapless(packed >> 12, packed & 0xFFF), extra)


def _make_summary(header: bytes, number: int, summary: Summary) -> bytes:
    """Return a frame with a Xing header, before frames such as the one with this header (4 bytes).

    Nothing is cut off at the end: the padding of the encoder isn't where it was.
    """
    second, rate = header[1] | 1, header[2] & 0x0C  # without a checksum
    start = 4 + _side_bytes(header)
    thirds = (bits << 4 | rate for bits in range(1, 15))
    # The lowest bit rate whose frame has room for the header: only the bit rate determines the size here.
    third = next(third for third in thirds if FRAME_SIZES[second << 8 | third] >= start + 12 + len(summary.extra))
    extra = summary.extra[:21] + (summary.gapless.delay << 12).to_bytes(3, "big") + summary.extra[24:]
    frame = (
        bytes((0xFF, second, third, header[3])).ljust(start, b"\0") + b"Xing" + struct.pack(">II", 1, number) + extra
    )
    return frame.ljust(FRAME_SIZES[second << 8 | third], b"\0")
