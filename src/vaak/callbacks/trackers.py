"""Trackers (TensorBoard, trackio, accelerate's): the numbers of a record that they get; their errors don't stop a run.

Those of accelerate are MLflow, Comet, Aim and others. TensorBoard's files are written without its package, which only
whoever looks at them needs: its own writers keep events back for up to two minutes, so that a killed process loses
them, and fail on a separate thread, unnoticed. Here each event is handed to the system at once, like the lines of
``metrics.jsonl``.

Source: TensorFlow, tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto; their numbers of fields are those below.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import math
import os
import struct
import sys
import time
import uuid
import wave
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

from vaak.config.metric_names import is_among
from vaak.config.yaml.text import looks_secret
from vaak.core.errors import UserError
from vaak.core.names import quote_unmatched
from vaak.core.storage.files import read_json, scratch_folder, write_json
from vaak.core.storage.links import require_no_link
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.distributed.ranks import accelerate_tracker
from vaak.engine.evaluation import is_audio
from vaak.engine.metrics_file import Record, iterate_records, read_newest_records

log = logging.getLogger("vaak")
GROUPS = {"step": "train", "evaluation": "evaluation", "epoch": "epoch", "learning_rates": "learning_rates"}
# metrics.jsonl writes them so.
NO_NUMBERS = ("nan", "inf", "-inf")
LONGEST_REASON = 200  # characters


class Tracker(Callback):
    """Repeats the records of a run elsewhere: a subclass opens, writes and closes.

    A failure is logged once; the tracker is then closed and skipped, and training continues.
    """

    main_process_only = True
    name: str

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only
        self.works = False

    def open(self, trainer: Run) -> None:
        """Begin, where the run starts or resumes."""

    def write(self, record: Record) -> None:
        """Repeat one record."""
        raise NotImplementedError

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Repeat the pictures and the audio of an evaluation, PNG and WAV files by name; by default, not at all."""

    def close(self) -> None:
        """End; also called where ``open`` or ``write`` failed."""

    def on_fit_start(self, trainer: Run) -> None:
        self.works = True
        self.attempt("begin", lambda: self.open(trainer))
        trainer.records.subscribe(self._repeat)
        trainer.pictures.subscribe(self._repeat_pictures)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.works:
            self.attempt("end", self.close)
        self.works = False

    def attempt(self, what: str, work: Callable[[], object]) -> None:
        """Do ``work``; where it fails, say so and leave this tracker out from now on."""
        try:
            work()
        except Exception as error:
            self.works = False
            with contextlib.suppress(Exception):
                self.close()
            log.warning(
                "%s can't %s (%s); training continues without it, and metrics.jsonl has everything",
                self.name,
                what,
                describe_error(error),
            )

    def _repeat(self, record: Record) -> None:
        if self.works:
            self.attempt("continue", lambda: self.write(record))

    def _repeat_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        if self.works and pictures:
            self.attempt("continue", lambda: self.write_pictures(step, pictures))


def numbers(record: Record, only: tuple[str, ...] | None) -> dict[str, float]:
    """Return the numbers of a record by ``group/name``; with ``only``, those names alone.

    >>> numbers({"kind": "step", "step": 3, "epoch": 0, "loss": "nan", "clock": {"seconds": 0.5}}, None)
    {'train/loss': nan, 'train/seconds': 0.5}
    """
    group = GROUPS.get(record["kind"], record["kind"])
    flat = {**record, **record.get("clock", {})}
    return {
        f"{group}/{name}": float(value)
        for name, value in flat.items()
        if (isinstance(value, int | float) and not isinstance(value, bool)) or value in NO_NUMBERS
        if name not in ("step", "epoch")
        if only is None or name in only or name.removeprefix("val_") in only
    }


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, without the values of environment variables that hold secrets."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    for name, value in os.environ.items():
        if value and looks_secret(name):
            text = text.replace(value, "***")
    return text[:LONGEST_REASON]


class NamesSent(Callback):
    """Says which ``names`` of training.logging.log_metrics no record has had.

    Names that are ``awaited`` may come with the first evaluation; the others are expected with the first logged step.
    """

    main_process_only = True

    def __init__(self, names: Iterable[str], awaited: Iterable[str] = ()) -> None:
        self.pending, self.awaited = [*dict.fromkeys(names)], {*awaited}
        self.seen: set[str] = set()
        self.first_step: int | None = None
        self.is_evaluated = False

    def on_fit_start(self, trainer: Run) -> None:
        trainer.records.subscribe(self._look)

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        # another callback may have recorded values of the first logged step after this one was called
        if self.pending and self.first_step is not None and report.step > self.first_step:
            self._tell([name for name in self.pending if self.is_evaluated or not is_among(name, self.awaited)])

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.first_step is not None:
            self._tell(self.pending)

    def _look(self, record: Record) -> None:
        if record["kind"] == "step" and self.first_step is None:
            self.first_step = record["step"]
        self.is_evaluated = self.is_evaluated or record["kind"] == "evaluation"
        self.seen.update(name.partition("/")[2] for name in numbers(record, None))
        self.pending = [name for name in self.pending if not numbers(record, (name,))]

    def _tell(self, names: list[str]) -> None:
        if names:
            log.warning(
                "training.logging.log_metrics: no metric so far is called %s; trackers get none",
                quote_unmatched(names, self.seen),
            )
        self.pending = [name for name in self.pending if name not in names]


class AccelerateTrackerCallback(Tracker):
    """Hands every record to a tracker of accelerate.

    Raises UserError where there is none of this name, or it isn't installed.
    """

    def __init__(self, name: str, config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        self.name = name
        self.config = config
        self.kind = accelerate_tracker(name)
        self.tracker: Any = None

    def open(self, trainer: Run) -> None:
        folder = {"logging_dir": str(trainer.directory)} if self.kind.requires_logging_directory else {}
        if self.name == "wandb":
            # It writes into the current folder otherwise.
            folder = {"dir": str(trainer.directory)}
        self.tracker = self.kind(trainer.directory.name, **folder)
        if hasattr(self.tracker, "start"):
            self.tracker.start()
        self.tracker.store_init_configuration(flat(self.config))

    def write(self, record: Record) -> None:
        self.tracker.log(numbers(record, self.only), step=record["step"])

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.finish()


DIRECTORY = "run_directory"
"""An option of a run in trackio: the directory that it shows."""


class TrackioCallback(Tracker):
    """Hands records, pictures and audio to trackio, whose dashboard (``trackio show``) runs on this machine.

    One trackio run for one run directory, by the name that RUN/trackio.json keeps. Each session begins it again with
    all that ``metrics.jsonl`` has, so that no point is there twice. A run of that name which was made from another
    directory is never removed: a file of this one says its name, perhaps a stranger's. Raises UserError where trackio
    isn't installed.
    """

    name = "trackio"

    def __init__(self, project: str, config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        if importlib.util.find_spec("trackio") is None:
            raise UserError(
                "training.logging.trackers names trackio, which isn't installed: pip install 'vaak[trackio]'"
            )
        self.project, self.config = project, config
        self.run: Any = None

    def open(self, trainer: Run) -> None:
        path, directory = trainer.directory / "trackio.json", str(trainer.directory.resolve())
        fresh = {"project": self.project, "run": f"{trainer.directory.name}-{uuid.uuid4().hex[:8]}"}
        if not path.exists():
            write_json(path, fresh)
        about = read_json(path)
        # trackio prints what to do next; standard output is Vaak's.
        with contextlib.redirect_stdout(sys.stderr):
            import trackio

            with contextlib.suppress(ValueError):
                # The project doesn't exist yet.
                earlier = [one for one in trackio.Api().runs(about["project"]) if one.name == about["run"]]
                # A copied run directory has the same trackio.json as its original, whose points must stay.
                if any((one.config or {}).get(DIRECTORY) != directory for one in earlier):
                    log.warning(
                        "trackio: %s is of another run directory, so this run is %s", about["run"], fresh["run"]
                    )
                    write_json(path, about := fresh)
                    earlier = []
                # All records are sent again below, and no point may be there twice.
                for one in earlier:
                    one.delete()
            options: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
            config = {**self.config, DIRECTORY: directory}
            self.run = trackio.init(about["project"], name=about["run"], config=config, **options)
        if trainer.records.path is not None and trainer.records.path.exists():
            for record in iterate_records(trainer.records.path):
                self.write(record)
        for step in trainer.pictures.steps():
            self.write_pictures(step, trainer.pictures.of_step(step))

    def write(self, record: Record) -> None:
        self.run.log(numbers(record, self.only), step=record["step"])

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        import trackio

        log_media(self.run, trackio, step, pictures)

    def close(self) -> None:
        if self.run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self.run.finish()


def log_media(run: Any, library: ModuleType, step: int, pictures: Mapping[str, bytes]) -> None:
    """Write pictures and sounds as files, which the ``library`` (trackio, wandb) copies."""
    with scratch_folder("media") as folder:
        media: dict[str, Any] = {}
        for name, content in pictures.items():
            path = folder / f"{name}.{'wav' if is_audio(content) else 'png'}"
            path.write_bytes(content)
            kind = library.Audio if is_audio(content) else library.Image
            media[f"evaluation/{name}"] = kind(str(path))
        run.log(media, step=step)


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Return options by their dotted names for trackers: values other than numbers and text become JSON.

    >>> flat({"name": "run", "training": {"epochs": 3, "freeze": [], "ema": None}})
    {'name': 'run', 'training.epochs': 3, 'training.freeze': '[]', 'training.ema': 'null'}
    """
    values: dict[str, bool | int | float | str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return values


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


SESSION_START = 1  # SessionLog.START
# The polynomial of CRC-32C, reflected.
CASTAGNOLI = 0x82F63B78
# What summary.proto calls colour with transparency.
RGBA = 4


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
            # Width and height are in the first chunk, IHDR.
            width, height = struct.unpack(">II", content[16:24])
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
    """Return the key (number and wire type) with which a protobuf field begins."""
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
    """Return the remainder of each byte."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = (remainder >> 1) ^ (CASTAGNOLI if remainder & 1 else 0)
        table.append(remainder)
    return table
