"""Simulated conversations written to a folder, where any other tool can read them.

FOLDER/
  NAME.flac         a conversation, 16 bits
  manifest.jsonl    a line for each conversation: audio, duration, who speaks when; written one by one, so that an
                    interrupted simulation continues after its last line
  reference.rttm    who speaks when in all of them
  cuts.jsonl        all of them for Lhotse
  simulated.json    what they were made from; the folder can't be used for others

A dataset of type folder, json or cuts reads them.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaak import __version__
from vaak.audio.formats.annotation_lines import write_rttm
from vaak.audio.segments import AudioSource, LabelledAudio, Segment
from vaak.core.artifact import LOCK, Artifact
from vaak.core.errors import UserError, optional_import
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import (
    compute_fingerprint,
    list_missing_folders,
    remove_empty,
    remove_temporary,
    sync_file,
    write_bytes,
    write_text,
)
from vaak.core.storage.json_lines import parse_json_lines
from vaak.core.storage.lock import locked

if TYPE_CHECKING:
    from lhotse import MonoCut

SIMULATED_FILE = "simulated.json"
SIMULATED_MANIFEST = "manifest.jsonl"
LOUDEST = 0.99
"""A louder conversation is attenuated, to fit into 16 bits."""


@dataclass(frozen=True)
class Written:
    """The contents of a folder; ``new`` conversations were written now, the others existed."""

    number: int
    new: int
    seconds: float


def write_conversations(
    source: AudioSource, folder: Path, *, seed: int, advance: Callable[[float], None] = lambda done: None
) -> Written:
    """Write all examples of ``source``, those of the first epoch; an interrupted run continues.

    The same source and seed give the same bits. ``advance`` is called with the number done so far.

    Raises UserError if the folder can't be written, or contains something else.
    """
    number = len(source.durations)
    mark = compute_fingerprint([source.fingerprint, number, seed, __version__])
    with _lock_folder(folder):
        artifact = Artifact(folder, SIMULATED_FILE, "conversations", keys={"fingerprint": str})
        artifact.require_same({"fingerprint": mark}, "give another folder")
        artifact.claim({"fingerprint": mark})
        remove_temporary(folder)
        # The manifest has a line per finished conversation, so its length tells where to continue.
        there = _whole_lines(folder / SIMULATED_MANIFEST)
        advance(len(there))
        with open(folder / SIMULATED_MANIFEST, "ab") as manifest:
            for index in range(len(there), number):
                rng = np.random.default_rng(draw_key(Purpose.DATA, seed, 0, index, 0))
                line = _write_conversation(source.load(index, rng), folder)
                manifest.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                # Each line reaches the system at once: a killed process loses only the conversation that it was making.
                manifest.flush()
                advance(1)
        sync_file(folder / SIMULATED_MANIFEST)
        lines = _whole_lines(folder / SIMULATED_MANIFEST)
        # the whole as one RTTM and as cuts
        segments = {
            Path(line["audio"]).stem: [Segment(s["start"], s["end"], s["speaker"]) for s in line["segments"]]
            for line in lines
        }
        write_rttm(folder / "reference.rttm", segments)
        cuts = (_cut(line, folder).to_dict() for line in lines)
        write_text(folder / "cuts.jsonl", "".join(json.dumps(cut, ensure_ascii=False) + "\n" for cut in cuts))
    return Written(number, number - len(there), sum(line["duration"] for line in lines))


def require_room(folder: Path) -> None:
    """Raises UserError if conversations can't be written to a folder, or it contains something else.

    Better before the speech is read, or synthesised, than after it. A folder that wasn't there still isn't.
    """
    new = list_missing_folders(folder)
    try:
        with _lock_folder(folder):
            pass
    finally:
        remove_empty(new, {LOCK})


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which is made; one that contains something else stays unchanged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A killed process may have left its lock or a temporary file: these don't make the folder someone else's.
        own = {LOCK, *(path.name for path in folder.glob(f".{SIMULATED_FILE}.*.tmp"))}
        if not (folder / SIMULATED_FILE).exists() and any(path.name not in own for path in folder.iterdir()):
            raise UserError(f"{folder} contains other files; give a new or empty folder")
        with locked(folder / LOCK, patience=0):
            yield
    except BlockingIOError as error:
        raise UserError(f"another process is writing conversations to {folder}; wait for it") from error
    except OSError as error:
        raise UserError(f"conversations can't be written to {folder}: {error.strerror or error}") from error


def _whole_lines(manifest: Path) -> list[dict[str, Any]]:
    """Return the manifest so far; a partial line of a killed process is cut off.

    Raises UserError for a line that was changed.
    """
    content = manifest.read_bytes() if manifest.exists() else b""
    # Without a newline at its end, the last line was being written when the process was killed.
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_bytes(manifest, whole)
    lines = parse_json_lines(whole)
    bad = [number for number, _ in lines.malformed]
    kinds = {"audio": str, "duration": int | float, "sampling_rate": int, "segments": list}
    for number, line in lines.objects:
        if not all(isinstance(line.get(name), kind) for name, kind in kinds.items()):
            bad.append(number)
    if bad:
        raise UserError(
            f"{manifest}, line {min(bad)}: this isn't a conversation that was written here; delete that line and those "
            "after it, and they are written again"
        )
    return [line for _, line in lines.objects]


def _write_conversation(conversation: LabelledAudio, folder: Path) -> dict[str, Any]:
    """Write the audio; returns its line of the manifest, times to the microsecond as in RTTM."""
    with optional_import("writing audio requires soundfile", "audio"):
        import soundfile
    name, samples = conversation.name, conversation.samples
    peak = float(np.abs(samples).max(initial=0.0))
    content = io.BytesIO()
    louder = np.float32(max(peak / LOUDEST, 1.0))
    # Attenuated, not clipped: overlapping speakers may add up to more than 16 bits hold.
    soundfile.write(content, samples / louder, conversation.sampling_rate, format="FLAC", subtype="PCM_16")
    write_bytes(folder / f"{name}.flac", content.getvalue())
    segments = [Segment(round(s.start, 6), round(s.end, 6), s.speaker) for s in conversation.segments]
    return {
        "audio": f"{name}.flac",
        "duration": conversation.duration,
        "sampling_rate": conversation.sampling_rate,
        "segments": [segment._asdict() for segment in segments],
    }


def _cut(line: dict[str, Any], folder: Path) -> MonoCut:
    from lhotse import MonoCut, Recording, SupervisionSegment
    from lhotse.audio import AudioSource as Source

    name, duration = Path(line["audio"]).stem, line["duration"]
    source = Source("file", [0], str(folder.resolve() / line["audio"]))
    recording = Recording(name, [source], line["sampling_rate"], round(duration * line["sampling_rate"]), duration)
    supervisions = []
    for index, segment in enumerate(line["segments"]):
        seconds = round(segment["end"] - segment["start"], 6)
        supervisions.append(
            SupervisionSegment(f"{name}-{index:03}", name, segment["start"], seconds, speaker=segment["speaker"])
        )
    return MonoCut(name, 0.0, duration, 0, supervisions=supervisions, recording=recording)
