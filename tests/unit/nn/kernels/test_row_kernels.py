"""Kernels of ours say what torch does in 64 bits: on a GPU, or by Triton's interpreter where there is none."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before it is imported
pytest.importorskip("triton", reason="there is no Triton: torch brings it along where it is built for CUDA")

from vaak.nn.cross_entropy import CrossEntropy, HeadInputs, head_cross_entropy
from vaak.nn.kernels import row_kernels
from vaak.nn.kernels.device_paths import PATHS
from vaak.nn.kernels.row_kernels import cross_entropy_rows, rotated
from vaak.nn.positional_encodings import rotate, rotation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture
def _used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device takes CUDA's path, which a CPU has by the interpreter."""
    monkeypatch.setitem(PATHS, "cpu", PATHS["cuda"])
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    row_kernels._agrees.cache_clear()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_classes", [5, 70, 8192, 20_000])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_losses_and_gradients(dtype: torch.dtype, num_classes: int, smoothing: float, squares: bool):
    logits = (3 * drawn(7, num_classes)).to(dtype)
    if not smoothing:
        logits[2, :4] = -torch.inf  # classes that can't be
    targets = torch.randint(4, num_classes, (7,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    rates, square_rates = drawn(7, seed=2), drawn(7, seed=3) if squares else None
    exact = logits.double().requires_grad_()
    log_probabilities, log_z = exact.log_softmax(-1), exact.logsumexp(-1)
    losses = -(1 - smoothing) * log_probabilities.gather(1, targets[:, None])[:, 0]
    losses = losses - smoothing * log_probabilities.mean(-1) if smoothing else losses
    total = (losses * rates).sum() + (0 if square_rates is None else (log_z.square() * square_rates).sum())
    (expected,) = torch.autograd.grad(total, exact)
    out = torch.full_like(logits, torch.nan)
    found = cross_entropy_rows(logits, targets, smoothing, rates, square_rates, out)
    for own, other in zip(found, (losses, log_z), strict=True):
        torch.testing.assert_close(own.double(), other.detach(), rtol=1e-5, atol=1e-5)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=bound, atol=bound / 10)
    assert torch.equal(found[0], cross_entropy_rows(logits, targets, smoothing)[0])
    cross_entropy_rows(logits, targets, smoothing, rates, square_rates)
    assert torch.equal(logits, out), "in the place of the logits, too"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("heads", "width"), [(3, 8), (12, 64), (5, 24)])
def test_heads_are_rotated(heads: int, width: int, rows: int):
    x = drawn(3, heads, 7, width).transpose(1, 2).requires_grad_()
    cosine, sine, gradient = drawn(rows, 7, 1, width), drawn(rows, 7, 1, width, seed=1), drawn(3, heads, 7, width)
    expected, found = x * cosine + x.roll(width // 2, -1) * sine, rotated(x, cosine, sine, torch.float32)
    torch.testing.assert_close(found, expected)
    of_x = [torch.autograd.grad(one, x, gradient.transpose(1, 2))[0] for one in (found, expected)]
    torch.testing.assert_close(*of_x)
    in_16_bits = rotated(x.detach().bfloat16(), cosine, sine, torch.bfloat16)
    torch.testing.assert_close(in_16_bits.float(), expected.detach(), rtol=0.02, atol=0.05)


@pytest.mark.usefixtures("_used")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_loss_takes_them(smoothing: float, monkeypatch: pytest.MonkeyPatch):
    """Of whole logits, and of a head; targets that are left out have no part."""
    monkeypatch.setattr("vaak.nn.cross_entropy._logits_at_once", lambda _: 8)
    hidden, weight = (drawn(*shape).requires_grad_() for shape in ((6, 4), (9, 4)))
    targets = torch.tensor([3, -100, 8, 0, -100, 5], device=DEVICE)
    loss = CrossEntropy(smoothing)
    totals = [loss(hidden @ weight.T, targets), head_cross_entropy(HeadInputs(hidden, weight), targets, smoothing)[0]]
    double = (hidden.double() @ weight.double().T).flatten(0, -2)
    exact = torch.nn.functional.cross_entropy(double, targets, reduction="sum", label_smoothing=smoothing)
    expected = torch.autograd.grad(exact, (hidden, weight))
    for total in totals:
        torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-5, check_dtype=False)
        torch.testing.assert_close(torch.autograd.grad(total, (hidden, weight)), expected, rtol=1e-4, atol=1e-5)
    assert row_kernels._agrees.cache_info().currsize == 1


@pytest.mark.usefixtures("_used")
def test_positions_take_them():
    x, by = drawn(2, 5, 3, 8), rotation(torch.arange(5, device=DEVICE)[None], 8, 10_000.0)
    expected = torch.addcmul(x * by.cosine, x.roll(4, -1), by.sine)
    torch.testing.assert_close(rotate(x, by), expected)
    assert row_kernels._agrees.cache_info().currsize == 1


@pytest.mark.usefixtures("_used")
def test_a_kernel_that_says_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(row_kernels, "_rotate", lambda x, cosine, sine, dtype: x.to(dtype))
    assert not row_kernels.has_rotated(drawn(2, 5, 3, 8))
    assert "our kernel of rotation isn't used" in caplog.text
