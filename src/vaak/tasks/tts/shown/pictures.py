"""Pictures of speech as PNG files: spectrograms with their symbols and pitch, and alignments. matplotlib draws them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vaak.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 8
"""Of a picture."""
INCHES_PER_SECOND = 2.5
WIDEST = 40.0


class Spectrogram(NamedTuple):
    """What is drawn of an utterance: ``mel`` ``(frame, bin)``, and how long and how high each of its symbols is."""

    title: str
    mel: np.ndarray
    symbols: Sequence[str]
    durations: np.ndarray
    """``(symbol,)``, in frames."""
    pitch: np.ndarray
    """``(frame,)``: F0 in Hz, 0 where there is none."""


class Alignment(NamedTuple):
    """Probabilities of symbols ``(frame, symbol)``, and the ``durations`` found with them."""

    title: str
    probabilities: np.ndarray
    symbols: Sequence[str]
    durations: np.ndarray


def speech_png(rows: Sequence[Spectrogram | Alignment], frame_shift: float) -> bytes:
    """A PNG of the first of these, one below the other, on one scale of seconds. A frame has ``frame_shift`` of them.

    Raises UserError if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing requires matplotlib: pip install 'vaak[plot]'") from error
    rows = rows[:MOST_ROWS]
    seconds = max(int(row.durations.sum()) for row in rows) * frame_shift
    figure = Figure(figsize=(min(max(6.0, INCHES_PER_SECOND * seconds), WIDEST), 2.6 * len(rows)), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True):
        if isinstance(row, Spectrogram):
            _draw_spectrogram(axes, row, frame_shift)
        else:
            _draw_alignment(axes, row, frame_shift)
        axes.set_xlim(0, seconds)
        axes.set_title(row.title, fontsize=9, loc="left", parse_math=False)
    content = BytesIO()
    with warnings.catch_warnings():  # symbols that the font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def _draw_spectrogram(axes: Axes, row: Spectrogram, frame_shift: float) -> None:
    """The spectrogram, the ends of its symbols, their names above it, and F0 in white."""
    num_frames, num_bins = row.mel.shape
    axes.imshow(row.mel.T, origin="lower", aspect="auto", extent=(0, num_frames * frame_shift, 0, num_bins))
    ends = np.cumsum(row.durations) * frame_shift
    axes.vlines(ends[:-1], 0, num_bins, colors="white", linewidth=0.3)
    spoken = [place for place, frames in enumerate(row.durations) if frames]
    above = axes.secondary_xaxis("top")
    above.set_xticks([ends[place] - row.durations[place] * frame_shift / 2 for place in spoken])
    above.set_xticklabels([row.symbols[place] for place in spoken], fontsize=6, parse_math=False)
    above.tick_params(length=0)
    axes.set_ylabel("mel bin", fontsize=7)
    axes.tick_params(labelsize=7)
    if row.pitch.any():
        hertz = axes.twinx()
        hertz.plot((np.arange(num_frames) + 0.5) * frame_shift, np.where(row.pitch > 0, row.pitch, np.nan), "w-")
        hertz.set_ylabel("F0 in Hz", fontsize=7)
        hertz.tick_params(labelsize=7)


def _draw_alignment(axes: Axes, row: Alignment, frame_shift: float) -> None:
    """The probabilities, darker where they are higher, and the durations as a line."""
    num_frames, num_symbols = row.probabilities.shape
    extent = (0, num_frames * frame_shift, 0, num_symbols)
    axes.imshow(row.probabilities.T, origin="lower", aspect="auto", extent=extent, cmap="Greys")
    axes.stairs(np.arange(num_symbols) + 0.5, np.cumsum([0, *row.durations]) * frame_shift, baseline=None)
    axes.set_yticks(np.arange(num_symbols) + 0.5, labels=row.symbols, fontsize=5, parse_math=False)
    axes.tick_params(axis="x", labelsize=7)
