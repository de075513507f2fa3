"""Two real processes (gloo) that share a step's microbatches get the gradient of one process, to 1e-10 in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from processes import run_on_two_ranks
from toy import one_step, toy_trainer
from two_ranks import UNREADABLE, make_task, take_steps

QUICK: dict[str, Any] = {"max_steps": 2, "gradient_clipping": {"norm": 0.5}}
WITH_ALL: dict[str, Any] = {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {**QUICK, "batch_size": 16, "gradient_accumulation_steps": 2},
    "losses": {**QUICK, "batch_size": 16, "gradient_accumulation_steps": 2, "loss": WITH_ALL},
    "odd": {**QUICK, "max_steps": 7, "batch_size": 8, "gradient_accumulation_steps": 2, "loss": WITH_ALL},
    "uneven": {**QUICK, "max_steps": 3, "batch_size": 8, "gradient_accumulation_steps": 5, "loss": WITH_ALL},
    "balanced": {**QUICK, "max_steps": 3, "batch_size": 8, "gradient_accumulation_steps": 5},
    "routed": {**QUICK, "max_steps": 3, "batch_size": 2, "gradient_accumulation_steps": 2},
    "skipping": {**QUICK, "max_steps": 3, "batch_size": 2, "gradient_accumulation_steps": 2},
}
"""``odd`` goes into a second epoch; ``uneven`` ends its epoch with a step of two, after steps of three and two a rank;
in ``skipping``, one rank has nothing to read in step 1, and neither has in step 2; in ``routed``, one in step 1."""

ALONE = {
    "plain": (32, 1), "losses": (32, 1), "odd": (16, 1), "uneven": (8, 5), "balanced": (8, 5), "skipping": (4, 1),
    "routed": (4, 1),
}  # fmt: skip
"""Microbatch size and number with which one process takes the same steps."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(take_steps, folder, CASES)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradients_of_one(name: str, results: Path, tmp_path: Path):
    size, pieces = ALONE[name]
    training = CASES[name] | {"batch_size": size, "gradient_accumulation_steps": pieces}
    trainer = toy_trainer(tmp_path, task=make_task(name), skip_bad=name in UNREADABLE, **training)
    for step in range(1, trainer.total_steps + 1):
        report, expected = one_step(trainer)
        for rank in range(2):
            gradients = load_file(results / f"{name}-{rank}-{step}.safetensors")
            said = json.loads((results / f"{name}-{rank}-{step}.json").read_text())
            assert gradients.keys() == expected.keys()
            for parameter, gradient in gradients.items():
                torch.testing.assert_close(gradient, expected[parameter], rtol=1e-10, atol=1e-10, msg=parameter)
            assert said["counts"] == report.counts
            assert said["buffers"] == {key: value.tolist() for key, value in trainer.model.named_buffers()}
            assert said["losses"] == pytest.approx({key: float(value) for key, value in report.losses.items()}, 1e-10)


def test_the_bias_of_experts_follows_the_choices_of_all_ranks(results: Path):
    """Up and down by 0.1 in each step, by counts that no rank alone has."""
    said = [json.loads((results / f"balanced-0-{step}.json").read_text()) for step in range(1, 4)]
    bias = [0.0, 0.0, 0.0]
    for one in said:
        use = [one["losses"][f"expert_use/{expert}"] for expert in range(3)]
        bias = [old + 0.1 * ((sum(use) > 3 * own) - (sum(use) < 3 * own)) for old, own in zip(bias, use, strict=True)]
        assert one["buffers"]["gate.bias"] == pytest.approx(bias, abs=1e-6)
    assert len(set(bias)) > 1


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_have_the_same_bits(name: str, results: Path):
    for step in range(1, CASES[name]["max_steps"] + 1):
        first, second = ((results / f"{name}-{rank}-{step}.safetensors").read_bytes() for rank in range(2))
        assert first == second
