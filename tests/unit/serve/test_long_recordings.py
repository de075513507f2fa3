"""A long recording and short ones at once: nobody waits for its end, and all texts are the command's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from served_runs import wait_until
from vaak.serve.batching import Job, Worker

SHORT_ONES = 20


@pytest.fixture
def waits(monkeypatch) -> dict[Job, list[int]]:
    """How many batches had been begun when each job came, and when it was done."""
    found, begun = dict[Job, list[int]](), list[int]()
    submit, compute = Worker.submit, Worker._compute

    def submit_noting(self: Worker, job: Job) -> None:
        found[job] = [len(begun)]
        job.future.add_done_callback(lambda _: found[job].append(len(begun)))
        submit(self, job)

    def compute_noting(self: Worker, taken: list[tuple[Job, Any]]) -> None:
        begun.append(len(taken))
        compute(self, taken)

    monkeypatch.setattr(Worker, "submit", submit_noting)
    monkeypatch.setattr(Worker, "_compute", compute_noting)
    return found


def write_recordings(folder: Path, source: Path, minutes: float) -> list[Path]:
    """A long recording, then short ones, of parts of another in different orders."""
    samples, rate = soundfile.read(source)
    generator = np.random.default_rng(0)
    seconds = {"long": 60 * minutes} | {f"short{number}": 0.5 + 0.01 * number for number in range(SHORT_ONES)}
    for name, length in seconds.items():
        number = int(length * rate / len(samples)) + 1
        parts = [np.roll(samples, int(generator.integers(len(samples)))) for _ in range(number)]
        soundfile.write(folder / f"{name}.wav", np.concatenate(parts)[: int(length * rate)], rate)
    return [folder / f"{name}.wav" for name in seconds]


@pytest.mark.slow
def test_short_ones_wait_for_a_window_of_a_long_one(live, run_of, vaak, tmp_path, waits):
    run = run_of("asr")
    long, *short = write_recordings(tmp_path, Path(run.inputs[0]), 20.0)
    server = live(run.folder)
    with httpx.Client(base_url=server.address, timeout=600) as client, ThreadPoolExecutor(1 + SHORT_ONES) as pool:

        def ask(path: Path) -> str:
            files = {"file": (path.name, path.read_bytes())}
            answer = client.post("/v1/audio/transcriptions", files=files)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["text"])

        asked = [pool.submit(ask, long)]
        wait_until(lambda: sum(server.gate.metrics.batches["asr"].counts) > 2)
        asked += [pool.submit(ask, path) for path in short]
        texts = [one.result() for one in asked]
    own, *others = sorted(waits.values(), key=lambda pair: pair[0] - pair[1])
    # 16 of them are a batch: one that came during a batch of the long one's waits for it, and for two of its own.
    assert max(done - came for came, done in others) <= 4
    assert own[1] - own[0] > 20
    code, out, err = vaak("transcribe", run.folder, long, *short, "--json")
    assert code == 0, err
    assert texts == [json.loads(line)["text"] for line in out.splitlines()]
