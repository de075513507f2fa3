"""Several processes: they come and go between resumes, are killed, contradict, and fail together."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from commands import (
    TOTAL_STEPS,
    Command,
    Commands,
    Ended,
    assert_same_run,
    checkpoints_of,
    free_port,
    stat_records,
    steps_of,
    wait_until,
)
from processes import children_of

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
FINAL = f"step-{TOTAL_STEPS:08d}"


@pytest.fixture(scope="session")
def start_two(commands: Commands, jobs: Path) -> Callable[..., list[Command]]:
    """``start_two(run, *overrides)`` starts training the tiny job, or another ``job``, on two processes."""

    def start(run: Path, *overrides: str, job: str = "tiny") -> list[Command]:
        return commands.start_ranks(2, ["train", jobs / f"{job}.yml", f"run_dir={run}", *overrides], run.parent)

    return start


@pytest.fixture(scope="session")
def reference_of_two(start_two: Callable[..., list[Command]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny job's run on two processes, never interrupted."""
    run = tmp_path_factory.mktemp("reference-of-two") / "run"
    assert statuses(start_two(run)) == [0, 0]
    return run


def statuses(ranks: list[Command]) -> list[int]:
    return [rank.wait().status for rank in ranks]


def has_step(run: Path, step: int) -> Callable[[], bool]:
    """Whether the run's log has come to a step."""

    def reached() -> bool:
        try:
            return f'"step": {step},' in (run / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return False

    return reached


def assert_equal_to_rounding(run: Path, reference: Path) -> None:
    """The final weights are equal to rounding, and every step had the same draws, so nearly the same loss."""
    ours = load_file(run / "checkpoints" / FINAL / "model.safetensors")
    theirs = load_file(reference / "checkpoints" / FINAL / "model.safetensors")
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)
    assert steps_of(run) == list(range(1, TOTAL_STEPS + 1))
    for record, expected in zip(stat_records(run), stat_records(reference), strict=True):
        assert record.pop("kind") == expected.pop("kind")
        assert record == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_two_processes_killed_end_with_the_same_bits(
    start_two: Callable[..., list[Command]], reference_of_two: Path, tmp_path: Path, killed: str
) -> None:
    kill_two(start_two, tmp_path / "run", killed, step=9)
    assert statuses(start_two(tmp_path / "run")) == [0, 0]
    assert_same_run(tmp_path / "run", reference_of_two, saved_on_the_way_out=killed == "one")


@pytest.mark.slow
def test_two_processes_killed_six_times_end_with_the_same_bits(
    start_two: Callable[..., list[Command]], reference_of_two: Path, tmp_path: Path
) -> None:
    for number, step in enumerate((2, 5, 9, 12, 16, 20)):
        kill_two(start_two, tmp_path / "run", ("one", "all")[number % 2], step)
    assert statuses(start_two(tmp_path / "run")) == [0, 0]
    assert_same_run(tmp_path / "run", reference_of_two, saved_on_the_way_out=True)


def kill_two(start_two: Callable[..., list[Command]], run: Path, killed: str, step: int) -> None:
    """Kill one of two processes, or both, after a step; one that is left over ends soon and says why."""
    main, other = start_two(run, f"training.performance.num_workers={2 * (step % 2)}")
    assert wait_until(has_step(run, step), main)
    time.sleep(random.Random(step).uniform(0, 0.05))
    other.send(signal.SIGKILL)
    if killed == "all":
        main.send(signal.SIGKILL)
        assert statuses([main, other]) == [-signal.SIGKILL] * 2
        return
    ended = main.wait(20)
    assert ended.status == 2, ended.errors
    assert f"rank 1 (process {other.pid} on " in ended.errors.splitlines()[-1]
    assert "has ended, and so this one (rank 0)" in ended.errors.splitlines()[-1]


@pytest.mark.slow
def test_a_translating_performer_redraws_the_same_features_on_any_number_of_processes(
    start_two: Callable[..., list[Command]], train: Callable[..., Ended], tmp_path: Path
) -> None:
    performer = (
        "model.encoder.attention_type=linear",
        "model.decoder.attention_type=causal_linear",
        "training.feature_redraw_interval=2",
        "training.loss.auxiliary={norm_reg: 0.01}",
    )
    main, other = start_two(tmp_path / "two", *performer, job="translator")
    assert wait_until(has_step(tmp_path / "two", 7), main)
    for rank in (main, other):
        rank.send(signal.SIGKILL)
    statuses([main, other])
    assert statuses(start_two(tmp_path / "two", *performer, job="translator")) == [0, 0]
    assert train(tmp_path / "one", *performer, job="translator").status == 0
    ours, theirs = (load_file(tmp_path / name / "checkpoints" / FINAL / "model.safetensors") for name in ("two", "one"))
    drawn = [name for name in ours if name.endswith("projection")]
    assert len(drawn) == 3  # of the encoder, the decoder and its cross-attention
    assert all(torch.equal(ours[name], theirs[name]) for name in drawn)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert steps_of(tmp_path / "two") == steps_of(tmp_path / "one")


@pytest.mark.slow
def test_a_diarizer_trains_the_same_on_any_number_of_processes(
    start_two: Callable[..., list[Command]], train: Callable[..., Ended], tmp_path: Path
) -> None:
    main, other = start_two(tmp_path / "two", job="diarizer")
    assert wait_until(has_step(tmp_path / "two", 7), main)
    for rank in (main, other):
        rank.send(signal.SIGKILL)
    statuses([main, other])
    assert statuses(start_two(tmp_path / "two", job="diarizer")) == [0, 0]
    assert train(tmp_path / "one", job="diarizer").status == 0
    ours, theirs = (load_file(tmp_path / name / "checkpoints" / FINAL / "model.safetensors") for name in ("two", "one"))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert steps_of(tmp_path / "two") == steps_of(tmp_path / "one")


@pytest.mark.slow  # tests/process/test_batch_per_process.py changes the number, too
def test_begun_on_two_processes_a_run_goes_on_with_one_and_back(
    start: Callable[..., Command], start_two: Callable[..., list[Command]], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    main, other = start_two(run)
    assert wait_until(has_step(run, 5), main)
    for rank in (main, other):
        rank.send(signal.SIGTERM)
    assert statuses([main, other]) == [0, 0]
    assert "stopped at step" in main.output.read_text()
    alone = start(run)
    assert wait_until(has_step(run, 13), alone)
    alone.send(signal.SIGTERM)
    ended = alone.wait()
    assert ended.status == 0
    assert "same draws, bits equal to rounding only (world_size 2 -> 1)" in ended.errors
    main, other = start_two(run)
    assert statuses([main, other]) == [0, 0]
    assert "same draws, bits equal to rounding only (world_size 1 -> 2)" in main.errors.read_text()
    assert_equal_to_rounding(run, reference)


@pytest.mark.slow
def test_a_signal_to_one_process_ends_both_in_order(start_two: Callable[..., list[Command]], tmp_path: Path) -> None:
    for number, step in enumerate((3, 6)):
        run = tmp_path / f"run{number}"
        ranks = start_two(run)
        assert wait_until(has_step(run, step), ranks[0])
        ranks[number].send(signal.SIGTERM)
        assert statuses(ranks) == [0, 0]
        assert checkpoints_of(run)[-1] == f"step-{steps_of(run)[-1]:08d}"


def test_a_world_of_another_size_than_asked_for_is_an_error_on_both(
    start_two: Callable[..., list[Command]], tmp_path: Path
) -> None:
    message = "training.distributed.world_size is 3 but 2 process(es) were started"
    for rank in start_two(tmp_path / "run", "training.distributed.world_size=3"):
        ended = rank.wait(20)
        assert ended.status == 2
        assert message in ended.errors
        assert "Traceback" not in ended.errors
    assert not (tmp_path / "run").exists()


def test_what_the_main_process_cannot_do_ends_both_with_one_message(
    start_two: Callable[..., list[Command]], reference_of_two: Path
) -> None:
    before = (reference_of_two / "metrics.jsonl").read_bytes()
    main, other = [rank.wait(20) for rank in start_two(reference_of_two, "training.checkpoint.resume=null")]
    assert (main.status, other.status) == (2, 2)
    assert len(main.errors.splitlines()) == 1
    assert "already holds a run" in main.errors
    assert other.errors == ""
    assert (reference_of_two / "metrics.jsonl").read_bytes() == before


def launch(arguments: list[str], folder: Path, **environment: str) -> Ended:
    """Run a launcher (torchrun, accelerate) of this environment to its end."""
    done = subprocess.run(
        [str(PROGRAMS / arguments[0]), *arguments[1:]],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_torchrun_starts_two_processes(tiny: Path, reference_of_two: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    torchrun = ["torchrun", "--nproc_per_node=2", f"--master_port={free_port()}", str(REPOSITORY / "train.py")]
    ended = launch([*torchrun, "--config", str(tiny), f"run_dir={run}"], tmp_path)
    assert ended.status == 0, ended.errors
    assert_same_run(run, reference_of_two)


@pytest.mark.slow
def test_torchrun_killed_and_started_again_ends_with_the_same_bits(
    tiny: Path, reference_of_two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (4, 8, 13, 17):
        with torchrun_started(tiny, run) as launcher:
            deadline = time.monotonic() + 60
            while not has_step(run, step)() and time.monotonic() < deadline:
                time.sleep(0.001)
            ranks = children_of(launcher.pid)
            assert len(ranks) == 2
            os.kill(ranks[step % 2], signal.SIGKILL)
            assert launcher.wait(60) == 1
    with torchrun_started(tiny, run) as launcher:
        assert launcher.wait(60) == 0
    assert_same_run(run, reference_of_two, saved_on_the_way_out=True)


def torchrun_started(tiny: Path, run: Path) -> subprocess.Popen[bytes]:
    command = [str(PROGRAMS / "torchrun"), "--nproc_per_node=2", f"--master_port={free_port()}"]
    return subprocess.Popen(
        [*command, str(REPOSITORY / "train.py"), "--config", str(tiny), f"run_dir={run}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_accelerate_launch_trains_the_same(tiny: Path, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    accelerate = ["accelerate", "launch", "--cpu", "--num_processes", "1", "--mixed_precision", "no"]
    ended = launch(
        [*accelerate, str(REPOSITORY / "train.py"), "--config", str(tiny), f"run_dir={run}"],
        tmp_path,
        HF_HOME=str(tmp_path / "no-configuration"),
    )
    assert ended.status == 0, ended.errors
    assert_same_run(run, reference)


def test_accelerates_precision_against_the_yamls_is_an_error(commands: Commands, tiny: Path, tmp_path: Path) -> None:
    arguments = ["train", str(tiny), f"run_dir={tmp_path / 'run'}", "training.mixed_precision=bf16"]
    ended = commands.start(arguments, tmp_path, {"ACCELERATE_MIXED_PRECISION": "fp16"}).wait()
    assert ended.status == 2
    assert ended.errors.strip() == (
        "training.mixed_precision is bf16 but accelerate's configuration says fp16; change one of them"
    )
    assert not (tmp_path / "run").exists()
