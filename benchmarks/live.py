"""Live transcription, in seconds of audio: how late each word is settled and final, and what it costs in errors.

    python benchmarks/live.py MODEL RECORDING TEXT [--interval 1] [--pause 0.5] [--chunk 0.32]

TEXT is a file with the transcript. All partial texts count, as on a machine that is fast enough. The end of a word is
when the final text has it, which needs a Whisper that writes times; its delay is how much more audio had been
heard by then.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.live_audio import BLOCK_SECONDS
from vaak.runs.open_run import open_run
from vaak.scoring.normalisers import normaliser
from vaak.scoring.word_errors import count_errors
from vaak.tasks.asr.live import Event, LiveOptions, LiveTranscriber, make_live

MOST_ADDED = 10
"""Words by which the beginning of a final text may be longer than what was settled of it."""


def hear(live: LiveTranscriber, samples: np.ndarray) -> list[Event]:
    """Return all events of samples that come in blocks."""
    step = round(BLOCK_SECONDS * live.rate)
    found = list[Event]()
    for at in range(0, len(samples), step):
        found += live.feed(samples[at : at + step])
    return [*found, *live.finish()]


def measure_delays(events: list[Event], normalise: Callable[[str], str]) -> tuple[list[float], list[float], int]:
    """The seconds until each word of the final texts was settled, and final; and how many settled words changed."""
    settled, final, changed = list[float](), list[float](), 0
    partials = list[Event]()
    for event in events:
        if event.type == "partial":
            partials.append(event)
            continue
        # Partial texts only grow.
        numbers = [len(one.text.split()) for one in partials]
        words = [word for segment in event.segments for word in segment.words]
        for place, word in enumerate(words, start=1):
            first = bisect_left(numbers, place)
            settled.append((partials[first] if first < len(partials) else event).heard - word.end)
            final.append(event.heard - word.end)
        if partials:
            changed += count_changes(normalise(partials[-1].text).split(), normalise(event.text).split())
        partials = []
    return settled, final, changed


def count_changes(settled: list[str], final: list[str]) -> int:
    """How many settled words a final text has otherwise.

    What follows them isn't a change: of all beginnings of the final text, the nearest one counts.

    >>> count_changes(["so", "it", "is"], ["so", "is", "it", "then"]), count_changes(["so"], ["so", "it"])
    (2, 0)
    """
    final = final[: len(settled) + MOST_ADDED]
    # Word errors between the settled words so far and each beginning of the final text.
    errors = list(range(len(final) + 1))
    for word in settled:
        before, errors = errors, [errors[0] + 1]
        for place, other in enumerate(final):
            errors.append(min(before[place] + (word != other), before[place + 1] + 1, errors[place] + 1))
    return min(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--chunk", type=float, help="of a Conformer that streams")
    asked = parser.parse_args()
    opened = open_run(asked.model, device="cpu")
    normalise = normaliser("basic")
    reference = normalise(asked.text.read_text(encoding="utf-8"))

    def print_errors(name: str, text: str) -> None:
        errors = count_errors(reference, normalise(text))
        print(f"{name}: {errors.word_errors} of {errors.words} words wrong")

    whole = opened.task.transcriber(opened.model).transcribe(asked.recording)
    print_errors("whole recording", whole.text)
    options: dict[str, Any] = {} if asked.chunk is None else {"chunk": asked.chunk}
    if asked.chunk is not None or opened.task.prepared.vocabulary.times:
        options["timestamps"] = "word"
    live = make_live(
        opened.task.transcriber(opened.model, **options), LiveOptions(interval=asked.interval, pause=asked.pause)
    )
    samples = AudioFile(asked.recording, live.rate).read(0.0, whole.duration)
    begun = time.process_time()
    events = hear(live, samples)
    finals = [one for one in events if one.type == "final"]
    print_errors("live", " ".join(one.text for one in finals))
    settled, final, changed = measure_delays(events, normalise)
    print(f"{live.heard:.1f} s, utterances: {len(finals)}, partial texts: {len(events) - len(finals)}")
    print(f"processor time: {(time.process_time() - begun) / live.heard:.2f} s for each second of audio")
    for name, delays in (("settled", settled), ("final", final)):
        if delays:
            middle, most = np.percentile(delays, (50, 90))
            print(f"seconds until a word is {name}: median {middle:.2f}, 90 % {most:.2f}, largest {max(delays):.2f}")
    print(f"settled words that the final text has otherwise: {changed} of {len(settled)}")


if __name__ == "__main__":
    main()
