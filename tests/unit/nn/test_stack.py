"""The stack: visibility, gradient checkpointing, and a forward pass that writes nothing."""

from typing import Any

import torch

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


def test_gradient_checkpointing_changes_no_bit_with_dropout_on():
    results = []
    for recompute in (False, True):
        stack = small_stack(dropout=0.3, attention_dropout=0.2)
        stack.gradient_checkpointing = recompute
        x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(5)
        output = stack(x, documents=torch.zeros(2, 7, dtype=torch.long))
        output.square().sum().backward()
        results.append([output, *(parameter.grad for parameter in stack.parameters())])
    assert all(torch.equal(plain, recomputed) for plain, recomputed in zip(*results, strict=True))


def test_gradient_checkpointing_keeps_fewer_activations():
    saved = []
    for recompute in (False, True):
        stack, count = small_stack(), 0
        stack.gradient_checkpointing = recompute

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            stack(torch.randn(2, 7, 16, dtype=torch.float64))
        saved.append(count)
    assert saved[1] < saved[0] / 3


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
