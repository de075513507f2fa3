"""Diarizers side by side on long recordings: error, time and memory, read window by window and all at once.

    vaak data simulate long configs/diarization/read_speech.yml --number 6 \\
        datasets.0.conversations.duration='[600, 600]'
    python benchmarks/long_recordings.py long softmax=runs/read-speech performer=runs/read-speech-performer

    python benchmarks/long_recordings.py long encoder=runs/one-to-four --windows 10 --options \\
        data.inference.speaker_encoder=ecapa.onnx data.inference.clustering=vbx

The first argument is a folder of recordings with RTTM, as ``vaak data simulate`` writes them; then runs, each with a
name. Each run reads all recordings in windows of each of ``--windows`` seconds, in a separate process, so its memory
is its own: the most that it adds to what the opened run held. Time is that of the whole way from the file to segments.
``oracle`` is the DER of the same windows where those who know the reference join them: each window's speakers are given
to those of the reference with whom they share most time. DER above it is the price of joining. ``--options`` are those
of all runs: a speaker encoder's file, for example.
The last two columns are of one forward and backward pass over a window, as training would take it. DER is at collar 0,
overlap scored, over the whole of each recording.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diarization_baselines import FileRecording, read_conversations
from scipy.optimize import linear_sum_assignment

from vaak.audio.features.extractors import Features
from vaak.audio.segments import Segment
from vaak.core.errors import UserError
from vaak.runs.open_run import OpenedRun, open_run
from vaak.scoring.diarization_errors import ErrorSeconds, score_recordings
from vaak.tasks.diarization.labels import activity
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.stitching import NOBODY, WindowOutput, blend_windows

HEADER = "| model | window, s | DER | oracle | miss | false alarm | confusion | s per minute | MB | training: s | MB |"


def memory(field: str) -> float:
    """MB of this process: ``VmRSS`` now, ``VmHWM`` at most since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e3


def most_added(work: Callable[[], None]) -> tuple[float, float]:
    """The seconds that ``work`` takes, and the most MB that it adds."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is reset
    before, begun = memory("VmRSS"), time.perf_counter()
    work()
    return time.perf_counter() - begun, memory("VmHWM") - before


def diarizing(folder: Path, opened: OpenedRun) -> dict[str, float]:
    """Errors, time and memory of all recordings."""
    conversations = read_conversations(folder, folder)
    diarizer = opened.task.diarizer(opened.model, opened.experiment.data.inference)
    found = {}

    def diarize() -> None:
        for name, conversation in conversations.items():
            found[name] = diarizer.diarize_file(conversation.path, opened.task.audio)

    seconds, added = most_added(diarize)
    minutes = sum(one.duration for one in found.values()) / 60
    references = {name: conversation.reference for name, conversation in conversations.items()}
    uems = {name: [(0.0, one.duration)] for name, one in found.items()}

    def error_of(segments: dict[str, list[Segment]]) -> ErrorSeconds:
        return score_recordings(references, segments, uems, collar=0.0, skip_overlap=False).total.error

    features = Features(opened.task.audio)
    joined = {name: joined_by_oracle(diarizer, one, features) for name, one in conversations.items()}
    error, oracle = error_of({name: one.segments for name, one in found.items()}), error_of(joined)
    parts = {"DER": error.errors, "miss": error.miss, "false alarm": error.false_alarm, "confusion": error.confusion}
    rates = {name: 100 * part / error.scored for name, part in parts.items()}
    rates["oracle"] = 100 * oracle.errors / oracle.scored
    return {**rates, "s per minute": seconds / minutes, "MB": added}


def joined_by_oracle(diarizer: Diarizer, conversation: FileRecording, features: Features) -> list[Segment]:
    """The segments of a recording whose windows are joined by its reference."""
    frames = features(conversation.samples)
    outputs = diarizer.outputs(lambda first, last: frames[first:last], len(frames))
    number = max(output.first + len(output.probabilities) for output in outputs)
    names = sorted({segment.speaker for segment in conversation.reference})
    speaking = activity(conversation.reference, names, number, diarizer.frame_seconds)
    columns = [columns_of(output, speaking, diarizer.inference.threshold) for output in outputs]
    return diarizer.segments(blend_windows(outputs, columns, number))


def columns_of(output: WindowOutput, speaking: np.ndarray, threshold: float) -> np.ndarray:
    """The reference's speaker for each of a window's, of who is ``speaking (frames, speakers)``."""
    found = output.probabilities >= threshold
    together = speaking[output.first : output.first + len(found)].T.astype(np.float64) @ found
    speakers, places = linear_sum_assignment(together, maximize=True)
    columns = np.full(found.shape[1], NOBODY)
    columns[places] = speakers
    return columns


def training(folder: Path, opened: OpenedRun) -> dict[str, float]:
    """Time and memory of a forward and backward pass over one window, of noise."""
    audio, window = opened.task.audio, opened.experiment.data.inference.window
    features = torch.randn(1, round(window / audio.frame_shift), audio.num_mel_bins)
    opened.model.train()

    def take(frames: int) -> None:
        mask = torch.ones(1, frames, dtype=torch.bool)
        opened.model(features[:, :frames], mask).logits.sum().backward()

    take(100)  # what libraries make once
    seconds, added = most_added(lambda: take(features.shape[1]))
    return {"training seconds": seconds, "training MB": added}


WORK = {"diarizing": diarizing, "training": training}


def served(options: argparse.Namespace, run: str, window: float, work: str) -> dict[str, float]:
    """The figures that a separate process returns for one part of a row."""
    command = [sys.executable, __file__, str(options.folder), run, "--serve", str(window), work]
    done = subprocess.run(
        [*command, "--threads", str(options.threads), "--options", *options.options],
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, window: float, found: dict[str, float]) -> str:
    errors = [f"{found[part]:.1f}" for part in ("DER", "oracle", "miss", "false alarm", "confusion")]
    used = [f"{found['s per minute']:.2f}", f"{found['MB']:.0f}"]
    training = [f"{found['training seconds']:.2f}", f"{found['training MB']:.0f}"]
    return f"| {name} | {window:g} | {' | '.join([*errors, *used, *training])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recordings with RTTM")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--windows", type=float, nargs="+", default=[60.0, 600.0], help="seconds")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="options of all runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", nargs=2, metavar=("WINDOW", "WORK"), help="be one part of a row (for its own use)")
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(options.threads)
        window, work = options.serve
        opened = open_run(Path(options.runs[0]), overrides=[*options.options, f"data.inference.window={window}"])
        print(json.dumps(WORK[work](options.folder, opened)))
        return
    print(f"{HEADER}\n|{'---|' * HEADER.count('| ')}")
    for window in options.windows:
        for name, run in (given.split("=", 1) for given in options.runs):
            found: dict[str, float] = {}
            for work in WORK:
                found |= served(options, run, window, work)
            print(row(name, window, found), flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
