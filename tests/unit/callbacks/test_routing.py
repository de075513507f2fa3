"""A gate that collapses is reported once, with the remedy; one that doesn't causes no message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.callbacks.routing import RoutingCallback


def warnings_of(
    evaluations: Sequence[tuple[list[float], float]], caplog: pytest.LogCaptureFixture, resumed: bool = False
) -> list[str]:
    """Return the messages after each evaluation, given as the experts' shares and the word error rate."""
    trainer: Any = SimpleNamespace(scheduled_evaluation=True)
    callback, found = RoutingCallback("val_wer"), list[str]()
    for shares, wer in evaluations:
        if resumed:
            state = json.loads(json.dumps(callback.state_dict()))
            callback = RoutingCallback("val_wer")
            callback.load_state_dict(state)
        caplog.clear()
        uses = {f"val_expert_use/{expert}": share for expert, share in enumerate(shares)}
        callback.on_evaluate_end(trainer, {"val_wer": wer, "val_routing_entropy": 0.5, **uses})
        found.append(caplog.text)
    return found


EVEN, LEANING, ONE = [0.3, 0.3, 0.4], [0.6, 0.39, 0.01], [0.98, 0.02, 0.0]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_collapse_is_said_when_it_comes_and_when_it_gets_worse(
    resumed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    said = warnings_of(
        [(EVEN, 0.9), (LEANING, 0.89), (LEANING, 0.89), (ONE, 0.95), (ONE, 0.96), (EVEN, 0.8)], caplog, resumed
    )
    assert ["Remedy: lower the gate's learning rate" in one for one in said] == [False, True, False, True, False, False]
    assert "experts that the gate hardly chooses, of 3: 2 (1.0 %); an equal share is 33.3 %" in said[1]
    assert "less varied (entropy 0.72 nats, was 1.09" in said[1]
    assert "1 (2.0 %), 2 (0.0 %)" in said[3]
    assert "val_wer is 0.95, was 0.89 at its best" in said[3]


def test_a_gate_that_specialises_is_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of([(EVEN, 0.9), ([0.4, 0.35, 0.25], 0.8), ([0.5, 0.3, 0.2], 0.805)], caplog) == ["", "", ""]


def test_a_model_without_experts_and_an_evaluation_on_the_way_out_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    callback, uses = RoutingCallback(), {"val_expert_use/0": 1.0, "val_expert_use/1": 0.0}
    callback.on_evaluate_end(SimpleNamespace(scheduled_evaluation=True), {"val_loss": 1.0})
    callback.on_evaluate_end(SimpleNamespace(scheduled_evaluation=False), uses)
    assert caplog.text == ""
