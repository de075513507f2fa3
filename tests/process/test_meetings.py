"""What real processes say to each other: one message a step, decisions of rank 0, comparisons, gradients."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from meetings import gradients, heard, talk
from processes import run_on_ranks
from vaak.engine.distributed.ranks import Ranks

EMPTY: dict[str, Any] = {}
CHUNK_RULES = [
    [{"step": 3, "pieces": 4, "cells": 36.0}, "swap"],
    [{"step": 3, "pieces": 2, "cells": 24.0}, "memory is short"],
]
"""In how many chunks microbatches are to be computed, each with the reason."""


def on_ranks(world_size: int, case: str, folder: Path, *arguments: Any) -> list[dict[str, Any]]:
    assert run_on_ranks(world_size, talk, world_size, case, folder, *arguments, seconds=60) == [0] * world_size
    return heard(folder, case, world_size)


def test_one_small_message_says_all(tmp_path: Path):
    """Quick rounds take one collective; only new names and texts take another."""
    tokens = [{"counts": {"token": 3.0, "row": 1}}, {"counts": {"token": 0.5, "row": 2}}]
    many = [{"counts": {f"unit{number}": 1.0 for number in range(20)}}] * 3
    rounds: list[tuple[list[dict[str, Any]], dict[str, Any], int]] = [
        ([*tokens, EMPTY], {"counts": {"token": 3.5, "row": 3.0}}, 2),  # rank 2 can't know the names yet
        ([*tokens, EMPTY], {"counts": {"token": 3.5, "row": 3.0}}, 1),
        ([EMPTY, EMPTY, EMPTY], {"counts": {}}, 1),
        ([EMPTY, {"evaluate": True}, {"save": True}], {"evaluate": True, "save": True}, 1),
        ([{"saved": 12}, {"saved": 3}, EMPTY], {"saved": 12}, 1),
        ([EMPTY, {"stop": "SIGTERM"}, {"stop": "patience"}], {"stop": "SIGTERM"}, 2),
        ([{"stop": "patience"}] * 3, {"stop": "patience"}, 1),
        (
            [EMPTY, {"chunk_rules": [CHUNK_RULES[0]]}, {"chunk_rules": [CHUNK_RULES[1]]}],
            {"chunk_rules": CHUNK_RULES},
            2,
        ),
        ([{"counts": {"frame": 2.0}}, tokens[0], EMPTY], {"counts": {"frame": 2.0, "token": 3.0, "row": 1.0}}, 2),
        ([{"counts": {"frame": 2.0}}, tokens[0], EMPTY], {"counts": {"frame": 2.0, "token": 3.0, "row": 1.0}}, 1),
        (many, {"counts": {f"unit{number}": 3.0 for number in range(20)}}, 2),
    ]
    default: dict[str, Any] = {
        "stop": None,
        "evaluate": False,
        "save": False,
        "chunk_rules": [],
        "saved": 0,
        "counts": {},
    }
    for said in on_ranks(3, "exchange", tmp_path, [messages for messages, _, _ in rounds]):
        for (result, calls), (_, expected, expected_calls) in zip(said["result"], rounds, strict=True):
            assert result == default | expected
            assert calls <= expected_calls + (expected_calls > 1)  # a gather of more than 1 KB takes two


@pytest.mark.parametrize("failure", [None, "the corpus is empty"])
def test_rank_0_decides_for_all_however_long_it_takes(tmp_path: Path, failure: str | None):
    """Collectives of these ranks time out after a second; rank 0 takes longer."""
    codes = run_on_ranks(3, talk, 3, "decide", tmp_path, 1.5, failure, seconds=60)
    said = heard(tmp_path, "decide", 3)
    assert all(one["seconds"] > 1.4 for one in said)
    if failure is None:
        assert codes == [0, 0, 0]
        assert [one["result"]["step"] for one in said] == [3, 3, 3]
    else:
        assert [one["error"] for one in said] == [failure] * 3
        assert [one["kind"] for one in said] == ["UserError", "RemoteError", "RemoteError"]


def test_who_waits_for_a_rank_0_that_is_killed_ends_with_a_line(tmp_path: Path):
    codes = run_on_ranks(3, talk, 3, "decide", tmp_path, 1.0, "killed", seconds=30)
    assert codes == [-signal.SIGKILL, 2, 2]
    for rank in (1, 2):
        said = heard_of(tmp_path, "decide", rank)
        assert said["error"].startswith("rank 0 (process ")
        assert f"has ended, and so this one (rank {rank})" in said["error"]
        assert said["seconds"] < 10


@pytest.mark.parametrize(
    ("during", "victim"),
    [
        ("exchange", 1),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("reduction", 2), ("barrier", 1))),
        ("any", 0),
    ],
)
def test_a_rank_that_is_killed_is_named_by_all_others(tmp_path: Path, during: str, victim: int):
    codes = run_on_ranks(3, talk, 3, "die", tmp_path, victim, during, seconds=30)
    for rank in range(3):
        assert codes[rank] == (-signal.SIGKILL if rank == victim else 2)
        if rank != victim:
            assert f"rank {victim} (process " in heard_of(tmp_path, "die", rank)["error"]


def heard_of(folder: Path, case: str, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"{case}-{rank}.json").read_text())


def test_ranks_that_run_the_same_compare_silently_and_others_are_named(tmp_path: Path):
    values = {"training": {"random_seed": 42, "optimizer": {"lr": 0.001}}, "torch": "2.13.0"}
    assert [said["result"] for said in on_ranks(2, "compare", tmp_path, [values, values])] == ["the same"] * 2
    other = {"training": {"random_seed": 7, "optimizer": {"lr": 0.001}}, "torch": "2.13.0", "new": 1}
    assert run_on_ranks(3, talk, 3, "compare", tmp_path, [values, values, other], seconds=60) == [2, 2, 2]
    assert [said["error"] for said in heard(tmp_path, "compare", 3)] == [
        "at the start: rank 2 runs with new 1, rank 0 with nothing; rank 2 runs with training.random_seed 7, rank 0 "
        "with 42: start all processes with the same files and options"
    ] * 3


def test_any_rank(tmp_path: Path):
    rounds = [[False, False], [False, True], [True, True]]
    for said in on_ranks(2, "any", tmp_path, rounds):
        assert said["result"] == [False, True, True]


STEPS = [[0, 1, 2, 3, 5], [1, 3, 5, 7], [2, 4], [9], [1, 2, 3, 4]]
"""Microbatches of each step: with 2 ranks the left branch is reached by one rank, by both, by none; one has nothing."""


@pytest.mark.parametrize(
    ("world_size", "bucket_bytes"),
    [
        (2, 64),
        (3, 100),
        *(pytest.param(number, 2**20, marks=pytest.mark.slow) for number in (2, 4)),
    ],
)
def test_gradients_and_terms_are_those_of_one_process(tmp_path: Path, world_size: int, bucket_bytes: int):
    alone = gradients(Ranks(torch.device("cpu")), STEPS, bucket_bytes)
    every = on_ranks(world_size, "gradients", tmp_path, STEPS, bucket_bytes)
    again = on_ranks(world_size, "gradients", tmp_path, STEPS, bucket_bytes)
    for said, said_again in zip(every, again, strict=True):
        assert said["result"] == said_again["result"]  # the same bits
        for step, expected in zip(said["result"], alone, strict=True):
            assert step["sums"] == pytest.approx(expected["sums"], rel=1e-5)
            assert (step["units"], step["reached"]) == (expected["units"], expected["reached"])
            for name, gradient in expected["gradients"].items():
                if gradient is None:
                    assert step["gradients"][name] is None, name
                else:
                    tolerance = 0.03 if name == "coarse" else 1e-5
                    assert step["gradients"][name] == pytest.approx(gradient, rel=tolerance, abs=1e-5), name
    for said in every[1:]:  # the same on every rank, except the order of names
        assert said["result"] == every[0]["result"]


def test_sums_that_begin_in_a_backward_are_the_same_to_the_bit(tmp_path: Path):
    """Where some parameters aren't reached on some ranks, too, and a rank has nothing."""
    late = on_ranks(3, "gradients", tmp_path, STEPS, 64)
    early = on_ranks(3, "gradients", tmp_path, STEPS, 64, True)
    began = [
        step["calls"] < expected["calls"] for step, expected in zip(early[0]["result"], late[0]["result"], strict=True)
    ]
    assert any(began)
    for ours, theirs in zip(early, late, strict=True):
        for step, expected in zip(ours["result"], theirs["result"], strict=True):
            assert step | {"calls": 0} == expected | {"calls": 0}


def test_a_step_takes_one_sum_for_each_bucket(tmp_path: Path):
    """Of 32 and 16 bits, one bucket each; names of terms are sent when they are new."""
    said = on_ranks(2, "gradients", tmp_path, STEPS, 2**20)[0]["result"]
    assert [step["calls"] for step in said] == [3, 2, 2, 2, 2]
