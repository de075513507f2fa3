"""The mock device computes what the CPU does, refuses what a GPU refuses, and notes where the program waits for it."""

from __future__ import annotations

import copy
import re
import sys
import unittest
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mock_cuda import MockDevice, operators

pytestmark = pytest.mark.usefixtures("device_library")  # a GPU that is there isn't tried
INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.fixture
def x(gpu: MockDevice) -> Tensor:
    return torch.randn(4, 6, device="cuda")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Everything(nn.Module):
    """Layers of every kind that Vaak's networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1, groups=16)
        self.norm, self.dropout = nn.LayerNorm(16), nn.Dropout(0.3)
        self.recurrent = nn.LSTM(16, 8, batch_first=True)
        self.query, self.head = nn.Linear(16, 16), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.convolution(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        split = self.query(self.norm(x)).unflatten(-1, (2, 8)).transpose(1, 2)
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
        attended = F.scaled_dot_product_attention(split, split, split, attn_mask=mask)
        x = self.dropout(F.gelu(attended.transpose(1, 2).flatten(2)))
        return self.head(self.recurrent(x)[0])


def steps(model: nn.Module, device: str) -> list[Tensor]:
    """The losses of some steps, then the weights."""
    torch.manual_seed(3)
    model = copy.deepcopy(model).to(device)
    tokens = torch.randint(11, (3, 9)).to(device)
    # with a larger eps than usual, a gradient of nearly 0 isn't a whole step in the direction that rounding gives it
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, fused=True), []
    for _ in range(3):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return [*losses, *(parameter.detach().cpu() for parameter in model.parameters())]


def test_it_trains_as_the_cpu_does(gpu: MockDevice):
    model = Everything()
    for ours, theirs in zip(steps(model, "cuda"), steps(model, "cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_computes_in_16_bits(gpu: MockDevice, dtype: torch.dtype):
    model = Everything().to("cuda")
    with torch.autocast("cuda", dtype=dtype):
        logits = model(torch.randint(11, (3, 9), device="cuda"))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.zeros(27, dtype=torch.long, device="cuda"))
    loss.backward()
    assert (logits.dtype, loss.dtype) == (dtype, torch.float32)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_without_it_there_is_no_cuda(x: Tensor):
    assert str(x.device) == "cuda:0"
    assert torch.cuda.is_available()


def test_after_it_there_is_none_either():
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        torch.ones(1, device="cuda")
    weight = torch.ones(3, requires_grad=True)
    weight.square().sum().backward()
    assert weight.grad is not None


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Tensor], object]]] = {
    "two devices": (RuntimeError, "same device", lambda x: x + torch.ones(4, 6)),
    "two devices in a list": (RuntimeError, "same device", lambda x: torch.cat([x, torch.ones(4, 6)])),
    "a number of the CPU in a list": (RuntimeError, "same device", lambda x: torch.stack([x.sum(), torch.ones(())])),
    "no kernel": (NotImplementedError, "histogram", lambda x: torch.histogram(x, 3)),
    "products of integers": (RuntimeError, "not implemented", lambda x: x.long() @ x.long().T),
    "a generator of the CPU": (RuntimeError, "generator", lambda x: torch.randn_like(x, generator=torch.Generator())),
    "NumPy": (TypeError, "numpy", lambda x: x.numpy()),
    "too much memory": (torch.OutOfMemoryError, "out of memory", lambda x: torch.empty(1 << 40, device="cuda")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(what: str, x: Tensor):
    kind, said, do = REFUSED[what]
    with pytest.raises(kind, match=said):
        do(x)


NOT_REPEATABLE: dict[str, Callable[[Tensor], object]] = {
    "cumsum": lambda x: x.cumsum(0),
    "nll_loss2d": lambda x: F.cross_entropy(x[..., None], torch.zeros(4, 1, dtype=torch.long, device="cuda")),
    "reflection_pad1d": lambda x: F.pad(x.requires_grad_(), (1, 1), mode="reflect").sum().backward(),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "prod"),
    "histc": lambda x: x.histc(),
}


@pytest.mark.parametrize("what", NOT_REPEATABLE)
def test_it_refuses_what_is_not_repeatable_where_that_is_asked_for(what: str, x: Tensor, deterministic: None):
    with pytest.raises(RuntimeError, match=f"{what}.* does not have a deterministic implementation"):
        NOT_REPEATABLE[what](x)
    torch.use_deterministic_algorithms(False)
    NOT_REPEATABLE[what](x.detach())


def test_it_allows_what_is(x: Tensor, deterministic: None):
    x.long().cumsum(0)
    F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device="cuda"))
    x.scatter_reduce(0, torch.zeros_like(x, dtype=torch.long), x, "sum")


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.isfinite().all()),
    "tolist": lambda x: x.tolist(),
    "to the CPU": lambda x: x.cpu(),
    "to the CPU's pageable memory": lambda x: torch.empty(4, 6).copy_(x, non_blocking=True),
    "from the CPU's pageable memory": lambda x: torch.ones(3).to("cuda", non_blocking=True),
    "from page-locked memory, blocking": lambda x: torch.ones(3).pin_memory().to("cuda"),
    "a tensor of a list": lambda x: torch.tensor([1, 2], device="cuda"),
    "a mask": lambda x: x[:, torch.ones(6, dtype=torch.bool, device="cuda")],
    "an index of the CPU": lambda x: x[torch.tensor([1, 2])],
    "a list as an index": lambda x: x[[1, 2]],
    "a mask that gets several values": lambda x: x.index_put_((x == x,), torch.zeros(24, device="cuda")),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(4, dtype=torch.long, device="cuda"), 0),
    "equal": lambda x: torch.equal(x, x),
    "synchronize": lambda x: torch.cuda.synchronize(),
}
DOES_NOT_WAIT: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (x * 2 + torch.tensor(1.0)).softmax(-1).argmax(),
    "from page-locked memory": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "to page-locked memory": lambda x: torch.empty(4, 6, pin_memory=True).copy_(x, non_blocking=True),
    "a number written through a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "an index of the device": lambda x: x[torch.zeros(2, dtype=torch.long, device="cuda")],
    "repeat_interleave with its size": lambda x: x.repeat_interleave(
        torch.ones(4, dtype=torch.long, device="cuda"), 0, output_size=4
    ),
    "draws": lambda x: F.dropout(torch.randn_like(x), 0.5),
}


@pytest.mark.parametrize("what", WAITS)
def test_it_notes_where_the_program_waits(what: str, x: Tensor, gpu: MockDevice):
    assert not gpu.waits()
    WAITS[what](x)
    assert gpu.waits()
    assert all(__file__ in note.where[0] for note in gpu.waits())


@pytest.mark.parametrize("what", DOES_NOT_WAIT)
def test_it_notes_nothing_else(what: str, x: Tensor, gpu: MockDevice):
    DOES_NOT_WAIT[what](x)
    assert not gpu.waits()


ARRIVES: dict[str, Callable[[Tensor, torch.cuda.Event, Tensor], object]] = {
    "an event after it": lambda x, event, copy: event.synchronize(),
    "an event that is asked": lambda x, event, copy: event.query(),
    "the device": lambda x, event, copy: torch.cuda.synchronize(),
    "a number": lambda x, event, copy: x.sum().item(),
    "what the device reads of it": lambda x, event, copy: x.copy_(copy, non_blocking=True),
}


@pytest.mark.parametrize("what", ARRIVES)
def test_a_copy_to_page_locked_memory_arrives_when_it_is_waited_for(what: str, x: Tensor):
    expected, copy = x.cpu(), torch.zeros(4, 6, pin_memory=True)
    before = torch.cuda.Event()
    before.record()
    copy.copy_(x, non_blocking=True)
    x.zero_()  # which comes after it
    after = torch.cuda.Event()
    after.record()
    torch.cuda.Event().synchronize()  # one that was never recorded
    before.synchronize()
    assert not copy.any()
    ARRIVES[what](x, after, copy)
    assert copy.equal(expected)


def test_or_at_once(x: Tensor, gpu: MockDevice):
    gpu.late = False
    assert torch.empty(4, 6, pin_memory=True).copy_(x, non_blocking=True).equal(x.cpu())


def test_it_counts_page_locked_memory(gpu: MockDevice):
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    torch.cuda.reset_peak_host_memory_stats()
    kept = torch.empty(1000, pin_memory=True)
    torch.empty(100, pin_memory=True)
    assert kept.is_pinned()
    stats = torch.cuda.host_memory_stats()
    assert stats["allocated_bytes.current"] - before == 4096
    assert stats["allocated_bytes.peak"] - before == 4096 + 512


def test_it_notes_float64(x: Tensor, gpu: MockDevice):
    x.sum(dtype=torch.float64)
    assert not gpu.notes
    x.double().exp()
    assert {note.kind for note in gpu.notes} == {"float64"}


def test_it_counts_memory(gpu: MockDevice):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.zeros(1000, device="cuda")
    temporary = kept * 2
    del temporary
    assert torch.cuda.memory_allocated() - before == 4000
    assert torch.cuda.max_memory_allocated() - before == 8000
    gpu.limit_memory(torch.cuda.memory_allocated() + 3999)
    with pytest.raises(torch.OutOfMemoryError):
        kept.clone()


def test_what_it_calls_not_repeatable_is_what_torch_says():
    said = torch.use_deterministic_algorithms.__doc__ or ""
    listed = said.partition("operations will throw a\n")[2].partition("In addition")[0]
    assert set(re.findall(r"\* :\w+:`([\w.]+)`", listed)) == set(operators.NOT_DETERMINISTIC)
    names = {name for several in operators.NOT_DETERMINISTIC.values() for name in several}
    assert all(hasattr(torch.ops.aten, name) for name in names)


@pytest.mark.slow
def test_integers_are_left_out_where_torch_tests_none(monkeypatch: pytest.MonkeyPatch):
    """torch's own tests know which types each operator takes on each device; they need a package that isn't used."""
    package = ModuleType("expecttest")
    package.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "expecttest", package)
    monkeypatch.setattr(torch.backends, "disable_global_flags", lambda: None)  # of this process, for good
    from torch.testing._internal.common_methods_invocations import op_db

    lacking = {
        one.aten_name for one in op_db if any(kind in set(one.dtypes) - set(one.dtypesIfCUDA) for kind in INTEGERS)
    }
    assert lacking - MADE_OF_OTHERS == operators.WITHOUT_INTEGERS - OF_OTHER_NAMES


OF_OTHER_NAMES = {"convolution", "max_pool2d_with_indices", "max_pool3d_with_indices"}
MADE_OF_OTHERS = {
    "matmul", "linear", "einsum", "inner", "tensordot", "linalg_multi_dot", "bilinear", "__rmatmul__", "avg_pool1d",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "max_pool2d",
    "max_pool3d", "nn.functional.local_response_norm", "interpolate", "nn.functional.upsample_bilinear",
    "_upsample_bilinear2d_aa",
}  # fmt: skip
"""They call the operators known here, or take images of uint8 on the CPU alone."""
