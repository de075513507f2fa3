"""A pipeline killed at a random moment in each stage and resumed makes the same bits; nothing is done twice but the
cut piece. Its own processes, a second process, a full disk, Ray."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_pipeline
from commands import Command, Commands, Ended, assert_same_run, wait_until

REFERENCE = f"{Path(tiny_pipeline.__file__)}:PIPELINE"
FILES = ("numbers/rows/rows-00003.bin", "numbers/rows/index.json", "sums/sums.npy", "result/result.json")
slow = pytest.mark.slow
STEP = '{"kind": "step"'

Start = Callable[..., Command]


@pytest.fixture
def start(commands: Commands, tmp_path: Path) -> Start:
    """``start(run, *arguments)`` starts the pipeline; ``pause`` is how many seconds each of its pieces takes."""

    def start_pipeline(run: str, *arguments: str, pause: float = 0.0, limit: int | None = None) -> Command:
        environment = {"DONE": str(tmp_path / f"{run}.done"), "PAUSE": str(pause)}
        given = ["pipeline", REFERENCE, "--output-dir", run, *arguments]
        return commands.start(given, tmp_path, environment, file_size_limit=limit)

    return start_pipeline


def pieces(run: Path) -> list[str]:
    """The pieces of work that a run has begun."""
    path = run.with_suffix(".done")
    return path.read_text().splitlines() if path.exists() else []


def assert_same(run: Path, reference: Path) -> None:
    for name in FILES:
        assert (run / name).read_bytes() == (reference / name).read_bytes(), name


def finished(command: Command) -> Ended:
    ended = command.wait()
    assert ended.status == 0, ended.errors
    return ended


@slow
@pytest.mark.parametrize("separate", [(), ("--separate-processes",)], ids=["one", "separate"])
def test_a_kill_in_each_stage_changes_nothing(separate: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    rng = random.Random(len(separate))
    finished(start("reference", *separate))
    reference, run = tmp_path / "reference", tmp_path / "run"
    begun = pieces(reference)
    assert max(Counter(begun).values()) == 1
    for stage in ("numbers", "sums", "result"):
        piece = rng.choice([piece for piece in begun if piece.startswith(stage)])
        command = start("run", "--resume", *separate, pause=0.05)
        assert wait_until(lambda piece=piece: piece in pieces(run), command), command.said
        time.sleep(rng.uniform(0, 0.08))
        command.send(signal.SIGKILL)
        command.wait()
        time.sleep(0.1)  # a stage's own process ends with its parent, as soon as the system gets to it
    finished(start("run", "--resume", *separate))
    assert_same(run, reference)
    twice = [piece for piece, times in Counter(pieces(run)).items() if times > 1]
    assert set(pieces(run)) == set(begun)
    assert len(pieces(run)) - len(begun) <= 3, twice


def test_training_inside_a_stage_resumes_as_a_run_does(start: Start, tmp_path: Path) -> None:
    finished(start("reference", "--trains"))
    run, reference = tmp_path / "run", tmp_path / "reference"
    metrics = run / "model" / "run" / "metrics.jsonl"
    command = start("run", "--trains")
    assert wait_until(lambda: metrics.exists() and metrics.read_text().count(STEP) >= 5, command), command.said
    command.send(signal.SIGKILL)
    command.wait()
    ended = finished(start("run", "--resume"))
    assert "model: resumes (was cut)" in ended.errors
    assert ended.errors.count("model: ") == 1
    assert_same_run(run / "model" / "run", reference / "model" / "run")
    before = pieces(run)
    finished(start("run", "--resume"))
    assert pieces(run) == before


def test_ctrl_c_ends_a_stage_in_a_line(start: Start, tmp_path: Path) -> None:
    command = start("run", pause=0.5)
    assert wait_until(lambda: len(pieces(tmp_path / "run")) > 1, command), command.said
    command.send(signal.SIGINT, to_all=True)
    ended = command.wait()
    assert ended.status == 130, ended.errors
    assert "Traceback" not in ended.errors
    assert any(line.startswith("numbers  failed") and "interrupted" in line for line in ended.errors.splitlines())
    finished(start("run", "--resume"))


@slow
def test_ctrl_c_stops_training_after_its_step_and_the_stage_is_not_done(start: Start, tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "model" / "run" / "metrics.jsonl"
    command = start("run", "--trains", "--separate-processes")
    assert wait_until(lambda: metrics.exists() and metrics.read_text().count(STEP) >= 2, command), command.said
    command.send(signal.SIGINT, to_all=True)
    ended = command.wait()
    assert ended.status == 130, ended.errors
    assert not (tmp_path / "run" / "model" / "manifest.json").exists()
    assert (tmp_path / "run" / "model" / "run" / "checkpoints" / "last").exists()
    finished(start("run", "--resume"))


def test_the_second_process_on_a_folder_is_refused(start: Start, tmp_path: Path) -> None:
    first = start("run", pause=0.5)
    assert wait_until(lambda: bool(pieces(tmp_path / "run")), first), first.said
    second = start("run", "--resume").wait()
    assert (second.status, len(second.errors.splitlines())) == (2, 1), second.errors
    assert second.errors.startswith(f"run is being written by process {first.pid} ")
    first.send(signal.SIGKILL)
    first.wait()


@pytest.mark.parametrize("separate", [(), pytest.param(("--separate-processes",), marks=slow)], ids=["one", "separate"])
def test_a_full_disk_is_one_line_and_the_rest_is_kept(separate: tuple[str, ...], start: Start, tmp_path: Path) -> None:
    finished(start("reference"))
    ended = start("run", *separate, limit=20_000).wait()
    assert ended.status == 2, ended.errors
    assert ended.errors.splitlines()[-1] == (
        "run/numbers/rows/rows-00000.bin can't be written: File too large; free some space, then add --resume"
    )
    assert not list((tmp_path / "run").rglob(".*.tmp"))
    finished(start("run", "--resume"))
    assert_same(tmp_path / "run", tmp_path / "reference")


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        pytest.param("mistake", 2, "a mistake, in one line", marks=slow),
        ("killed", 2, "the process of stage result was killed (SIGKILL), often because memory ran out; add --resume"),
        pytest.param("bug", 1, "ZeroDivisionError", marks=slow),
    ],
)
def test_how_the_process_of_a_stage_ends_is_said(how: str, status: int, said: str, start: Start) -> None:
    finished(start("run", "--only", "numbers"))
    finished(start("run", "--only", "sums"))
    ended = start("run", "--resume", "--fails", how, "--separate-processes").wait()
    assert ended.status == status, ended.errors
    assert said in ended.errors.splitlines()


@pytest.mark.slow
def test_several_processes_make_the_same_bits(start: Start, tmp_path: Path) -> None:
    finished(start("reference"))
    finished(start("run", "--num-jobs", "2"))
    assert_same(tmp_path / "run", tmp_path / "reference")


@slow
def test_ray_makes_the_same_bits(start: Start, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    finished(start("reference"))
    finished(start("run", "--executor", "ray", "--num-jobs", "2"))
    assert_same(tmp_path / "run", tmp_path / "reference")
