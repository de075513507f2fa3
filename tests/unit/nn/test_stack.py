"""The stack: visibility, gradient checkpointing, and a forward pass that writes nothing."""

from typing import Any, Literal

import pytest
import torch

from vaak.engine.dry_pass import LiveStorages
from vaak.nn.config import StackConfig
from vaak.nn.decoding.cache import StackCache
from vaak.nn.initialisation import initialise
from vaak.nn.stack import TransformerStack


def small_stack(*, causal: bool = True, **options: Any) -> TransformerStack:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "d_model": 16,
        "num_layers": 3,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "d_ff": 32,
        "dropout": 0.0,
    }
    stack = TransformerStack(StackConfig(**(sizes | options)), causal=causal).double()
    initialise(stack)
    return stack


LEVELS: tuple[Literal["attention", "all"] | bool, ...] = (False, "attention", True, "all")


def test_gradient_checkpointing_changes_no_bit_with_dropout_on():
    results = []
    for recompute in LEVELS:
        stack = small_stack(dropout=0.3, attention_dropout=0.2, num_layers=5)
        stack.gradient_checkpointing = recompute
        x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(5)
        output = stack(x, documents=torch.zeros(2, 7, dtype=torch.long))
        output.square().sum().backward()
        results.append([output, *(parameter.grad for parameter in stack.parameters()), torch.rand(3)])
    for recomputed in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], recomputed, strict=True))


def test_the_more_is_computed_again_the_less_memory_is_taken():
    """By all storages that live together at the peak of a forward and backward pass."""
    peaks = []
    for recompute in LEVELS:
        stack = small_stack(num_layers=16)
        stack.gradient_checkpointing = recompute
        x = torch.randn(2, 64, 16, dtype=torch.float64)
        stack(x).sum().backward()
        gradients = [one.grad for one in stack.parameters() if one.grad is not None]
        with LiveStorages([x, *stack.parameters(), *gradients]) as storages:
            stack(x).sum().backward()
        peaks.append(storages.peak)
    nothing, attention, blocks, groups = peaks
    assert attention < 0.75 * nothing
    assert blocks < 0.5 * attention
    assert groups < 0.8 * blocks


@pytest.mark.parametrize(
    ("recompute", "passes"), [(False, (1, 1)), ("attention", (2, 1)), (True, (2, 2)), ("all", (3, 3))]
)
def test_what_a_level_computes_again(recompute: Any, passes: tuple[int, int]):
    stack, calls = small_stack(num_layers=4), [0, 0]
    stack.gradient_checkpointing = recompute

    def counted(number: int) -> Any:
        def count(*_: Any) -> None:
            calls[number] += 1

        return count

    block: Any = stack.blocks[0]
    block.attention.register_forward_pre_hook(counted(0))
    block.feed_forward.register_forward_pre_hook(counted(1))
    stack(torch.randn(2, 7, 16, dtype=torch.float64)).sum().backward()
    assert tuple(calls) == passes
    stack.eval()(torch.randn(2, 7, 16, dtype=torch.float64)).sum().backward()
    assert tuple(calls) == tuple(one + 1 for one in passes)


def test_a_causal_stack_never_sees_the_future_and_the_other_does():
    for causal in (True, False):
        stack = small_stack(causal=causal)
        x = torch.randn(1, 6, 16, dtype=torch.float64)
        changed = x.clone()
        changed[:, 4:] += 1
        same = torch.equal(stack(x)[:, :4], stack(changed)[:, :4])
        assert same is causal


def test_forward_writes_no_state():
    stack = small_stack(dropout=0.1, qk_norm=True)
    before = {name: tensor.clone() for name, tensor in stack.state_dict().items()}
    stack(torch.randn(2, 5, 16, dtype=torch.float64))
    assert not list(stack.buffers())
    assert all(torch.equal(before[name], tensor) for name, tensor in stack.state_dict().items())


def test_pieces_through_a_cache_equal_the_whole():
    stack = small_stack(qk_norm=True)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    documents = torch.tensor([[-1, -1, 0, 0, 0, 0, 0, 0, 0], [0] * 9])
    for given in (None, documents):
        cache = StackCache(3)
        pieces = [slice(0, 4), slice(4, 5), slice(5, 9)]
        outputs = [stack(x[:, s], documents=None if given is None else given[:, s], cache=cache) for s in pieces]
        assert cache.length == 9
        torch.testing.assert_close(torch.cat(outputs, 1), stack(x, documents=given), rtol=0, atol=1e-12)
