"""Joins windows, each with separately numbered speakers, to one recording.

    window 0   1 1 1 . 2 2         speaker_1   x x x . . . . x x
    window 1         . 1 1 . 2 2   speaker_2   . . . . x x . . .

1. Speakers of windows are matched by their embeddings (clustering.py), never two of one window: those who speak long
   enough form clusters; the others, and small clusters, go to the nearest. Without embeddings, windows are matched by
   the frames that two have in common; there are then never more than in one window, because nothing distinguishes one
   who left from one who came.
2. Where windows overlap, their probabilities are averaged, each weighted by its distance from its window's ends.

Frames in common don't decide where there are embeddings: where people talk at once a window takes two of them for one,
and what follows from that made every recording of three and more speakers worse (docs/results.md).
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

from vaak.tasks.diarization.clustering import Speakers, cluster_embeddings, cluster_vbx, cosine_distances, unit_vectors
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
    are ``(speakers, dim)``, or None if the model has none. ``trusted (speakers,)`` bool are those whose embedding says
    who they are; None: those who speak in at least LEAST_SPEECH of the window.
    """

    first: int
    probabilities: np.ndarray
    embeddings: np.ndarray | None = None
    trusted: np.ndarray | None = None


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
    long = [
        frames >= LEAST_SPEECH * len(output.probabilities) if output.trusted is None else output.trusted
        for output, frames in zip(outputs, speech, strict=True)
    ]
    there = vectors.any(1)  # the embedding is zero for one who never speaks alone
    trusted = _evenly_chosen(there & (amounts > 0) & np.concatenate(long), windows)
    if not trusted.any():
        trusted = _evenly_chosen(amounts > 0, windows)
    columns = np.full(len(amounts), NOBODY)
    if trusted.any():
        speakers = Speakers(vectors[trusted], windows[trusted])
        bounds = least, most = inference.num_speakers or inference.min_speakers, most
        if inference.clustering == "vbx":
            factors = inference.vbx_fa, inference.vbx_fb
            clusters = cluster_vbx(speakers, inference.clustering_threshold, factors, *bounds)
        else:
            clusters = cluster_embeddings(speakers, inference.clustering_threshold, *bounds)
        columns[trusted] = _greatest(clusters, amounts[trusted], (least, most), inference.min_share)
        centres = np.stack([vectors[columns == column].mean(0) for column in range(columns.max() + 1)])
        _give_columns(columns, cosine_distances(vectors, centres), windows, amounts > 0)
    return np.split(columns, np.cumsum([len(frames) for frames in speech])[:-1])


def _evenly_chosen(wanted: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """``wanted (speaker,)``, thinned out by whole windows to about MOST_EMBEDDINGS."""
    step = max(1, -(-int(wanted.sum()) // MOST_EMBEDDINGS))
    return wanted & np.isin(windows, np.unique(windows[wanted])[::step])


def _greatest(clusters: np.ndarray, amounts: np.ndarray, bounds: tuple[int, int], share: float) -> np.ndarray:
    """The clusters ``(speaker,)`` as columns; those with the least speech are NOBODY.

    These are all beyond the most that ``bounds`` allow, and those with less than ``share`` of the speech, but never so
    many that fewer than the least remain.
    """
    spoken = np.bincount(clusters, weights=amounts)
    least, most = bounds
    kept = np.argsort(-spoken, kind="stable")[: max(least, int((spoken >= share * spoken.sum()).sum()), 1)][:most]
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
