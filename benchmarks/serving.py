"""A model that is served, asked by some clients at once, against the batched command on the same inputs.

python benchmarks/serving.py RUN INPUTS [--clients 8] [--repeat 3] [--rounds 3] [--together 1] [--new-tokens 32]

RUN is of task asr, tts, lm or classification, or a pretrained model, also an encoder of sentences, whose embeddings are
computed; INPUTS a folder of audio, or a file with a text per line. In each round, the command's own code computes all
inputs, then the server does. Prints inputs per second of both, the median of their ratios by the clock and by processor
time (the server's, without the clients'), the latency of a request (p50, p95) and the machine's load. The time that
opening the model takes isn't counted. Ends with an error where a served result differs from the command's.

With --together N, each request has N texts (lm, classification, embeddings). The ratio at equal batch is that to the
command with as many inputs at a time as the server computes together: those of all clients, at most 16.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
import soundfile

from vaak.audio.audio_file import audio_files
from vaak.runs.open_run import OpenedRun
from vaak.serve.models import find_endpoints, open_model

SEED = 0
MOST_TOGETHER = 16
"""The server's --max-batch."""


@dataclass(frozen=True)
class Use:
    """How a task is used: by the command, all inputs together; by a request, some; and whether results are the same."""

    run: Callable[[OpenedRun, Sequence[Any]], list[Any]]
    ask: Callable[[httpx.Client, Sequence[Any]], list[Any]]
    takes_several: bool = True
    """Whether a request may have several inputs."""
    is_same: Callable[[Any, Any], bool] = lambda one, other: one == other


def transcribe(opened: OpenedRun, files: Sequence[Path]) -> list[Any]:
    return [one.text for one in opened.task.transcriber(opened.model).transcribe_files(files)]


def ask_transcript(client: httpx.Client, files: Sequence[Path]) -> list[Any]:
    [file] = files
    sent = {"file": (file.name, file.read_bytes())}
    return [_json(client.post("/v1/audio/transcriptions", files=sent))["text"]]


def write(new_tokens: int, opened: OpenedRun, texts: Sequence[str]) -> list[Any]:
    task = opened.task
    settings = task.sampling(max_new_tokens=new_tokens, temperature=0.8)
    return list(task.written(opened.model, [(task.prompt(text), SEED) for text in texts], settings))


def ask_texts(new_tokens: int, client: httpx.Client, texts: Sequence[str]) -> list[Any]:
    asked = {"prompt": texts, "max_tokens": new_tokens, "seed": SEED}
    return [one["text"] for one in _json(client.post("/v1/completions", json=asked))["choices"]]


def classify(opened: OpenedRun, texts: Sequence[str]) -> list[Any]:
    return [
        {name: list(labels) for name, labels in one.labels.items()} for one in opened.task.predict(opened.model, texts)
    ]


def ask_labels(client: httpx.Client, texts: Sequence[str]) -> list[Any]:
    return [one["labels"] for one in _json(client.post("/v1/classify", json={"input": texts}))["data"]]


def embed(opened: OpenedRun, texts: Sequence[str]) -> list[Any]:
    found = []
    for at in range(0, len(texts), MOST_TOGETHER):
        found += opened.task.embed_batch(opened.model, list(texts[at : at + MOST_TOGETHER]))
    return [np.array(one.vector) for one in found]


def ask_embeddings(client: httpx.Client, texts: Sequence[str]) -> list[Any]:
    # As the openai package asks.
    answer = _json(client.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"}))
    return [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]


def speak(opened: OpenedRun, texts: Sequence[str]) -> list[Any]:
    from vaak.serve.answers import encode
    from vaak.tasks.batches import Done
    from vaak.tasks.tts.predict import SpokenText

    speaker = opened.task.speaker(opened.model)
    found, own = [], list[Any]()
    for one in speaker.sentences(SpokenText(text, "") for text in texts):
        if isinstance(one, Done):
            found.append(read_samples(encode(own, speaker, "wav")))
            own = []
        else:
            own.append(one[1])
    return found


def ask_speech(client: httpx.Client, texts: Sequence[str]) -> list[Any]:
    [text] = texts
    answer = client.post("/v1/audio/speech", json={"input": text, "response_format": "wav"})
    answer.raise_for_status()
    return [read_samples(answer.content)]


def read_samples(content: bytes) -> np.ndarray:
    samples: np.ndarray = soundfile.read(io.BytesIO(content), dtype="int16")[0]
    return samples.astype(np.int64)


def is_nearly_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether 16-bit samples differ by rounding only, which batches of other sizes and Griffin-Lim's rounds add up."""
    return len(one) == len(other) and int(np.abs(one - other).max(initial=0)) <= 8


def choose_use(opened: OpenedRun, new_tokens: int) -> tuple[str, Use]:
    """Return how a model is used, and the name of that."""
    uses = {
        "transcriptions": Use(transcribe, ask_transcript, takes_several=False),
        "completions": Use(partial(write, new_tokens), partial(ask_texts, new_tokens)),
        "classify": Use(classify, ask_labels),
        "embeddings": Use(embed, ask_embeddings, is_same=lambda one, other: np.allclose(one, other, atol=1e-5)),
        "speech": Use(speak, ask_speech, takes_several=False, is_same=is_nearly_same),
    }
    endpoints = find_endpoints(opened)
    return next((name, use) for name, use in uses.items() if name in endpoints)


def _json(answer: httpx.Response) -> Any:
    answer.raise_for_status()
    return answer.json()


class Cost(NamedTuple):
    """Wall-clock and processor seconds that it took to compute all inputs."""

    clock: float
    processor: float


@contextlib.contextmanager
def serving(run: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server, and its process."""
    command = [sys.executable, "-m", "vaak", "serve", str(run), "--port", "0", "--device", "cpu", "--precision", "fp32"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().removeprefix("serving on ").strip()
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()


def compute_all(
    opened: OpenedRun, use: Use, inputs: Sequence[Any], together: int | None = None
) -> tuple[list[Any], Cost]:
    """Return the command's outputs for all inputs, ``together`` at a time if given, and their cost."""
    size = together or len(inputs)
    with opened.precision.autocast():
        begun, processor = time.perf_counter(), time.process_time()
        found = [one for at in range(0, len(inputs), size) for one in use.run(opened, inputs[at : at + size])]
        return found, Cost(time.perf_counter() - begun, time.process_time() - processor)


def ask_all(
    client: httpx.Client, server: psutil.Process, use: Use, requests: Sequence[Sequence[Any]], clients: int
) -> tuple[list[Any], list[float], Cost]:
    """Return the results, the seconds that each request took, and the cost of all of them to the server."""

    def ask(inputs: Sequence[Any]) -> tuple[list[Any], float]:
        begun = time.perf_counter()
        found = use.ask(client, inputs)
        return found, time.perf_counter() - begun

    begun, before = time.perf_counter(), server.cpu_times()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, requests))
    after = server.cpu_times()
    processor = after.user + after.system - before.user - before.system
    cost = Cost(time.perf_counter() - begun, processor)
    return [result for results, _ in found for result in results], [seconds for _, seconds in found], cost


def read_inputs(path: Path) -> Sequence[Any]:
    """Return the recordings of a folder, or the texts of a file."""
    if path.is_file():
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return audio_files([path])[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3, help="how often each input is taken")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured, in turn")
    parser.add_argument("--together", type=int, default=1, help="inputs of one request")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens of each text that is written")
    asked = parser.parse_args()
    inputs = [*read_inputs(asked.inputs)] * asked.repeat
    opened = open_model(asked.run, device="cpu", precision="fp32")
    kind, use = choose_use(opened, asked.new_tokens)
    load = os.getloadavg()[0]
    if asked.together > 1 and not use.takes_several:
        parser.error(f"--together: a request for {kind} has one input")
    requests = [inputs[at : at + asked.together] for at in range(0, len(inputs), asked.together)]
    equal = min(MOST_TOGETHER, asked.clients * asked.together)
    pairs, alike, latencies = list[tuple[Cost, Cost]](), list[Cost](), list[float]()
    with serving(asked.run) as (address, server), httpx.Client(timeout=600, base_url=address) as client:
        # The first round sets up what later ones use.
        compute_all(opened, use, inputs)
        ask_all(client, server, use, requests, asked.clients)
        for _ in range(asked.rounds):
            expected, alone = compute_all(opened, use, inputs)
            alike.append(compute_all(opened, use, inputs, equal)[1] if equal < len(inputs) else alone)
            found, seconds, served = ask_all(client, server, use, requests, asked.clients)
            pairs.append((alone, served))
            latencies += seconds
            wrong = sum(not use.is_same(*both) for both in zip(found, expected, strict=True))
            assert not wrong, f"{wrong} of {len(inputs)} served results differ from the command's"
    number, (p50, p95) = len(inputs), np.percentile(latencies, [50, 95])
    rates = [number / median(one.clock for one in each) for each in zip(*pairs, strict=True)]
    clock = [alone.clock / served.clock for alone, served in pairs]
    processor = [alone.processor / served.processor for alone, served in pairs]
    print(
        f"{kind}: {number} inputs, {asked.rounds} rounds; load of the machine {load:.1f}, {os.cpu_count()} processors"
    )
    several = f", {asked.together} in each request" if asked.together > 1 else ""
    print(f"batched: {rates[0]:.2f} a second; served to {asked.clients} clients{several}: {rates[1]:.2f}")
    print(f"ratio {median(clock):.2f} by the clock ({min(clock):.2f} to {max(clock):.2f})")
    print(f"ratio {median(processor):.2f} by processor time ({min(processor):.2f} to {max(processor):.2f})")
    fair = [one.processor / served.processor for one, (_, served) in zip(alike, pairs, strict=True)]
    print(f"ratio at equal batch, {equal} inputs at a time: {median(fair):.2f} by processor time")
    each = [1000 * median(one.processor for one in costs) / number for costs in zip(*pairs, strict=True)]
    print(f"processor: {each[0]:.2f} ms for an input batched, {each[1]:.2f} ms served")
    print(f"latency p50 {p50:.3f} s, p95 {p95:.3f} s")


if __name__ == "__main__":
    main()
