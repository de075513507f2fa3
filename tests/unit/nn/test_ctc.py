"""CTC against the sum over every path, which is written out, and against torch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.ctc import best_path, collapse, ctc_log_likelihoods, frames_needed


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


def compute_score(path: np.ndarray, log_probs: np.ndarray, ids: list[int]) -> float:
    classes = np.zeros(2 * len(ids) + 1, int)
    classes[1::2] = ids
    return float(log_probs[np.arange(len(path)), classes[path]].sum())


@pytest.mark.parametrize("ids", [[], [1], [1, 1], [1, 2, 1], [2, 2, 1], [1, 1, 1]])
def test_the_best_path_is_the_best_of_all(ids: list[int]):
    log_probs = torch.randn(5, 3, generator=torch.Generator().manual_seed(len(ids))).log_softmax(-1).double().numpy()
    paths = [one for one in itertools.product(range(3), repeat=5) if collapse(one, 0) == ids]
    best = max(float(log_probs[np.arange(5), list(one)].sum()) for one in paths)
    path = best_path(log_probs, ids)
    assert path is not None
    assert compute_score(path, log_probs, ids) == pytest.approx(best, abs=1e-12)
    steps = np.diff(path)
    assert path[0] <= 1
    assert path[-1] >= 2 * len(ids) - 1
    assert ((steps >= 0) & (steps <= 2)).all()


def test_a_text_that_does_not_fit_has_no_path():
    assert best_path(np.zeros((3, 3)), [1, 1, 2]) is None


def spoken(ids: list[int], frames_per_token: int, rng: np.random.Generator, noise: float) -> np.ndarray:
    """Log-probabilities of a model that hears each token in one frame of some, a blank in the others."""
    logits = rng.normal(0, noise, (frames_per_token * len(ids), 30))
    logits[:, 0] += 6.0
    said = np.arange(len(ids)) * frames_per_token + rng.integers(0, frames_per_token, len(ids))
    logits[said, ids] += 12.0
    return torch.from_numpy(logits).log_softmax(-1).numpy()


@pytest.mark.parametrize("width", [16, 100])
def test_a_narrow_band_finds_what_the_whole_finds(width: int):
    """Also where the speaker is silent in the middle, so that the best place stays behind the diagonal."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 30, 400).tolist()
    log_probs = spoken(ids, 5, rng, 1.0)
    silence = np.log(np.full((1500, 30), 1e-4) + np.eye(30)[0] * 0.99)
    log_probs = np.concatenate((log_probs[:900], silence, log_probs[900:]))
    whole, banded = best_path(log_probs, ids, width=10**6), best_path(log_probs, ids, width=width)
    assert whole is not None
    assert banded is not None
    np.testing.assert_array_equal(whole, banded)


def test_what_is_said_before_and_after_a_text_costs_nothing():
    rng = np.random.default_rng(1)
    before, ids, after = (rng.integers(1, 30, 60).tolist() for _ in range(3))
    log_probs = np.concatenate([spoken(part, 5, rng, 0.5) for part in (before, ids, after)])
    path = best_path(log_probs, ids, within=True)
    alone = best_path(log_probs[300:600], ids)
    assert path is not None
    assert alone is not None
    inside = (alone > 0) & (alone < 120)
    np.testing.assert_array_equal(path[300:600][inside], alone[inside])
    assert not path[:300].any()
    assert (path[600:] == 120).all()
