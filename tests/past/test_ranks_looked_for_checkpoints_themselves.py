"""Each rank looked for the checkpoint itself: with a stale or a local folder on one of them, both hung."""

from __future__ import annotations

from pathlib import Path

import pytest

import two_nodes
from processes import run_on_two_ranks
from toy import StopAt, toy_trainer


def make_nodes(folder: Path, *steps: int) -> None:
    """Folders node0 and node1; where there are steps, ``run`` in it has a checkpoint of the last one."""
    for rank, last in enumerate(steps):
        (folder / f"node{rank}").mkdir()
        if last:
            toy_trainer(folder / f"node{rank}" / "run", StopAt(last)).fit()


@pytest.mark.parametrize("steps_of_rank_1", [0, 2])
def test_a_rank_that_does_not_see_it_ends_both_with_a_line(tmp_path: Path, steps_of_rank_1: int):
    make_nodes(tmp_path, 3, steps_of_rank_1)
    run_on_two_ranks(two_nodes.resume_unseen, tmp_path)


def test_the_main_process_decides(tmp_path: Path):
    make_nodes(tmp_path, 3, 2)
    run_on_two_ranks(two_nodes.resume_as_the_main_process_says, tmp_path)


def test_a_node_without_the_run_directory_ends_both_with_a_line(tmp_path: Path):
    make_nodes(tmp_path, 0, 0)
    run_on_two_ranks(two_nodes.begin_unseen, tmp_path)
