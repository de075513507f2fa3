"""A snapshot of a GPU's tensors has their bits, and is staged: little page-locked memory, few waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from contract_cases import CASES
from mock_cuda import MockDevice
from vaak.engine import snapshot as weights
from vaak.engine.snapshot import Snapshot, copy_to_cpu

DTYPES = (
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.movedim(-1, 0) if x.ndim else x,
    "some rows": lambda x: x[1:] if x.ndim else x,
    "some columns": lambda x: x[..., ::2] if x.ndim else x,
    "repeated": lambda x: x.expand(3, *x.shape),
}


class Spec(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str
    device: str


SPECS = st.builds(
    Spec,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from([*LAYOUTS]),
    st.sampled_from(["cuda", "cuda", "cuda", "cpu"]),
)


def made(spec: Spec, seed: int) -> tuple[Tensor, Tensor]:
    """A tensor of any bits, and the same on its device, with its layout there."""
    generator = torch.Generator().manual_seed(seed)
    content = torch.randint(256, (*spec.shape, spec.dtype.itemsize), dtype=torch.uint8, generator=generator)
    content = content % 2 if spec.dtype == torch.bool else content
    tensor = content.view(spec.dtype).view(spec.shape)
    return LAYOUTS[spec.layout](tensor), LAYOUTS[spec.layout](tensor.to(spec.device, copy=True))


def content(tensor: Tensor) -> bytes:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8).numpy().tobytes()


def require_copies(copies: dict[Any, Tensor], expected: dict[Any, Tensor]) -> None:
    assert [*copies] == [*expected]
    for name, copy in copies.items():
        assert (copy.dtype, copy.shape, content(copy)) == (
            expected[name].dtype,
            expected[name].shape,
            content(expected[name]),
        )
        assert copy.device.type == "cpu"
        assert copy.is_contiguous()
        assert not (copy.numel() and copy.is_pinned())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SPECS, max_size=8), st.integers(1, 200), st.booleans())
def test_a_copy_has_all_bits(gpu: MockDevice, specs: list[Spec], staging_bytes: int, late: bool):
    """Whatever fits into a buffer, and whether the device copies at once or as late as it can."""
    gpu.late = late
    expected, live = {}, {}
    for number, spec in enumerate(specs):
        expected[number], live[number] = made(spec, number)
    gpu.notes.clear()
    with patch.object(weights, "STAGING_BYTES", staging_bytes):
        copies = copy_to_cpu(live)
    on_device = sum(one.nbytes for one in live.values() if one.is_cuda)
    assert len(gpu.waits()) <= -(-on_device // staging_bytes), "\n".join(map(str, gpu.waits()))
    for tensor in live.values():
        if 0 not in tensor.stride():  # else its numbers are in one place
            tensor.zero_()
    require_copies(copies, expected)


@pytest.mark.parametrize("late", [True, False])
def test_a_conjugate_is_copied_as_what_it_means(gpu: MockDevice, late: bool):
    gpu.late = late
    tensor = torch.complex(torch.arange(6.0), torch.ones(6)).view(2, 3)
    require_copies(copy_to_cpu({"x": tensor.cuda().conj()}), {"x": tensor.conj().resolve_conj()})


def test_a_thousand_small_tensors_share_a_buffer(gpu: MockDevice):
    live: dict[Any, Tensor] = {
        number: torch.full((number % 50,), float(number), device="cuda") for number in range(1000)
    }
    live["step"] = torch.tensor(7, device="cuda")
    before = len(gpu.waits())
    copies = copy_to_cpu(live)
    assert len(gpu.waits()) - before <= 1
    require_copies(copies, {name: one.cpu() for name, one in live.items()})


def test_memory_of_the_device_is_left_alone_but_for_one_that_is_not_contiguous(gpu: MockDevice):
    size = 2**20
    contiguous = {number: torch.ones(size // 4, device="cuda") for number in range(3)}
    transposed = {-number: torch.ones(512, 512, device="cuda").t() for number in range(1, 4)}
    for live, more in ((contiguous, 0), (transposed, size), (contiguous | transposed, size)):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with patch.object(weights, "STAGING_BYTES", 2**16):
            copy_to_cpu(live)
        assert torch.cuda.max_memory_allocated() - before <= more


def test_page_locked_are_two_buffers_whatever_is_copied(gpu: MockDevice):
    for number in (1, 10, 100):
        live = {one: torch.ones(3000, device="cuda") for one in range(number)}
        before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        torch.cuda.reset_peak_host_memory_stats()
        with patch.object(weights, "STAGING_BYTES", 2**14):
            copies = copy_to_cpu(live)
        peak = torch.cuda.host_memory_stats()["allocated_bytes.peak"] - before
        assert 0 < peak <= 2 * 2**14 or torch.backends.cuda.is_built()  # which keeps what it once had
        assert len(copies) == number
    assert weights.STAGING_BYTES.bit_count() == 1, "torch page-locks the next power of two"


def test_the_device_fills_a_buffer_while_the_host_empties_the_other(
    device_library: Path, gpu: MockDevice, monkeypatch: pytest.MonkeyPatch
):
    ahead = list[int]()

    class Watched(torch.cuda.Event):  # type: ignore[misc,valid-type,unused-ignore]
        def synchronize(self) -> None:
            super().synchronize()
            ahead.append(len(gpu.pending))

    monkeypatch.setattr(torch.cuda, "Event", Watched)
    with patch.object(weights, "STAGING_BYTES", 100):
        copy_to_cpu({"x": torch.ones(1000, dtype=torch.uint8, device="cuda")})
    assert ahead == [1] * 9 + [0]


@pytest.mark.parametrize("late", [True, False])
def test_a_snapshot_is_not_changed_by_the_next_steps(gpu: MockDevice, tmp_path: Path, late: bool):
    """A whole run's snapshot, with averaged weights, staged in many pieces and in one."""
    gpu.late = late
    trainer = (
        CASES["lm decoder, documents"].prepared(tmp_path).trainer(tmp_path / "run", device="cuda", ema={"decay": 0.9})
    )
    with closing(trainer.upcoming()) as steps:
        trainer.take_step(next(steps))
        expected = {
            part: {name: one.cpu().clone() for name, one in own.items()}
            for part, own in trainer.state.tensors().items()
        }
        before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        torch.cuda.reset_peak_host_memory_stats()
        with patch.object(weights, "STAGING_BYTES", 2**10):
            in_pieces = trainer.state.snapshot()
        peak = torch.cuda.host_memory_stats()["allocated_bytes.peak"] - before
        waits = len(gpu.waits())
        whole = trainer.state.snapshot()
        assert len(gpu.waits()) - waits <= 1
        for _ in range(2):
            trainer.take_step(next(steps))
    name, before_them = next(iter(whole.model.items()))
    assert not torch.equal(before_them, trainer.state.tensors()["model"][name].cpu())
    assert peak <= 2 * 2**10 or torch.backends.cuda.is_built()
    for snapshot in (in_pieces, whole):
        require_snapshot(snapshot, expected)


def require_snapshot(snapshot: Snapshot, expected: dict[str, dict[str, Tensor]]) -> None:
    for part in ("model", "optimizer", "average"):
        assert expected[part]
        require_copies(getattr(snapshot, part), expected[part])
