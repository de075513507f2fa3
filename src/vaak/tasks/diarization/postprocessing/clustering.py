"""Clusters the speakers of windows, which are numbered within each window, into people.

Agglomerative clustering with average linkage on the cosine distance of speaker embeddings. Two speakers of one window
are different people, so they are never joined (cannot-link).
Source: Kinoshita, Delcroix and Tawara 2021, "Advances in integration of end-to-end neural and clustering-based
diarization for real conversational speech" (constrained agglomerative clustering).
"""

from __future__ import annotations

import numpy as np

FURTHEST = 2.0
"""The greatest cosine distance."""


def unit_vectors(embeddings: np.ndarray) -> np.ndarray:
    """The directions of embeddings ``(speaker, dim)``, as float64; one without a direction stays 0."""
    vectors = np.asarray(embeddings, np.float64)
    directions: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return directions


def cosine_distances(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distances ``(vector, other)``, from 0 of the same direction to 2 of the opposite one."""
    distances: np.ndarray = np.clip(1.0 - unit_vectors(vectors) @ unit_vectors(others).T, 0.0, FURTHEST)
    return distances


def clustered(
    embeddings: np.ndarray, windows: np.ndarray, threshold: float, least: int = 1, most: int | None = None
) -> np.ndarray:
    """A cluster ``(speaker,)``, counted from 0, for each embedding ``(speaker, dim)`` of ``windows (speaker,)``.

    Clusters are joined while their distance is below ``threshold``, on to ``most`` of them, and not below ``least``.
    No cluster ever has two speakers of one window, so more than ``most`` may remain.
    Memory and time grow as the square of the number of embeddings.
    """
    from scipy.cluster.hierarchy import linkage

    count = len(embeddings)
    if count < 2:
        return np.zeros(count, np.int64)
    joins = linkage(_distances_with_walls(embeddings, windows), method="average")
    possible = int((joins[:, 2] <= FURTHEST + 1e-6).sum())
    wanted = int((joins[:, 2] < threshold).sum())
    if most is not None:
        wanted = max(wanted, count - most)
    return _after_joins(joins, min(wanted, possible, max(0, count - least)))


def _distances_with_walls(embeddings: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """The distances of all pairs, row after row; so large within a window that no average hides it.

    The average over two clusters has at most count² / 4 pairs: one such value among them keeps it above any distance.
    """
    vectors, count = unit_vectors(embeddings), len(embeddings)
    wall = FURTHEST * count**2
    rows = []
    for first in range(count - 1):
        distances = np.clip(1.0 - vectors[first + 1 :] @ vectors[first], 0.0, FURTHEST)
        distances[windows[first + 1 :] == windows[first]] = wall
        rows.append(distances)
    return np.concatenate(rows)


def _after_joins(joins: np.ndarray, number: int) -> np.ndarray:
    """The clusters after the first ``number`` joins, in the order of their first members."""
    count = len(joins) + 1
    above = np.arange(count + number)
    for step, pair in enumerate(joins[:number, :2].astype(np.int64)):
        above[pair] = count + step
    for node in reversed(range(count + number)):
        above[node] = above[above[node]]  # those above have been led to their roots
    _, firsts, clusters = np.unique(above[:count], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(firsts))
    return order[clusters]
