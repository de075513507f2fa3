"""Transcribing with a pretrained Whisper: Vaak in fp32 and int8 against faster-whisper, and their word error rates.

Greedy, one recording at a time, one thread, least processor time of rounds in which the ways take turns. ``÷`` is the
ratio to faster-whisper in the same number of bits, below 1 where Vaak is faster. Needs faster-whisper, a folder of
transformers with a Whisper, and a manifest whose lines have ``audio`` and ``text``.

    python benchmarks/recognising.py whisper-tiny.en read_speech/manifest.jsonl --clips 12
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vaak.runs.open_run import open_run
from vaak.scoring.normalisers import normaliser
from vaak.scoring.word_errors import count_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"], choices=["fp32", "int8"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in options.manifest.read_text(encoding="utf-8").splitlines()][: options.clips]
    files = [options.manifest.parent / line["audio"] for line in lines]
    arms: dict[str, Callable[[], list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in options.precisions:
            arms[f"Vaak, {precision}"] = partial(run_vaak, open_vaak(options.model, precision), files)
            theirs = open_faster_whisper(options.model, Path(folder) / precision, precision)
            arms[f"faster-whisper, {precision}"] = partial(run_faster_whisper, theirs, files)
        best, texts = dict.fromkeys(arms, float("inf")), dict[str, list[str]]()
        for _ in range(options.rounds):
            for name, arm in arms.items():
                start = time.process_time()
                texts[name] = arm()
                best[name] = min(best[name], time.process_time() - start)
    normalise = normaliser("whisper-english")
    print("| way | seconds | ÷ | words wrong |\n|---|---|---|---|")
    for name, seconds in best.items():
        pairs = zip(lines, texts[name], strict=True)
        counts = [count_errors(normalise(line["text"]), normalise(text)) for line, text in pairs]
        wrong, words = sum(one.word_errors for one in counts), sum(one.words for one in counts)
        ratio = seconds / best[f"faster-whisper, {name.rpartition(' ')[2]}"]
        print(f"| {name} | {seconds:.2f} | {ratio:.2f} | {wrong} of {words}: {100 * wrong / words:.2f} % |")


def open_vaak(model: Path, precision: str) -> Any:
    opened = open_run(model, device="cpu", precision=precision)
    return opened.task.transcriber(opened.model)


def run_vaak(transcriber: Any, files: list[Path]) -> list[str]:
    return [" ".join(segment.text for segment in one.segments) for one in transcriber.transcribe_files(files, 1)]


def open_faster_whisper(model: Path, folder: Path, precision: str) -> Any:
    """Return the same weights, converted in a ``folder``."""
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import WhisperModel

    kind = {"fp32": "float32"}.get(precision, precision)
    TransformersConverter(str(model), copy_files=["tokenizer.json", "preprocessor_config.json"]).convert(
        str(folder), quantization=kind
    )
    return WhisperModel(str(folder), device="cpu", compute_type=kind, cpu_threads=1)


def run_faster_whisper(model: Any, files: list[Path]) -> list[str]:
    found = []
    for file in files:
        how = {"language": "en", "beam_size": 1, "temperature": 0.0, "without_timestamps": True}
        segments, _ = model.transcribe(str(file), condition_on_previous_text=False, **how)
        found.append(" ".join(segment.text.strip() for segment in segments))
    return found


if __name__ == "__main__":
    main()
