"""One of two processes runs something else, sees another folder, is slow, or is killed: one line, and no one hangs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from processes import run_on_ranks
from quick_cases import mostly_slow
from rank_faults import Fault, train_together
from tiny_runs import write_corpus

SECONDS = 60
"""Until a test says that a rank hangs: 30 and what starting takes on a machine that has others to run."""


def lines(folder: Path, fault: Fault, codes: Sequence[int], *overrides: str) -> list[str]:
    """Train with a fault, check the exit codes, and return the output of the ranks that weren't killed."""
    write_corpus(folder)
    assert run_on_ranks(2, train_together, folder, fault, *overrides, seconds=SECONDS) == list(codes)
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("[01].json"))]
    assert all(one["seconds"] < 30 for one in told)
    return [one["said"] for one in told if one["said"]]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        pytest.param(
            Fault(1, overrides=("training.random_seed=7",)),
            "rank 1 runs with training.random_seed 7, rank 0 with 42",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Fault(0, overrides=("training.optimizer.lr=0.5",)),
            "rank 1 runs with training.optimizer.lr 0.01, rank 0 with 0.5",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Fault(1, overrides=("model.d_model=64",)),
            "rank 1 runs with model.d_model 64, rank 0 with 32",
            marks=pytest.mark.slow,
        ),
        (Fault(1, version="9.9"), "rank 1 runs with versions.vaak 9.9, rank 0 with "),
    ],
    ids=["seed", "rate", "model", "version"],
)
def test_processes_that_run_something_else_are_told_apart(tmp_path: Path, fault: Fault, named: str):
    (said,) = lines(tmp_path, fault, [2, 2])
    assert named in said
    assert "start all processes with the same files and options" in said
    assert "\n" not in said
    assert not (tmp_path / "run").exists()


def test_muon_refuses_processors_of_which_some_multiply_bf16(tmp_path: Path):
    """Each process updates all weights, which would drift apart."""
    (said,) = lines(tmp_path, Fault(1, has_no_bf16=True), [2, 2], "training.optimizer.type=muon")
    assert "different processors: rank 1 runs with muon in float32, rank 0 with bfloat16: use processors" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "named"), mostly_slow([("other", "data"), ("other weights", "weights")], "other weights")
)
def test_processes_with_other_data_or_weights_are_told_apart(tmp_path: Path, data: str, named: str):
    (said,) = lines(tmp_path, Fault(1, data=data), [2, 2])
    assert "rank 1 runs with " in said
    assert named in said
    assert "\n" not in said


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_signal_during_an_evaluation_is_heard_whoever_gets_it(tmp_path: Path, first: int):
    """It was honoured on one process only; several evaluated to the end."""
    fault = Fault(first, signalled_in="meters")
    assert lines(tmp_path, fault, [0, 0], "training.validation.batch_size=1") == []
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == [1, 2]
    assert not [record for record in records if record["kind"] == "evaluation"]
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()


def test_a_folder_that_is_not_shared_is_named(tmp_path: Path):
    (said,) = lines(tmp_path, Fault(1, folder="elsewhere"), [2, 2])
    assert said.startswith("rank 1 on ")
    assert "see run as rank 0 writes it: the run directory must be the same for all processes" in said


@pytest.mark.slow
def test_a_preparation_that_takes_longer_than_the_time_out_is_waited_for(tmp_path: Path):
    """Ranks that waited for it timed out."""
    fault = Fault(0, slow_seconds=2.5)
    assert lines(tmp_path, fault, [0, 0], "training.distributed.timeout_minutes=0.03") == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_a_divided_run_that_can_no_longer_be_saved_ends_and_goes_on(strategy: str, tmp_path: Path):
    """All end within seconds; screen and log name the checkpoint from which the run resumes, to the same bits."""
    how = (f"training.distributed.strategy={strategy}", "training.checkpoint.interval=1")
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    for folder in (whole, cut):
        folder.mkdir()
    assert lines(whole, Fault(0), [0, 0], *how) == []
    said = lines(cut, Fault(0, full_after=1), [2, 2], *how)
    assert re.search("can't be written: .*File too large.*; the earlier ones are complete$", said[0])
    assert said[1].startswith("rank 0 (process ")
    assert all("\n" not in line for line in said)
    (warned,) = re.findall(
        "step ([234]) was reached, but its state .* resumes from (.*)", (cut / "run/train.log").read_text()
    )
    checkpoints = sorted(path.name for path in (cut / "run/checkpoints").glob("step-*"))
    assert warned[1].endswith(checkpoints[-1])
    assert lines(cut, Fault(0), [0, 0], *how, "training.checkpoint.resume=auto") == []
    last = "run/checkpoints/step-00000004"
    for file in ("model", "optimizer"):
        assert (cut / last / f"{file}.safetensors").read_bytes() == (whole / last / f"{file}.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_divided_checkpoint_is_written_beside_the_training_and_whole_or_not_at_all(victim: int, tmp_path: Path):
    """One rank is killed while the second is written, after a further step; the run resumes from the first."""
    how = ("training.distributed.strategy=fsdp", "training.checkpoint.interval=1", "training.validation.interval=4")
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    for folder in (whole, cut):
        folder.mkdir()
    assert lines(whole, Fault(0), [0, 0], *how) == []
    codes = [-signal.SIGKILL, 2] if victim == 0 else [2, -signal.SIGKILL]
    (said,) = lines(cut, Fault(victim, killed_in="write"), codes, *how)
    assert said.startswith(f"rank {victim} (process ")
    assert [one.name for one in (cut / "run/checkpoints").glob("step-*")] == ["step-00000001"]
    assert lines(cut, Fault(0), [0, 0], *how, "training.checkpoint.resume=auto") == []
    last = "run/checkpoints/step-00000004"
    for file in ("model", "optimizer"):
        assert (cut / last / f"{file}.safetensors").read_bytes() == (whole / last / f"{file}.safetensors").read_bytes()


MOMENTS = ("model", "losses", "on_fit_start", "on_step_end", "meters", "on_evaluate_end", "on_checkpoint")
QUICK = {("losses", 1), ("on_checkpoint", 0)}


@pytest.mark.parametrize(
    ("moment", "victim"),
    [
        pytest.param(moment, victim, marks=[] if (moment, victim) in QUICK else [pytest.mark.slow])
        for moment in MOMENTS
        for victim in (0, 1)
    ],
)
def test_one_that_is_killed_is_named_by_the_other(tmp_path: Path, moment: str, victim: int):
    codes = [-signal.SIGKILL, 2] if victim == 0 else [2, -signal.SIGKILL]
    (said,) = lines(tmp_path, Fault(victim, killed_in=moment), codes)
    assert said.startswith(f"rank {victim} (process ")
    assert f"has ended, and so this one (rank {1 - victim}); resume with --resume auto" in said


def test_a_rank_0_that_is_killed_while_it_prepares_is_named(tmp_path: Path):
    (said,) = lines(tmp_path, Fault(0, killed_in="prepare"), [-signal.SIGKILL, 2])
    assert said.startswith("rank 0 (process ")
