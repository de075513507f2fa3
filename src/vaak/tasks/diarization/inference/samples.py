"""A few sample recordings: who speaks when, by the model and by the reference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vaak.audio.scoring.errors import diarization_error
from vaak.core.errors import UserError
from vaak.tasks.diarization.examples.labels import DiarizationExample
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.scoring.timeline_picture import draw_timelines

PICTURE = "timelines.png"


def show_timelines(examples: Iterable[DiarizationExample], diarizer: Diarizer, directory: Path) -> list[str]:
    """A line for each of these recordings; a picture of their timelines is written to ``directory``."""
    lines, timelines = [], []
    for example in examples:
        hypothesis = diarizer.segments(diarizer.probabilities(example.features))
        reference = list(diarizer.collator.reference(example))
        timelines.append((example.name, hypothesis, reference, example.duration))
        error = diarization_error(reference, hypothesis, uem=example.uem, collar=0.0, skip_overlap=False)
        wrong = error.miss + error.false_alarm + error.confusion
        lines.append(f"{example.name}: {wrong:.1f} s wrong of {error.scored:.1f} s of speech")
    try:
        draw_timelines(directory / PICTURE, timelines)
    except UserError as error:  # training is finished and has succeeded
        return [*lines, f"no timelines: {error}"]
    return [*lines, f"timelines: {directory / PICTURE}"]
