"""Constrained clustering against a plain search for the nearest pair, and its walls."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vaak.tasks.diarization.stitching import cluster_embeddings, cosine_distances


def by_the_book(
    embeddings: np.ndarray, windows: np.ndarray, threshold: float, least: int, most: int | None
) -> list[set[int]]:
    """Join the two nearest clusters that share no window, over and over; distances are means over all pairs."""
    distances = cosine_distances(embeddings, embeddings)
    clusters = [{number} for number in range(len(embeddings))]
    while len(clusters) > least:
        pairs = [
            (float(np.mean([distances[a, b] for a in one for b in other])), first, second)
            for first, one in enumerate(clusters)
            for second, other in enumerate(clusters[:first])
            if not {windows[a] for a in one} & {windows[b] for b in other}
        ]
        if not pairs:
            break
        nearest, first, second = min(pairs)
        if nearest >= threshold and (most is None or len(clusters) <= most):
            break
        clusters[second] |= clusters.pop(first)
    return clusters


@given(
    seed=st.integers(0, 2**32 - 1),
    threshold=st.sampled_from([0.1, 0.5, 1.0, 1.5]),
    bounds=st.sampled_from([(1, None), (3, 3), (2, 5), (1, 2), (6, None)]),
)
def test_it_is_the_search_by_the_book(seed: int, threshold: float, bounds: tuple[int, int | None]):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 16))
    embeddings, windows = rng.normal(size=(count, 4)), rng.integers(0, 6, count)
    labels = cluster_embeddings(embeddings, windows, threshold, *bounds)
    found = [set(np.flatnonzero(labels == label).tolist()) for label in range(labels.max() + 1)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, by_the_book(embeddings, windows, threshold, *bounds)))


@given(seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 2, None]))
def test_two_of_a_window_are_never_one(seed: int, most: int | None):
    """Even where all are the same to the last bit, and even if fewer are wanted than that leaves."""
    rng = np.random.default_rng(seed)
    windows = rng.integers(0, 40, 120)
    labels = cluster_embeddings(np.ones((120, 8)), windows, threshold=2.0, most=most)
    pairs = list(zip(windows.tolist(), labels.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_an_exact_number_is_reached_where_all_distances_are_equal():
    embeddings = np.repeat(np.eye(4), 5, axis=0)
    for number in (1, 2, 3, 4, 7, 20):
        labels = cluster_embeddings(embeddings, np.arange(20), 0.5, number, number)
        assert sorted(set(labels.tolist())) == list(range(number))


def test_nothing_and_one():
    assert cluster_embeddings(np.zeros((0, 4)), np.zeros(0), 0.5).tolist() == []
    assert cluster_embeddings(np.zeros((1, 4)), np.zeros(1), 0.5, least=3).tolist() == [0]
    assert cluster_embeddings(np.zeros((3, 4)), np.arange(3), 0.5).max() == 2, "without direction they are like nobody"
