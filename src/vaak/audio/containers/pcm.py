"""Samples in files made of chunks: WAV, RIFX, RF64, BW64, W64, AIFF; and AU.

A program that writes to a pipe doesn't know the length when it writes the header: it leaves 0 or the largest number
there, and the samples go to the end of the file.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

from vaak.audio.containers.contents import Contents, Piece, measure

STREAMED = 2**31 - 4096
"""Bytes; programs that write WAV to a pipe put this or more into the header."""
LARGEST_CHUNK_BYTES = 2**32 - 2**12
"""Bytes that a chunk of WAV may have."""
AFTER = "{:,} bytes follow after the samples that its header counts, and aren't read"
W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
W64_GUID = bytes.fromhex("f3acd3118cd100c04f8edb8a")
"""Follows after ``data`` and ``fmt `` in the names of W64's chunks; RIFF's own has another."""


class Chunk(NamedTuple):
    """``start`` is where its content is, ``said`` its length by its header."""

    name: bytes
    start: int
    said: int


class Samples(NamedTuple):
    """A chunk of samples; ``frame`` bytes hold ``per_frame`` samples of each channel; ``head`` ends before it."""

    start: int
    said: int
    frame: int
    per_frame: int = 1


def count_bytes(file: BinaryIO, head: bytes) -> Contents | None:
    """Count the samples of a file made of chunks; None for other formats."""
    name = head[:4]
    if name in (b"RIFF", b"RIFX", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return _count_wav(file, name)
    if head[:16] == W64_RIFF:
        return _count_w64(file)
    if name == b"FORM" and head[8:11] == b"AIF":
        return _count_aiff(file)
    if name in (b".snd", b"dns."):
        return _count_au(file, head)
    return None


def _read_chunks(file: BinaryIO, order: str) -> list[Chunk]:
    """The chunks up to the samples, those included. One of odd length may have a byte of padding after it, or none."""
    file.seek(12)
    found: list[Chunk] = []
    # Zeros look like empty chunks: without a limit, a damaged file would be walked through 8 bytes at a time.
    while len(head := file.read(8)) == 8 and len(found) < 1000:
        name, length = struct.unpack(f"{order}4sI", head)
        found.append(Chunk(name, file.tell(), length))
        if name in (b"data", b"SSND"):
            break
        file.seek(length + length % 2, 1)
    return found


def _count_wav(file: BinaryIO, kind: bytes) -> Contents:
    order = ">" if kind == b"RIFX" else "<"
    chunks = {chunk.name: chunk for chunk in _read_chunks(file, order)}
    data, form = chunks.get(b"data"), chunks.get(b"fmt ")
    if data is None or form is None or form.said < 16:
        return Contents()
    file.seek(form.start)
    _, _, _, _, frame, bits = struct.unpack(f"{order}HHIIHH", file.read(16))
    extra = file.read(4)
    per_frame = 1
    # Blocks of GSM and ADPCM say how many samples they hold.
    if bits in (0, 1, 2, 3, 4) and len(extra) == 4:
        per_frame = struct.unpack(f"{order}HH", extra)[1]
    said = data.said
    # RF64 keeps its 64-bit lengths in a separate chunk: the file's first, then the samples'.
    if kind in (b"RF64", b"BW64") and said >= STREAMED and b"ds64" in chunks:
        file.seek(chunks[b"ds64"].start + 8)
        said = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0]
    held = measure(file) - data.start
    samples = Samples(data.start, said, frame, per_frame)
    # Length 0 means an empty recording if only chunks follow; otherwise the file was written to a pipe.
    if not frame or not per_frame or (said == 0 and _are_chunks(file, data.start, order)):
        return Contents()
    # A length of about 2 GB or more that disagrees with the file is taken for a pipe's placeholder, not for truncation.
    if (said == 0 and held) or STREAMED <= said != held:
        return _streamed(file, samples, held, order, kind)
    return _compared(file, samples, held, order)


def _streamed(file: BinaryIO, samples: Samples, held: int, order: str, kind: bytes) -> Contents:
    """Return the samples of a file that was written to a pipe: all that follows. The header says nothing."""
    whole = held // samples.frame * samples.frame
    # No header of WAV can say this; libsndfile then reads to the end of the file.
    if whole > LARGEST_CHUNK_BYTES:
        return Contents(held=held // samples.frame * samples.per_frame)
    return Contents(held=whole // samples.frame * samples.per_frame, pieces=_with_length(file, samples, whole, order))


def _compared(file: BinaryIO, samples: Samples, held: int, order: str) -> Contents:
    """Return the samples that the header gives, or those that are present, if fewer."""
    said = samples.said // samples.frame * samples.per_frame
    if held >= samples.said // samples.frame * samples.frame:
        behind = samples.start + samples.said + samples.said % 2
        rest = samples.start + held - behind
        is_plain = rest <= 0 or _are_chunks(file, behind, order)
        return Contents(said=said, held=said, note="" if is_plain else AFTER.format(rest))
    whole = held // samples.frame * samples.frame
    pieces = _with_length(file, samples, whole, order) if whole <= LARGEST_CHUNK_BYTES else ()
    return Contents(said=said, held=whole // samples.frame * samples.per_frame, pieces=pieces)


def _with_length(file: BinaryIO, samples: Samples, length: int, order: str) -> tuple[Piece, ...]:
    """Return the file with this number of bytes of samples in its header."""
    file.seek(0)
    head = bytearray(file.read(samples.start))
    # The result is plain RIFF, where ds64 has no meaning: it becomes a chunk of padding.
    head[:4] = b"RIFX" if order == ">" else b"RIFF"
    head[4:8] = struct.pack(f"{order}I", samples.start - 8 + length)
    head[samples.start - 4 :] = struct.pack(f"{order}I", length)
    return bytes(head).replace(b"ds64", b"JUNK", 1), (samples.start, length)


def _are_chunks(file: BinaryIO, start: int, order: str) -> bool:
    """Return whether only chunks follow from ``start`` to the end, such as notes after the samples, or padding."""
    end, place = measure(file), start
    while place < end:
        file.seek(place)
        head = file.read(8)
        if len(head) < 8 or not all(32 <= byte < 127 for byte in head[:4]):
            return False
        length = struct.unpack(f"{order}I", head[4:])[0]
        place += 8 + length + length % 2
    # The last chunk's padding byte may be missing.
    return place <= end + 1


def _count_w64(file: BinaryIO) -> Contents:
    # The first chunk starts at byte 40: two 16-byte names and an 8-byte length come before it.
    size, place, frame = measure(file), 40, 0
    while place + 24 <= size:
        file.seek(place)
        name, length = struct.unpack("<16sQ", file.read(24))
        if name == b"fmt " + W64_GUID:
            frame = struct.unpack("<HHIIHH", file.read(16))[4]
        if name == b"data" + W64_GUID:
            # A placeholder of a pipe: libsndfile then reads to the end of the file.
            if not frame or not 24 <= length < 2**62:
                return Contents()
            said, held = (length - 24) // frame, (size - place - 24) // frame
            return Contents(said=said, held=min(said, held))
        if length < 24:
            return Contents()
        # W64 lengths include the chunk's 24-byte header, and chunks are aligned to 8 bytes.
        place += length + -length % 8
    return Contents()


def _count_aiff(file: BinaryIO) -> Contents:
    chunks = {chunk.name: chunk for chunk in _read_chunks(file, ">")}
    common, sound = chunks.get(b"COMM"), chunks.get(b"SSND")
    if common is None or sound is None:
        return Contents()
    file.seek(common.start)
    channels, said, bits = struct.unpack(">hIh", file.read(8).ljust(8, b"\0"))
    # AIFC's coding comes after the sampling rate, an 80-bit float.
    file.seek(common.start + 18)
    coding = file.read(4) if common.said >= 22 else b"NONE"
    frame = channels * -(-bits // 8)
    if frame <= 0 or coding not in (b"NONE", b"sowt", b"twos", b"fl32", b"FL32", b"fl64", b"FL64"):
        return Contents()
    # SSND begins with an offset and a block size, 4 bytes each.
    held = max(0, measure(file) - sound.start - 8) // frame
    return Contents(said=said, held=min(said, held))


AU_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
"""Bytes of a sample in each coding of AU."""


def _count_au(file: BinaryIO, head: bytes) -> Contents:
    order = ">" if head[:4] == b".snd" else "<"
    if len(head) < 24:
        return Contents()
    start, length, coding, _, channels = struct.unpack(f"{order}5I", head[4:24])
    frame = AU_BYTES.get(coding, 0) * channels
    if not frame or length >= STREAMED:
        return Contents()
    held = max(0, measure(file) - start)
    note = AFTER.format(held - length) if held > length else ""
    return Contents(said=length // frame, held=min(length, held) // frame, note=note)
