"""Constrained clustering against a plain search for the nearest pair, and its walls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from vaak.tasks.diarization.clustering import Speakers, cluster_embeddings, cluster_vbx, cosine_distances, vbx


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
    labels = cluster_embeddings(Speakers(embeddings, windows), threshold, *bounds)
    found = [set(np.flatnonzero(labels == label).tolist()) for label in range(labels.max() + 1)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, by_the_book(embeddings, windows, threshold, *bounds)))


@given(seed=st.integers(0, 2**32 - 1), most=st.sampled_from([1, 2, None]))
def test_two_of_a_window_are_never_one(seed: int, most: int | None):
    """Even where all are the same to the last bit, and even if fewer are wanted than that leaves."""
    rng = np.random.default_rng(seed)
    windows = rng.integers(0, 40, 120)
    labels = cluster_embeddings(Speakers(np.ones((120, 8)), windows), threshold=2.0, most=most)
    pairs = list(zip(windows.tolist(), labels.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_an_exact_number_is_reached_where_all_distances_are_equal():
    embeddings = np.repeat(np.eye(4), 5, axis=0)
    for number in (1, 2, 3, 4, 7, 20):
        labels = cluster_embeddings(Speakers(embeddings, np.arange(20)), 0.5, number, number)
        assert sorted(set(labels.tolist())) == list(range(number))


@given(seed=st.integers(0, 2**32 - 1), threshold=st.sampled_from([0.3, 0.6, 0.9, 1.2]))
def test_without_two_of_a_window_it_is_scipy_s_average_linkage(seed: int, threshold: float):
    embeddings = np.random.default_rng(seed).normal(size=(30, 5))
    expected = fcluster(linkage(embeddings, "average", "cosine"), threshold, "distance")
    labels = cluster_embeddings(Speakers(embeddings, np.arange(30)), threshold)
    assert len(set(zip(labels.tolist(), expected.tolist(), strict=True))) == labels.max() + 1 == expected.max()


def test_nothing_and_one():
    assert cluster_embeddings(Speakers(np.zeros((0, 4)), np.zeros(0)), 0.5).tolist() == []
    assert cluster_embeddings(Speakers(np.zeros((1, 4)), np.zeros(1)), 0.5, least=3).tolist() == [0]
    assert cluster_embeddings(Speakers(np.zeros((3, 4)), np.arange(3)), 0.5).max() == 2, (
        "without direction they are like nobody"
    )


def drawn(rng: np.random.Generator, counts: list[int], dims: int, between: float) -> tuple[np.ndarray, np.ndarray]:
    """Vectors ``(embedding, dim)`` by the model of VBx, and whose each is."""
    owners = np.repeat(np.arange(len(counts)), counts)
    means = rng.normal(size=(len(counts), dims)) * np.sqrt(between)
    return means[owners] + rng.normal(size=(len(owners), dims)), owners


@given(seed=st.integers(0, 2**32 - 1), fa=st.sampled_from([0.1, 0.4, 1.0]), fb=st.sampled_from([0.5, 1.0, 10.0]))
def test_the_bound_never_falls(seed: int, fa: float, fb: float):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(30, 5)) * 3
    found = vbx(vectors, rng.uniform(0.1, 9, 5), rng.dirichlet(np.ones(4), 30), fa, fb)
    assert np.diff(found.bounds).min(initial=0) >= -1e-8 * abs(found.bounds[-1])
    np.testing.assert_allclose(found.responsibilities.sum(1), 1)


def test_an_iteration_is_the_paper_s():
    """Equations 16, 17, 22 and 23 one number at a time: L_s, alpha_s, then log p(x_t|s), without a chain in time."""
    rng = np.random.default_rng(3)
    x, phi, gamma = rng.normal(size=(9, 4)), rng.uniform(0.5, 5, 4), rng.dirichlet(np.ones(3), 9)
    fa, fb, expected = 0.4, 1.7, np.zeros((9, 3))
    prior = gamma.mean(0)
    for s in range(3):
        precision = [1 + fa / fb * sum(gamma[t, s] for t in range(9)) * phi[d] for d in range(4)]
        rho = [[np.sqrt(phi[d]) * x[t, d] for d in range(4)] for t in range(9)]
        alpha = [fa / fb / precision[d] * sum(gamma[t, s] * rho[t][d] for t in range(9)) for d in range(4)]
        for t in range(9):
            inner = sum(alpha[d] * rho[t][d] for d in range(4))
            penalty = 0.5 * sum(phi[d] * (1 / precision[d] + alpha[d] ** 2) for d in range(4))
            density = -0.5 * (sum(x[t, d] ** 2 for d in range(4)) + 4 * np.log(2 * np.pi))
            expected[t, s] = prior[s] * np.exp(fa * (inner - penalty + density))
    expected /= expected.sum(1, keepdims=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaak.tasks.diarization.clustering.MOST_ITERATIONS", 1)
        found = vbx(x, phi, gamma, fa, fb)
    np.testing.assert_allclose(found.responsibilities, expected, atol=1e-12)


def test_with_one_speaker_the_bound_is_the_evidence():
    """By the dense Gaussian: all vectors of a speaker are normal with covariance ``I + between`` across embeddings."""
    rng = np.random.default_rng(0)
    vectors, between = rng.normal(size=(7, 3)), np.array([0.5, 2.0, 6.0])
    found = vbx(vectors, between, np.ones((7, 1)), 1.0, 1.0)
    evidence = 0.0
    for dim, variance in enumerate(between):
        covariance = np.eye(7) + variance
        distance = vectors[:, dim] @ np.linalg.solve(covariance, vectors[:, dim])
        evidence -= 0.5 * (distance + np.linalg.slogdet(covariance)[1] + 7 * np.log(2 * np.pi))
    assert abs(found.bounds[-1] - evidence) < 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_vbx_finds_who_was_drawn_and_drops_the_others(seed: int):
    rng = np.random.default_rng(seed)
    vectors, owners = drawn(rng, [12, 9, 20], 24, 4.0)
    start = np.eye(9)[owners * 3 + rng.integers(0, 3, len(owners))] * 0.9 + 0.1 / 9  # each begins as three
    found = vbx(vectors, np.full(24, 4.0), start, 0.3, 5.0)
    assert (found.priors > 1e-7).sum() == 3
    labels = found.responsibilities.argmax(1)
    assert len(set(zip(labels.tolist(), owners.tolist(), strict=True))) == 3


@given(seed=st.integers(0, 2**32 - 1), least=st.integers(1, 5))
def test_vbx_keeps_those_of_a_window_apart(seed: int, least: int):
    """Embeddings without any sense."""
    rng = np.random.default_rng(seed)
    windows = np.repeat(np.arange(8), 2)
    labels = cluster_vbx(Speakers(rng.normal(size=(16, 4)), windows), 0.6, (0.3, 1.0), least)
    assert len(set(zip(windows.tolist(), labels.tolist(), strict=True))) == 16
    assert len(set(labels.tolist())) >= least
