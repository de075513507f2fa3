"""Losses against their formulas written out in float64, and the best order of speakers against all orders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from vaak.tasks.diarization.labels import one_hot_sets
from vaak.tasks.diarization.model import (
    SCALE,
    attractor_loss,
    clustering_loss,
    find_orders,
    reorder_speakers,
    speaker_embeddings,
    speaker_loss,
)

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=scale, size=shape))


def ragged(seed: int, rows: int, time: int) -> Tensor:
    """A mask with at least one real frame in each row."""
    lengths = torch.from_numpy(np.random.default_rng(seed).integers(1, time + 1, rows))
    return torch.arange(time) < lengths[:, None]


def spoken(seed: int, rows: int, time: int, speakers: int) -> Tensor:
    return (drawn(seed + 1, rows, time, speakers) > 0.4).double()


def cost(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Binary cross-entropy of a row over its real frames."""
    return (F.binary_cross_entropy_with_logits(logits, labels, reduction="none") * mask[..., None]).sum()


@given(seed=seeds, speakers=st.integers(1, 5))
def test_the_best_order_is_the_best_of_all(seed: int, speakers: int):
    logits, labels = drawn(seed, 3, 7, speakers, scale=3), spoken(seed, 3, 7, speakers)
    mask, orders = ragged(seed, 3, 7), torch.tensor(list(permutations(range(speakers))))
    chosen = reorder_speakers(labels, find_orders(logits, labels, mask))
    for row in range(3):
        in_every_order = labels[row][:, orders]  # (time, orders, speakers)
        losses = F.binary_cross_entropy_with_logits(
            logits[row][:, None].expand_as(in_every_order), in_every_order, reduction="none"
        )
        least = (losses * mask[row][:, None, None]).sum((0, 2)).min()
        torch.testing.assert_close(cost(logits[row], chosen[row], mask[row]), least, rtol=1e-9, atol=1e-9)


@given(seed=seeds, speakers=st.integers(2, 4))
def test_the_order_in_which_speakers_are_labelled_changes_no_loss(seed: int, speakers: int):
    logits, labels, mask = drawn(seed, 2, 9, speakers), spoken(seed, 2, 9, speakers), ragged(seed, 2, 9)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(speakers))
    losses = [
        cost(logits, reorder_speakers(of_speakers, find_orders(logits, of_speakers, mask)), mask)
        for of_speakers in (labels, labels[..., order])
    ]
    torch.testing.assert_close(losses[0], losses[1])


def test_an_order_is_one_and_what_isnt_real_doesnt_count():
    labels = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    logits = torch.tensor([[[-9.0, 9.0], [-9.0, 9.0], [-9.0, 9.0], [-9.0, 9.0], [-9.0, 9.0]]])
    assert find_orders(logits, labels, torch.ones(1, 5, dtype=torch.bool)).tolist() == [[0, 1]]
    assert find_orders(logits, labels, torch.arange(5)[None] < 3).tolist() == [[1, 0]]


@given(seed=seeds, speakers=st.integers(1, 4), number=st.integers(0, 4))
def test_speakers_are_assigned_to_the_first_outputs(seed: int, speakers: int, number: int):
    """As many as there are speakers: else a speaker learns an attractor that inference doesn't read."""
    number = min(number, speakers)
    logits, labels = drawn(seed, 1, 9, speakers, scale=3), torch.zeros(1, 9, speakers, dtype=torch.float64)
    there = torch.from_numpy(np.random.default_rng(seed).permutation(speakers)[:number])
    labels[:, :, there] = spoken(seed, 1, 9, number)
    labels[:, 0, there] = 1
    mask = torch.ones(1, 9, dtype=torch.bool)
    [order] = find_orders(logits, labels, mask, among_first=True).tolist()
    assert sorted(order[:number]) == sorted(there.tolist())
    found = cost(logits[0], labels[0][:, order], mask[0])
    rest = [one for one in range(speakers) if one not in there.tolist()]
    every = [cost(logits[0], labels[0][:, [*first, *rest]], mask[0]) for first in permutations(there.tolist())]
    torch.testing.assert_close(found, torch.stack(every).min(), rtol=1e-9, atol=1e-9)


def test_a_score_that_is_no_number_is_left_to_the_loss():
    logits = torch.full((1, 4, 3), float("nan"))
    assert sorted(find_orders(logits, spoken(0, 1, 4, 3), torch.ones(1, 4, dtype=torch.bool))[0].tolist()) == [0, 1, 2]
    logits[...] = float("inf")
    find_orders(logits, spoken(0, 1, 4, 3), torch.ones(1, 4, dtype=torch.bool))


@given(seed=seeds)
def test_clustering_against_the_matrices_of_affinities(seed: int):
    mask, vectors = ragged(seed, 3, 8), F.normalize(drawn(seed, 3, 8, 4), dim=-1)
    classes = one_hot_sets(spoken(seed, 3, 8, 2))
    term = clustering_loss(vectors, classes, mask)
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        real = mask[row]
        affinities, wanted = (x[row, real].double() @ x[row, real].double().T for x in (vectors, classes))
        expected += (affinities - wanted).square().sum() / real.sum()
    assert (term.per, term.total.dtype) == ("frame", torch.float64)
    torch.testing.assert_close(term.total, expected, rtol=1e-9, atol=1e-9)


def test_clustering_is_least_where_each_class_has_a_direction_of_its_own():
    classes = one_hot_sets(spoken(3, 2, 10, 2))
    mask = torch.ones(2, 10, dtype=torch.bool)
    assert float(clustering_loss(classes.double(), classes, mask).total) == pytest.approx(0, abs=1e-12)
    assert float(clustering_loss(F.normalize(drawn(1, 2, 10, 4), dim=-1), classes, mask).total) > 1


def test_sets_of_speakers_are_classes():
    sets = one_hot_sets(torch.tensor([[[0, 0], [1, 0], [0, 1], [1, 1]]], dtype=torch.bool))
    assert sets.shape == (1, 4, 4)
    assert sets.argmax(-1).tolist() == [[0, 1, 2, 3]]


def test_of_many_speakers_only_those_sets_are_classes_that_there_are():
    assert one_hot_sets(torch.eye(40, dtype=torch.bool)[None]).shape == (1, 40, 40)


@given(seed=seeds)
def test_the_speaker_loss_is_the_cross_entropy_of_cosines(seed: int):
    rng = np.random.default_rng(seed)
    frames, weights, table = drawn(seed, 2, 6, 5), drawn(seed + 1, 2, 6, 3).abs(), drawn(seed + 2, 7, 5)
    numbers = torch.from_numpy(rng.integers(-1, 7, (2, 3)))
    found = speaker_loss(speaker_embeddings(frames, weights), numbers, table)
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        for speaker in range(3):
            if numbers[row, speaker] < 0:
                continue
            mean = (frames[row] * weights[row, :, speaker, None]).sum(0) / weights[row, :, speaker].sum()
            scores = SCALE * F.cosine_similarity(mean[None], table)
            expected -= scores.log_softmax(0)[numbers[row, speaker]]
    assert found.per == "speaker"
    torch.testing.assert_close(found.total, expected, rtol=1e-9, atol=1e-9)


@given(seed=seeds)
def test_the_attractor_loss_asks_for_one_more_than_there_are(seed: int):
    existence = drawn(seed, 4, 4, scale=3)
    number = torch.tensor([0, 1, 2, 3])
    found = attractor_loss(existence, number)
    expected = torch.zeros((), dtype=torch.float64)
    for row in range(4):
        there = [-F.logsigmoid(existence[row, place]) for place in range(row)]
        expected += torch.stack([*there, -F.logsigmoid(-existence[row, row])]).mean()
    assert found.per == "example"
    torch.testing.assert_close(found.total, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_gradients_are_finite_and_in_32_bits(dtype: torch.dtype):
    """Silent rows, speakers who are never alone, nobody known, rows without a real frame."""
    hidden = drawn(0, 3, 50, 8, scale=100).to(dtype).requires_grad_()
    table = drawn(1, 4, 8).float().requires_grad_()
    mask = ragged(0, 3, 50) & torch.tensor([[True], [True], [False]])
    labels = torch.zeros(3, 50, 2)
    with torch.autocast("cpu", torch.bfloat16):
        terms = [
            clustering_loss(F.normalize(hidden, dim=-1), one_hot_sets(labels), mask),
            speaker_loss(speaker_embeddings(hidden, labels), torch.tensor([[0, 1], [-1, 2], [-1, -1]]), table),
            speaker_loss(speaker_embeddings(hidden, labels), torch.full((3, 2), -1), table),
            attractor_loss(hidden[:, 0, :3], torch.tensor([0, 1, 2])),
        ]
    for term in terms:
        assert term.total.dtype is torch.float32
        gradients = torch.autograd.grad(term.total, [hidden, table], allow_unused=True, retain_graph=True)
        assert all(bool(gradient.isfinite().all()) for gradient in (term.total, *gradients) if gradient is not None)


def test_mixed_precision_changes_no_sum_over_frames():
    vectors, mask = F.normalize(drawn(0, 2, 2000, 8), dim=-1).float(), torch.ones(2, 2000, dtype=torch.bool)
    classes = one_hot_sets(spoken(0, 2, 2000, 2))
    logits, labels = drawn(2, 2, 2000, 2).float(), spoken(1, 2, 2000, 2)
    plain = clustering_loss(vectors, classes, mask).total, find_orders(logits, labels, mask)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = clustering_loss(vectors, classes, mask).total, find_orders(logits, labels, mask)
    assert torch.equal(plain[0], mixed[0])
    assert torch.equal(plain[1], mixed[1])
