"""Gradients of one process are left alone; those of several are in buckets, with no second copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from vaak.engine.distributed.exchange import GradientBuckets
from vaak.engine.distributed.ranks import Ranks


class Echo:
    """Ranks of which only this one has anything to add."""

    rank, world_size, device = 0, 2, torch.device("cpu")

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def add_up(self, tensor: torch.Tensor) -> None:
        self.sent.append(tensor)

    def start_adding_up(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.sent.append(tensor)
        return lambda: None

    def gather(self, value: object) -> list[object]:
        return [value, []]


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10), nn.Linear(10, 1))


def test_alone_nothing_is_held_or_changed():
    model = layers()
    gradients = Ranks(torch.device("cpu")).gradients(model.parameters())
    gradients.begin()
    assert gradients.gradients == []
    total = model(torch.ones(2, 30)).sum()
    total.backward()
    before = [parameter.grad for parameter in model.parameters()]
    sums = {"main": total.detach()}
    assert gradients.reduce(sums, {"main": "row"}) == (sums, {"main": "row"})
    assert all(ours is theirs for ours, theirs in zip(gradients.gradients, before, strict=True))
    assert "post_accumulate" not in str(vars(model[0].weight))
    gradients.clear()
    assert gradients.gradients == []


@pytest.mark.parametrize("starts_when_full", [False, True])
def test_gradients_that_no_backward_adds_are_those_of_a_backward(starts_when_full: bool):
    """As a CUDA graph gives them, in two microbatches; one parameter is reached by neither."""
    found = []
    for by_backward in (True, False):
        model, world = layers(), Echo()
        model.append(nn.Linear(1, 1))  # isn't called
        parameters = list(model.parameters())
        buckets = GradientBuckets(parameters, world, 2500)
        buckets.begin()
        for number, rows in enumerate((torch.ones(2, 30), torch.full((2, 30), -0.5))):
            if number == 1 and starts_when_full:
                buckets.start_when_full()
            total = model[:3](rows).sum()
            if by_backward:
                total.backward()
            else:
                buckets.add(torch.autograd.grad(total, parameters, allow_unused=True))
        buckets.reduce({"main": total.detach()}, {"main": "row"})
        found.append(([one.grad for one in parameters], len(world.sent)))
    (ours, sent), (theirs, sent_by_backward) = found
    assert sent == sent_by_backward
    assert [one is None for one in ours] == [False] * 6 + [True] * 2
    for one, other in zip(ours, theirs, strict=True):
        assert one is other is None or (one is not None and other is not None and torch.equal(one, other))


@pytest.mark.parametrize(("bucket_bytes", "expected"), [(2**27, 1), (2500, 2), (1, 6)])
def test_gradients_are_views_of_buckets_and_stay_there(bucket_bytes: int, expected: int):
    model, world = layers(), Echo()
    buckets = GradientBuckets(model.parameters(), world, bucket_bytes)
    places: list[set[int]] = []
    alive: list[torch.Tensor] = []  # so that no address is used twice
    for _ in range(2):
        buckets.begin()
        total = model(torch.ones(2, 30)).sum()
        total.backward()
        buckets.reduce({"main": total.detach()}, {"main": "row"})
        places.append({gradient.untyped_storage().data_ptr() for gradient in buckets.gradients})
        assert places[-1] == {bucket.untyped_storage().data_ptr() for bucket in world.sent}
        assert len(world.sent) == expected
        for bucket in world.sent:
            assert bucket.numel() == 1 or bucket.nbytes <= max(bucket_bytes, 30 * 20 * 4 + 64) + 400
        alive += world.sent
        world.sent.clear()
        expectation = torch.autograd.grad(model(torch.ones(2, 30)).sum(), list(model.parameters()))
        torch.testing.assert_close(buckets.gradients, list(expectation))
    assert places[0] == places[1]
    buckets.drop()
    assert all(parameter.grad is None for parameter in model.parameters())
    total = model(torch.ones(2, 30)).sum()
    total.backward()  # hooks are gone, too
    assert buckets.gradients[0].untyped_storage().data_ptr() not in places[0]


def test_a_gradient_that_is_another_tensor_is_copied_into_its_bucket():
    """A higher-order backward, or a user's hook, replaces it: other ranks would get a sum without it."""
    model, world = layers(), Echo()
    buckets = GradientBuckets(model.parameters(), world)
    buckets.begin()
    model(torch.ones(2, 30)).sum().backward()
    weight = model.get_parameter("1.weight")
    weight.grad = torch.full_like(weight, 7.0)
    buckets.reduce({}, {})
    assert weight.grad.untyped_storage().data_ptr() == world.sent[0].untyped_storage().data_ptr()
    assert weight.grad.equal(torch.full_like(weight, 7.0))


def test_an_attempt_that_is_begun_again_leaves_nothing_behind():
    """Out of memory, all microbatches are computed again."""
    model, world = layers(), Echo()
    buckets = GradientBuckets(model.parameters(), world)
    buckets.begin()
    model(torch.full((2, 30), 7.0)).sum().backward()
    buckets.begin()
    model[2](torch.ones(1, 10)).sum().backward()
    buckets.reduce({}, {})
    assert [parameter.grad is None for parameter in model.parameters()] == [True] * 4 + [False] * 2
    gradient = model.get_parameter("2.weight").grad
    assert gradient is not None
    assert gradient.equal(torch.ones(1, 10))


def test_full_buckets_are_sent_during_the_last_backward():
    """Buckets are sent last to first, with all microbatches' gradients; the one with the terms waits for them."""
    model, world = layers(), Echo()
    gradients = GradientBuckets(model.parameters(), world, 1)
    gradients.begin()
    model(torch.ones(2, 30)).sum().backward()
    assert not world.sent
    gradients.start_when_full()
    sent_at = list[int]()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: sent_at.append(len(world.sent)))
    model(torch.ones(2, 30)).sum().backward()
    assert sent_at[0] >= 1, "before the first layer's gradient was there"
    before = [one.clone() for one in world.sent]
    gradients.reduce({}, {})
    assert len(world.sent) == 6
    assert all(torch.equal(one, then) for one, then in zip(world.sent, before, strict=False))


class Twin(Echo):
    """Ranks of which another has the gradients of this one, three times."""

    def add_up(self, tensor: torch.Tensor) -> None:
        super().add_up(tensor.clone())
        tensor.add_(3 * tensor)

    def start_adding_up(self, tensor: torch.Tensor) -> Callable[[], None]:
        return lambda: self.add_up(tensor)


@pytest.mark.parametrize("bucket_bytes", [2**27, 1])
def test_gradients_that_are_rounded_for_the_sum_are_within_its_8_bits_and_terms_are_not_rounded(bucket_bytes: int):
    model, world = layers(), Twin()
    buckets = GradientBuckets(model.parameters(), world, bucket_bytes, torch.bfloat16)
    buckets.begin()
    total = model(torch.linspace(-1, 1, 60).view(2, 30)).square().sum()
    total.backward()
    own = [gradient.clone() for gradient in buckets.gradients]
    places = {gradient.untyped_storage().data_ptr() for gradient in buckets.gradients}
    sums, _ = buckets.reduce({"main": total.detach()}, {"main": "row"})
    assert sum(one.nbytes for one in world.sent[:-1]) < 0.55 * sum(one.nbytes for one in own) + 6 * 2 * 64
    assert {one.dtype for one in world.sent[:-1]} == {torch.bfloat16}
    assert float(sums["main"]) == float(total.detach())
    assert {gradient.untyped_storage().data_ptr() for gradient in buckets.gradients} == places
    for found, one in zip(buckets.gradients, own, strict=True):
        torch.testing.assert_close(found.double(), 4 * one.double(), rtol=2**-8, atol=0)
        assert not found.equal(4 * one)
