"""``vaak align``: a time for each word of a known text; ``vaak data segment``: utterances of recordings and texts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, on_a_run, read_texts
from vaak.cli.output import create_folder, failed_to_json, print_failed
from vaak.core.errors import UserError
from vaak.core.left_out import files_to_json, noting_files
from vaak.core.matching import pair_names, quote_names

if TYPE_CHECKING:
    from vaak.tasks.asr.ctc.align import AlignedLine, AlignedRecording

log = logging.getLogger("vaak")


class Format(StrEnum):
    """How aligned words are written."""

    ctm = "ctm"
    textgrid = "textgrid"
    srt = "srt"
    json = "json"


FORMAT_ENDINGS = {Format.textgrid: "TextGrid"}
Audio = Annotated[Path, typer.Argument(help="An audio file, or a folder that is searched for them.")]
Texts = Annotated[
    Path, typer.Argument(help="Transcript, one utterance a line; for a folder of audio, a folder of NAME.txt.")
]
Within = Annotated[bool, typer.Option("--within", help="Allow speech before and after the text.")]


@on_a_run
def align(
    chosen: ModelInUse,
    audio: Audio,
    text: Texts,
    format: Annotated[
        Format, typer.Option(help="ctm (words), textgrid (Praat), srt (subtitles by line), or json.")
    ] = Format.ctm,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for one file per recording; default: standard output."),
    ] = None,
    within: Within = False,
    batch_size: BatchSize = None,
) -> None:
    """Find when each word of a known text is spoken, using a CTC recogniser.

    Recordings have any length. The words are those of the text; each has a confidence from 0 to 1 (not in textgrid and
    srt). Recordings that can't be aligned are reported; the others are still aligned, and the exit code is 2.

    Example: vaak align runs/asr-ctc talk.flac talk.txt --format textgrid --output aligned
    """
    from vaak.audio.formats.annotation_lines import name_recordings

    format = Format.json if chosen.as_json else format
    if output is None and format is Format.textgrid:
        raise UserError("--format textgrid: give --output, a folder for the files")
    files, failed, _ = _read_texts(audio, text)
    if output is None and format is Format.srt and len(files) > 1:
        raise UserError("--format srt: subtitles are of one recording; give --output, a folder with a file for each")
    create_folder(output)
    names = name_recordings([*files, *failed])
    for path, found in _align_files(chosen, files, within, batch_size):
        if isinstance(found, UserError):
            failed[path] = found
        else:
            _write(path, names[path], found, format, output)
    print_failed("aligned", len(names) - len(failed), failed)
    if failed:
        raise typer.Exit(2)


@on_a_run
def segment(
    chosen: ModelInUse,
    audio: Audio,
    text: Texts,
    output: Annotated[Path, typer.Option("--output", "-o", help="The manifest to write (.jsonl).")],
    max_duration: Annotated[float, typer.Option(min=0.1, help="Seconds; longer lines are cut at pauses.")] = 20.0,
    min_confidence: Annotated[float, typer.Option(min=0, max=1, help="Utterances below it are left out.")] = 0.3,
    batch_size: BatchSize = None,
) -> None:
    """Cut long recordings with transcripts, such as an audiobook, into training utterances, using a CTC recogniser.

    Writes a manifest (type: json) that names sections of the recordings, each with its text and confidence; the audio
    isn't copied. Recordings may have more than the text says, before and after it.

    Example: vaak data segment runs/asr-ctc book/audio book/text --output book/train.jsonl
    """
    from vaak.audio.formats.annotation_lines import name_recordings
    from vaak.core.storage.files import write_text

    if output.suffix != ".jsonl":
        raise UserError(f"--output: {output} is to be a file of JSON lines, NAME.jsonl")
    with noting_files() as noted:
        files, failed, unread = _read_texts(audio, text)
    create_folder(output.parent)
    entries, left_out, names = list[dict[str, Any]](), 0, name_recordings([*files, *failed])
    for path, found in _align_files(chosen, files, within=True, batch_size=batch_size):
        if isinstance(found, UserError):
            failed[path] = found
            continue
        parts = [_parts(line, max_duration) for line in found.lines]
        parts_said = (part for own in parts for part in own if part.end > part.start)
        kept = [part for part in parts_said if part.confidence >= min_confidence]
        left_out += sum(max(1, len(own)) for own in parts) - len(kept)
        entries += [_entry(path, output.parent, f"{names[path]}-{number:05}", part) for number, part in enumerate(kept)]
    print_failed("segmented", len(names) - len(failed), failed)
    if not entries:
        raise UserError(f"no utterance has a confidence of {min_confidence:g} (--min-confidence); nothing is written")
    write_text(output, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in entries))
    seconds = sum(one["duration"] for one in entries)
    if chosen.as_json:
        about = {"file": str(output), "utterances": len(entries), "seconds": seconds, "left_out": left_out}
        read = {"recordings": len(names) - len(failed), "failed": failed_to_json(failed), "texts_left_out": unread}
        print(json.dumps({**about, **read, "files": files_to_json(noted)}, ensure_ascii=False))
    else:
        why = f"below --min-confidence {min_confidence:g}, or words longer than --max-duration {max_duration:g}"
        low = f"; {left_out:,} left out: {why}" if left_out else ""
        print(f"{output}: {len(entries):,} utterances, {seconds / 60:.1f} min{low}")
    if failed:
        raise typer.Exit(2)


def _read_texts(audio: Path, text: Path) -> tuple[dict[Path, list[str]], dict[Path, UserError], list[str]]:
    """The lines of each recording's text; recordings without one, with the reason; and texts of no recording."""
    from vaak.audio.audio_file import audio_files

    files, failed = audio_files([audio])
    if not text.is_dir() and audio.is_dir() and len(files) != 1:
        raise UserError(f"{audio} has {len(files)} recordings: give a folder of texts, one NAME.txt for each")
    if not text.exists():
        raise UserError(f"{text}: no such file")
    texts, unread = _find_texts(audio, files, text) if text.is_dir() else (dict.fromkeys(files, text), [])
    found = dict[Path, list[str]]()
    for path in files:
        if path not in texts:
            failed[path] = UserError(f"{path}: no text {text / path.stem}.txt")
            continue
        lines = [line for line in read_texts(str(texts[path]))[0] if line.strip()]
        if lines:
            found[path] = lines
        else:
            failed[path] = UserError(f"{texts[path]}: this text is empty")
    return found, failed, unread


def _find_texts(audio: Path, files: Sequence[Path], folder: Path) -> tuple[dict[Path, Path], list[str]]:
    """The file in the folder (or its folders) with each recording's text, by name; and the names of the others.

    Logs the texts that belong to no recording.
    """
    root = audio if audio.is_dir() else audio.parent
    recordings = {path.relative_to(root).as_posix(): path for path in files}
    there = [one for one in folder.rglob("*") if one.suffix.lower() == ".txt" and one.is_file()]
    texts = {one.relative_to(folder).as_posix(): one for one in sorted(there) if not one.name.startswith(".")}
    pairs = pair_names(recordings, texts)
    if spare := texts.keys() - pairs.keys():
        log.warning("%s: %d of %d texts are of no recording: %s", folder, len(spare), len(texts), quote_names(spare))
    return {recordings[name]: texts[other] for other, name in pairs.items()}, sorted(spare)


def _align_files(
    chosen: ModelInUse, files: dict[Path, list[str]], within: bool, batch_size: int | None
) -> Iterator[tuple[Path, AlignedRecording | UserError]]:
    from vaak.tasks.asr.ctc.align import Aligner

    opened = chosen.open_for("align")
    transcriber = opened.task.transcriber(opened.model)
    with opened.precision.autocast():
        aligner = Aligner(transcriber, within)
        yield from zip(files, aligner.align_files(files, [*files.values()], batch_size), strict=True)


def _parts(line: AlignedLine, longest: float) -> list[AlignedLine]:
    """A line in parts that are short enough; none where one of its words is longer."""
    from vaak.tasks.asr.ctc.align import AlignedLine
    from vaak.tasks.asr.utterances import parts_at_pauses

    texts = [word.text for word in line.words]
    parts = parts_at_pauses(line.words, texts, longest, begin=line.start, stop=line.end)
    return [AlignedLine(" ".join(texts[first:last]), line.words[first:last]) for first, last, _, _ in parts]


def _entry(path: Path, folder: Path, name: str, part: AlignedLine) -> dict[str, Any]:
    """A line of a manifest in ``folder``; paths of audio below the folder are relative to it."""
    real, root = path.resolve(), folder.resolve()
    return {
        "id": name,
        "audio": os.fspath(real.relative_to(root) if real.is_relative_to(root) else real),
        "offset": round(part.start, 3),
        "duration": round(part.end - part.start, 3),
        "text": part.text,
        "confidence": round(part.confidence, 4),
    }


def _write(path: Path, name: str, found: AlignedRecording, format: Format, folder: Path | None) -> None:
    """Write a recording's words to the file of its name in ``folder``, or print them."""
    from vaak.audio.formats.alignments import Interval, write_textgrid
    from vaak.core.storage.files import write_text

    file = None if folder is None else folder / f"{name}.{FORMAT_ENDINGS.get(format, str(format))}"
    if format is Format.textgrid:
        assert file is not None
        # Praat has no intervals of length 0.
        words = [word for line in found.lines for word in line.words if word.end > word.start]
        write_textgrid(file, {"words": [Interval(*word[:3]) for word in words]}, found.duration)
        return
    text = _format_alignment(path, name, found.lines, format)
    if file is None:
        print(text, end="", flush=True)
    else:
        write_text(file, text)


def _format_alignment(path: Path, name: str, lines: Sequence[AlignedLine], format: Format) -> str:
    from vaak.tasks.asr.transcripts import Segment, Transcript

    if format is Format.srt:
        return Transcript(name, tuple(Segment(one.start, one.end, one.text) for one in lines), 0.0, 0.0).srt
    if format is Format.ctm:
        words = [word for line in lines for word in line.words]
        return "".join(
            f"{name} 1 {word.start:.3f} {word.end - word.start:.3f} {word.text} {word.confidence:.4f}\n"
            for word in words
        )
    each = [
        {
            "start": line.start, "end": line.end, "text": line.text, "confidence": line.confidence,
            "words": [word._asdict() for word in line.words],
        }
        for line in lines
    ]  # fmt: skip
    return json.dumps({"file": str(path), "name": name, "lines": each}, ensure_ascii=False) + "\n"
