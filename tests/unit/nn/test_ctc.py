"""CTC against the sum over every path, which is written out, and against torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.ctc import collapse, ctc_log_likelihoods, frames_needed


def summed_over_paths(log_probs: Tensor, targets: list[int], blank: int) -> Tensor:
    """The log-probability of ``targets``, by trying all classes of all frames; ``log_probs`` is ``(frame, vocab)``."""
    time, size = log_probs.shape
    paths = [path for path in itertools.product(range(size), repeat=time) if collapse(path, blank) == targets]
    if not paths:
        return log_probs.new_tensor(-math.inf)
    each = torch.stack([log_probs[range(time), list(path)].sum() for path in paths])
    return each.logsumexp(0)


@pytest.mark.parametrize("blank", [0, 2])
def test_value_and_gradient_are_those_of_a_sum_over_all_paths(blank: int) -> None:
    one, other = (token for token in range(3) if token != blank)
    rows = [[], [one], [one, one], [one, other, one], [other, other, one], [one, one, one]]
    frames = [5, 1, 3, 5, 4, 5]  # the last row fits exactly: three equal tokens, two blanks
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(rows), 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.full((len(rows), 4), -100)  # whatever is beyond a row isn't read
    for row, tokens in enumerate(rows):
        targets[row, : len(tokens)] = torch.tensor(tokens)
    lengths = torch.tensor(frames), torch.tensor([len(one) for one in rows])
    weights = torch.rand(len(rows), generator=generator, dtype=torch.float64)

    found = ctc_log_likelihoods(logits.log_softmax(-1), targets, *lengths, blank)
    expected = torch.stack(
        [
            summed_over_paths(logits[row, :time].log_softmax(-1), tokens, blank)
            for row, (tokens, time) in enumerate(zip(rows, frames, strict=True))
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((weights * value).sum(), logits)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    assert not gradients[0][1, 1:].any(), "padding has no gradient"


def test_tokens_that_do_not_fit_have_no_probability_and_no_gradient() -> None:
    logits = torch.zeros(2, 3, 3, requires_grad=True)
    targets, lengths = torch.tensor([[1, 1, 2], [1, 2, 1]]), torch.tensor([3, 3])
    assert [frames_needed(row) for row in targets.tolist()] == [4, 3]
    found = ctc_log_likelihoods(logits.log_softmax(-1), targets, lengths, lengths)
    assert found.tolist() == [-math.inf, pytest.approx(3 * math.log(1 / 3))]
    found[found.isfinite()].sum().backward()
    assert logits.grad is not None
    assert not logits.grad[0].any()
    assert logits.grad[1].isfinite().all()


def test_long_rows_are_as_torch_computes_them_whatever_they_are_padded_to() -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs = (3 * torch.randn(4, 300, 30, generator=generator)).log_softmax(-1)
    targets = torch.randint(1, 30, (4, 60), generator=generator)
    frames, tokens = torch.tensor([300, 211, 120, 40]), torch.tensor([60, 59, 31, 8])
    found = -ctc_log_likelihoods(log_probs, targets, frames, tokens)
    theirs = F.ctc_loss(log_probs.double().transpose(0, 1), targets, frames, tokens, reduction="none")
    torch.testing.assert_close(found.double(), theirs, rtol=1e-6, atol=0)
    alone = -ctc_log_likelihoods(log_probs[2:3, :120], targets[2:3, :31], frames[2:3], tokens[2:3])
    assert torch.equal(alone, found[2:3])
