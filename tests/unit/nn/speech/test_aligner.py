"""The sum over paths against all paths and torch's CTC, the prior against its formula, the aligner's padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.fft
import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.speech import alignment
from vaak.nn.speech.alignment import (
    Aligner,
    beta_binomial_prior,
    forward_sum_loss,
    monotonic_alignment,
    path_log_likelihoods,
    with_differences,
)
from vaak.nn.speech.masks import length_mask

FRAMES, SYMBOLS = torch.tensor([6, 4, 5, 1]), torch.tensor([3, 4, 1, 1])
EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def drawn_log_probs(extra: int = 0) -> Tensor:
    """Return log-probabilities normalised over each row's symbols, with NaN as padding."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 6, 4, dtype=torch.float64, generator=generator)
    logs = scores.masked_fill(~length_mask(SYMBOLS)[:, None], -torch.inf).log_softmax(-1)
    is_real = length_mask(FRAMES)[..., None] & length_mask(SYMBOLS)[:, None]
    return F.pad(logs.masked_fill(~is_real, torch.nan), (0, extra, 0, extra), value=torch.nan)


def dynamic_programming(logs: Tensor, frames: int, symbols: int) -> Tensor:
    """The sum over paths of one row ``(frame, symbol)``, place by place, with a gradient by autograd."""
    state: list[Tensor] = [logs[0, 0]]
    for frame in range(1, frames):
        entering = [logs.new_tensor(-1e30), *state]
        state = [
            torch.logaddexp(entering[j], state[j] if j < len(state) else logs.new_tensor(-1e30)) + logs[frame, j]
            for j in range(min(frame + 1, symbols))
        ]
    return state[symbols - 1]


@pytest.mark.parametrize("block", [None, 1, 2, 5], ids=lambda block: f"blocks of {block}" if block else "CPU")
@pytest.mark.parametrize("extra", [0, 3])
def test_the_sum_over_paths_and_its_gradient_are_those_of_the_plain_recursion(
    extra: int, block: int | None, monkeypatch: pytest.MonkeyPatch
):
    if block is not None:
        monkeypatch.setattr(alignment, "block_length", lambda time, device: block)
    ours, theirs = (drawn_log_probs(extra).requires_grad_() for _ in range(2))
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    totals = path_log_likelihoods(ours, FRAMES, SYMBOLS)
    expected = torch.stack([dynamic_programming(theirs[row], int(FRAMES[row]), int(SYMBOLS[row])) for row in range(4)])
    torch.testing.assert_close(totals, expected, **EXACT)
    (gradient,) = torch.autograd.grad(totals @ weights, ours)
    (expected_gradient,) = torch.autograd.grad(expected @ weights, theirs)
    torch.testing.assert_close(gradient, expected_gradient, **EXACT)


def test_is_ctc_without_a_blank():
    logs = drawn_log_probs().nan_to_num(-1e9)
    with_blank = F.pad(logs, (1, 0), value=-1e9)
    targets = torch.arange(1, 5).expand(4, -1)
    expected = F.ctc_loss(with_blank.transpose(0, 1), targets, FRAMES, SYMBOLS, reduction="sum")
    term = forward_sum_loss(logs, FRAMES, SYMBOLS)
    assert term.per == "frame"
    torch.testing.assert_close(term.total, expected, **EXACT)


def test_neither_padding_nor_the_batch_changes_a_bit():
    logs = drawn_log_probs(extra=5)
    together = path_log_likelihoods(logs, FRAMES, SYMBOLS)
    for row in range(4):
        frames, symbols = FRAMES[row : row + 1], SYMBOLS[row : row + 1]
        alone = path_log_likelihoods(logs[row : row + 1, : int(frames), : int(symbols)], frames, symbols)
        assert torch.equal(together[row : row + 1], alone)


def test_a_row_without_a_path_is_impossible():
    assert forward_sum_loss(torch.zeros(1, 2, 3), torch.tensor([2]), torch.tensor([3])).total.item() == torch.inf


@pytest.mark.parametrize("scaling", [1.0, 0.3])
def test_the_prior_is_beta_binomial(scaling: float):
    stats = pytest.importorskip("scipy.stats")
    prior = beta_binomial_prior(FRAMES, SYMBOLS, scaling)
    assert prior.shape == (4, 6, 4)
    for row, (frames, symbols) in enumerate(zip(FRAMES.tolist(), SYMBOLS.tolist(), strict=True)):
        for t in range(1, frames + 1):
            expected = stats.betabinom(symbols - 1, scaling * t, scaling * (frames - t + 1)).logpmf(range(symbols))
            torch.testing.assert_close(prior[row, t - 1, :symbols], torch.tensor(expected).float())
        assert (prior[row, :, symbols:] == -torch.inf).all()
        assert not prior[row, frames:, :symbols].any()


def encoded(extra: int) -> tuple[Aligner, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    aligner = Aligner(7, 5).double()
    text, mel = torch.randn(4, 4, 7, dtype=torch.float64), torch.randn(4, 6, 5, dtype=torch.float64)
    text, mel = (F.pad(x, (0, 0, 0, extra), value=torch.nan) for x in (text, mel))
    return aligner, text, mel, length_mask(SYMBOLS, 4 + extra), length_mask(FRAMES, 6 + extra)


@pytest.mark.slow  # librosa compiles
def test_cepstra_and_differences_are_those_of_scipy_and_librosa():
    """Librosa's differences are 1/10 of these, which doesn't matter once they have deviation 1."""
    librosa = pytest.importorskip("librosa")
    mel, lengths = torch.randn(2, 12, 20, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([12, 7])
    features = mel @ Aligner(4, 20).cosines.double()
    found = with_differences(features, length_mask(lengths, 12))
    for row, length in enumerate(lengths.tolist()):
        cepstra = scipy.fft.dct(mel[row, :length].numpy())[:, :13]
        slopes = librosa.feature.delta(cepstra, width=5, axis=0, mode="nearest")
        curves = librosa.feature.delta(slopes, width=5, axis=0, mode="nearest")
        expected = torch.from_numpy(np.concatenate((cepstra, slopes, curves), 1))
        expected = (expected - expected.mean(0)) / expected.std(0, correction=0)
        torch.testing.assert_close(found[row, :length], expected, rtol=1e-5, atol=1e-5)
        assert not found[row, length:].any()


def test_silence_has_no_differences():
    mask = length_mask(torch.tensor([3, 1]), 4)
    assert not with_differences(torch.full((2, 4, 5), -7.0), mask).any()


def test_scores_are_likelihoods_of_frames_and_the_prior():
    aligner, text, mel, symbol_mask, frame_mask = encoded(extra=0)
    with torch.no_grad():
        aligner.log_variance.copy_(torch.linspace(-1, 1, 15))
    prior = beta_binomial_prior(FRAMES, SYMBOLS)
    scores = aligner(text, mel, symbol_mask, frame_mask, prior)
    heard = with_differences(mel @ aligner.cosines, frame_mask)
    means, variance = aligner.mean(aligner.hidden(text).relu()), aligner.log_variance.exp()
    for row, frame, symbol in ((0, 0, 0), (0, 4, 2), (1, 3, 1)):
        normal = torch.distributions.Normal(means[row, symbol], variance.sqrt())
        expected = (normal.log_prob(heard[row, frame]) + math.log(2 * math.pi) / 2).sum()
        torch.testing.assert_close(scores[row, frame, symbol], expected + prior[row, frame, symbol], **EXACT)
    assert scores.isfinite().equal(symbol_mask[:, None].expand(-1, 6, -1))


def test_what_pads_a_row_changes_nothing_of_its_alignment():
    expected: Tensor | None = None
    for extra in (0, 3):
        aligner, text, mel, symbol_mask, frame_mask = encoded(extra)
        logs = aligner(text, mel, symbol_mask, frame_mask)
        loss = forward_sum_loss(logs, FRAMES, SYMBOLS).total
        gradients = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(aligner.parameters()))])
        expected = gradients if expected is None else expected
        torch.testing.assert_close(gradients, expected, **EXACT)


def test_an_alignment_is_learned_from_pairs_alone():
    """Each symbol has its own sound; which, and how long it takes, is never told."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    aligner = Aligner(6, 8)
    sounds, embeddings = torch.randn(6, 8, generator=generator), torch.eye(6)
    optimizer = torch.optim.Adam(aligner.parameters(), 0.02)
    lengths = torch.full((8,), 6)
    for step in range(61):
        durations = torch.randint(1, 6, (8, 6), generator=generator)
        symbols = torch.stack([torch.randperm(6, generator=generator) for _ in lengths])
        frames = durations.sum(1)
        spoken = [row.repeat_interleave(of_row) for row, of_row in zip(symbols, durations, strict=True)]
        mel = torch.nn.utils.rnn.pad_sequence([sounds[row] for row in spoken], batch_first=True)
        mel = mel + 0.1 * torch.randn(mel.shape, generator=generator)
        prior = beta_binomial_prior(frames, lengths)
        logs = aligner(embeddings[symbols], mel, length_mask(lengths), length_mask(frames), prior)
        if step < 60:
            optimizer.zero_grad()
            (forward_sum_loss(logs, frames, lengths).total / frames.sum()).backward()
            optimizer.step()
    assert torch.equal(monotonic_alignment(logs, frames, lengths), durations), "of utterances that it has never seen"
