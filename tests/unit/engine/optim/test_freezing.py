"""What is frozen depends on the place in the run alone; optimizers leave it alone; a resume repeats it to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from all_parameters import build_optimizers
from toy import ToyTask, names_of, same_bits, toy_trainer, weights
from vaak.config.optimization import OptimizerConfig
from vaak.config.training import FreezeConfig
from vaak.core.errors import UserError
from vaak.engine.optim.optimizer_state import load_optimizer_tensors, optimizer_tensors
from vaak.engine.optim.schedules import Freezing, freeze_parameters, unfreeze_parameters

KINDS = ("adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit")


class Layers(nn.Module):
    """An embedding, three layers and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return self.head(hidden)


def made(seed: int = 0) -> Layers:
    torch.manual_seed(seed)
    return Layers()


def frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


RULES = (
    FreezeConfig(match=r"layers\.0\.bias"),
    FreezeConfig(match=r"layers\.0", until_step=3),
    FreezeConfig(match=r"layers\.1", until_epoch=2),
    FreezeConfig(match=r"head", until_step=9, until_epoch=1),
)


def expected(step: int, epoch: int) -> set[str]:
    held = {"layers.0.bias"}
    held |= {"layers.0.weight"} if step <= 3 else set()
    held |= {"layers.1.weight", "layers.1.bias"} if epoch < 2 else set()
    return held | ({"embedding.weight"} if step <= 9 and epoch < 1 else set())


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)), min_size=1, max_size=8))
def test_it_is_a_function_of_the_place_whatever_was_asked_before(places):
    model = made()
    freezing = Freezing(model, RULES)
    assert frozen(model) == {"layers.0.bias"}, "the optimizer is built over all that is ever trained"
    before = frozen(model)
    for step, epoch in places:
        changed = freezing.apply(step, epoch)
        assert frozen(model) == expected(step, epoch)
        assert changed == (before != frozen(model))
        before = frozen(model)


def test_what_the_model_froze_itself_stays_frozen():
    model = made()
    model.layers[0].weight.requires_grad_(False)
    freezing = Freezing(model, (FreezeConfig(match="layers", until_step=1),))
    freezing.apply(1, 0)
    freezing.apply(2, 0)
    assert frozen(model) == {"layers.0.weight"}


def test_without_rules_nothing_is_touched():
    model = made()
    model.layers[0].weight.requires_grad_(False)
    freezing = Freezing(model, ())
    assert not freezing.apply(1, 0)
    assert frozen(model) == {"layers.0.weight"}


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        (
            [FreezeConfig(match="layer.0.weigth")],
            r"'layer\.0\.weigth' matches no parameter; some are .*layers\.0\.weight",
        ),
        ([FreezeConfig(match="layers.(")], r"'layers\.\(' is not a valid regular expression"),
        ([FreezeConfig(match=".")], "nothing is trained at the first step"),
        (
            [FreezeConfig(match="layers"), FreezeConfig(match="embed", until_step=5)],
            "nothing is trained at the first step",
        ),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules, complaint):
    with pytest.raises(UserError, match=complaint):
        Freezing(made(), rules)


def steps_of(model, freezing, optimizers, numbers) -> None:
    for step in numbers:
        freezing.apply(step, 0)
        tokens = torch.randint(0, 7, (4, 6), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_leave_the_frozen_alone_and_go_on_to_the_bit(kind):
    rules = (FreezeConfig(match=r"layers\.0"), FreezeConfig(match=r"layers\.1", until_step=4))
    config = OptimizerConfig(type=kind, lr=0.01, weight_decay=0.1)

    def set_up():
        model = made()
        freezing = Freezing(model, rules)
        return model, freezing, build_optimizers(model, config)

    whole, freezing, optimizers = set_up()
    start = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    steps_of(whole, freezing, optimizers, range(1, 5))
    for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"):
        assert whole.state_dict()[name].equal(start[name]), "neither gradient nor decay reaches it"
    tensors, values = optimizer_tensors(names_of(whole), optimizers)
    assert not [name for name in tensors if "layers.0" in name or "layers.1" in name]
    assert not [name for name in values["without_state"] if "layers.0" in name], "in no optimizer"
    assert {name.split(".", 1)[1] for name in values["without_state"]} == {"layers.1.weight", "layers.1.bias"}

    resumed, later, others = set_up()
    steps_of(resumed, later, others, range(1, 8))  # state of layers frozen in the checkpoint is dropped
    resumed.load_state_dict({name: tensor.clone() for name, tensor in whole.state_dict().items()})
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    load_optimizer_tensors(names_of(resumed), others, kept | values)
    steps_of(whole, freezing, optimizers, range(5, 9))
    steps_of(resumed, later, others, range(5, 9))
    assert not whole.state_dict()["layers.1.weight"].equal(start["layers.1.weight"])
    assert whole.state_dict()["layers.0.weight"].equal(start["layers.0.weight"])
    assert same_bits(resumed.state_dict(), whole.state_dict())
    assert same_bits(optimizer_tensors(names_of(resumed), others)[0], optimizer_tensors(names_of(whole), optimizers)[0])


def test_fused_sgd_takes_a_parameter_in_whose_first_gradient_comes_late():
    """torch's own fails there, whether the parameter was frozen or no batch had reached it."""
    model, plain = made(), made()
    models = {model: build_optimizers(model, OptimizerConfig(type="sgd", fused=True))}
    models[plain] = build_optimizers(plain, OptimizerConfig(type="sgd", fused=False))
    for trained, optimizers in models.items():
        freezing = Freezing(trained, (FreezeConfig(match=r"layers\.1", until_step=3),))
        steps_of(trained, freezing, optimizers, range(1, 7))
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


def test_one_let_go_later_begins_its_moments_there():
    model = made()
    freezing = Freezing(model, (FreezeConfig(match=r"layers\.1", until_step=3),))
    optimizers = build_optimizers(model, OptimizerConfig(type="adamw"))
    steps_of(model, freezing, optimizers, range(1, 6))
    state = optimizers[0].state
    assert int(state[model.get_parameter("layers.1.weight")]["step"]) == 2
    assert int(state[model.get_parameter("layers.2.weight")]["step"]) == 5


def test_freezing_by_hand_takes_names_of_modules_and_of_parameters():
    model = made()
    freeze_parameters(model, ["layers.1", "embedding"])
    assert frozen(model) == {"layers.1.weight", "layers.1.bias", "embedding.weight"}
    unfreeze_parameters(model, ["head", "layers.1.bias"])
    assert frozen(model) == {"layers.1.weight"}, "the head is tied to the embedding"
    unfreeze_parameters(model, "layers")
    assert frozen(model) == set()


def test_freezing_an_unknown_name_changes_nothing_and_says_what_is_near():
    model = made()
    with pytest.raises(UserError, match=r"no parameter or module 'layer'; did you mean 'layers'"):
        freeze_parameters(model, ["embedding", "layer"])
    with pytest.raises(UserError, match=r"no parameter or module 'transformer'; it has embedding, layers, head"):
        freeze_parameters(model, ["transformer"])
    assert frozen(model) == set()


def test_a_run_lets_parameters_go_and_resumes_to_the_bit(tmp_path):
    options: dict[str, Any] = {
        "freeze": [{"match": "embedding", "until_step": 5}, {"match": r"head\.bias"}],
        "optimizer": {"lr": 0.01, "weight_decay": 0.1},
        "checkpoint": {"interval": 3, "interval_epochs": None, "save_total_limit": None},
    }
    whole = toy_trainer(tmp_path / "whole", task=ToyTask(), **options)
    start = weights(whole)
    whole.fit()
    after = weights(whole)
    assert not after["embedding.weight"].equal(start["embedding.weight"])
    assert after["head.bias"].equal(start["head.bias"])

    resumed = toy_trainer(tmp_path / "resumed", task=ToyTask(), **options)
    assert resumed.resume(str(tmp_path / "whole" / "checkpoints" / "step-00000003"))
    assert weights(resumed)["embedding.weight"].equal(start["embedding.weight"])
    resumed.fit()
    assert same_bits(weights(resumed), after)


@pytest.mark.parametrize("until", [1, 2])
def test_a_rehearsal_allocates_what_the_next_step_trains(until: int, tmp_path):
    """What is let go later needs its memory later: a rehearsal with it would fail where the first steps fit."""
    trainer = toy_trainer(tmp_path, freeze=[{"match": "embedding", "until_step": until}])
    embedding = trainer.model.get_parameter("embedding.weight")
    for step in (0, 1):
        trainer.position.step = step
        for optimizer in trainer.state.optimizers:
            optimizer.state.clear()
        trainer.rehearse()
        has_state = any(embedding in optimizer.state for optimizer in trainer.state.optimizers)
        assert has_state is (step + 1 > until)
