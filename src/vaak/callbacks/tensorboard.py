"""TensorBoard: the events of a run, written without its writers.

Those keep events back for up to two minutes, so that a killed process loses them, and fail on a separate thread,
unnoticed. Here each event is handed to the system at once, like the lines of ``metrics.jsonl``.

Source: TensorFlow, tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
"""

from __future__ import annotations

import functools
import struct
import time
import wave
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from vaak.callbacks.trackers import Tracker, numbers
from vaak.core.callback import Run
from vaak.engine.evaluation import is_audio
from vaak.engine.metrics_file import Record, read_newest_records

CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected
RGBA = 4  # what summary.proto calls colour with transparency


class EventFile:
    """A new file of events in ``folder``. A reader drops what older files have at ``first_step`` and beyond.

    Files are read in the order of their names, which hold the second of their making; a clock that jumped back must not
    put a new one before an old one. Raises OSError where it can't be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.event_type: Any = Event
        folder.mkdir(parents=True, exist_ok=True)
        self.file = open(folder / _next_name(folder), "xb", buffering=0)  # noqa: SIM115
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=time.time(), step=first_step, session_log=start))

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step by their tags."""
        event = self.event_type(wall_time=time.time(), step=step)
        for tag, value in values.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._write(event)

    def add_images(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Write the pictures of a step, PNG files, by their tags."""
        event = self.event_type(wall_time=time.time(), step=step)
        for tag, content in pictures.items():
            width, height = struct.unpack(">II", content[16:24])  # of the first chunk, IHDR
            value = event.summary.value.add(tag=tag)
            value.image.width, value.image.height, value.image.colorspace = width, height, RGBA
            value.image.encoded_image_string = content
        self._write(event)

    def add_audio(self, step: int, sounds: Mapping[str, bytes]) -> None:
        """Write the audio of a step, WAV files, by their tags."""
        event = self.event_type(wall_time=time.time(), step=step)
        for tag, content in sounds.items():
            with wave.open(BytesIO(content)) as file:
                value = event.summary.value.add(tag=tag)
                value.audio.sample_rate, value.audio.num_channels = file.getframerate(), file.getnchannels()
                value.audio.length_frames = file.getnframes()
            value.audio.encoded_audio_string, value.audio.content_type = content, "audio/wav"
            value.metadata.plugin_data.plugin_name = "audio"
        self._write(event)

    def close(self) -> None:
        self.file.close()

    def _write(self, event: Any) -> None:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        record = length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))
        if self.file.write(record) != len(record):
            raise OSError(f"{self.file.name} took only a part of an event")


def _next_name(folder: Path) -> str:
    """A name that sorts after all existing event files."""
    taken = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    newest = max((int(second) for second in taken if second.isdigit()), default=0)
    return f"events.out.tfevents.{max(int(time.time()), newest + 1):010d}.vaak"


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


class TensorBoardCallback(Tracker):
    """Writes RUN/tensorboard; events after the step where the run starts or resumes are purged.

    A run may have resumed before at the same step (its evaluation was still due, and then it was killed). So that step
    is purged too, and what ``metrics.jsonl`` kept of it is written again.
    """

    name = "TensorBoard"

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        self.file: EventFile | None = None

    def open(self, trainer: Run) -> None:
        step = trainer.position.step
        self.file = EventFile(trainer.directory / "tensorboard", first_step=step)
        for record in read_newest_records(trainer.directory / "metrics.jsonl", step):
            self.write(record)
        self.write_pictures(step, trainer.pictures.of_step(step))

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        named = {f"evaluation/{name}": content for name, content in pictures.items()}
        sounds = {name: content for name, content in named.items() if is_audio(content)}
        images = {name: content for name, content in named.items() if name not in sounds}
        if self.file is not None and images:
            self.file.add_images(step, images)
        if self.file is not None and sounds:
            self.file.add_audio(step, sounds)

    def write(self, record: Record) -> None:
        if self.file is not None:
            self.file.add_scalars(record["step"], numbers(record, self.only))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
