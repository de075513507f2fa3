"""A small model waits for the program, so a step starts few operators on a GPU. They compute the same."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from contract_cases import CASES
from mock_cuda import MockDevice
from vaak.config.optimization import GradientClippingConfig
from vaak.core.batch import SENT_ALONE, send_all
from vaak.engine.gradient import make_factors
from vaak.engine.step import clip_gradients
from vaak.nn.attention import Attention
from vaak.nn.config import StackConfig
from vaak.nn.feed_forward import SwiGLU
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.norms import cast_weights, unit_length
from vaak.nn.positional_encodings import Scaling, rotation, rotation_from_start
from vaak.tasks.diarization.model import clustering_loss

CUDA = torch.device("cuda")


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator._schema.name.partition("::")[2]
        self.numbers[name] = self.numbers.get(name, 0) + 1
        return operator(*args, **(kwargs or {}))


def test_small_tensors_of_a_batch_are_sent_by_one_copy(gpu: MockDevice):
    large = torch.randn(2, SENT_ALONE // 4)
    tensors = {
        "mask": torch.tensor([[True], [False]]),
        "symbols": torch.randint(100, (2, 7)),
        "prosody": torch.randn(2, 3, 2).transpose(1, 2),
        "large": large,
        "none": torch.zeros(2, 0),
    }
    with Operators() as counted:
        sent = send_all(tensors, CUDA)
    assert counted.numbers["_to_copy"] == 3, "the small ones, the large one, and one without a byte"
    assert list(sent) == list(tensors)
    for name, tensor in tensors.items():
        assert sent[name].is_cuda
        assert torch.equal(sent[name].cpu(), tensor)
        assert sent[name].dtype == tensor.dtype
    # each may be changed in place: the others are saved for a backward unchanged
    weights = torch.ones(2, 2, 3, device="cuda", requires_grad=True)
    product = (weights * sent["prosody"]).sum()
    sent["symbols"].add_(1)
    product.backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad.cpu(), tensors["prosody"])


def test_factors_are_sent_together_and_rounded_as_alone(gpu: MockDevice):
    numbers = {"main": 1 / 3, "pitch": 0.1, "stop": 1e-9}
    roots = {name: torch.zeros((), device="cuda") for name in numbers}
    with Operators() as counted:
        found = make_factors(numbers, roots)
    assert counted.numbers["_to_copy"] == 1
    for name, factor in make_factors(numbers, {name: torch.zeros(()) for name in numbers}).items():
        assert torch.equal(found[name].cpu(), factor)


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_a_norm_that_was_read_clips_with_the_same_bits_by_one_operator_or_none(scale: float, gpu: MockDevice):
    gradients = [scale * torch.randn(3, 4), scale * torch.randn(5)]
    there, norm = [one.to("cuda") for one in gradients], torch.nn.utils.get_total_norm(gradients)
    with Operators() as counted:
        clip_gradients(there, norm.to("cuda"), GradientClippingConfig(norm=1.0), known_norm=float(norm))
    assert counted.numbers.get("_foreach_mul_", 0) == (scale > 1)
    clip_gradients(gradients, norm, GradientClippingConfig(norm=1.0))
    assert all(torch.equal(one.cpu(), other) for one, other in zip(there, gradients, strict=True))


def compare(module: nn.Module, x: Tensor, *given: Any) -> Operators:
    """Check outputs and gradients on the GPU with those of the CPU, in float64; return the GPU's operators."""
    found = []
    for device in ("cpu", "cuda"):
        own = module.double().to(device)
        entering = x.double().to(device).requires_grad_()
        with Operators() as counted:
            y = own(entering, *given)
            gradients = torch.autograd.grad(y.square().sum(), [entering, *own.parameters()])
        found.append([one.detach().cpu() for one in (y, *gradients)])
    for one, other in zip(*found, strict=True):
        # attention's weights are made in 32 bits
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    return counted


@pytest.mark.parametrize("bias", [True, False])
def test_small_layers_of_one_input_are_one_product_in_training(bias: bool, gpu: MockDevice):
    config = StackConfig(d_model=16, num_heads=4, num_key_value_heads=2, num_layers=1, dropout=0.0, qkv_bias=bias)
    attention = Attention(config, "softmax")
    products = ("mm", "addmm")
    count = compare(attention, torch.randn(2, 5, 16), Visibility(causal=True)).numbers
    assert sum(count.get(name, 0) for name in products) == 2 * 3, "forward, of the input, of the weights"
    gated = compare(SwiGLU(16, 24, bias=bias), torch.randn(2, 5, 16)).numbers
    assert sum(gated.get(name, 0) for name in products) == 2 * 3
    convolved = compare(SwiGLU(16, 24, bias=bias, kernel_size=3), torch.randn(2, 5, 16)).numbers
    assert (convolved["convolution"], convolved["convolution_backward"]) == (1, 1)
    hook = attention.key.register_forward_hook(lambda *_: None)
    watched = compare(attention, torch.randn(2, 5, 16), Visibility(causal=True)).numbers
    assert sum(watched.get(name, 0) for name in products) == 4 * 3, "a hook is called"
    hook.remove()
    with torch.no_grad(), Operators() as counted:
        attention(torch.randn(2, 5, 16, dtype=torch.float64, device="cuda"), Visibility(causal=True))
    assert "cat" not in counted.numbers, "weights aren't copied for each token that is written"


def test_weights_that_are_rounded_together_are_joined_without_a_copy(gpu: MockDevice):
    attention = Attention(StackConfig(d_model=32, num_heads=4, num_layers=1, dropout=0.0), "softmax").to("cuda")
    x, found = torch.randn(2, 5, 32, device="cuda"), []
    for joins in (True, False):
        with torch.autocast("cuda", torch.bfloat16), Operators() as counted:
            hook = None if joins else attention.key.register_forward_hook(lambda *_: None)
            with cast_weights(attention):
                y = attention(x, Visibility(causal=True))
            found.append(torch.autograd.grad(y.float().square().sum(), [*attention.parameters()]))
            if hook is not None:
                hook.remove()
        assert counted.numbers["_foreach_copy_"] == 2
        assert counted.numbers.get("cat", 0) == (2 if joins else 0), "the gradients of heads alone"
    for one, other in zip(*found, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_rotations_are_made_once(gpu: MockDevice):
    arguments = (8, 10000.0, Scaling())
    for time in (70, 100, 3):
        x = torch.zeros(2, time, 16, device="cuda")
        rotation_from_start(x, *arguments)
        with Operators() as counted:
            found = rotation_from_start(x, *arguments)
        assert set(counted.numbers) <= {"slice", "detach"}
        for one, other in zip(found, rotation(torch.arange(time)[None], *arguments), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-7)


def test_unit_vectors_have_torchs_gradient(gpu: MockDevice):
    """In float64, also of zeros and of vectors that are shorter than eps."""
    x = torch.randn(6, 5, dtype=torch.float64)
    x[1] = 0
    x[2] *= 1e-14
    weights = torch.randn(6, 5, dtype=torch.float64)
    there, here = x.to("cuda").requires_grad_(), x.clone().requires_grad_()
    expected = F.normalize(here, dim=-1)
    (expected * weights).sum().backward()
    with Operators() as counted:
        found = unit_length(there)
        (found * weights.to("cuda")).sum().backward()
    assert sum(counted.numbers.values()) < 20
    assert here.grad is not None
    assert there.grad is not None
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-9, atol=1e-12)


def test_the_clustering_loss_is_one_product(gpu: MockDevice):
    vectors, labels = torch.randn(3, 9, 4, dtype=torch.float64), F.one_hot(torch.randint(3, (3, 9)), 3)
    mask = torch.arange(9) < torch.tensor([9, 4, 0])[:, None]
    found = []
    for device in ("cpu", "cuda"):
        own = vectors.to(device, copy=True).requires_grad_()
        loss = clustering_loss(own, labels.to(device), mask.to(device)).total
        loss.backward()
        assert own.grad is not None
        found.append((loss.detach().cpu(), own.grad.cpu()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_vocoder_begins_before_its_discriminators_do(gpu: MockDevice, tmp_path: Path):
    """Their objective has no gradient until then, nor a norm on the GPU."""
    case = CASES["vocoder"]
    model = case.options["model"]
    discriminators = {**model["discriminators"], "start_step": 3}
    late = replace(case, options={**case.options, "model": {**model, "discriminators": discriminators}})
    trainer = late.prepared(tmp_path).trainer(tmp_path / "run", device="cuda", gradient_accumulation_steps=1)
    with closing(trainer.upcoming()) as steps:
        norms = [float(trainer.take_step(data).gradient_norm) for data in islice(steps, 4)]
    assert all(norm > 0 for norm in norms)
