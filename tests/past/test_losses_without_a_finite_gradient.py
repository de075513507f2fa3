"""Focal loss of a target that was certain had an infinite gradient, for gamma from 0 to 1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from vaak.config.training import LossConfig
from vaak.core.errors import UserError
from vaak.nn.losses import make_loss, z_loss

GAMMAS = st.one_of(st.floats(0, 1), st.floats(1, 6))
LOGIT = st.one_of(st.floats(-20, 20), st.floats(-1e4, 1e4), st.integers(-200, 200).map(float))
ROWS = st.integers(2, 5).flatmap(lambda classes: st.lists(LOGIT, min_size=classes, max_size=classes))


def focal(gamma: float, logits: Tensor) -> Tensor:
    """The focal loss of rows whose target is class 0."""
    module = make_loss(LossConfig.model_validate({"main": {"type": "focal", "gamma": gamma}})).module
    values: Tensor = module(logits, torch.zeros(len(logits), dtype=torch.long))
    return values


def exact_focal(gamma: float, row: list[float]) -> float:
    """The formula in double precision, with what the target lacks to 1 summed up from the other classes."""
    largest = max(row)
    parts = [math.exp(logit - largest) for logit in row]
    missing = math.fsum(parts[1:]) / math.fsum(parts)
    nats = -math.log1p(-missing) if missing < 0.5 else largest + math.log(math.fsum(parts)) - row[0]
    return missing**gamma * nats


@given(gamma=GAMMAS, row=ROWS)
@example(gamma=0.5, row=[200.0, 0.0, 0.0])
@example(gamma=0.01, row=[17.5, 0.0])
@example(gamma=0.0, row=[0.0, -1e4])
def test_values_are_right_and_gradients_finite(gamma: float, row: list[float]):
    row = torch.tensor(row).tolist()  # in 32 bits
    expected = exact_focal(gamma, row)
    for dtype, precision in ((torch.float32, 1e-3), (torch.float64, 1e-9)):
        logits = torch.tensor([row], dtype=dtype, requires_grad=True)
        value = focal(gamma, logits)
        value.sum().backward()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()
        assert value.item() == pytest.approx(expected, rel=precision, abs=1e-30)


@given(gamma=GAMMAS, row=ROWS)
def test_gradients_are_those_of_finite_differences(gamma: float, row: list[float]):
    logits = torch.tensor([row], dtype=torch.float64).clamp(-30, 30).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: focal(gamma, rows), logits, eps=1e-6, atol=1e-6, fast_mode=True)


@given(row=ROWS)
def test_gamma_0_is_cross_entropy(row: list[float]):
    results = []
    for loss in (lambda rows: focal(0.0, rows), lambda rows: F.cross_entropy(rows, torch.zeros(1, dtype=torch.long))):
        logits = torch.tensor([row], dtype=torch.float64, requires_grad=True)
        value = loss(logits).sum()
        value.backward()
        results.append((value.detach(), logits.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


OTHERS: dict[str, dict[str, Any]] = {
    "cross_entropy": {"label_smoothing": 0.1},
    "focal": {"gamma": 0.5},
    "bce": {"label_smoothing": 0.1},
    "mse": {},
    "l1": {},
    "smooth_l1": {"beta": 0.0},
    "huber": {},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_loss_has_an_infinite_gradient_where_the_answer_is_certain(name: str, dtype: torch.dtype):
    of_classes = name in ("cross_entropy", "focal")
    certain = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3e4, -3e4], [-3e4, 3e4]], dtype=dtype)
    outputs = certain.requires_grad_()
    targets = torch.zeros(5, dtype=torch.long) if of_classes else torch.tensor([[0.0, 1.0]]).expand(5, 2)
    total = make_loss(LossConfig.model_validate({"main": {"type": name, **OTHERS[name]}}))(
        outputs, targets, per="frame"
    ).total
    (total + z_loss(outputs, targets, torch.ones(5, dtype=torch.bool)).total * 1e-4).backward()
    assert total.isfinite()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("main", "message"),
    [
        ({"type": "focal", "gamma": -0.5}, r"gamma is -0\.5; it must be 0 or more"),
        ({"type": "bce", "label_smoothing": 1.5}, r"label_smoothing is 1\.5; it must be from 0 to below 1"),
        ({"type": "huber", "delta": 0.0}, r"delta is 0\.0; it must be above 0"),
        ({"type": "smooth_l1", "beta": -1.0}, r"beta is -1\.0; it must be 0 or more"),
    ],
)
def test_an_option_with_which_a_loss_has_no_finite_value_is_refused(main: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        make_loss(LossConfig.model_validate({"main": main}))
