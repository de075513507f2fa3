"""Seconds that the diarization error of one recording takes: Vaak, pyannote.metrics, and md-eval's definition.

    python benchmarks/scoring.py
    python benchmarks/scoring.py --hours 0.1 --rounds 1 --json

The recording is random: turns of four speakers who overlap, found with shifted boundaries, some missed, some given to
others. ``definition`` walks through the boundaries one by one, as md-eval does, and tries every mapping of speakers.
pyannote maps speakers after the collar is cut out, so that with one its rate may be lower.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from pyannote.core import Annotation, Timeline
from pyannote.core import Segment as Stretch
from pyannote.metrics.diarization import DiarizationErrorRate

from vaak.audio.segments import Segment, merged
from vaak.scoring.diarization_errors import diarization_error
from vaak.tasks.diarization.config import ScoringConfig
from vaak.tasks.diarization.segments import FrameErrors

FRAME_SECONDS = 0.1
NAMES = "abcd"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reference, hypothesis = recording(3600 * options.hours)
    rows = [row for collar in (0.0, 0.25) for row in measured(reference, hypothesis, collar, options.rounds)]
    if options.json:
        print(json.dumps({"segments": len(reference), "rows": rows}))
        return
    print(f"{options.hours:g} h, {len(reference)} segments; medians of {options.rounds} rounds in turns\n")
    print("| collar, s | scorer | DER, % | s |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['collar']:g} | {row['scorer']} | {row['der']:.3f} | {row['seconds']:.4f} |")


def recording(seconds: float) -> tuple[list[Segment], list[Segment]]:
    """Turns of four speakers, and what a system may have found of them."""
    rng = np.random.default_rng(1)
    reference, at = [], 0.0
    while at < seconds - 20:
        length = float(rng.exponential(2.5)) + 0.2
        reference.append(Segment(at, at + length, NAMES[rng.integers(4)]))
        at += max(0.1, length + float(rng.normal(0.2, 0.8)))
    hypothesis = []
    for start, end, name in reference:
        first, last = sorted((start + rng.normal(0, 0.15), end + rng.normal(0, 0.15)))
        if rng.random() > 0.05:
            hypothesis.append(Segment(max(0.0, first), last, name if rng.random() > 0.1 else NAMES[rng.integers(4)]))
    return merged(reference), merged(hypothesis)


def measured(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], collar: float, rounds: int
) -> list[dict[str, object]]:
    """Each scorer's rate, and the median of its seconds."""
    uem = [(0.0, max(one.end for one in (*reference, *hypothesis)))]
    num_frames = round(uem[0][1] / FRAME_SECONDS)
    decisions = np.zeros((num_frames, len(NAMES)), bool)
    for start, end, name in hypothesis:
        decisions[round(start / FRAME_SECONDS) : round(end / FRAME_SECONDS), NAMES.index(name)] = True
    frames = FrameErrors(reference, uem, ScoringConfig(collar=collar), FRAME_SECONDS, num_frames)
    ours, theirs = (annotation(one) for one in (reference, hypothesis))
    scored = diarization_error(reference, hypothesis, uem=uem, collar=collar, skip_overlap=False).scored
    scorers: dict[str, Callable[[], float | None]] = {
        "Vaak, segments": lambda: (
            diarization_error(reference, hypothesis, uem=uem, collar=collar, skip_overlap=False).rate
        ),
        "Vaak, frames of 0.1 s, at each validation": lambda: frames.seconds(decisions) / scored,
        "pyannote.metrics": lambda: DiarizationErrorRate(collar=2 * collar)(
            ours, theirs, uem=Timeline([Stretch(*uem[0])])
        ),
        "definition": lambda: by_definition(reference, hypothesis, uem[0], collar),
    }
    seconds: dict[str, list[float]] = {name: [] for name in scorers}
    rates: dict[str, float] = {}
    for _ in range(rounds):
        for name, scorer in scorers.items():
            begun = time.perf_counter()
            rates[name] = 100 * (scorer() or 0.0)
            seconds[name].append(time.perf_counter() - begun)
    return [
        {"collar": collar, "scorer": name, "der": rates[name], "seconds": statistics.median(seconds[name])}
        for name in scorers
    ]


def annotation(segments: Sequence[Segment]) -> Annotation:
    made = Annotation()
    for track, (start, end, speaker) in enumerate(segments):
        made[Stretch(start, end), track] = speaker
    return made


def by_definition(
    reference: Sequence[Segment], hypothesis: Sequence[Segment], region: tuple[float, float], collar: float
) -> float:
    """The error rate as md-eval finds it, from one boundary to the next."""
    changes = [(time, side, name, change) for side, segments in enumerate((reference, hypothesis))
               for start, end, name in segments for time, change in ((start, 1), (end, -1))]  # fmt: skip
    edges = [time for segment in reference for time in segment[:2]]
    changes += [(edge + shift, 2, "", change) for edge in edges for shift, change in ((-collar, 1), (collar, -1))]
    speaking: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    shared: Counter[tuple[str, str]] = Counter()
    pieces, before = [], region[0]
    for at, side, name, change in sorted([*changes, (region[1], 2, "", 0)]):
        begin, end = max(before, region[0]), min(at, region[1])
        if end > begin:
            ours, theirs = ([one for one, depth in speaking[side].items() if depth] for side in (0, 1))
            shared.update(dict.fromkeys(itertools.product(ours, theirs), end - begin))
            if not speaking[2][""]:
                pieces.append((end - begin, ours, theirs))
        speaking[side][name] += change
        before = at
    mapping = max(
        itertools.permutations(NAMES), key=lambda names: sum(shared[pair] for pair in zip(NAMES, names, strict=True))
    )
    right = set(zip(NAMES, mapping, strict=True))
    wrong = sum(
        length * (max(len(ours), len(theirs)) - len(right & set(itertools.product(ours, theirs))))
        for length, ours, theirs in pieces
    )
    return wrong / sum(length * len(ours) for length, ours, _ in pieces)


if __name__ == "__main__":
    main()
