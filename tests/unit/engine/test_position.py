"""The next batch, and whether an evaluation or a save is due, are functions of the place in the run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.engine.state import Position


@given(epoch_length=st.integers(1, 9), accumulation=st.integers(1, 4), steps=st.integers(0, 40))
def test_steps_walk_through_epochs(epoch_length: int, accumulation: int, steps: int):
    position, ended = Position(), 0
    for step in range(1, steps + 1):
        size = min(accumulation, epoch_length - position.place)
        ends = position.place + size == epoch_length
        ended += ends
        position.advance(size, ends, {"token": 2.0 * size})
        assert position.step == step
        assert 0 <= position.place < epoch_length
        assert position.epoch == ended == step // -(-epoch_length // accumulation)
        assert position.totals["token"] == 2.0 * (position.epoch * epoch_length + position.place)


def test_it_goes_on_after_json():
    position = Position()
    position.advance(3, False, {"token": 0.1})
    assert position.schedule_pending, "what is due at the new boundary is not done yet"
    again = Position(totals={"frame": 1.0})
    again.load_state_dict(json.loads(json.dumps(position.state_dict())))
    assert again == position


def test_a_copy_does_not_share_its_totals():
    position = Position()
    state = position.state_dict()
    position.advance(1, False, {"token": 1.0})
    assert state["totals"] == {}


AT_STEP_6 = Position(step=6, epoch=2, place=0)


@pytest.mark.parametrize(
    ("position", "interval", "interval_epochs", "expected"),
    [
        (Position(), 1, 1, False),  # nothing is due before the first step
        (AT_STEP_6, None, None, False),
        (AT_STEP_6, 3, None, True),
        (AT_STEP_6, 4, 1, False),  # steps, where given, and not epochs
        (AT_STEP_6, None, 2, True),
        (AT_STEP_6, None, 3, False),
        (Position(step=7, epoch=2, place=3), None, 1, False),  # in an epoch
        (Position(step=10, epoch=3, place=1), None, None, True),  # the last step
        (Position(step=11, epoch=3, place=2), None, None, True),  # beyond it, where a run was shortened
    ],
)
def test_what_is_due(position: Position, interval: int | None, interval_epochs: int | None, expected: bool):
    assert position.is_due(interval, interval_epochs, total_steps=10) is expected
