"""Joins windows, each with separately numbered speakers, to one recording.

    window 0   1 1 1 . 2 2         speaker_1   x x x . . . . x x
    window 1         . 1 1 . 2 2   speaker_2   . . . . x x . . .

1. Speakers of different windows are matched by their embeddings: agglomerative clustering, average linkage, cosine
   distance, never two speakers of one window. Without embeddings, by the frames that two windows have in common; there
   are then never more than in one window, because nothing distinguishes one who left from one who came.
2. Where windows overlap, their probabilities are averaged, each weighted by its distance from its window's ends.

``inference`` limits the number of speakers; of a window with more, those who speak least are merged with others. There
can't be more than were found. Memory is that of the outputs and of what is returned.
Sources: Kinoshita, Delcroix and Tawara 2021, "Integrating end-to-end neural and clustering-based diarization: getting
the best of both worlds", and "Advances in integration of end-to-end neural and clustering-based diarization for real
conversational speech". Differs: one who hardly speaks in a window doesn't become a new speaker of the recording, but is
assigned to the nearest that no other of the window has (as in pyannote.audio).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vaak.tasks.diarization.config import InferenceConfig

LEAST_SPEECH = 0.01
"""Fraction of a window in which a speaker must speak for the embedding to be reliable."""
MOST_EMBEDDINGS = 4000
"""About this many are clustered, from evenly spaced windows; the others go to the nearest cluster."""
MOST_SPEAKERS = 64
"""The default limit, so that meaningless embeddings don't fill the memory."""
NOBODY = -1
"""The column of one who is not a speaker of the recording."""


class WindowOutput(NamedTuple):
    """The model's output on one window.

    ``first`` is the window's first frame in the recording; ``probabilities`` are ``(frames, speakers)``; ``embeddings``
    are ``(speakers, dim)``, or None if the model has none.
    """

    first: int
    probabilities: np.ndarray
    embeddings: np.ndarray | None = None


def stitch_windows(outputs: Sequence[WindowOutput], num_frames: int, inference: InferenceConfig) -> np.ndarray:
    """Probabilities ``(frames, speakers)`` of the whole recording, float32, speakers in the order in which they begin.

    ``outputs`` are in the order of time, all with embeddings or all without. A window that covers everything is
    returned unchanged, unless more speak in it than ``inference`` allows. If nobody speaks, no speakers are found.
    """
    if not outputs or not num_frames:
        return np.zeros((num_frames, 0), np.float32)
    most = inference.num_speakers or inference.max_speakers or MOST_SPEAKERS
    speech = [spoken_frames(output.probabilities, inference.threshold) for output in outputs]
    alone = len(outputs) == 1 and outputs[0].first == 0 and len(outputs[0].probabilities) >= num_frames
    if alone and (speech[0] > 0).sum() <= most:
        return outputs[0].probabilities[:num_frames]
    if all(output.embeddings is not None for output in outputs):
        whole = blend_windows(outputs, match_by_embeddings(outputs, speech, inference, most), num_frames)
    else:
        columns = match_by_overlap([(output.first, output.probabilities) for output in outputs], speech)
        whole = at_most(blend_windows(outputs, columns, num_frames), most, inference.threshold)
    speaks = whole >= inference.threshold
    present = np.flatnonzero(speaks.any(0))
    return whole[:, present[np.argsort(speaks[:, present].argmax(0), kind="stable")]]


def spoken_frames(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """The frames in which each speaks, ``(speaker,)``, weighted by probability, so that few are equal."""
    spoken: np.ndarray = np.where(probabilities >= threshold, probabilities, 0).sum(0, dtype=np.float64)
    return spoken


def match_by_embeddings(
    outputs: Sequence[WindowOutput], speech: Sequence[np.ndarray], inference: InferenceConfig, most: int
) -> list[np.ndarray]:
    """The column ``(speaker,)`` of each window's speakers, of whom ``speech`` are the ``spoken_frames``.

    There are at most ``most`` columns; ``inference`` determines when two are merged.
    """
    windows = np.repeat(np.arange(len(outputs)), [len(frames) for frames in speech])
    vectors = unit_vectors(np.concatenate([np.asarray(output.embeddings) for output in outputs]))
    amounts = np.concatenate(speech)
    lengths = np.array([len(output.probabilities) for output in outputs])
    there = vectors.any(1)  # the embedding is zero for one who never speaks alone
    trusted = _evenly_chosen(there & (amounts > 0) & (amounts >= LEAST_SPEECH * lengths[windows]), windows)
    if not trusted.any():
        trusted = _evenly_chosen(amounts > 0, windows)
    columns = np.full(len(amounts), NOBODY)
    if trusted.any():
        least = inference.num_speakers or inference.min_speakers
        clusters = cluster_embeddings(vectors[trusted], windows[trusted], inference.clustering_threshold, least, most)
        columns[trusted] = _greatest(clusters, amounts[trusted], most)
        centres = np.stack([vectors[columns == column].mean(0) for column in range(columns.max() + 1)])
        _give_columns(columns, cosine_distances(vectors, centres), windows, amounts > 0)
    return np.split(columns, np.cumsum([len(frames) for frames in speech])[:-1])


def _evenly_chosen(wanted: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """``wanted (speaker,)``, thinned out by whole windows to about MOST_EMBEDDINGS."""
    step = max(1, -(-int(wanted.sum()) // MOST_EMBEDDINGS))
    return wanted & np.isin(windows, np.unique(windows[wanted])[::step])


def _greatest(clusters: np.ndarray, amounts: np.ndarray, most: int) -> np.ndarray:
    """The clusters ``(speaker,)`` as columns; beyond ``most``, those with the least speech are NOBODY."""
    spoken = np.bincount(clusters, weights=amounts)
    kept = np.argsort(-spoken, kind="stable")[:most]
    column_of = np.full(len(spoken), NOBODY)
    column_of[kept] = np.arange(len(kept))
    columns: np.ndarray = column_of[clusters]
    return columns


def _give_columns(columns: np.ndarray, distances: np.ndarray, windows: np.ndarray, speaks: np.ndarray) -> None:
    """Give those who speak and have no column the nearest that no other of their window has, or otherwise the nearest.

    ``distances`` are ``(speaker, column)``; ``columns (speaker,)`` is changed.
    """
    from scipy.optimize import linear_sum_assignment

    seeking = speaks & (columns == NOBODY)
    for window in np.unique(windows[seeking]):
        here = windows == window
        who = np.flatnonzero(seeking & here)
        free = np.setdiff1d(np.arange(distances.shape[1]), columns[here])
        given = distances[who].argmin(1)
        rows, places = linear_sum_assignment(distances[np.ix_(who, free)])
        given[rows] = free[places]
        columns[who] = given


def blend_windows(outputs: Sequence[WindowOutput], columns: Sequence[np.ndarray], num_frames: int) -> np.ndarray:
    """The weighted mean ``(frames, columns)`` of all windows, whose speakers are those of ``columns (speaker,)``.

    Of two in one column the more probable counts; NOBODY's count in none. A model with named speakers has
    the same columns in every window, and needs only this to join them.
    """
    count = max((int(numbers.max(initial=NOBODY)) for numbers in columns), default=NOBODY) + 1
    total, weights = np.zeros((num_frames, count), np.float32), np.zeros(num_frames, np.float32)
    for output, numbers in zip(outputs, columns, strict=True):
        frames = np.arange(len(output.probabilities), dtype=np.float32)
        weight = np.minimum(frames + 1, frames[::-1] + 1)
        inside = slice(output.first, min(output.first + len(frames), num_frames))
        weight = weight[: inside.stop - inside.start]
        weights[inside] += weight
        for column in np.unique(numbers[numbers != NOBODY]):
            says = output.probabilities[: len(weight), numbers == column].max(1)
            total[inside, column] += weight * says
    return np.divide(total, weights[:, None], out=total, where=weights[:, None] > 0)


def match_by_overlap(windows: Sequence[tuple[int, np.ndarray]], speech: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The column ``(speaker,)`` of each window's speakers.

    A window is its first frame and probabilities ``(frames, speakers)``; ``speech`` is the number of frames that
    each speaks. Each is matched with the one before, so that their probabilities differ least (squared). Those without
    common speech are matched by the amount of their speech: this assumes the fewest people.
    """
    from scipy.optimize import linear_sum_assignment

    spoken = np.zeros(max((len(frames) for frames in speech), default=0))
    columns: list[np.ndarray] = []
    for number, (first, probabilities) in enumerate(windows):
        together = np.zeros((len(spoken), probabilities.shape[1]))
        if columns:
            before, earlier = windows[number - 1]
            length = max(0, min(before + len(earlier) - first, len(probabilities)))
            earlier = earlier[first - before :][:length]
            together[columns[-1]] = earlier.T @ probabilities[:length]
        likeness = together + 1e-3 * np.minimum(spoken[:, None], speech[number])
        places, speakers = linear_sum_assignment(likeness, maximize=True)
        columns.append(places[np.argsort(speakers)])
        spoken[columns[-1]] += speech[number]
    return columns


def at_most(probabilities: np.ndarray, most: int, threshold: float) -> np.ndarray:
    """The columns of ``(frames, speakers)`` that speak, joined until there are ``most``.

    The one who speaks least joins the one with whom it speaks least at the same time; the more probable of both counts.
    """
    probabilities = probabilities[:, (probabilities >= threshold).any(0)]
    while probabilities.shape[1] > most:
        joins = int(probabilities.sum(0).argmin())
        left = probabilities[:, joins]
        probabilities = np.delete(probabilities, joins, axis=1)
        place = int((left @ probabilities).argmin())
        probabilities[:, place] = np.maximum(probabilities[:, place], left)
    return probabilities


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


def cluster_embeddings(
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
