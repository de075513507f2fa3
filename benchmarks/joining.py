"""What joining windows costs: the windows come from the reference, so that no model's errors are in the figures.

    vaak data simulate long/4 configs/diarization/one_to_four.yml --number 2 \\
        datasets.0.conversations.num_speakers=[4,4] datasets.0.conversations.beta=14 \\
        datasets.0.conversations.duration=[600,600]
    python benchmarks/joining.py long --errors none swap \\
        --options window=30 speaker_encoder=ecapa.onnx 'clustering_threshold=0.2|0.25|0.3'

Each window has those who speak in it, in random order, with the embeddings of the speaker encoder; the code of ``vaak
diarize`` joins them. Windows are as the reference has them (``none``), or have errors of a kind in a ``--share`` of all
places where one could be:

    drop    a turn is missed
    swap    a turn is given to another speaker of the window
    split   a speaker's turns are given to two, one after the other
    merge   two speakers of a window are heard as one

The cost is DER above that of the same windows joined by an oracle, in points: by number of speakers, of all
recordings, and the greatest; below 0 where joining corrects windows. ``miscounted`` is the mean difference in the
number of speakers. ``--options`` are those of ``data.inference``; one with several values, separated by ``|``, has a
row for each, to choose by validation recordings. DER is at collar 0, overlap scored, over the whole of each recording.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from diarization_baselines import FileRecording, read_conversations
from long_recordings import columns_of

from vaak.audio.speech_regions import find_runs
from vaak.config.base import from_options
from vaak.config.yaml.text import read_value
from vaak.core.errors import UserError
from vaak.scoring.diarization_errors import ErrorSeconds, diarization_error
from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.labels import activity
from vaak.tasks.diarization.metrics import AUDIO
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.speaker_encoder import SpeakerEncoder
from vaak.tasks.diarization.stitching import WindowOutput, blend_windows

FRAME = 0.02  # seconds
LEAST = 0.1  # seconds; who speaks less in a window isn't found in it
NO_MODEL: Any = SimpleNamespace(
    config=SimpleNamespace(subsampling=1, output_subsampling=1), collator=SimpleNamespace(names=None)
)


def drop(speaks: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    found = speaks.copy()
    for column, own in enumerate(speaks.T):
        for first, last in find_runs(own):
            found[first:last, column] = rng.random() >= share
    return found


def swap(speaks: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    found = speaks.copy()
    for column, own in enumerate(speaks.T):
        others = np.delete(np.arange(speaks.shape[1]), column)
        for first, last in find_runs(own):
            if len(others) and rng.random() < share:
                found[first:last, column] = False
                found[first:last, rng.choice(others)] = True
    return found


def split(speaks: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    columns = []
    for own in speaks.T:
        border = rng.choice(np.flatnonzero(own)) if rng.random() < share else len(own)
        before = np.arange(len(own)) < border
        columns += [own & before, own & ~before]
    return np.stack(columns, 1)


def merge(speaks: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    if speaks.shape[1] < 2 or rng.random() >= share:
        return speaks
    one, other = rng.choice(speaks.shape[1], 2, replace=False)
    both = (speaks[:, one] | speaks[:, other])[:, None]
    return np.concatenate([np.delete(speaks, [one, other], axis=1), both], 1)


ERRORS: dict[str, Callable[[np.ndarray, float, np.random.Generator], np.ndarray]] = {
    "none": lambda speaks, share, rng: speaks,
    "drop": drop,
    "swap": swap,
    "split": split,
    "merge": merge,
}
"""Who speaks in a window ``(frames, speakers)`` bool, with errors."""


class Recording(NamedTuple):
    """A recording with its windows, and what these cost where an oracle joins them."""

    reference: FileRecording
    outputs: list[WindowOutput]
    num_frames: int
    num_speakers: int
    oracle: ErrorSeconds


def recording_of(
    diarizer: Diarizer, reference: FileRecording, errors: str, share: float, rng: np.random.Generator
) -> Recording:
    """A recording with the windows of its reference."""
    samples, names = reference.samples, sorted({segment.speaker for segment in reference.reference})
    num_frames = int(reference.duration / FRAME)
    truth = activity(reference.reference, names, num_frames, FRAME) > 0.5
    outputs = []
    for first, last in diarizer.windows(num_frames):
        part = truth[first:last]
        part = part[:, part.sum(0) >= LEAST / FRAME]
        if part.any():
            part = ERRORS[errors](part, share, rng)
        part = part[:, rng.permutation(np.flatnonzero(part.any(0)))]
        outputs.append(WindowOutput(first, (part if part.any() else truth[first:last, :1] * 0).astype(np.float32)))
    oracle = blend_windows(outputs, [columns_of(output, truth, 0.5) for output in outputs], num_frames)
    outputs = diarizer.with_embeddings(outputs, lambda: samples)
    return Recording(reference, outputs, num_frames, len(names), error_of(diarizer, reference, oracle))


def error_of(diarizer: Diarizer, reference: FileRecording, probabilities: np.ndarray) -> ErrorSeconds:
    """The errors of a recording's ``probabilities (frames, speakers)``."""
    uem = [(0.0, reference.duration)]
    found = diarizer.segments(probabilities)
    return diarization_error(reference.reference, found, uem=uem, collar=0.0, skip_overlap=False)


def costs_of(diarizer: Diarizer, recordings: list[Recording], numbers: list[int]) -> list[float]:
    """The oracle's DER; the cost by number of speakers, of all, and the greatest; and how many are miscounted."""
    costs, miscounted = [], []
    for one in recordings:
        joined = diarizer.joined(one.outputs, one.num_frames)
        error = error_of(diarizer, one.reference, joined)
        costs.append(100 * (error.errors - one.oracle.errors) / error.scored)
        miscounted.append(abs(joined.shape[1] - one.num_speakers))
    by_number = [
        float(np.mean([cost for cost, one in zip(costs, recordings, strict=True) if one.num_speakers == number]))
        for number in numbers
    ]
    oracle = float(np.mean([100 * one.oracle.errors / one.oracle.scored for one in recordings]))
    return [oracle, *by_number, float(np.mean(costs)), max(costs), float(np.mean(miscounted))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recordings with RTTM, in any depth")
    parser.add_argument("--errors", nargs="+", choices=ERRORS, default=["none"])
    parser.add_argument("--share", type=float, default=0.1, help="of the places of windows that have the error")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--options", nargs="+", required=True, metavar="KEY=VALUE", help="of data.inference")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = {key: values.split("|") for key, _, values in (one.partition("=") for one in options.options)}
    rows = [dict(zip(given, values, strict=True)) for values in product(*given.values())]
    configs = [
        from_options(InferenceConfig, {key: read_value(value, key) for key, value in row.items()}, "--options")
        for row in rows
    ]
    source, features = configs[0].speaker_encoder, configs[0].speaker_features
    if source is None:
        raise UserError("--options: give speaker_encoder")
    encoder = SpeakerEncoder(source, features, AUDIO.sampling_rate, torch.device("cpu"))
    references = {
        folder / name: one
        for folder in sorted({path.parent for path in options.folder.rglob("*.rttm")})
        for name, one in read_conversations(folder, folder).items()
    }
    for place, errors in enumerate(options.errors):
        reader = Diarizer(NO_MODEL, configs[0], FRAME, encoder)
        recordings = [
            recording_of(reader, one, errors, options.share, np.random.default_rng(number))
            for number, one in enumerate(references.values())
        ]
        numbers = sorted({one.num_speakers for one in recordings})
        if place == 0:
            names = ["errors", "options", "oracle", *map(str, numbers), "all", "greatest", "miscounted"]
            print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
        for row, config in zip(rows, configs, strict=True):
            varied = " ".join(f"{key}={value}" for key, value in row.items() if len(given[key]) > 1)
            found = costs_of(Diarizer(NO_MODEL, config, FRAME, encoder), recordings, numbers)
            print(f"| {errors} | {varied} | {' | '.join(f'{number:.2f}' for number in found)} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
