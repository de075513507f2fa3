"""Which speakers of windows are the same: clusters of their embeddings, agglomerative or by VBx.

Agglomerative: average linkage on the cosine distance; two speakers of one window are never joined.

Centred: where at least three speakers are found, embeddings are clustered again without the recording's mean. That mean
is common to all speakers (the encoder's own mean, the room's acoustics) and makes all distances small. Without it, one
threshold separates the distances within a speaker from those between two in more recordings. One or two speakers don't
give a usable mean: theirs is at or between them.

VBx: a Bayesian mixture, begun with those clusters, in which speakers without evidence die out. Each embedding x of
speaker s is x = m_s + noise, where the mean is m_s ~ N(0, between) and the noise ~ N(0, within), as in PLDA; F_A scales
the evidence of embeddings, which aren't independent, and F_B that of speakers.
Sources: Landini, Profant, Diez and Burget 2022, "Bayesian HMM clustering of x-vector sequences (VBx) in speaker
diarization: theory, implementation and analysis on standard tasks", equations 16 to 26. Differs: there isn't a chain in
time, because speakers of windows aren't a sequence of one speaker after another (pyannote.audio leaves it out, too); no
trained PLDA, which nobody has for a stranger's encoder, and for which the speakers of training are too few: the
covariances are those of the identity times a number that follows from the clustering threshold, which is calibrated on
recordings, and embeddings have unit length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FURTHEST = 2.0
"""The greatest cosine distance."""
MOST_ITERATIONS = 40
SMOOTHING = 7.0
"""VBx begins with the logit of an embedding's own cluster this much above the others."""
LEAST_PRIOR = 1e-7
"""A speaker with a smaller share of the embeddings has died out."""


def unit_vectors(embeddings: np.ndarray) -> np.ndarray:
    """The directions of embeddings ``(speaker, dim)``, as float64; one without a direction stays 0."""
    vectors = np.asarray(embeddings, np.float64)
    directions: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return directions


def cosine_distances(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distances ``(vector, other)``, from 0 of the same direction to 2 of the opposite one."""
    distances: np.ndarray = np.clip(1.0 - unit_vectors(vectors) @ unit_vectors(others).T, 0.0, FURTHEST)
    return distances


class Speakers(NamedTuple):
    """Speakers of windows, with their embeddings."""

    embeddings: np.ndarray
    """``(speaker, dim)``."""
    windows: np.ndarray
    """``(speaker,)``: those of the same window are several."""


def cluster_embeddings(speakers: Speakers, threshold: float, least: int = 1, most: int | None = None) -> np.ndarray:
    """A cluster ``(speaker,)``, counted from 0, for each speaker of a window.

    Clusters are joined while their distance is below ``threshold``, on to ``most`` of them, and not below ``least``.
    No cluster ever has two of a window, so more than ``most`` may remain.
    Memory and time grow as the square of the number of embeddings.
    """
    from scipy.cluster.hierarchy import linkage

    count = len(speakers.embeddings)
    if count < 2:
        return np.zeros(count, np.int64)
    joins = linkage(_distances_with_walls(speakers), method="average")
    possible = int((joins[:, 2] <= FURTHEST + 1e-6).sum())
    wanted = int((joins[:, 2] < threshold).sum())
    if most is not None:
        wanted = max(wanted, count - most)
    return _after_joins(joins, min(wanted, possible, max(0, count - least)))


def _distances_with_walls(speakers: Speakers) -> np.ndarray:
    """The distances of all pairs, row after row; so large within a window that no average hides it.

    The average over two clusters has at most count² / 4 pairs: one such value among them keeps it above any distance.
    """
    vectors, count = unit_vectors(speakers.embeddings), len(speakers.embeddings)
    wall = FURTHEST * count**2
    rows = []
    for first in range(count - 1):
        distances = np.clip(1.0 - vectors[first + 1 :] @ vectors[first], 0.0, FURTHEST)
        distances[speakers.windows[first + 1 :] == speakers.windows[first]] = wall
        rows.append(distances)
    return np.concatenate(rows)


def _after_joins(joins: np.ndarray, number: int) -> np.ndarray:
    """The clusters after the first ``number`` joins, in the order of their first members."""
    count = len(joins) + 1
    above = np.arange(count + number)
    for step, pair in enumerate(joins[:number, :2].astype(np.int64)):
        above[pair] = count + step
    for node in reversed(range(count + number)):
        # Those above have been led to their roots.
        above[node] = above[above[node]]
    _, firsts, clusters = np.unique(above[:count], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(firsts))
    return order[clusters]


LEAST_CENTRED = 3
"""The mean of fewer speakers' embeddings says who they are, rather than what all have in common."""


def find_common(speakers: Speakers, threshold: float, least: int = 1, most: int | None = None) -> np.ndarray | None:
    """The mean ``(dim,)`` of all embeddings' directions; None of a recording in which fewer than three are found."""
    clusters = cluster_embeddings(speakers, threshold, least, most)
    if int(clusters.max(initial=-1)) + 1 < LEAST_CENTRED:
        return None
    common: np.ndarray = unit_vectors(speakers.embeddings).mean(0)
    return common


class Mixture(NamedTuple):
    """The mixture that VBx found: which embedding is of which speaker."""

    responsibilities: np.ndarray
    """``(embedding, speaker)``: how probable it is that the embedding is of the speaker."""
    priors: np.ndarray
    """``(speaker,)``: how much of all is of the speaker; 0 of one who died out."""
    bounds: list[float]
    """The evidence lower bound after each iteration, which never falls."""


def vbx(vectors: np.ndarray, between: np.ndarray, responsibilities: np.ndarray, fa: float, fb: float) -> Mixture:
    """Fit speakers to ``vectors (embedding, dim)``, beginning with ``responsibilities (embedding, speaker)``.

    ``between (dim,)`` is the variance of speakers' means, where that within a speaker is 1.
    """
    weighted = vectors * np.sqrt(between)
    density = -0.5 * (np.square(vectors).sum(1) + vectors.shape[1] * np.log(2 * np.pi))
    priors = responsibilities.mean(0)
    bounds: list[float] = []
    for _ in range(MOST_ITERATIONS):
        # the means of speakers, in units of the standard deviation between them: N(means, diag(variances))
        variances = 1 / (1 + fa / fb * responsibilities.sum(0)[:, None] * between)
        means = fa / fb * variances * (responsibilities.T @ weighted)
        likelihood = fa * (weighted @ means.T - 0.5 * (variances + means**2) @ between + density[:, None])
        # The logarithm of 0 is -inf: a speaker who died out stays dead.
        with np.errstate(divide="ignore"):
            joint = likelihood + np.log(priors)
        # A logarithm of a sum of exponentials, without overflow.
        highest = joint.max(1, keepdims=True)
        evidence = highest[:, 0] + np.log(np.exp(joint - highest).sum(1))
        bounds.append(float(evidence.sum() + fb * 0.5 * (np.log(variances) - variances - means**2 + 1).sum()))
        responsibilities = np.exp(joint - evidence[:, None])
        priors = responsibilities.mean(0)
        if len(bounds) > 1 and bounds[-1] - bounds[-2] < 1e-4:
            break
    return Mixture(responsibilities, priors, bounds)


def cluster_vbx(
    speakers: Speakers, threshold: float, factors: tuple[float, float], least: int = 1, most: int | None = None
) -> np.ndarray:
    """As ``cluster_embeddings``, from whose clusters VBx starts: it exchanges their members, or drops clusters.

    ``factors`` are F_A and F_B. Those of one window get different speakers, who fit them best together. Where fewer
    than ``least`` speakers would remain, or too few for those of a window, all stays as it began.
    """
    from scipy.optimize import linear_sum_assignment

    begun = cluster_embeddings(speakers, threshold, least, most)
    number = int(begun.max(initial=-1)) + 1
    if number < 2:
        return begun
    # two of one speaker are expected to be half as far apart as the threshold between two speakers
    within = threshold / 2
    dims = speakers.embeddings.shape[1]
    # A unit vector has variance 1 over all dims together, of which within is that of one speaker. Scaled so that it is
    # 1 in each dimension, as vbx expects; the rest is between speakers.
    vectors = unit_vectors(speakers.embeddings) * np.sqrt(dims / within)
    start = np.exp(SMOOTHING * np.eye(number))[begun]
    start /= start.sum(1, keepdims=True)
    found = vbx(vectors, np.full(dims, max(1 - within, 1e-3) / within), start, *factors)
    alive = np.flatnonzero(found.priors > LEAST_PRIOR)
    # linear_sum_assignment can't have infinities.
    logs = np.log(found.responsibilities[:, alive] + 1e-30)
    labels = np.full(len(logs), -1)
    order = np.argsort(speakers.windows, kind="stable")
    starts = np.unique(speakers.windows[order], return_index=True)[1]
    for members in np.split(order, starts[1:]):
        # Those of one window are different people, and there are too few left to be them.
        if len(members) > len(alive):
            return begun
        rows, columns = linear_sum_assignment(logs[members], maximize=True)
        labels[members[rows]] = columns
    _, firsts, clusters = np.unique(labels, return_index=True, return_inverse=True)
    return begun if len(firsts) < least else np.argsort(np.argsort(firsts))[clusters]
