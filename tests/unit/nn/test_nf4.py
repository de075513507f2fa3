"""NF4 has the bits of bitsandbytes, takes 0.516 bytes a number, and is multiplied as what it stands for."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor, nn

from vaak.nn.lora import NF4Linear
from vaak.nn.nf4 import Quantised, dequantise, make_tables, num_weights, quantise

OF_BITSANDBYTES = {
    "codes": "3c4756deb2aa2ce0",
    "absmax": "6c9ad4586744e78e",
    "nested_absmax": "8ee54a7c705fb156",
    "offset": "8537ec6d6007743c",
    "torch.float32": "069f6b62bac7b981",
    "torch.bfloat16": "e7adb393778f2ed4",
}
"""Hashes of what bitsandbytes 0.50.2 makes of ``example()``; where it is installed, they are compared with its own."""


def example() -> Tensor:
    """A weight whose blocks' largest numbers have an exact mean, so that the order of additions changes no bit."""
    numbers = torch.arange(256 * 160).view(256, 160)
    weight = (numbers * 7919 % 4093 - 2046) * (1 + numbers * 31 // 64 % 5)
    weight[3] = 0
    return weight / 2**16


def hashes(weight: Quantised, whole: dict[str, Tensor]) -> dict[str, str]:
    tensors = weight._asdict() | whole
    contents = {name: one.reshape(-1).view(torch.uint8).numpy() for name, one in tensors.items()}
    return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in contents.items()}


def test_the_bits_are_those_that_bitsandbytes_was_seen_to_have():
    weight, tables = quantise(example()), make_tables()
    whole = {str(dtype): dequantise(weight, tables, dtype) for dtype in (torch.float32, torch.bfloat16)}
    assert hashes(weight, whole) == OF_BITSANDBYTES


@pytest.mark.parametrize("weight", [example(), torch.randn(96, 512, generator=torch.Generator().manual_seed(0))])
def test_the_bits_are_those_of_the_peer(weight: Tensor):
    peer = pytest.importorskip("bitsandbytes", exc_type=ImportError).functional
    codes, state = peer.quantize_4bit(weight, compress_statistics=True, quant_type="nf4")
    theirs = Quantised(codes.flatten(), state.absmax, state.state2.absmax, state.offset.view(1))
    whole = {}
    for dtype in (torch.float32, torch.bfloat16):
        state.dtype = dtype
        whole[str(dtype)] = peer.dequantize_4bit(codes, state)
        assert torch.equal(dequantise(theirs, make_tables(), dtype).view_as(weight), whole[str(dtype)])
    ours = quantise(weight)
    assert torch.equal(ours.codes, theirs.codes)
    torch.testing.assert_close(ours.offset, theirs.offset, rtol=2e-7, atol=0)
    if weight.equal(example()):
        assert hashes(theirs, whole) == OF_BITSANDBYTES


def layers() -> tuple[NF4Linear, nn.Linear]:
    """A layer in four bits, and one that has whole what they stand for; their biases are trained."""
    torch.manual_seed(0)
    drawn = nn.Linear(192, 128)
    drawn.weight.requires_grad_(False)
    kept = NF4Linear(drawn)
    whole = kept.whole()
    whole.bias = nn.Parameter(drawn.bias.detach().clone())
    return kept, whole


@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_computes_what_its_weight_stands_for_and_keeps_no_copy(autocast: bool):
    kept, whole = layers()
    inputs = torch.randn(2, 3, 192)
    found, saved = [], list[Tensor]()
    for layer in (whole, kept):
        x = inputs.clone().requires_grad_()
        layer.zero_grad()
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        ):
            saved.clear()
            outputs = layer(x)
        outputs.float().square().sum().backward()
        found.append([outputs, x.grad, layer.bias.grad])
    for ours, expected in zip(found[1], found[0], strict=True):
        assert ours.dtype == expected.dtype
        near = (0.02 if autocast else 1e-6) * expected.detach().abs().max().item()
        torch.testing.assert_close(ours, expected, rtol=0, atol=near)
    assert torch.equal(found[1][0], found[0][0])
    assert saved
    assert max(one.nbytes for one in saved) <= kept.codes.nbytes
    assert kept.weight.shape == (128, 192)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does that itself
def test_a_layer_is_compiled_whole():
    kept, _ = layers()
    x = torch.randn(4, 192, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(kept, backend="aot_eager", fullgraph=True)
    (gradient,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (expected,) = torch.autograd.grad(kept(x).square().sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_a_weight_takes_half_a_byte_and_a_bit():
    layer = NF4Linear(nn.Linear(1024, 2048, bias=False))
    numbers = 1024 * 2048
    kept = sum(one.nbytes for one in layer.state_dict().values())
    assert kept == numbers // 2 + numbers // 64 + 4 * numbers // (64 * 256) + 4
    assert round(kept / numbers, 3) == 0.516
    assert num_weights(layer.parameters()) == numbers
