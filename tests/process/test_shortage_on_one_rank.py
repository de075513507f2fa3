"""One of two real processes runs out of memory: neither hangs, and the weights are those of one large machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from processes import run_on_ranks, run_on_two_ranks
from shortage import RANKS, train_a_divided_model, train_beside_a_small_machine
from toy import ToyTask, toy_trainer, weights
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(train_beside_a_small_machine, folder)
    return folder


def cuts(path: Path) -> list[dict[str, object]]:
    return [json.loads(line)["cut"] for line in path.read_text().splitlines()]


def test_the_weights_are_those_of_one_large_machine(run: Path, tmp_path: Path):
    alone = toy_trainer(tmp_path, task=ToyTask(dropout=0.0, dtype=torch.float64), **RANKS)
    alone.fit()
    saved = load_checkpoint(resolve_checkpoint(run / "checkpoints" / "last"))
    assert saved.step == alone.position.step
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(saved.model[name], tensor, rtol=1e-10, atol=1e-10, msg=name)
    assert saved.state["metrics"]["figures"] == pytest.approx(alone.metrics, rel=1e-6)  # toys are evaluated in float32


def test_each_writes_down_its_own_cuts_and_all_keep_to_them(run: Path):
    """Rank 1 cut its microbatches 1 and 3 of step 2; from step 3 on both ranks cut those as large or larger.

    Step 6 is the first with a smaller one that is too large as well. Evaluation is cut on rank 1 alone.
    """

    def cut(step: int, chunks: int, numbers: list[int] | None, padded_size: float) -> dict[str, object]:
        place = {"step": step, "pieces": chunks, "numbers": numbers, "cells": padded_size}
        return {**place, "split": None, "rank": 0, "objective": 0}

    own = [cut for cut in cuts(run / "splits.rank1.jsonl") if cut["split"] is None]
    assert own == [cut(2, 2, [1, 3], 28), cut(2, 4, [1, 3], 28), cut(6, 2, [1], 24), cut(6, 4, [1], 24)]
    others = cuts(run / "splits.jsonl")
    assert others == [cut(3, 2, None, 28), cut(3, 4, None, 28), cut(7, 2, None, 24), cut(7, 4, None, 24)]
    evaluation = [cut for cut in cuts(run / "splits.rank1.jsonl") if cut["split"] == "valid"]
    assert [(cut["step"], cut["pieces"], cut["rank"]) for cut in evaluation] == [(3, 2, 1)]


@pytest.mark.slow
def test_where_they_share_a_model_all_end_and_resume_in_smaller_chunks(tmp_path: Path):
    shared = tmp_path / "shared"
    assert run_on_ranks(2, train_a_divided_model, shared) == [2, 2]
    assert "--resume auto" in (shared / "said-1").read_text()
    assert "ended" in (shared / "said-0").read_text()
    own = [cut for cut in cuts(shared / "splits.rank1.jsonl") if cut["split"] is None]
    assert [(cut["step"], cut["pieces"]) for cut in own] == [(2, 2)]
    while (ends := run_on_ranks(2, train_a_divided_model, shared)) != [
        0,
        0,
    ]:  # each time that a smaller one is too large
        assert ends == [2, 2]
        assert len(cuts(shared / "splits.rank1.jsonl")) < 5
    alone = toy_trainer(tmp_path / "alone", task=ToyTask(dropout=0.0, dtype=torch.float64), **RANKS)
    alone.fit()
    saved = load_checkpoint(resolve_checkpoint(shared / "checkpoints" / "last"))
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(saved.model[name], tensor, rtol=1e-6, atol=1e-6, msg=name)
    assert saved.state["metrics"]["figures"] == pytest.approx(alone.metrics, rel=1e-6)
