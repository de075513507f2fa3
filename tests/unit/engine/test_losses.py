"""Losses are sums over the valid targets, equal to direct formulas, whatever the module returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from vaak.config.base import REGISTERED
from vaak.config.training import LossConfig
from vaak.core.errors import UserError
from vaak.nn import cross_entropy
from vaak.nn.losses import LossRegistry, auxiliary_losses, make_loss, z_loss

CLASSES = 7


def ragged(dtype=torch.float64, seed=0):
    """Logits (3, 5, classes), targets (3, 5), and which are valid."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, 5, CLASSES, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, CLASSES, (3, 5), generator=generator)
    valid = torch.arange(5)[None, :] < torch.tensor([5, 2, 3])[:, None]
    return outputs, targets, valid


@pytest.fixture(params=["few logits", "many logits"])
def amount(request, monkeypatch):
    """Cross-entropy by torch's kernel, and by ours in chunks of two rows."""
    if request.param == "many logits":
        monkeypatch.setattr(cross_entropy, "CPU_LOGITS_AT_ONCE", 2 * CLASSES)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs_sum_with_its_gradient(amount, smoothing):
    outputs, targets, valid = ragged()
    term = make_loss(LossConfig(label_smoothing=smoothing))(outputs, targets, valid)
    expected = F.cross_entropy(outputs[valid], targets[valid], reduction="sum", label_smoothing=smoothing)
    assert term.per == "token"
    torch.testing.assert_close(term.total, expected, rtol=1e-13, atol=0)
    (ours,) = torch.autograd.grad(3 * term.total, outputs)
    (theirs,) = torch.autograd.grad(3 * expected, outputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    assert not ours[~valid].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_in_chunks_has_the_gradient_of_its_values(monkeypatch, smoothing):
    monkeypatch.setattr(cross_entropy, "CPU_LOGITS_AT_ONCE", 2 * CLASSES)
    outputs, targets, valid = ragged()
    module = cross_entropy.CrossEntropy(smoothing)
    assert torch.autograd.gradcheck(lambda logits: module(logits, targets, valid), outputs, fast_mode=True)


def test_cross_entropy_of_16_bits_is_computed_in_32(amount):
    outputs, targets, valid = ragged(torch.bfloat16)
    total = make_loss(LossConfig())(outputs, targets, valid).total
    assert total.dtype == torch.float32
    expected = F.cross_entropy(outputs.float()[valid], targets[valid], reduction="sum")
    torch.testing.assert_close(total, expected)
    (gradient,) = torch.autograd.grad(total, outputs)
    assert gradient.dtype == torch.bfloat16


def test_ignored_targets_may_hold_anything(amount):
    outputs, targets, valid = ragged()
    loss = make_loss(LossConfig())
    marked = targets.masked_fill(~valid, -100)
    assert torch.equal(loss(outputs, targets, valid).total, loss(outputs, marked, valid).total)


DIRECT = {
    "mse": lambda difference: difference**2,
    "l1": abs,
    "smooth_l1": lambda difference: difference**2 / (2 * 0.5) if abs(difference) < 0.5 else abs(difference) - 0.5 * 0.5,
    "huber": lambda difference: difference**2 / 2 if abs(difference) < 0.5 else 0.5 * (abs(difference) - 0.5 * 0.5),
}


def loss_config(main: dict[str, Any], **options: Any) -> LossConfig:
    return LossConfig.model_validate({"main": main, **options})


OPTIONS = {"smooth_l1": {"beta": 0.5}, "huber": {"delta": 0.5}}


@pytest.mark.parametrize("name", DIRECT)
def test_regression_losses_are_their_formulas(name):
    outputs, _, valid = ragged()
    targets = torch.randn(3, 5, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = make_loss(loss_config({"type": name, **OPTIONS.get(name, {})}))
    difference = (outputs - targets)[valid].tolist()
    expected = sum(sum(DIRECT[name](value) for value in target) / CLASSES for target in difference)
    assert loss(outputs, targets, valid, per="frame").total.item() == pytest.approx(expected, rel=1e-13)
    assert loss(outputs, targets, valid, per="frame").per == "frame"
    single = sum(DIRECT[name](target[0]) for target in difference)
    assert loss(outputs[..., :1], targets[..., 0], valid).total.item() == pytest.approx(single, rel=1e-13)


def test_binary_cross_entropy_is_its_formula():
    outputs, _, valid = ragged()
    answers = torch.randint(0, 2, (3, 5, CLASSES), generator=torch.Generator().manual_seed(1))
    soft = answers * 0.8 + 0.1
    p = torch.sigmoid(outputs)
    expected = -(soft * p.log() + (1 - soft) * (1 - p).log()).mean(-1)[valid].sum()
    total = make_loss(loss_config({"type": "bce"}, label_smoothing=0.2))(outputs, answers, valid).total
    torch.testing.assert_close(total, expected)


def test_focal_loss_is_its_formula():
    outputs, targets, valid = ragged()
    p = torch.softmax(outputs, -1).gather(-1, targets[..., None]).squeeze(-1)
    expected = (-((1 - p) ** 1.5) * p.log())[valid].sum()
    torch.testing.assert_close(
        make_loss(loss_config({"type": "focal", "gamma": 1.5}))(outputs, targets, valid).total, expected
    )


def test_z_loss_is_the_square_of_log_z():
    outputs, targets, valid = ragged()
    expected = sum(torch.log(torch.exp(row).sum()) ** 2 for row in outputs[valid])
    term = z_loss(outputs, targets, valid)
    torch.testing.assert_close(term.total, expected)
    (gradient,) = torch.autograd.grad(term.total, outputs)
    assert not gradient[~valid].any()


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "huber", "z_loss"])
def test_no_valid_target_gives_zero_with_a_gradient(name, amount):
    outputs, targets, valid = ragged()
    nothing = torch.zeros_like(valid)
    outputs = outputs if name in ("cross_entropy", "z_loss") else outputs[..., 0]
    term = (
        z_loss(outputs, targets, nothing)
        if name == "z_loss"
        else make_loss(loss_config({"type": name}))(outputs, targets, nothing)
    )
    (gradient,) = torch.autograd.grad(term.total, outputs)
    assert term.total.item() == 0
    assert not gradient.any()


class PerTarget(nn.Module):
    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")


class Mean(nn.Module):
    def forward(self, outputs, targets):
        return F.cross_entropy(outputs, targets)


class MeanPerUtterance(Mean):
    per = "utterance"


class Wrong(nn.Module):
    def forward(self, outputs, targets):
        return outputs.square()


class Scaled(nn.Module):
    def __init__(self, scale: float, offset: float = 0.0) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset

    def forward(self, outputs, targets):
        return self.scale * F.cross_entropy(outputs, targets, reduction="none") + self.offset


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setitem(REGISTERED, "training.loss.main", {})
    return LossRegistry


@given(seed=st.integers(0, 1000))
def test_a_module_of_ones_own_may_give_values_or_their_mean(seed):
    outputs, targets, valid = ragged(seed=seed)
    expected = make_loss(LossConfig())(outputs, targets, valid).total
    LossRegistry.register("per_target_of_test", PerTarget)
    LossRegistry.register("mean_of_test", Mean)
    for name in ("per_target_of_test", "mean_of_test"):
        torch.testing.assert_close(make_loss(loss_config({"type": name}))(outputs, targets, valid).total, expected)


def test_a_mean_over_another_unit_or_a_wrong_shape_is_refused_by_name(registry):
    outputs, targets, valid = ragged()
    registry.register("per_utterance", MeanPerUtterance)
    registry.register("wrong", Wrong)
    loss = make_loss(loss_config({"type": "per_utterance"}))
    assert loss(outputs, targets, valid, per="utterance").per == "utterance"
    with pytest.raises(UserError, match="per_utterance gives a mean per utterance, but here it has targets per token"):
        loss(outputs, targets, valid)
    with pytest.raises(UserError, match=r"wrong must give one number or one for each of 10 targets, not \(10, 7\)"):
        make_loss(loss_config({"type": "wrong"}))(outputs, targets, valid)
    with pytest.raises(UserError, match=r"mse: outputs have shape \(15, 7\) and targets \(15,\)"):
        make_loss(loss_config({"type": "mse"}))(outputs, targets, valid)


def test_a_loss_from_a_file_gets_its_options(tmp_path):
    (tmp_path / "my_loss.py").write_text(
        "from torch import nn\n"
        "class Scaled(nn.Module):\n"
        "    def __init__(self, scale=1.0):\n"
        "        super().__init__()\n"
        "        self.scale = scale\n"
        "    def forward(self, outputs, targets):\n"
        "        return self.scale * nn.functional.cross_entropy(outputs, targets, reduction='none')\n"
    )
    outputs, targets, valid = ragged()
    loss = make_loss(loss_config({"type": "./my_loss.py:Scaled", "scale": 2.0}), tmp_path)
    torch.testing.assert_close(
        loss(outputs, targets, valid).total, 2 * make_loss(LossConfig())(outputs, targets, valid).total
    )


def test_mistakes_in_the_configuration_are_said(registry):
    registry.register("scaled", Scaled)
    for config, message in (
        (loss_config({"type": "cross_entrpy"}), "did you mean cross_entropy"),
        (loss_config({"type": "scaled", "scal": 1}), r"scaled has no option scal; its options are scale, offset"),
        (loss_config({"type": "mse", "beta": 1}), "mse has no option beta; it has no options"),
        (loss_config({"type": "scaled"}), "scaled can't be created: .*scale"),
        (loss_config({"type": "mse"}, label_smoothing=0.1), "mse has no label smoothing"),
        (loss_config({"type": "cross_entropy", "label_smoothing": 0.1}, label_smoothing=0.1), "given twice"),
        (loss_config({"type": "cross_entropy", "label_smoothing": 1.5}), "must be from 0 to below 1"),
        (loss_config({"type": "vaak.nn.losses:Loss"}), "is not a torch.nn.Module"),
    ):
        with pytest.raises(UserError, match=message):
            make_loss(config)
    with pytest.raises(UserError, match="built-in"):
        registry.register("mse", Mean)


def test_auxiliary_losses_are_known_by_name():
    assert auxiliary_losses(LossConfig(auxiliary={"z_loss": 1e-4})) == {"z_loss": 1e-4}
    assert auxiliary_losses(LossConfig(auxiliary={"balance": 0.1}), ["balance"]) == {"balance": 0.1}
    with pytest.raises(UserError, match=r"'z_los' is not known; expected one of .*z_loss; did you mean z_loss"):
        auxiliary_losses(LossConfig(auxiliary={"z_los": 1.0}))
