"""Shares add up, and every verdict says what takes the time and names an option that helps."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.callbacks import profiler as profile
from vaak.callbacks.profiler import STEP_PHASES, Circumstances, Profile, verdict

ORDINARY = Circumstances(num_workers=2, cores=8)
seconds = st.dictionaries(st.sampled_from((*STEP_PHASES, "evaluation", "saving")), st.floats(0, 1e6), min_size=1)
circumstances = st.builds(
    Circumstances,
    num_workers=st.integers(0, 64),
    cores=st.integers(1, 64),
    padding_waste=st.floats(0, 1),
    world_size=st.integers(1, 8),
    mfu=st.none() | st.floats(0, 1),
)


def shares_of(**given: float) -> dict[str, float]:
    """Return shares of a step, with the remainder as forward."""
    shares = dict.fromkeys(STEP_PHASES, 0.0) | given
    return shares | {"forward": 1.0 - sum(value for name, value in shares.items() if name != "forward")}


@given(seconds)
def test_shares_add_up_to_the_training_time(given: dict[str, float]):
    shares = Profile(1, given).shares()
    assert tuple(shares) == STEP_PHASES
    assert sum(shares.values()) == pytest.approx(1.0 if any(given.get(name) for name in STEP_PHASES) else 0.0)


@given(st.lists(st.builds(Profile, st.integers(1, 9), seconds, st.just({"token": 8.0})), max_size=5))
def test_profiles_add_up(windows: list[Profile]):
    whole = Profile()
    for window in windows:
        whole.add(window)
    assert whole.steps == sum(window.steps for window in windows)
    assert whole.training_seconds == pytest.approx(sum(window.training_seconds for window in windows))
    assert whole.counts.get("token", 0.0) == 8.0 * len(windows)


def test_evaluations_and_checkpoints_are_in_no_share_and_no_rate():
    busy = Profile(2, {"forward": 3.0, "gap": 1.0}, {"token": 40.0})
    interrupted = Profile(2, busy.seconds | {"evaluation": 50.0, "saving": 9.0}, busy.counts)
    assert interrupted.shares() == busy.shares()
    assert interrupted.rates() == busy.rates() == {"tokens_per_second": 10.0}
    assert interrupted.figures(None)["evaluation_seconds"] == 50.0


@given(seconds, circumstances)
def test_there_is_always_a_verdict(given: dict[str, float], where: Circumstances):
    lines = verdict(Profile(1, given).shares(), where)
    assert lines
    assert all(": " in line and " %" in line for line in lines)


@given(st.floats(0.1, 1.0), circumstances)
def test_waiting_for_data_is_never_passed_over(loading: float, where: Circumstances):
    lines = verdict(shares_of(loading=loading), where)
    assert sum("waiting for data" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("shares", "where", "expected"),
    [
        (
            {"loading": 0.62},
            ORDINARY,
            "62 % of the time is spent waiting for data: raise training.performance",
        ),
        ({"loading": 0.62}, replace(ORDINARY, num_workers=8), "num_workers is 8 already, with 8 core(s)"),
        ({"loading": 0.62}, replace(ORDINARY, num_workers=8), "raise prefetch_factor"),
        (
            {"gap": 0.31},
            ORDINARY,
            "31 % of the time passes between the parts of a step: raise training.logging",
        ),
        ({"gap": 0.31}, replace(ORDINARY, world_size=2), "or it waits for other processes"),
        ({"optimizer": 0.4}, ORDINARY, "40 % of the time is spent in the optimizer: raise training.batch_size"),
        ({"optimizer": 0.4}, replace(ORDINARY, world_size=2), "or it waits for other processes"),
        ({}, replace(ORDINARY, padding_waste=0.67), "67 % of a batch is padding: use training.batching bucketed"),
        ({}, replace(ORDINARY, mfu=0.08), "the device does 8 % of what it could (MFU): raise training.batch_size"),
        ({"optimizer": 0.07}, replace(ORDINARY, mfu=0.4), "the device is busy: 93 % forward and backward"),
    ],
)
def test_a_verdict_names_the_cause_and_what_to_do(shares: dict[str, float], where: Circumstances, expected: str):
    lines = verdict(shares_of(**shares), where)
    assert len(lines) == 1
    assert expected in lines[0]


def test_what_costs_most_comes_first():
    lines = verdict(shares_of(loading=0.2, gap=0.4), replace(ORDINARY, padding_waste=0.3))
    assert [line.split(" of ")[0] for line in lines] == ["40 %", "20 %", "30 %"]


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(profile).failed == 0
