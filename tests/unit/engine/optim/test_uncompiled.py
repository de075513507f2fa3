"""Optimizers and the backward pass without torch's compiler: the bits that torch's own give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook

from vaak.engine.optim.optimizers import Lion, backward, uncompiled

RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (Adam, {"fused": True}),
    "adamw": (AdamW, {"fused": True}),
    "adamw, not fused": (AdamW, {"fused": False}),
    "sgd": (SGD, {"momentum": 0.9, "fused": True}),
    "adafactor": (Adafactor, {}),
    "lion": (Lion, {}),
}


def trained(rule: Callable[..., Any], options: dict[str, Any], hooked: bool = False) -> dict[str, Tensor]:
    """The weights after some steps in which a second group joins, and a hook may look on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer, steps = rule(model[0].parameters(), lr=0.1, **options), []
    if hooked:
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for step in range(4):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        if step == 1:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.3})
    assert len(steps) == 4 * hooked
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_gives_the_bits_of_torch_s_own(name: str, hooked: bool) -> None:
    rule, options = RULES[name]
    expected, found = trained(rule, options), trained(uncompiled(rule), options, hooked)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_muon_gives_the_bits_of_torch_s_own() -> None:
    def step(rule: Any) -> Tensor:
        torch.manual_seed(0)
        matrix = nn.Parameter(torch.randn(4, 6))
        matrix.grad = torch.randn(4, 6)
        rule([matrix], lr=0.1).step()
        return matrix.detach()

    assert torch.equal(step(torch.optim.Muon), step(uncompiled(torch.optim.Muon)))


def test_it_stays_an_optimizer_of_its_rule() -> None:
    optimizer = uncompiled(AdamW)([nn.Parameter(torch.ones(1))])
    assert isinstance(optimizer, AdamW)
    assert type(optimizer).__name__ == "AdamW"
    assert uncompiled(AdamW) is uncompiled(AdamW)


def test_the_profiler_sees_its_steps() -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    with torch.profiler.profile() as profile:
        uncompiled(AdamW)([weight]).step()
    assert "Optimizer.step#AdamW.step" in {event.key for event in profile.key_averages()}


def test_a_hook_on_all_optimizers_is_called() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    try:
        uncompiled(AdamW)([nn.Parameter(torch.ones(1))]).step()
    finally:
        handle.remove()
    assert seen == [1]


def test_backward_adds_what_torch_s_own_adds() -> None:
    def gradients(run: Callable[[list[Tensor], list[Tensor]], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(3)) for _ in range(2)]
        for _ in range(2):  # the second adds to the first
            roots = [(weights[0] * weights[1]).sum(), weights[1].square().sum()]
            run(roots, [torch.tensor(0.3), torch.tensor(1.7)])
        return [weight.grad for weight in weights if weight.grad is not None]

    expected, found = gradients(torch.autograd.backward), gradients(backward)
    assert len(found) == 2
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_backward_of_no_root_adds_nothing() -> None:
    backward([], [])
