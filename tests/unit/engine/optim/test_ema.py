"""The average of the weights follows its recursion, takes the model's place and gives it back to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from toy import ToyTask, same_bits, toy_trainer, weights
from vaak.config.training import EmaConfig
from vaak.core.errors import CheckpointError
from vaak.engine.optim.optimizer_state import WeightAverage


class Tied(nn.Module):
    """Two names for one matrix, a buffer, and a layer in another precision."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = nn.LayerNorm(3, dtype=dtype)
        self.register_buffer("seen", torch.zeros(()))


def content(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def move(model: nn.Module, number: int) -> None:
    """Give the model other weights, as a step would."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


@given(
    decay=st.floats(0.0, 0.9999),
    warmup=st.booleans(),
    start_step=st.integers(1, 6),
    steps=st.integers(0, 12),
    seed=st.integers(0, 2**20),
)
def test_the_average_is_that_of_the_recursion_in_float64(decay, warmup, start_step, steps, seed):
    model = nn.Linear(3, 2, dtype=torch.float64)
    average = WeightAverage(model, EmaConfig(decay=decay, warmup=warmup, start_step=start_step))
    expected: torch.Tensor | None = None
    for step in range(1, steps + 1):
        move(model, seed + step)
        average.update(step)
        averaged_before = step - start_step
        if averaged_before == 0:
            expected = model.weight.detach().clone()
        elif expected is not None:
            kept = min(decay, (1 + averaged_before) / (10 + averaged_before)) if warmup else decay
            expected = kept * expected + (1 - kept) * model.weight.detach()
    if expected is None:
        assert average.state_dict() == {}
    else:
        torch.testing.assert_close(average.state_dict()["weight"], expected, rtol=1e-12, atol=1e-12)


@given(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]), st.integers(1, 5))
def test_the_exchange_is_undone_to_the_bit(dtype, steps):
    torch.manual_seed(steps)
    model = Tied(dtype)
    with torch.no_grad():
        model.norm.bias.fill_(-0.0)
    average = WeightAverage(model, EmaConfig(decay=0.5))
    for step in range(1, steps + 1):
        average.update(step)
        move(model, step)
    own, kept = content(model), {name: tensor.clone() for name, tensor in average.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with average.applied():
        used = content(model)
        for name, tensor in kept.items():
            assert torch.equal(used[name], tensor.to(used[name].dtype))
        assert used["head.weight"].equal(used["embedding.weight"])
        assert not same_bits(used, own)
    assert same_bits(content(model), own)
    assert same_bits(average.state_dict(), kept)
    assert places == [parameter.data_ptr() for parameter in model.parameters()]


def test_the_exchange_is_undone_where_what_runs_in_it_fails():
    model = Tied()
    average = WeightAverage(model, EmaConfig())
    average.update(1)
    move(model, 1)
    own = content(model)

    with pytest.raises(KeyError), average.applied(), average.applied():
        raise KeyError("stopped")
    assert same_bits(content(model), own)


def test_before_the_start_the_weights_are_the_average():
    model = Tied()
    average = WeightAverage(model, EmaConfig(start_step=3))
    average.update(2)
    own = content(model)
    with average.applied():
        assert same_bits(content(model), own)
    assert average.state_dict() == {}


def test_tied_weights_are_averaged_once_and_buffers_are_the_models_own():
    model = Tied()
    average = WeightAverage(model, EmaConfig())
    average.update(1)
    assert sorted(average.state_dict()) == ["embedding.weight", "norm.bias", "norm.weight"]
    model.get_buffer("seen").fill_(7.0)
    with average.applied():
        assert model.seen == 7.0


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_low_precision_is_averaged_in_fp32(dtype, kept):
    model = nn.Linear(2, 2, dtype=dtype)
    average = WeightAverage(model, EmaConfig(decay=0.999, warmup=False))
    average.update(1)
    assert average.state_dict()["weight"].dtype == kept
    if kept == torch.float32 and dtype != kept:  # so small a change is lost in the weights' own numbers
        before = average.state_dict()["weight"].clone()
        with torch.no_grad():
            model.weight.mul_(1 + 2**-6)
        average.update(2)
        assert not average.state_dict()["weight"].equal(before)
        assert average.state_dict()["weight"].to(dtype).equal(before.to(dtype))


def test_it_goes_on_to_the_bit_from_what_a_checkpoint_kept():
    torch.manual_seed(0)
    model, other = Tied(), Tied()
    whole, first = (WeightAverage(model, EmaConfig(decay=0.9)) for _ in range(2))
    for step in range(1, 8):
        move(model, step)
        whole.update(step)
        if step <= 3:
            first.update(step)
            kept = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    torch.manual_seed(0)
    other = Tied()
    resumed = WeightAverage(other, EmaConfig(decay=0.9))
    for step in range(1, 8):
        move(other, step)
        if step == 3:
            resumed.load_state_dict(kept)
        elif step > 3:
            resumed.update(step)
    assert same_bits(resumed.state_dict(), whole.state_dict())


def test_loading_nothing_begins_anew_and_a_foreign_average_is_refused():
    model = Tied()
    average = WeightAverage(model, EmaConfig())
    average.update(1)
    kept = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"another model.*1 of them differ, such as norm\.bias"):
        average.load_state_dict({name: tensor for name, tensor in kept.items() if name != "norm.bias"})
    with pytest.raises(CheckpointError, match=r"such as norm\.bias"):
        average.load_state_dict({**kept, "norm.bias": torch.zeros(4)})
    assert same_bits(average.state_dict(), kept)
    average.load_state_dict({})
    assert average.state_dict() == {}
    move(model, 1)
    average.update(500)
    assert average.state_dict()["embedding.weight"].equal(model.embedding.weight)


def test_a_frozen_parameter_is_its_average_and_one_never_trained_takes_no_memory():
    model = Tied()
    model.norm.requires_grad_(False)
    every = WeightAverage(model, EmaConfig(decay=0.9, warmup=False))
    trained = WeightAverage(model, EmaConfig(), [model.get_parameter("embedding.weight")])
    for step in range(1, 5):
        with torch.no_grad():
            model.embedding.weight.add_(0.1)
        every.update(step)
        trained.update(step)
    assert every.state_dict()["norm.weight"].equal(model.norm.weight)
    assert list(trained.state_dict()) == ["embedding.weight"]
    with trained.applied():
        assert model.norm.weight.equal(every.state_dict()["norm.weight"])
    model.norm.requires_grad_(True)
    move(model, 1)
    every.update(5)
    assert not every.state_dict()["norm.weight"].equal(model.norm.weight)


def test_a_model_without_parameters_has_no_average():
    average = WeightAverage(nn.Identity(), EmaConfig())
    average.update(1)
    average.update(2)
    with average.applied():
        pass
    average.load_state_dict(average.state_dict())
    assert average.state_dict() == {}


def test_a_run_evaluates_its_average_and_resumes_to_the_bit(tmp_path):
    options: dict[str, Any] = {
        "ema": {"decay": 0.9, "start_step": 2},
        "validation": {"interval": 8, "interval_epochs": None},
        "checkpoint": {"interval": 4, "interval_epochs": None, "save_total_limit": None},
    }
    whole = toy_trainer(tmp_path / "whole", task=ToyTask(), **options)
    whole.fit()
    assert whole.state.average is not None
    averaged, own = whole.metrics["val_loss"], weights(whole)
    assert whole.evaluator.evaluate(whole.model, "valid")["val_loss"] != averaged
    with whole.state.average.applied():
        assert whole.evaluator.evaluate(whole.model, "valid")["val_loss"] == averaged
    assert same_bits(weights(whole), own)

    resumed = toy_trainer(tmp_path / "resumed", task=ToyTask(), **options)
    assert resumed.resume(str(tmp_path / "whole" / "checkpoints" / "step-00000004"))
    resumed.fit()
    assert resumed.state.average is not None
    assert same_bits(resumed.state.average.state_dict(), whole.state.average.state_dict())
    assert same_bits(weights(resumed), own)
    assert resumed.metrics["val_loss"] == averaged


def test_averaging_changes_no_bit_of_training(tmp_path):
    runs = [toy_trainer(tmp_path / str(ema), task=ToyTask(), ema=ema) for ema in (None, {"decay": 0.5})]
    for run in runs:
        run.fit()
    assert same_bits(weights(runs[0]), weights(runs[1]))
