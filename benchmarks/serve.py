"""A recogniser that is served, asked by some clients at once, against the batched command on the same recordings.

python benchmarks/serve.py RUN FOLDER_OF_AUDIO [--clients 8] [--repeat 3]

Prints seconds of audio per second of both, their ratio, and the latency of a request (p50, p95). The time that opening
the model takes isn't counted. Ends with an error where a served text differs from the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

from vaak.audio.audio_file import audio_files, read_header
from vaak.runs.open_run import open_run


def transcribe_in_batches(run: Path, files: list[Path]) -> tuple[list[str], float]:
    """Return the texts as ``vaak transcribe`` gives them, and the seconds that they took."""
    opened = open_run(run, device="cpu")
    transcriber = opened.task.transcriber(opened.model)
    with opened.precision.autocast():
        list(transcriber.transcribe_files(files[:1]))  # the first call sets up what later ones use
        begun = time.perf_counter()
        texts = [one.text for one in transcriber.transcribe_files(files)]
    return texts, time.perf_counter() - begun


@contextlib.contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a server, a process of its own."""
    command = [sys.executable, "-m", "vaak", "serve", str(run), "--port", "0", "--device", "cpu", "--precision", "fp32"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("serving on ").strip()
        process.terminate()


def ask_all(address: str, files: list[Path], clients: int) -> tuple[list[str], list[float], float]:
    """Return the texts, the seconds that each request took, and those of all of them."""
    with httpx.Client(timeout=600) as client:

        def ask(file: Path) -> tuple[str, float]:
            begun = time.perf_counter()
            answer = client.post(f"{address}/v1/audio/transcriptions", files={"file": (file.name, file.read_bytes())})
            answer.raise_for_status()
            return answer.json()["text"], time.perf_counter() - begun

        ask(files[0])
        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, files))
        taken = time.perf_counter() - begun
    return [text for text, _ in found], [seconds for _, seconds in found], taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("audio", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3, help="how often each recording is transcribed")
    asked = parser.parse_args()
    files = audio_files([asked.audio])[0] * asked.repeat
    seconds = sum(read_header(file).duration for file in files)
    expected, alone = transcribe_in_batches(asked.run, files)
    with serving(asked.run) as address:
        texts, latencies, served = ask_all(address, files, asked.clients)
    assert texts == expected, "a served text differs from the command's"
    p50, p95 = np.percentile(latencies, [50, 95])
    print(f"{len(files)} recordings, {seconds:.0f} s of audio")
    print(f"batched: {seconds / alone:.1f} s of audio a second; served to {asked.clients}: {seconds / served:.1f}")
    print(f"ratio {alone / served:.2f}; latency p50 {p50:.2f} s, p95 {p95:.2f} s")


if __name__ == "__main__":
    main()
