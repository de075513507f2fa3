"""``vaak transcribe``: recordings as text, by a trained speech recogniser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, add_options, make_overrides, on_a_run
from vaak.cli.output import create_folder, print_failed
from vaak.core.errors import UserError
from vaak.core.storage.text_lines import split_lines
from vaak.tasks.asr.config import AsrDecodingConfig

if TYPE_CHECKING:
    from vaak.audio.segments import Segment
    from vaak.runs.open_run import OpenedRun
    from vaak.tasks.asr.predict import Transcriber
    from vaak.tasks.asr.transcripts import SpeakerTranscript, Transcript


class Format(StrEnum):
    """How transcripts are written."""

    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"
    textgrid = "textgrid"
    rttm = "rttm"
    stm = "stm"


OF_SPEAKERS = (Format.rttm, Format.stm)
FORMAT_ENDINGS = {Format.text: "txt", Format.textgrid: "TextGrid"}


@on_a_run
@add_options(AsrDecodingConfig, into="decoding", leave_out=("valid_examples", "batch_size"))
def transcribe(
    chosen: ModelInUse,
    decoding: dict[str, Any],
    audio: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Audio files, and folders that are searched for them; none with --live.", show_default=False
        ),
    ] = None,
    format: Annotated[
        Format,
        typer.Option(help="text, json, srt or vtt (subtitles), or textgrid (Praat); with --diarize rttm and stm, too."),
    ] = Format.text,
    diarize: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="A diarization run that finds the speakers: their turns are transcribed one by one."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for one file per recording; default: standard output."),
    ] = None,
    batch_size: BatchSize = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Transcribe speech as it comes: raw 16-bit mono samples from standard input or, if that is a "
            "terminal, from the microphone.",
        ),
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(help="With --live, sampling rate of standard input in Hz; default: the model's."),
    ] = None,
    interval: Annotated[
        float | None, typer.Option(min=0.1, help="With --live, seconds of audio between partial texts; default: 1.")
    ] = None,
    pause: Annotated[
        float | None, typer.Option(min=0.1, help="With --live, seconds of silence that end an utterance; default: 0.5.")
    ] = None,
) -> None:
    """Transcribe recordings. Audio may have any sampling rate, number of channels and length.

    Options default to those of the run (data.decoding of its YAML). Long audio is cut at silences into segments, unless
    a Whisper writes times (--timestamps, --long-form seek). Files that can't be read are reported; the others are still
    processed, and the exit code is 2. --json is --format json. With --diarize, the output names the speakers, found
    with the options of that run.

    With --live, the text of an utterance is printed when it ends; a terminal shows its settled part before that. With
    --json, each text is a line: type (partial or final), start, end, text, and heard, the seconds of audio so far.

    Example: vaak transcribe runs/asr-quickstart talk.flac --format srt --output subtitles

    Example: vaak transcribe runs/whisper-hi talk.flac --timestamps word --language auto --json

    Example: ffmpeg -i talk.mp4 -f s16le -ac 1 -ar 16000 - | vaak transcribe runs/whisper-hi --live --rate 16000
    """
    given = {"rate": rate, "interval": interval, "pause": pause}
    times: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if live:
        others = {
            "AUDIO": audio, "--format": format not in (Format.text, Format.json), "--diarize": diarize,
            "--output": output, "--batch-size": batch_size, "--long-form": decoding.get("long_form") == "seek",
        }  # fmt: skip
        _transcribe_live(chosen, [name for name, value in others.items() if value], decoding, times, format)
        return
    if times:
        raise UserError(f"--{next(iter(times))} is of --live only")
    if not audio:
        raise UserError("give the files to transcribe, or --live")
    from vaak.audio.audio_file import audio_files
    from vaak.audio.formats.annotation_lines import name_recordings

    format = Format.json if chosen.as_json else format
    files, failed = audio_files(audio)
    # Before the seconds that opening a model takes.
    _require_that_options_fit(files, format, output, diarize, decoding)
    opened = chosen.open_for("transcribe", make_overrides("data.decoding", decoding))
    transcriber = opened.task.transcriber(opened.model)
    transcripts: Iterator[Transcript | SpeakerTranscript | UserError]
    if diarize is None:
        transcripts = transcriber.transcribe_files(files, batch_size)
    else:
        transcripts = _transcribe_speakers(replace(chosen, run=diarize), transcriber, files, batch_size)
    create_folder(output)
    names = name_recordings(files)
    with opened.precision.autocast():
        for path, found in zip(files, transcripts, strict=True):
            if isinstance(found, UserError):
                failed[path] = found
                continue
            _write(replace(found, name=names[path]), path, output, format, is_alone=len(files) == 1)
    print_failed("transcribed", len(names) - sum(path in names for path in failed), failed)
    if failed:
        raise typer.Exit(2)


def _transcribe_live(
    chosen: ModelInUse, others: list[str], decoding: dict[str, Any], times: dict[str, Any], format: Format
) -> None:
    """Transcribe what comes. Raises UserError where ``others``, which live audio can't have, are given."""
    from vaak.cli.tasks.live import listen

    if others:
        raise UserError(f"{others[0]} can't be taken with --live, which prints text or JSON of what it hears")
    opened = chosen.open_for("transcribe", make_overrides("data.decoding", decoding))
    with opened.precision.autocast():
        listen(
            opened.task.transcriber(opened.model, long_form="silences"),
            times,
            as_json=chosen.as_json or format is Format.json,
        )


def _require_that_options_fit(
    files: list[Path], format: Format, output: Path | None, diarize: Path | None, decoding: dict[str, Any]
) -> None:
    """Raise UserError where options can't be taken together, or can't for more than one file."""
    if output is None and format in (Format.srt, Format.vtt) and len(files) > 1:
        raise UserError(f"--format {format}: subtitles are of one recording; give --output, a folder for the files")
    if output is None and format is Format.textgrid:
        raise UserError("--format textgrid: give --output, a folder for the files")
    if format in OF_SPEAKERS and diarize is None:
        raise UserError(f"--format {format}: only --diarize RUN tells who speaks")
    for name in ("timestamps", "long_form"):
        if diarize is not None and name in decoding:
            raise UserError(f"--{name.replace('_', '-')}: with --diarize, times are those of turns; leave it out")


def _transcribe_speakers(
    chosen: ModelInUse, recogniser: Transcriber, files: list[Path], batch_size: int | None
) -> Iterator[SpeakerTranscript | UserError]:
    """Return who says what, by the ``chosen`` diarization run. Raises UserError where that is a run of another task."""
    from vaak.audio.formats.annotation_lines import name_recordings
    from vaak.tasks.asr.speaker_transcripts import SpeakerTranscriber

    opened: OpenedRun = chosen.open_for("diarize", by="--diarize")
    diarizer = opened.task.diarizer(opened.model, opened.experiment.data.inference)

    def read_segments(path: Path) -> tuple[list[Segment], float]:
        found = diarizer.diarize_file(path, opened.task.audio)
        return found.segments, found.duration

    names = name_recordings(files)
    together = SpeakerTranscriber(recogniser, read_segments)
    return together.transcribe_files(((path, names[path]) for path in files), batch_size)


def _format_transcript(format: Format, found: Transcript | SpeakerTranscript, path: Path) -> str:
    from vaak.tasks.asr.transcripts import SpeakerTranscript

    if format is Format.text:
        return found.text + "\n"
    if isinstance(found, SpeakerTranscript) and format in OF_SPEAKERS:
        return found.rttm(path) if format is Format.rttm else found.stm(path)
    if format is not Format.json:
        return found.srt if format is Format.srt else found.vtt
    factor = found.seconds_taken / found.duration if found.duration else None
    times = {"duration": found.duration, "seconds_taken": round(found.seconds_taken, 3), "real_time_factor": factor}
    turns = [turn._asdict() for turn in found.turns] if isinstance(found, SpeakerTranscript) else []
    segments = turns if isinstance(found, SpeakerTranscript) else [one.to_json() for one in found.segments]
    about = {"file": str(path), "name": found.name, **times, "text": found.text, "segments": segments}
    return json.dumps(about, ensure_ascii=False) + "\n"


def _write(
    found: Transcript | SpeakerTranscript, path: Path, folder: Path | None, format: Format, *, is_alone: bool
) -> None:
    """Write a transcript in a ``format`` to the file of its name in ``folder``.

    Without one, print it; lines of text with its name, unless it ``is_alone``.
    """
    from vaak.audio.formats.alignments import Interval, side_by_side, write_textgrid
    from vaak.core.storage.files import write_text
    from vaak.tasks.asr.transcripts import SpeakerTranscript

    file = None if folder is None else folder / f"{found.name}.{FORMAT_ENDINGS.get(format, str(format))}"
    if format is Format.textgrid:
        assert file is not None
        tiers: dict[str, list[Interval]] = {}
        if isinstance(found, SpeakerTranscript):
            for turn in found.turns:
                tiers.setdefault(turn.speaker, []).append(Interval(turn.start, turn.end, turn.text))
        else:
            tiers["segments"] = [Interval(*one[:3]) for one in found.segments if one.text]
            if words := [word for one in found.segments for word in one.words]:
                tiers["words"] = words
        write_textgrid(file, {name: side_by_side(one, found.duration) for name, one in tiers.items()}, found.duration)
        return
    text = _format_transcript(format, found, path)
    if file is None:
        prefix = f"{found.name}: " if not is_alone and format is Format.text else ""
        print("".join(f"{prefix}{line}\n" for line in split_lines(text)), end="", flush=True)
    else:
        write_text(file, text)
