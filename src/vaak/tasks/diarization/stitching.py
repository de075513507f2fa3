"""Joins windows, each with separately numbered speakers, to one recording.

    window 0   1 1 1 . 2 2         speaker_1   x x x . . . . x x
    window 1         . 1 1 . 2 2   speaker_2   . . . . x x . . .

1. Speakers of windows are matched by their embeddings (clustering.py), never two of one window: those who speak long
   enough form clusters; the others, and small clusters, go to the nearest. Without embeddings, windows are matched by
   the frames that two have in common; there are then never more than in one window, because nothing distinguishes one
   who left from one who came.
2. Where windows overlap, their probabilities are averaged, each weighted by its distance from its window's ends.

A speaker encoder says how long it heard each alone. One whom it heard too little to form clusters is also known by the
embeddings of those of the next windows who speak in the same frames in common; one who never speaks alone there either,
by that of speech in which others speak, too: it should be the direction of the sum of all who speak. Frames in common
don't form clusters: where people talk at once a window takes two of them for one, and what follows from that made every
recording of three and more speakers worse (docs/lab/2026-11-27-long-recordings.md).
``inference`` limits the number of speakers; in a window with more, those who speak least are merged with others. There
can't be more than were found. Memory is that of the outputs and of what is returned.
Sources: Kinoshita, Delcroix and Tawara 2021, "Integrating end-to-end neural and clustering-based diarization: getting
the best of both worlds", and "Advances in integration of end-to-end neural and clustering-based diarization for real
conversational speech". Differs: one who hardly speaks in a window doesn't become a new speaker of the recording, but is
assigned to the nearest that no other of the window has (as in pyannote.audio).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vaak.tasks.diarization.clustering import (
    Speakers,
    cluster_embeddings,
    cluster_vbx,
    find_common,
    unit_vectors,
)
from vaak.tasks.diarization.config import InferenceConfig

LEAST_SPEECH = 0.01
"""Fraction of a window in which a speaker must speak for the embedding to be reliable."""
MOST_EMBEDDINGS = 4000
"""About this many are clustered, from evenly spaced windows; the others go to the nearest cluster."""
MOST_SPEAKERS = 64
"""The default limit, so that meaningless embeddings don't fill the memory."""
SPEAKS = 0.5
"""Probability from which an encoder hears one; not that of inference, so that tuning it leaves the embeddings."""
LEAST_SECONDS, TRUSTED_SECONDS = 0.5, 1.5
"""Embeddings of less speech than the first say little; those of one who speaks alone for the second form clusters."""
NOBODY = -1
"""The column of one who is not a speaker of the recording."""


class WindowOutput(NamedTuple):
    """The model's output on one window.

    ``first`` is the window's first frame in the recording; ``probabilities`` are ``(frames, speakers)``; ``embeddings``
    are ``(speakers, dim)``, or None if the model has none. ``alone (speakers,)`` are the seconds in which each speaks
    alone, where embeddings are of these, or, if they are less than LEAST_SECONDS, of all speech; None: the model's own
    embeddings, which leave out what others say.
    """

    first: int
    probabilities: np.ndarray
    embeddings: np.ndarray | None = None
    alone: np.ndarray | None = None


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
    counts = [len(frames) for frames in speech]
    windows, amounts = np.repeat(np.arange(len(outputs)), counts), np.concatenate(speech)
    vectors = unit_vectors(np.concatenate([np.asarray(output.embeddings) for output in outputs]))
    alone = np.concatenate([output.alone for output in outputs if output.alone is not None] or [np.zeros(0)])
    if len(alone):
        # With a speaker encoder it is known how long each speaks alone; the model's own embeddings only have the frames
        # in which somebody speaks.
        long = alone >= TRUSTED_SECONDS
    else:
        sizes = np.repeat([len(output.probabilities) for output in outputs], counts)
        long = amounts >= LEAST_SPEECH * sizes
    # The embedding is zero for one who never speaks alone.
    there: np.ndarray = np.asarray(vectors.any(1))
    trusted = _evenly_chosen(there & (amounts > 0) & long, windows)
    # Where nobody speaks for long, uncertain embeddings are better than none.
    if not trusted.any():
        trusted = _evenly_chosen(amounts > 0, windows)
    columns = np.full(len(amounts), NOBODY)
    if trusted.any():
        speakers = Speakers(vectors[trusted], windows[trusted])
        bounds = least, most = inference.num_speakers or inference.min_speakers, most
        threshold = inference.get_clustering_threshold()
        if inference.clustering == "centred" and (common := find_common(speakers, threshold, *bounds)) is not None:
            # the others are assigned without it, too; those without an embedding stay without one
            vectors = unit_vectors(np.where(there[:, None], vectors - common, 0))
            speakers, threshold = Speakers(vectors[trusted], windows[trusted]), inference.centred_threshold
        if inference.clustering == "vbx":
            factors = inference.vbx_fa, inference.vbx_fb
            clusters = cluster_vbx(speakers, threshold, factors, *bounds)
        else:
            clusters = cluster_embeddings(speakers, threshold, *bounds)
        columns[trusted] = _greatest(clusters, amounts[trusted], (least, most), inference.min_share)
        centres = unit_vectors(np.stack([vectors[columns == column].mean(0) for column in range(columns.max() + 1)]))
        if len(alone):
            speaks = [output.probabilities >= SPEAKS for output in outputs]
            around = average_neighbours([output.first for output in outputs], speaks, vectors, alone)
            # First those who speak alone next to this window, who are easier to tell apart; then the others, by what
            # their speech among known voices would sound like.
            _give_columns(columns, around @ centres.T, windows, (amounts > 0) & around.any(1))
            likeness = mixture_likeness(speaks, vectors, columns, centres)
        else:
            likeness = vectors @ centres.T
        _give_columns(columns, likeness, windows, amounts > 0)
    return np.split(columns, np.cumsum(counts)[:-1])


def average_neighbours(
    firsts: Sequence[int], speaks: Sequence[np.ndarray], vectors: np.ndarray, alone: np.ndarray
) -> np.ndarray:
    """Embeddings ``(speaker, dim)``: of those who speak ``alone (speaker,)`` for long, their own; of others, the mean
    with those of the same person in the windows before and after, weighted by seconds; zero if none was heard alone.

    Windows begin at the frames ``firsts``; ``speaks (frames, speakers)`` bool is of each. Two are the same as far as
    they speak in the same frames in common, more than either does with anyone else: the intersection over the union,
    minus the greatest with another. Embeddings pass on until someone is reached who spoke alone for long.
    """
    ends = np.cumsum([frames.shape[1] for frames in speaks])
    rows = [slice(end - frames.shape[1], end) for frames, end in zip(speaks, ends, strict=True)]
    weights = np.where(alone >= LEAST_SECONDS, alone, 0.0)[:, None]
    takes = (alone < TRUSTED_SECONDS)[:, None]
    own = vectors * weights
    before, after = own.copy(), own.copy()
    same = [_same(*starts, *windows) for starts, windows in zip(pairwise(firsts), pairwise(speaks), strict=True)]
    for place, likeness in enumerate(same, 1):
        here, there = rows[place], rows[place - 1]
        before[here] += takes[here] * (likeness.T @ before[there])
    for place, likeness in reversed([*enumerate(same)]):
        here, there = rows[place], rows[place + 1]
        after[here] += takes[here] * (likeness @ after[there])
    # own is in both sums.
    return unit_vectors(before + after - own)


def _same(first: int, second: int, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """How surely each speaker of a window is each of the next, ``(speaker, speaker)``; more than 0 for one at most."""
    length = max(0, min(first + len(earlier) - second, len(later)))
    one, other = (side.astype(np.float64) for side in (earlier[second - first :][:length], later[:length]))
    both = one.T @ other
    # a few frames at the edge of a window prove little
    likeness = both / (one.sum(0)[:, None] + other.sum(0) - both + LEAST_SPEECH * len(later))
    surely: np.ndarray = np.zeros(likeness.shape)
    for row, column in zip(*np.nonzero(likeness), strict=True):
        others = [*np.delete(likeness[row], column), *np.delete(likeness[:, column], row)]
        surely[row, column] = max(0.0, likeness[row, column] - max(others, default=0.0))
    return surely


def mixture_likeness(
    speaks: Sequence[np.ndarray], vectors: np.ndarray, columns: np.ndarray, centres: np.ndarray
) -> np.ndarray:
    """The cosine of each embedding to that of each column's speech among the others' of its window.

    The embedding of speech of several is taken for the direction of the sum of ``centres (column, dim)``, each weighted
    by the fraction of the frames in which they speak, too. Those whose ``columns`` are NOBODY are left out of it.
    """
    found = np.zeros((len(vectors), len(centres)))
    end = 0
    for frames in speaks:
        start, end = end, end + frames.shape[1]
        known = columns[start:end] != NOBODY
        own = frames.astype(np.float64)
        others = (own.T @ own / np.maximum(own.sum(0), 1)[:, None])[:, known] @ centres[columns[start:end][known]]
        for row in np.flatnonzero(~known):
            found[start + row] = unit_vectors(centres + others[row]) @ vectors[start + row]
    return found


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


def _give_columns(columns: np.ndarray, likeness: np.ndarray, windows: np.ndarray, wanted: np.ndarray) -> None:
    """Give the ``wanted`` who have no column the likest that no other of their window has, or otherwise the likest.

    ``likeness`` is ``(speaker, column)``; ``columns (speaker,)`` is changed.
    """
    from scipy.optimize import linear_sum_assignment

    seeking = wanted & (columns == NOBODY)
    for window in np.unique(windows[seeking]):
        here = windows == window
        who = np.flatnonzero(seeking & here)
        free = np.setdiff1d(np.arange(likeness.shape[1]), columns[here])
        given = likeness[who].argmax(1)
        rows, places = linear_sum_assignment(likeness[np.ix_(who, free)], maximize=True)
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
        # A triangle: at its edges a window knows only one side of the speech.
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
            # |a - b|² is |a|² + |b|² - 2 a·b, so the greatest sum of products is the smallest squared difference.
            together[columns[-1]] = earlier.T @ probabilities[:length]
        # So small a weight that amounts of speech decide only where the frames in common don't.
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
