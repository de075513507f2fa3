"""Transcribing with a pretrained Whisper: Vaak in fp32 and int8 against faster-whisper, and their word error rates.

One recording at a time, one thread, least processor time of rounds in which the ways take turns. ``÷`` is the ratio to
faster-whisper in the same number of bits, below 1 where Vaak is faster. With --beam, a search with as many beams; with
--batch, as many recordings together, in fp32 against transformers, to which ``÷`` is then the ratio; with --joined, the
clips are one long recording, read in windows that begin where the text of the last one ended. Needs faster-whisper, a
folder of transformers with a Whisper, and a manifest whose lines have ``audio`` and ``text``.

    python benchmarks/recognising.py whisper-tiny.en read_speech/manifest.jsonl --clips 12
    python benchmarks/recognising.py whisper-base read_speech/manifest.jsonl --clips 6 --beam 5
    python benchmarks/recognising.py whisper-tiny.en read_speech/manifest.jsonl --clips 20 --joined
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

import numpy as np
import soundfile
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
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--joined", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [json.loads(line) for line in options.manifest.read_text(encoding="utf-8").splitlines()][: options.clips]
    files = [options.manifest.parent / line["audio"] for line in lines]
    arms: dict[str, Callable[[], list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.joined:
            files = [join_files(files, Path(folder) / "joined.wav")]
            lines = [{"text": " ".join(line["text"] for line in lines)}]
        if options.batch > 1:
            arms["Vaak, fp32"] = partial(run_vaak, open_vaak(options.model, "fp32", options), files, options.batch)
            arms["transformers, fp32"] = partial(run_transformers, open_transformers(options), files, options)
        for precision in options.precisions if options.batch == 1 else ():
            arms[f"Vaak, {precision}"] = partial(run_vaak, open_vaak(options.model, precision, options), files, 1)
            theirs = open_faster_whisper(options.model, Path(folder) / precision, precision)
            arms[f"faster-whisper, {precision}"] = partial(run_faster_whisper, theirs, files, options)
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
        other = "faster-whisper" if options.batch == 1 else "transformers"
        ratio = seconds / best[f"{other}, {name.rpartition(' ')[2]}"]
        print(f"| {name} | {seconds:.2f} | {ratio:.2f} | {wrong} of {words}: {100 * wrong / words:.2f} % |")


def join_files(files: list[Path], joined: Path) -> Path:
    """Write the recordings one after another."""
    read = [soundfile.read(file) for file in files]
    soundfile.write(joined, np.concatenate([samples for samples, _ in read]), read[0][1])
    return joined


def open_vaak(model: Path, precision: str, options: argparse.Namespace) -> Any:
    opened = open_run(model, device="cpu", precision=precision)
    how: dict[str, Any] = {"method": "beam", "beam_size": options.beam} if options.beam > 1 else {}
    return opened.task.transcriber(opened.model, **how, **({"long_form": "seek"} if options.joined else {}))


def run_vaak(transcriber: Any, files: list[Path], batch: int) -> list[str]:
    return [" ".join(segment.text for segment in one.segments) for one in transcriber.transcribe_files(files, batch)]


def open_transformers(options: argparse.Namespace) -> Any:
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    model = WhisperForConditionalGeneration.from_pretrained(options.model).train(False)
    return model, WhisperProcessor.from_pretrained(options.model)


def run_transformers(theirs: Any, files: list[Path], options: argparse.Namespace) -> list[str]:
    model, processor = theirs
    language: dict[str, Any] = {} if options.model.name.endswith(".en") else {"language": "en", "task": "transcribe"}
    found = list[str]()
    for first in range(0, len(files), options.batch):
        clips = [soundfile.read(file)[0] for file in files[first : first + options.batch]]
        read = processor(clips, sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
        with torch.inference_mode():
            ids = model.generate(**read, num_beams=options.beam, do_sample=False, **language)
        found += processor.batch_decode(ids, skip_special_tokens=True)
    return found


def open_faster_whisper(model: Path, folder: Path, precision: str) -> Any:
    """Return the same weights, converted in a ``folder``."""
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import WhisperModel

    kind = {"fp32": "float32"}.get(precision, precision)
    TransformersConverter(str(model), copy_files=["tokenizer.json", "preprocessor_config.json"]).convert(
        str(folder), quantization=kind
    )
    return WhisperModel(str(folder), device="cpu", compute_type=kind, cpu_threads=1)


def run_faster_whisper(model: Any, files: list[Path], options: argparse.Namespace) -> list[str]:
    found = []
    for file in files:
        how: dict[str, Any] = {"language": "en", "beam_size": options.beam, "temperature": 0.0}
        how["without_timestamps"] = not options.joined
        segments, _ = model.transcribe(str(file), condition_on_previous_text=False, **how)
        found.append(" ".join(segment.text.strip() for segment in segments))
    return found


if __name__ == "__main__":
    main()
