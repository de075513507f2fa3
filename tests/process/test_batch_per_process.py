"""More processes than microbatches: as accelerate has it, ``batch_size`` is per process; a resume keeps that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from commands import Commands, checkpoints_of, stat_records
from vaak.config.load import load

QUICK = (
    "training.batch_size=2", "training.scheduler={type: constant, warmup_steps: 0}", "data.corpus.num_sentences=60",
    "training.validation.interval=null", "training.checkpoint.interval=null",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_of_four_processes_and_one_microbatch_goes_on_with_two_and_with_one(
    commands: Commands, tiny: Path, tmp_path: Path
) -> None:
    """Every step has the batches and draws of one process with four microbatches."""

    def trained(run: Path, processes: int, steps: int, microbatches: int) -> str:
        options = (f"training.max_steps={steps}", f"training.gradient_accumulation_steps={microbatches}", *QUICK)
        ranks = commands.start_ranks(processes, ["train", tiny, f"run_dir={run}", *options], tmp_path)
        assert [rank.wait().status for rank in ranks] == [0] * processes, ranks[0].errors.read_text()
        return ranks[0].errors.read_text()

    ours, alone = tmp_path / "ours", tmp_path / "alone"
    trained(alone, 1, 9, microbatches=4)
    for processes, steps in ((4, 3), (2, 6), (1, 9)):
        said = trained(ours, processes, steps, microbatches=1)
        assert "the global batch of a step is 8 rows (4 microbatches): the run started on 4 processes" in said
        assert "other batches" not in said
    training = load([ours / "config.yml"]).experiment.training
    assert (training.gradient_accumulation_steps, training.distributed.processes_at_start) == (4, 4)
    taken, expected = ([record for record in stat_records(run) if record["kind"] == "step"] for run in (ours, alone))
    assert [record["step"] for record in taken] == list(range(1, 10))
    for record, other in zip(taken, expected, strict=True):
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-4)
    last = checkpoints_of(alone)[-1]
    weights = [load_file(run / "checkpoints" / last / "model.safetensors") for run in (ours, alone)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)


def test_two_processes_begin_with_one_microbatch(commands: Commands, tiny: Path, tmp_path: Path) -> None:
    options = ("training.max_steps=1", "training.gradient_accumulation_steps=1", *QUICK)
    arguments: list[str | Path] = ["train", tiny, f"run_dir={tmp_path / 'run'}", *options]
    ended = [rank.wait() for rank in commands.start_ranks(2, arguments, tmp_path)]
    assert [one.status for one in ended] == [0, 0], ended[0].errors
    assert "the global batch of a step is 4 rows (2 microbatches)" in ended[0].errors


def test_a_run_that_began_alone_still_needs_a_microbatch_for_each_process(
    commands: Commands, tiny: Path, tmp_path: Path
) -> None:
    options = ("training.gradient_accumulation_steps=1", *QUICK)
    for processes, steps, status in ((1, 2, 0), (2, 4, 2)):
        arguments: list[str | Path] = [
            "train",
            tiny,
            f"run_dir={tmp_path / 'run'}",
            f"training.max_steps={steps}",
            *options,
        ]
        ended = [rank.wait() for rank in commands.start_ranks(processes, arguments, tmp_path)]
        assert [one.status for one in ended] == [status] * processes, ended[0].errors
    assert "2 processes share the 1 microbatch(es) of a step" in ended[0].errors


def test_with_exact_sums_too_many_processes_are_refused_at_the_start(
    commands: Commands, tiny: Path, tmp_path: Path
) -> None:
    options = ("training.gradient_accumulation_steps=1", "training.distributed.reduction=exact", *QUICK)
    arguments: list[str | Path] = ["train", tiny, f"run_dir={tmp_path / 'run'}", *options]
    ended = [rank.wait() for rank in commands.start_ranks(2, arguments, tmp_path)]
    assert [one.status for one in ended] == [2, 2], ended[0].errors
    assert "set training.gradient_accumulation_steps to 2 or more" in ended[0].errors
    assert "Traceback" not in ended[0].errors
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
