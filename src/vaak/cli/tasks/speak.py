"""``vaak speak``: texts as audio, by a trained text-to-speech model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, Text, add_options, make_overrides, on_a_run, read_texts
from vaak.cli.output import create_folder
from vaak.core.errors import DataError, UserError
from vaak.tasks.tts.config import SpeakingConfig

if TYPE_CHECKING:
    from vaak.audio.audio_file import SpeechFile
    from vaak.tasks.batches import Done
    from vaak.tasks.tts.predict import Sentence, Speaker, SpokenText, Unspeakable
    from vaak.text.speech.unspoken import Unspoken


@on_a_run
@add_options(SpeakingConfig, into="speaking")
def speak(
    chosen: ModelInUse,
    text: Text,
    speaking: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.wav or FILE.flac for all, or a folder with a file for each.")
    ] = Path("speech.wav"),
    plot: Annotated[
        Path | None, typer.Option(help="Write FILE.png: spectrogram, durations and pitch of the first sentences.")
    ] = None,
    batch_size: BatchSize = None,
) -> None:
    """Speak a text of any length, sentence by sentence, and write audio.

    A text may contain [[phonemes]], or be SSML (<speak>…</speak>).

    Options default to those of the run (data.speaking of its YAML). Sentences that can't be spoken are listed at the
    end, and the exit code is 2; the others are spoken.

    Example: vaak speak runs/tts-quickstart "The old man bought a red door." -o speech.wav
    """
    from vaak.tasks.tts.predict import SpokenText
    from vaak.text.speech.ssml import is_ssml
    from vaak.text.speech.unspoken import Unspoken

    if plot is not None and plot.suffix.lower() != ".png":
        raise UserError(f"--plot: {plot}: expected a file that ends in .png")
    texts, where = read_texts(text)
    # SSML is one text, of however many lines.
    if is_ssml("\n".join(texts)):
        texts = ["\n".join(texts)]
    spoken = [(one, where(index)) for index, one in enumerate(texts) if one.strip()]
    if not spoken:
        raise UserError(f"{text or 'the text'}: there is nothing to speak in it")
    opened = chosen.open_for("speak", make_overrides("data.speaking", speaking))
    speaker = opened.task.speaker(opened.model)
    sentences: list[Sentence] = []
    problems: list[tuple[str, Unspeakable]] = []
    unspoken = Unspoken()
    # One stream over all texts, so that batches fill across files; each file takes its own texts from it.
    parts = _counted(speaker.sentences((SpokenText(*one) for one in spoken), batch_size), unspoken)
    create_folder(output.parent if output.suffix else output)
    outputs = [(output, spoken)]
    if not output.suffix:
        outputs = [(output / f"{number:04}.wav", [one]) for number, one in enumerate(spoken, start=1)]
    with opened.precision.autocast():
        for path, some in outputs:
            sentences += _write(path, len(some), parts, speaker, problems, as_json=chosen.as_json)
    if plot is not None and sentences:
        _draw(plot, sentences, speaker.mel.frame_shift)
    for place, one in problems:
        done = "left out; the rest is spoken" if one.rest_is_spoken else "not spoken"
        print(f"{place}: {one.message} ({done})", file=sys.stderr)
    if unspoken.counts:
        print(unspoken, file=sys.stderr)
    if any(not one.rest_is_spoken for _, one in problems):
        raise typer.Exit(2)


def _counted(
    parts: Iterator[tuple[SpokenText, Sentence] | Done[SpokenText]], unspoken: Unspoken
) -> Iterator[tuple[SpokenText, Sentence] | Done[SpokenText]]:
    """Yield the parts; the symbols of each text that no rule reads are added to ``unspoken``."""
    from vaak.tasks.batches import Done

    for one in parts:
        if isinstance(one, Done):
            unspoken.add(tuple(one.source.unspoken), one.source.where)
        yield one


def _draw(path: Path, sentences: list[Sentence], frame_shift: float) -> None:
    """Write the picture of the first sentences. Raises UserError where it can't be written."""
    from vaak.core.storage.files import write_bytes
    from vaak.report.audio import speech_png
    from vaak.tasks.tts.metrics import make_spectrogram

    picture = speech_png([make_spectrogram(sentence, sentence.text) for sentence in sentences], frame_shift)
    try:
        write_bytes(path, picture)
    except OSError as error:
        raise UserError(f"--plot: {path} can't be written: {error.strerror or error}") from error


def _write(
    path: Path,
    num_texts: int,
    parts: Iterator[tuple[SpokenText, Sentence] | Done[SpokenText]],
    speaker: Speaker,
    problems: list[tuple[str, Unspeakable]],
    *,
    as_json: bool,
) -> list[Sentence]:
    """Write the sentences of the next ``num_texts`` texts to the file ``path``.

    How long they took is printed, ``as_json`` or for people. What can't be spoken is added to ``problems``; no file is
    written where nothing can. The first sentences are returned.

    Raises DataError, with where the text comes from, under ``on_unspeakable: error``.
    """
    from vaak.audio.audio_file import speech_file
    from vaak.report.audio import MOST_SPECTROGRAMS
    from vaak.tasks.batches import Done

    taken, sentences = 0.0, 0
    kept: list[Sentence] = []
    with ExitStack() as stack:
        file: SpeechFile | None = None
        while num_texts:
            one = next(parts)
            if isinstance(one, Done):
                taken, num_texts = taken + one.seconds, num_texts - 1
                problems += _problems(one, speaker.options)
                continue
            sentence = one[1]
            file = file or stack.enter_context(speech_file(path, speaker.sampling_rate, speaker.options.pause))
            file.append(sentence.samples, sentence.silence)
            sentences += 1
            if len(kept) < MOST_SPECTROGRAMS:
                kept.append(sentence)
        if file is None:
            return []
        duration = file.duration
    if as_json:
        about = {"file": str(path), "sentences": sentences, "duration": duration, "seconds_taken": round(taken, 3)}
        print(json.dumps({**about, "real_time_factor": round(taken / duration, 5)}), flush=True)
    else:
        pace = f"{duration:.1f} s of audio in {taken:.2f} s, real-time factor {taken / duration:.4f}"
        print(f"{path}: {pace}", file=sys.stderr, flush=True)
    return kept


def _problems(text: Done[SpokenText], options: SpeakingConfig) -> list[tuple[str, Unspeakable]]:
    """Return the parts of a text that can't be spoken, each with its source."""
    from vaak.tasks.tts.predict import Unspeakable

    if text.error is not None and options.on_unspeakable == "error":
        raise DataError(f"{text.source.where}: {text.error}") from text.error
    found = list(text.source.unspeakable)
    if text.error is not None and not found:
        found = [Unspeakable(str(text.error), rest_is_spoken=False)]
    return [(text.source.where, one) for one in found]
