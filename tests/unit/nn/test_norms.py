"""Each norm is its formula, and is never less precise than float32."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vaak.config.training import Recomputation
from vaak.nn import norms, stack
from vaak.nn.config import DecoderConfig
from vaak.nn.norms import NORMS, LayerNorm, RMSNorm, ScaleNorm, cast_weights, make_norm
from vaak.nn.stack import TransformerStack


def test_rms_norm_equals_the_formula():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = RMSNorm(8, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)


def test_layer_norm_equals_the_formula_and_torch():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    norm = LayerNorm(8, eps=1e-3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)
    reference = nn.LayerNorm(8, eps=1e-3).double()
    reference.load_state_dict(norm.state_dict())
    assert torch.equal(norm(x), reference(x))


def test_scale_norm_equals_the_formula():
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    x[0, 0] = 1e-4 * x[0, 0] / x[0, 0].square().sum().sqrt()  # shorter than eps
    norm = ScaleNorm(8, eps=1e-3).double()
    torch.testing.assert_close(norm.scale.data, torch.full((1,), 8**0.5).double(), rtol=0, atol=1e-6)
    nn.init.constant_(norm.scale, 3.0)
    expected = 3.0 * x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-3)
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(norm(x)[0, 0].norm().item(), 0.3, rtol=0, atol=1e-9)


def test_scale_norm_gives_every_vector_one_length():
    lengths = ScaleNorm(16)(torch.randn(4, 7, 16) * 100).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 4.0))


@pytest.mark.parametrize("norm_type", NORMS)
def test_gradients(norm_type):
    norm = make_norm(norm_type, 6, 1e-5).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,), fast_mode=True)


@pytest.mark.parametrize("norm_type", NORMS)
def test_low_precision_input_is_normalised_in_float32(norm_type):
    x = torch.randn(4, 16).bfloat16()
    norm = make_norm(norm_type, 16, 1e-5)
    assert norm(x).dtype is torch.float32
    torch.testing.assert_close(norm(x), norm(x.float()))


@pytest.mark.parametrize("norm_type", NORMS)
def test_low_precision_weights_serve_precise_input(norm_type):
    x = torch.randn(4, 16)
    norm = make_norm(norm_type, 16, 1e-5).bfloat16()
    torch.testing.assert_close(norm(x), make_norm(norm_type, 16, 1e-5)(x))


@pytest.mark.parametrize("norm_type", NORMS)
def test_zeros_stay_finite(norm_type):
    x = torch.zeros(2, 4, requires_grad=True)
    make_norm(norm_type, 4, 1e-5)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_eps_reaches_the_norm():
    assert all(make_norm(norm_type, 4, 0.25).eps == 0.25 for norm_type in NORMS)


class Copies(TorchDispatchMode):
    """Counts operators that round weights, or turn their gradients back, one by one and together."""

    def __init__(self) -> None:
        super().__init__()
        self.single = self.together = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.single += name == "aten::_to_copy" and args[0].ndim == 2
        self.together += name == "aten::_foreach_copy_"
        return func(*args, **(kwargs or {}))


def gradients_of_blocks(recompute: Recomputation) -> tuple[list[Tensor], Copies]:
    """The output of two blocks and their gradients, in bf16."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "num_heads": 4, "num_layers": 2, "dropout": 0.1, "bias": True}
    blocks = TransformerStack(DecoderConfig(**sizes), causal=True)
    blocks.recompute(recompute)
    with torch.autocast("cpu", torch.bfloat16), Copies() as copies:
        y = blocks(torch.randn(3, 7, 32))
    with copies:
        gradients = torch.autograd.grad(y.square().sum(), [*blocks.parameters()])
    return [y.detach(), *gradients], copies


@pytest.mark.parametrize("recompute", [False, True, "all", "attention"])
def test_the_weights_of_a_block_are_rounded_together(recompute: Recomputation, monkeypatch: pytest.MonkeyPatch):
    found, copies = gradients_of_blocks(recompute)
    # where attention alone is recomputed, it rounds its own weights; a block that is recomputed ends with its last sum
    assert copies.single == (2 * 4 if recompute == "attention" else 0)
    assert copies.together == {False: 2, True: 6, "all": 7, "attention": 2}[recompute]
    monkeypatch.setattr(stack, "cast_weights", lambda *_, **__: contextlib.nullcontext())
    expected, before = gradients_of_blocks(recompute)
    assert before.single >= 2 * 7 * 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_weights_that_are_not_reached_have_no_gradient_and_all_are_put_back():
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("used", "left", "frozen")})
    model["frozen"].requires_grad_(False)
    weights = [*model.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        with cast_weights(model):
            assert all(layer.weight.dtype == torch.bfloat16 for layer in model.values())
            total = model["frozen"](model["used"](torch.ones(2, 4))).sum()
        with pytest.raises(ZeroDivisionError), cast_weights(model):
            raise ZeroDivisionError
        with torch.no_grad(), cast_weights(model):
            assert model["used"].weight.dtype == torch.float32, "autocast would keep none of them"
    assert all(one is other for one, other in zip(weights, model.parameters(), strict=True))
    total.backward()
    reached = {name for name, one in model.named_parameters() if one.grad is not None}
    assert reached == {"used.weight", "used.bias"}
    assert {one.grad.dtype for one in model["used"].parameters() if one.grad is not None} == {torch.float32}


class Others(nn.Module):
    """A layer of someone else's, which reads its weight's dtype, as peft's adapters do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


def test_weights_of_others_layers_are_left_alone():
    own, others = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), Others()
    with torch.autocast("cpu", torch.bfloat16), cast_weights(own, others):
        found = [
            str(one.dtype) for layer in (*own, others.layer) for one in layer._parameters.values() if one is not None
        ]
    assert found == 4 * ["torch.bfloat16"] + 2 * ["torch.float32"]


class Roundings(TorchDispatchMode):
    """Counts how often tensors of a shape are taken from 32 bits to 16."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.number = shape, 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operator(*args, **(kwargs or {}))
        if operator is torch.ops.aten._to_copy.default and found.shape == self.shape:
            self.number += (args[0].dtype, found.dtype) == (torch.float32, torch.bfloat16)
        return found


def under_autocast(placement: str, memory: Tensor | None) -> tuple[list[Tensor], int]:
    """The outputs and gradients of two blocks, and how often a block rounds the stream or the memory."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "num_heads": 4, "num_key_value_heads": 2, "num_layers": 2, "dropout": 0.0}
    stack = TransformerStack(
        DecoderConfig(**sizes, norm_placement=placement), causal=True, memory_width=None if memory is None else 32
    )
    x = torch.randn(3, 7, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), Roundings((3, 7, 32)) as roundings:
        y = stack(x.clone(), memory=None if memory is None else memory.clone())  # autocast rounds leaves once
    assert y.dtype == torch.float32, "the stream isn't rounded"
    learned = [x, *stack.parameters(), *([] if memory is None else [memory])]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), learned)], roundings.number // 2


@pytest.mark.parametrize("placement", ["pre", "sandwich", "post"])
@pytest.mark.parametrize("crosses", [False, True], ids=["self", "cross"])
def test_a_block_rounds_once_for_each_layer_not_for_each_product(
    placement: str, crosses: bool, monkeypatch: pytest.MonkeyPatch
):
    """With the same bits, gradients too, where only these products read what is rounded."""
    memory = torch.randn(3, 7, 32, requires_grad=True) if crosses else None
    found, number = under_autocast(placement, memory)
    assert number == (4 if crosses else 2)
    monkeypatch.setattr(norms, "cast_inputs", lambda x, *layers: (x,) * len(layers))
    expected, number_before = under_autocast(placement, memory)
    assert number_before == (8 if crosses else 5)
    assert torch.equal(found[0], expected[0])
    if placement != "post" and memory is None:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    for one, other in zip(found, expected, strict=True):
        error = (one - other).norm() / other.norm()
        assert error < 0.01
