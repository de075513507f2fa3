"""With torch's private names and without: the bits of torch's own optimizers and backward, and the same workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook

from vaak.core import torch_internals
from vaak.core.torch_internals import (
    TRIED_WITH,
    backward,
    end_workers,
    iterate_with_workers,
    require_workers_alive,
    terminate_by_kill,
    uncompiled,
)
from vaak.engine.optim.optimizers import Lion

RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (Adam, {"fused": True}),
    "adamw": (AdamW, {"fused": True}),
    "adamw, not fused": (AdamW, {"fused": False}),
    "sgd": (SGD, {"momentum": 0.9, "fused": True}),
    "adafactor": (Adafactor, {}),
    "lion": (Lion, {}),
}


@pytest.fixture(params=["torch as it is", "torch without the private names"], autouse=True)
def has_private_names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Run each test with torch's private names and without them, where public functions take their place."""

    def takes_other_arguments(*_: Any) -> None:
        raise TypeError

    cached = (torch_internals.uncompiled, torch_internals._engine_is_known)
    for function in cached:
        function.cache_clear()
    if request.param != "torch as it is":
        monkeypatch.delitem(torch.optim.Optimizer.__annotations__, "_optimizer_step_pre_hooks")
        monkeypatch.delattr(torch._C, "_error_if_any_worker_fails")
        monkeypatch.setattr(torch_internals, "_run_engine", takes_other_arguments)
    yield request.param == "torch as it is"
    for function in cached:
        function.cache_clear()


def test_this_is_the_version_that_it_was_tried_with(has_private_names: bool) -> None:
    assert (uncompiled(SGD) is not SGD) == has_private_names
    assert torch_internals._engine_is_known() == has_private_names
    assert torch.__version__.startswith(f"{TRIED_WITH}."), "try it, then change TRIED_WITH"


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


class BegunIterator:
    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> BegunIterator:
        return self

    def __next__(self) -> Any:
        return next(self.batches)


class WithoutPrivateNames:
    """A loader whose iterator shows nothing but the next batch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> BegunIterator:
        return BegunIterator(iter(self.loader))


def wait_for_the_loss(workers: list[Any]) -> None:
    for _ in range(100):
        require_workers_alive(workers)
        time.sleep(0.05)


def test_workers_are_known_missed_and_ended(has_private_names: bool) -> None:
    loader: Any = torch.utils.data.DataLoader(range(40), batch_size=None, num_workers=2)  # type: ignore[arg-type]
    batches, workers = iterate_with_workers(loader if has_private_names else WithoutPrivateNames(loader))
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    assert len(workers) == 2
    require_workers_alive(workers)
    terminate_by_kill(workers[0])
    os.kill(workers[0].pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"^DataLoader worker"):
        wait_for_the_loss(workers)
    end_workers(batches, workers)
    assert not any(worker.is_alive() for worker in workers)
