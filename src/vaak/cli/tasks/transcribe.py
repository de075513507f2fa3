"""``vaak transcribe``: recordings as text, by a trained speech recogniser."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import AudioFiles, BatchSize, ModelInUse, on_a_run, overrides_of, with_options_of
from vaak.cli.output import create_folder
from vaak.core.errors import UserError
from vaak.tasks.asr.config import AsrDecodingConfig

if TYPE_CHECKING:
    from vaak.tasks.asr.predict import Transcript


class Format(StrEnum):
    """How transcripts are written."""

    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"
    textgrid = "textgrid"


ENDINGS = {Format.text: "txt", Format.textgrid: "TextGrid"}


@on_a_run
@with_options_of(AsrDecodingConfig, into="decoding", leave_out=("valid_examples", "batch_size"))
def transcribe(
    chosen: ModelInUse,
    audio: AudioFiles,
    decoding: dict[str, Any],
    format: Annotated[
        Format, typer.Option(help="text, json, srt or vtt (subtitles), or textgrid (Praat).")
    ] = Format.text,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder with a file for each; default: standard output.")
    ] = None,
    batch_size: BatchSize = None,
) -> None:
    """Transcribe recordings. Audio may have any sampling rate, number of channels and length.

    Options that are not given come from the run (data.decoding of its YAML). Long audio is cut at silences, and what is
    said between two of them is a segment, unless a Whisper writes times (--timestamps, --long-form seek). Files that
    can't be read are reported; the others are still processed, and the exit code is 2. --json is --format json.

    Example: vaak transcribe runs/asr-quickstart talk.flac --format srt --output subtitles
    Example: vaak transcribe runs/whisper-hi talk.flac --timestamps word --language auto --json
    """
    from vaak.audio.audio_file import audio_files

    format = Format.json if chosen.as_json else format
    files, failed = audio_files(audio)
    names = [path.stem for path in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if output is not None and twice is not None:
        raise UserError(f"two files are called {twice}, so their transcripts would be, too; transcribe them apart")
    if output is None and format in (Format.srt, Format.vtt) and len(files) > 1:
        raise UserError(f"--format {format}: subtitles are of one recording; give --output, a folder for the files")
    if output is None and format is Format.textgrid:
        raise UserError("--format textgrid: give --output, a folder for the files")
    opened = chosen.open(overrides_of("data.decoding", decoding))
    chosen.demand_task(opened, "asr", "vaak transcribe requires a run of task asr")
    create_folder(output)
    transcriber = opened.task.transcriber(opened.model)
    with opened.precision.autocast():
        for path, found in zip(files, transcriber.transcribe_files(files, batch_size), strict=True):
            if isinstance(found, UserError):
                failed[path] = found
                continue
            _write(found, path, output, format, is_alone=len(files) == 1)
    for reason in failed.values():
        print(reason, file=sys.stderr)
    if failed:
        raise typer.Exit(2)


def _formatted(format: Format, found: Transcript, path: Path) -> str:
    if format is Format.text:
        return found.text + "\n"
    if format is not Format.json:
        return found.srt if format is Format.srt else found.vtt
    factor = found.seconds_taken / found.duration if found.duration else None
    times = {"duration": found.duration, "seconds_taken": round(found.seconds_taken, 3), "real_time_factor": factor}
    segments = []
    for one in found.segments:
        words = [word._asdict() for word in one.words]
        segments.append(
            {"start": one.start, "end": one.end, "text": one.text}
            | ({"words": words} if words else {})
            | ({"language": one.language} if one.language else {})
        )
    about = {"file": str(path), "name": found.name, **times, "text": found.text, "segments": segments}
    return json.dumps(about, ensure_ascii=False) + "\n"


def _write(found: Transcript, path: Path, folder: Path | None, format: Format, *, is_alone: bool) -> None:
    """Write a transcript in a ``format`` to the file of its name in ``folder``.

    Without one, print it; with its name, unless it ``is_alone``.
    """
    from vaak.audio.formats.alignments import Interval, side_by_side, write_textgrid
    from vaak.core.storage.files import write_text

    file = None if folder is None else folder / f"{found.name}.{ENDINGS.get(format, str(format))}"
    if format is Format.textgrid:
        assert file is not None
        tiers = {"segments": [Interval(*one[:3]) for one in found.segments if one.text]}
        if words := [word for one in found.segments for word in one.words]:
            tiers["words"] = words
        write_textgrid(file, {name: side_by_side(one, found.duration) for name, one in tiers.items()}, found.duration)
        return
    text = _formatted(format, found, path)
    if file is None:
        prefix = f"{found.name}: " if not is_alone and format is Format.text else ""
        print(prefix + text, end="", flush=True)
    else:
        write_text(file, text)
