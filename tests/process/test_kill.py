"""A run killed at any moment and resumed ends with the same bits as one that was never killed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Command, Ended, assert_same_run, wait_until

EVALUATION_INTERVAL = 4
slow = pytest.mark.slow
MOMENTS = ("step", "evaluation", "checkpoint", "start")
LONG = ("training.epochs=9",)
STREAM = ("data.layout=stream", "training.epochs=6")
MUON = (
    "training.optimizer.type=muon",
    "training.scheduler={type: plateau, patience: 0, factor: 0.5}",
    "training.early_stopping={patience: 2, min_delta: 0.2}",
)
TOOLS = (
    "training.curriculum={difficulty: lexical, initial_difficulty: 0.4}",
    "training.ema=0.9",
    "training.freeze=[{match: embedding, until_epoch: 1}]",
)

PERFORMER = (
    "model.attention_type=causal_linear",
    "training.feature_redraw_interval=2",
    "training.loss.auxiliary={norm_reg: 0.01}",
)
TRANSLATING_PERFORMER = (
    "model.encoder.attention_type=linear",
    "model.decoder.attention_type=causal_linear",
    *PERFORMER[1:],
)

DIARIZING_PERFORMER = (
    "model.attention_type=linear",
    "training.feature_redraw_interval=2",
    "training.loss.auxiliary={norm_reg: 0.01, clustering: 0.5, speaker: 0.1}",
    "training.eval_knobs.label_type=powerset",
)


def last_record(run: Path) -> tuple[str, int]:
    """Kind and step of the newest record."""
    try:
        with open(run / "metrics.jsonl", "rb") as file:
            file.seek(max(file.seek(0, 2) - 4000, 0))
            lines = file.read().split(b"\n")[:-1]  # without one that is being written
    except OSError:
        return "", 0
    for line in reversed(lines):
        if line.startswith(b'{"kind": "'):
            return line.split(b'"')[3].decode(), int(line.split(b'"step": ')[1].split(b",")[0])
    return "", 0


def is_writing(run: Path) -> bool:
    """Whether a checkpoint is half-written just now."""
    return any((run / "checkpoints").glob(".step-*"))


def moment_of(run: Path) -> str:
    """What the run was at, from what it left."""
    kind, step = last_record(run)
    if is_writing(run):
        return "checkpoint"
    return "evaluation" if kind == "step" and step % EVALUATION_INTERVAL == 0 else "step"


def kill_at(command: Command, run: Path, step: int, moment: str, rng: random.Random) -> None:
    """Kill a run at a random place of its start, or, once it has passed ``step``, of what it is to be doing."""
    reached = {
        "start": lambda: True,
        "step": lambda: last_record(run)[1] >= step,
        "evaluation": lambda: last_record(run)[1] >= step and moment_of(run) == "evaluation",
        "checkpoint": lambda: last_record(run)[1] >= step and is_writing(run),
    }[moment]
    wait_until(reached, command)
    time.sleep(rng.uniform(0.0, {"step": 0.04, "evaluation": 0.02, "checkpoint": 0.004, "start": 0.5}[moment]))
    if command.is_running:
        command.send(signal.SIGKILL, to_all=True)


def kill_and_go_on(
    start: Callable[..., Command], run: Path, overrides: tuple[str, ...], num_kills: int, last_step: int, job: str
) -> Counter[str]:
    """Train with ``num_kills`` kills spread over the run and count the moments they fell in; workers come and go."""
    rng = random.Random(f"{run.name} {num_kills}")
    moments: Counter[str] = Counter()
    for number in range(num_kills):
        step = 1 + int((number + rng.random()) * (last_step - 1) / num_kills)
        command = start(run, *overrides, f"training.performance.num_workers={2 * (number % 2)}", job=job)
        moment = MOMENTS[number % 4]
        kill_at(command, run, step, moment, rng)
        ended = command.wait()
        assert ended.status == -signal.SIGKILL, ended
        moments["start" if moment == "start" else moment_of(run)] += 1
    ended = start(run, *overrides, job=job).wait()
    assert ended.status == 0, ended.errors
    return moments


@pytest.mark.parametrize(
    ("job", "overrides", "num_kills"),
    [
        pytest.param("tiny", (), 4, id="documents"),
        pytest.param("tiny", STREAM, 2, id="stream"),
        pytest.param("tiny", MUON, 2, id="muon"),
        pytest.param("tiny", TOOLS, 2, id="tools"),
        pytest.param("tiny", PERFORMER, 2, id="performer", marks=slow),
        pytest.param("translator", (), 2, id="translator", marks=slow),
        pytest.param("translator", TRANSLATING_PERFORMER, 2, id="translating-performer"),
        pytest.param("voice", (), 2, id="voice", marks=slow),
        pytest.param("several", (), 2, id="several", marks=slow),
        pytest.param("diarizer", (), 4, id="diarizer", marks=slow),
        pytest.param("tiny", LONG, 20, id="documents-20", marks=slow),
        pytest.param("tiny", (*STREAM, "training.epochs=18"), 20, id="stream-20", marks=slow),
        pytest.param("tiny", (*MUON, *LONG, "training.early_stopping.patience=8"), 20, id="muon-20", marks=slow),
        pytest.param("tiny", (*TOOLS, *LONG), 20, id="tools-20", marks=slow),
        pytest.param("tiny", (*PERFORMER, *LONG), 20, id="performer-20", marks=slow),
        pytest.param("translator", ("training.max_steps=63",), 20, id="translator-20", marks=slow),
        pytest.param(
            "translator",
            (*TRANSLATING_PERFORMER, "training.max_steps=63"),
            20,
            id="translating-performer-20",
            marks=slow,
        ),
        pytest.param("diarizer", ("training.max_steps=63",), 20, id="diarizer-20", marks=slow),
        pytest.param(
            "diarizer", (*DIARIZING_PERFORMER, "training.max_steps=63"), 20, id="diarizing-performer-20", marks=slow
        ),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    start: Callable[..., Command],
    train: Callable[..., Ended],
    reference: Path,
    tmp_path: Path,
    job: str,
    overrides: tuple[str, ...],
    num_kills: int,
) -> None:
    whole = reference
    if overrides or job != "tiny":
        whole = tmp_path / "whole"
        assert train(whole, *overrides, job=job).status == 0
    moments = kill_and_go_on(start, tmp_path / "killed", overrides, num_kills, last_record(whole)[1], job)
    print(f"{num_kills} kills: {dict(moments)}")
    assert_same_run(tmp_path / "killed", whole)
