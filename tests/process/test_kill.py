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
LONG, LONGER = ("training.epochs=9",), ("training.max_steps=63",)
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
ADAPTED_BY_EXPERTS = (
    "training.checkpoint.init_from=TEACHER",
    "data.tokenizer.path=TEACHER/prepared/vocabulary/tokenizer.json",
    "model.experts={num_experts: 3, rank: 2, targets: [query], gate_width: 8, balancing_bias: 0.05}",
    "training.loss.auxiliary={load_balancing: 0.1}",
)
EXPERTS = ("model.moe={num_experts: 4, top_k: 2, num_shared: 1, d_ff: 32, balancing_bias: 0.01}",)
FROM_A_SERVER = ("training.performance.multiprocessing_context=forkserver",)
DPO = ("training.loss.main=dpo", "training.checkpoint.init_from=TEACHER")

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


def is_starting(run: Path, begun_at: tuple[str, int]) -> bool:
    """Whether a run has taken no step yet: its records are as they were, or cut at its newest checkpoint."""
    saved = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    return last_record(run) == begun_at or last_record(run)[1] <= max(saved, default=0)


def moment_of(run: Path) -> str:
    """Return what the run was doing when it was killed, judged by its files."""
    kind, step = last_record(run)
    if is_writing(run):
        return "checkpoint"
    return "evaluation" if kind == "step" and step % EVALUATION_INTERVAL == 0 else "step"


def kill_at(command: Command, run: Path, step: int, moment: str, rng: random.Random) -> str:
    """Kill a run at a random place of its start, or, once it has passed ``step``, of what it is to be doing.

    It is stopped first, so that it is still there when it is killed; where it had moved on, it continues until it comes
    there again. Returns the moment in which it was killed.
    """
    begun_at = last_record(run)
    reached = {
        "start": lambda: True,
        "step": lambda: last_record(run)[1] >= step and moment_of(run) == "step",
        "evaluation": lambda: last_record(run)[1] >= step and moment_of(run) == "evaluation",
        "checkpoint": lambda: last_record(run)[1] >= step and is_writing(run),
    }[moment]
    while wait_until(reached, command):
        time.sleep(rng.uniform(0.0, {"step": 0.04, "evaluation": 0.02, "checkpoint": 0.004, "start": 0.2}[moment]))
        if not command.is_running:
            break
        command.send(signal.SIGSTOP, to_all=True)
        time.sleep(0.005)
        found = "start" if moment == "start" and is_starting(run, begun_at) else moment_of(run)
        if found == moment or moment == "start":
            command.send(signal.SIGKILL, to_all=True)
            return found
        command.send(signal.SIGCONT, to_all=True)
    raise AssertionError(f"it never came to a {moment} after step {step}, where it was to be killed: {command.said}")


def kill_and_go_on(
    start: Callable[..., Command], run: Path, overrides: tuple[str, ...], num_kills: int, last_step: int, job: str
) -> list[str]:
    """Train with ``num_kills`` kills spread over the run; return the moment of each. Workers come and go."""
    rng = random.Random(f"{run.name} {num_kills}")
    moments = []
    for number in range(num_kills):
        step = 1 + int((number + rng.random()) * (last_step - EVALUATION_INTERVAL - 3) / num_kills)
        command = start(run, *overrides, f"training.performance.num_workers={2 * (number % 2)}", job=job)
        moments.append(kill_at(command, run, step, MOMENTS[number % 4], rng))
        ended = command.wait()
        assert ended.status == -signal.SIGKILL, ended
    ended = start(run, *overrides, job=job).wait()
    assert ended.status == 0, ended.errors
    return moments


@pytest.mark.parametrize(
    ("job", "overrides", "num_kills"),
    [
        pytest.param("tiny", (), 4, id="documents"),
        pytest.param("tiny", STREAM, 4, id="stream", marks=slow),
        pytest.param("tiny", FROM_A_SERVER, 4, id="documents-forkserver", marks=slow),
        pytest.param("diarizer", FROM_A_SERVER, 4, id="diarizer-forkserver", marks=slow),
        pytest.param("tiny", MUON, 4, id="muon", marks=slow),
        pytest.param("tiny", TOOLS, 4, id="tools", marks=slow),
        pytest.param("tiny", PERFORMER, 4, id="performer", marks=slow),
        pytest.param("translator", (), 4, id="translator", marks=slow),
        pytest.param("translator", TRANSLATING_PERFORMER, 4, id="translating-performer", marks=slow),
        pytest.param("voice", (), 4, id="voice", marks=slow),
        pytest.param("several", (), 4, id="several", marks=slow),
        pytest.param("classifier", (), 4, id="classifier", marks=slow),
        pytest.param("classifier", ("distillation={teacher: TEACHER, temperature: 2.0}",), 4, id="pupil", marks=slow),
        pytest.param("recogniser", (), 4, id="recogniser", marks=slow),
        pytest.param("ctc", (), 4, id="ctc", marks=slow),
        pytest.param("ctc", ADAPTED_BY_EXPERTS, 4, id="ctc-experts", marks=slow),
        pytest.param("preferences", DPO, 4, id="dpo", marks=slow),
        pytest.param("tiny", EXPERTS, 4, id="experts", marks=slow),
        pytest.param("diarizer", (), 4, id="diarizer", marks=slow),
        pytest.param("diarizer", DIARIZING_PERFORMER, 4, id="diarizing-performer", marks=slow),
        pytest.param("tiny", LONG, 20, id="documents-20", marks=slow),
        pytest.param("translator", (*TRANSLATING_PERFORMER, *LONGER), 20, id="translating-performer-20", marks=slow),
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
    if any("TEACHER" in option for option in overrides):
        assert train(tmp_path / "teacher", job=job).status == 0
        overrides = tuple(option.replace("TEACHER", str(tmp_path / "teacher")) for option in overrides)
    if overrides or job != "tiny":
        whole = tmp_path / "whole"
        assert train(whole, *overrides, job=job).status == 0
    moments = kill_and_go_on(start, tmp_path / "killed", overrides, num_kills, last_record(whole)[1], job)
    print(f"{num_kills} kills: {dict(Counter(moments))}")
    assert moments == [MOMENTS[number % 4] for number in range(num_kills)], "each was killed where it was to be"
    assert_same_run(tmp_path / "killed", whole)
