"""``vaak inspect``: parameters, gradients and updates of a step after a checkpoint, and units that give nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from tiny_runs import hashes
from vaak.engine.inspection import watching_units


def test_it_shows_what_a_step_does_to_each_parameter_and_leaves_the_run_alone(vaak, tiny_run: Path):
    before = hashes(tiny_run)
    checkpoint = tiny_run / "checkpoints" / "step-00000004"
    code, out, _ = vaak("inspect", checkpoint, "--device", "cpu", "--json")
    assert code == 0
    found = json.loads(out)
    replayed = json.loads(vaak("replay", tiny_run, "--step", 5, "--debug", "--json")[1])
    assert (found["loss"], found["gradient_norm"]) == (replayed["loss"], replayed["gradient_norm"])
    own = {one["name"]: one for one in found["parameters"]}
    for one in replayed["parameters"]:
        mine = own[one["name"]]
        assert (mine["gradient_norm"], mine["weight_norm"]) == (one["gradient_norm"], one["weight_norm"])
        assert mine["update_to_weight"] == pytest.approx(one["update_norm"] / one["weight_norm"])
        assert (mine["count"], mine["device"], mine["trainable"]) == (math.prod(mine["shape"]), "cpu", True)
    assert math.hypot(*(one["gradient_norm"] for one in found["layers"])) == pytest.approx(
        math.hypot(*(one["gradient_norm"] for one in found["parameters"] if one["gradient_norm"] is not None))
    )
    assert len(found["dead_units"]) > 3, "each linear layer is watched"
    code, out, _ = vaak("inspect", tiny_run)
    assert code == 0
    assert "update/weights" in out
    assert "are trainable" in out
    assert hashes(tiny_run) == before


def test_inputs_that_are_always_0_are_dead():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Conv1d(4, 2, 1))
    first, convolution = cast("nn.Linear", model[0]), cast("nn.Conv1d", model[2])
    with torch.no_grad():
        first.bias.copy_(torch.tensor([-1e9, 1e3, 1e3, -1e9]))
        with watching_units(model) as alive:
            for _ in range(2):
                convolution(model[1](first(torch.randn(5, 3)))[:, :, None])
    assert {name: (~units).nonzero().flatten().tolist() for name, units in alive.items()} == {"0": [], "2": [0, 3]}


def test_what_is_no_run_is_said_in_a_line(vaak, tmp_path: Path):
    code, _, err = vaak("inspect", tmp_path)
    assert code == 2
    assert "is not a run directory" in err
