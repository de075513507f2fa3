"""Alignments of speech on a GPU: the CPU's, with a few launches, and without 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mock_cuda import MockDevice
from vaak.nn.speech.alignment import monotonic_alignment, path_log_likelihoods

FRAMES, SYMBOLS = torch.tensor([800, 533]), torch.tensor([150, 70])


class Launches(TorchDispatchMode):
    """Counts the operators that compute something: neither views nor memory."""

    number = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = operator._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
        self.number += not is_view and "empty" not in operator._schema.name
        return operator(*args, **(kwargs or {}))


def launches(work: Callable[..., list[Tensor]], *given: Tensor) -> tuple[list[Tensor], int]:
    with Launches() as counted:
        found = work(*given)
    return found, counted.number


def summed_up(scores: Tensor, frames: Tensor, symbols: Tensor) -> list[Tensor]:
    scores = scores.clone().requires_grad_()
    totals = path_log_likelihoods(scores, frames, symbols)
    return [totals.detach(), *torch.autograd.grad(totals.sum(), scores)]


def drawn() -> Tensor:
    """Log-likelihoods as the aligner gives them: hundreds apart, most of them impossible; padding is NaN."""
    generator = torch.Generator().manual_seed(0)
    scores = -30 * torch.rand(2, 800, 150, generator=generator) - 40
    scores[1, 533:], scores[1, :, 70:] = torch.nan, torch.nan
    return scores


def test_sums_are_those_of_the_cpu(gpu: MockDevice):
    scores = drawn()
    expected, on_cpu = launches(summed_up, scores, FRAMES, SYMBOLS)
    given = scores.cuda(), FRAMES.cuda(), SYMBOLS.cuda()
    gpu.notes.clear()
    (totals, posteriors), on_gpu = launches(summed_up, *given)
    assert not gpu.notes, "it neither waits nor has 64 bits"
    assert on_cpu > 1600
    assert on_gpu < 300
    torch.testing.assert_close(totals.cpu(), expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(posteriors.cpu(), expected[1], rtol=1e-3, atol=1e-5)


def test_paths_are_those_of_the_cpu(gpu: MockDevice):
    scores = drawn()
    given = scores.cuda(), FRAMES.cuda(), SYMBOLS.cuda()
    gpu.notes.clear()
    (durations,), number = launches(lambda *sizes: [monotonic_alignment(*sizes)], *given)
    assert not gpu.notes
    assert number < 400
    assert torch.equal(durations.cpu(), monotonic_alignment(scores, FRAMES, SYMBOLS))


def test_small_differences_of_large_sums_count(gpu: MockDevice):
    """In 32 bits, sums of log-likelihoods of many frames would hide them; a GPU has the differences in a frame."""
    scores = torch.full((1, 2000, 2), -1e4)
    scores[0, :1990, 1] -= 0.01
    scores[0, 1990:, 0] -= 0.01
    durations = monotonic_alignment(scores.cuda(), torch.tensor([2000]).cuda(), torch.tensor([2]).cuda())
    assert durations.tolist() == [[1990, 10]]
