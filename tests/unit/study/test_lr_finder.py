"""LRFinder suggests a rate and leaves model, optimizer and generators as they were, to the bit."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from toy import ToyDataset, ToyModel, same_bits
from vaak.core.errors import UserError
from vaak.study import LRFinder
from vaak.study.lr_finder import restored

CPU = torch.device("cpu")


class Network(nn.Module):
    """It draws (dropout), writes buffers (batch norm), replaces one, and has one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: torch.Tensor
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        self.calls = self.calls + 1
        return self.layers(inputs)


def a_network():
    torch.manual_seed(0)
    return Network()


def a_loader(rows=40, generator=None):
    inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 8, shuffle=True, generator=generator)


def everything(model, optimizer):
    """Weights, buffers, gradients, and what the optimizer remembers, by name."""
    found = {name: tensor.detach().clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    found |= {f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    for number, state in enumerate(optimizer.state.values()):
        found |= {f"{number}.{name}": torch.as_tensor(value).clone() for name, value in state.items()}
    return found


def draws():
    return random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()


def used(kind=torch.optim.AdamW):
    """A network in the middle of training: moments, gradients, one module in evaluation mode."""
    model = a_network()
    optimizer = kind(model.parameters(), lr=0.01)
    for inputs, targets in a_loader():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.layers[1].eval()
    return model, optimizer


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
@pytest.mark.parametrize("ends", ["well", "in an exception"])
def test_it_leaves_everything_as_it_was(kind, ends):
    model, optimizer = used(kind)
    generator = torch.Generator().manual_seed(5)
    loader = a_loader(generator=generator)
    before, options = everything(model, optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    modes = [module.training for module in model.modules()]
    places = [tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]]
    drawn, own = draws(), generator.get_state()
    calls = 0

    def criterion(outputs, targets):
        nonlocal calls
        calls += 1
        if ends != "well" and calls == 30:
            raise KeyError("in the midst")
        return nn.functional.cross_entropy(outputs, targets)

    finder = LRFinder(model, optimizer, criterion)
    if ends == "well":
        finder.range_test(loader, end_lr=1, num_iter=50)
        assert calls > 30
    else:
        with pytest.raises(KeyError, match="in the midst"):
            finder.range_test(loader, end_lr=1, num_iter=50)
    assert same_bits(everything(model, optimizer), before)
    assert optimizer.state_dict()["param_groups"] == options
    assert [module.training for module in model.modules()] == modes
    assert [tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()]] == places
    assert draws() == drawn
    assert generator.get_state().equal(own)


def test_training_after_it_is_training_without_it():
    def trained(with_test):
        model = a_network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(3)
        if with_test:
            LRFinder(model, optimizer, nn.CrossEntropyLoss()).range_test(a_loader(), num_iter=20)
        for inputs, targets in a_loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return everything(model, optimizer)

    assert same_bits(trained(True), trained(False))


def test_it_suggests_a_rate_that_trains(tmp_path):
    model = a_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    finder = LRFinder(model, optimizer, nn.CrossEntropyLoss(), device="cpu")
    finder.range_test(a_loader(400), end_lr=1, num_iter=100)
    rate = finder.suggest_lr()
    assert rate is not None
    assert 1e-3 < rate < 1e-1
    assert len(finder.history["lr"]) == len(finder.history["loss"]) == len(finder.history["smoothed"])
    figure = finder.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert figure.axes[0].get_xscale() == "log"
    finder.reset()
    with pytest.raises(UserError, match="call range_test first"):
        finder.suggest_lr()


def test_rates_are_those_of_the_range_and_groups_keep_their_proportion():
    model = a_network()
    groups = [{"params": model.layers[0].parameters(), "lr": 0.001}, {"params": model.layers[4].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.004)
    seen = []
    optimizer.register_step_pre_hook(lambda own, *_: seen.append([group["lr"] for group in own.param_groups]))
    finder = LRFinder(model, optimizer, nn.CrossEntropyLoss())
    finder.range_test(a_loader(), start_lr=1e-4, end_lr=1e-2, num_iter=21)
    assert seen[10] == pytest.approx([0.25e-3, 1e-3])
    assert [largest for _, largest in seen] == pytest.approx(finder.history["lr"])


def test_accumulated_batches_are_one_step():
    """Without dropout, two batches of 8 accumulated are one of 16."""
    inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(1)).double()
    targets = inputs[:, :3].argmax(1)
    curves = []
    for rows, steps in ((16, 1), (8, 2)):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).double()
        finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1.0), nn.CrossEntropyLoss())
        loader = DataLoader(TensorDataset(inputs, targets), rows)
        finder.range_test(loader, num_iter=12, accumulation_steps=steps)
        curves.append(finder.history["loss"])
    assert curves[0] == pytest.approx(curves[1], rel=1e-10)


def test_it_stops_where_the_loss_explodes():
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    batches = [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(5)]
    finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1.0), nn.functional.mse_loss)
    finder.range_test(batches, end_lr=1000.0, num_iter=100)
    assert finder.curve.diverged
    assert len(finder.history["loss"]) < 100
    assert all(parameter.isfinite().all() for parameter in model.parameters())


class Speaks(nn.Module):
    """A language model as transformers calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.head = nn.Linear(8, 9)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def test_dictionaries_by_criterion_and_by_the_models_own_loss_are_alike():
    tokens = torch.randint(9, (4, 8, 6), generator=torch.Generator().manual_seed(0))
    batches = [{"input_ids": rows[:, :-1], "labels": rows[:, 1:]} for rows in tokens]
    losses = []
    for criterion in (nn.CrossEntropyLoss(), None):
        torch.manual_seed(0)
        model = Speaks()
        finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1.0), criterion)
        finder.range_test(batches, num_iter=12)
        losses.append(finder.history["loss"])
    assert losses[0] == losses[1]


def test_vaaks_own_batches_are_understood():
    data = ToyDataset(24)
    rng = np.random.default_rng(0)
    batches = [data.collate([[data.example(index, rng)] for index in range(first, first + 8)]) for first in (0, 8, 16)]
    torch.manual_seed(0)
    model = ToyModel()
    finder = LRFinder(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
    finder.range_test(batches, num_iter=60)
    assert finder.suggest_lr() is not None


@pytest.mark.parametrize(
    ("batches", "criterion", "complaint"),
    [
        ([], nn.CrossEntropyLoss(), "the loader gives no batch"),
        ([(torch.zeros(2, 6), torch.zeros(2))], None, "needs a criterion"),
        ([{"inputs": torch.zeros(2, 6)}], nn.CrossEntropyLoss(), "a batch has inputs, but neither targets nor labels"),
    ],
)
def test_what_it_cannot_use_is_a_users_error(batches, criterion, complaint):
    model = a_network()
    with pytest.raises(UserError, match=complaint):
        LRFinder(model, torch.optim.SGD(model.parameters(), lr=1.0), criterion).range_test(batches)


def test_weights_outside_the_model_are_put_back_too():
    """An optimizer may hold more than the model: a learned temperature of the loss."""
    model, temperature = nn.Linear(6, 3), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=0.1)
    with restored(model, optimizer, CPU):
        (model(torch.ones(1, 6)).sum() * temperature).backward()
        optimizer.step()
        assert temperature != 1
        optimizer.param_groups[0]["new"] = 3
    assert temperature == 1
    assert temperature.grad is None
    assert not optimizer.state
    assert "new" not in optimizer.param_groups[0]
