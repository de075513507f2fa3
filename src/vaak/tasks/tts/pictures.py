"""Pictures of speech as PNG files: spectrograms with their symbols and pitch, and alignments. matplotlib draws them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vaak.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_ROWS = 8
"""Of a picture."""
INCHES_PER_SECOND = 2.5
WIDEST = 40.0
F0 = "F0 in Hz"


class Spectrogram(NamedTuple):
    """An utterance to draw: ``mel`` ``(frame, bin)``, and how long and how high each of its symbols is."""

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
    """A PNG of the first of these, one below the other, on one scale of seconds and one of colours.

    All are of one kind. A frame has ``frame_shift`` seconds.

    Raises UserError if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing requires matplotlib: pip install 'vaak[plot]'") from error
    rows = rows[:MOST_ROWS]
    seconds = max(int(row.durations.sum()) for row in rows) * frame_shift
    heights = [2.6 if isinstance(row, Spectrogram) else max(2.6, 0.085 * len(row.symbols)) for row in rows]
    width = min(max(6.0, INCHES_PER_SECOND * seconds), WIDEST)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    values = [row.mel if isinstance(row, Spectrogram) else row.probabilities for row in rows]
    scale: dict[str, Any] = {"vmin": min(one.min() for one in values), "vmax": max(one.max() for one in values)}
    panels = list(figure.subplots(len(rows), squeeze=False, height_ratios=heights)[:, 0])
    for axes, row in zip(panels, rows, strict=True):
        if isinstance(row, Spectrogram):
            image = _draw_spectrogram(axes, row, frame_shift, scale)
        else:
            image = _draw_alignment(axes, row, frame_shift, scale)
        axes.set_xlim(0, seconds)
        axes.set_title(row.title, fontsize=9, loc="left", parse_math=False)
    axes.set_xlabel("seconds", fontsize=7)
    of_pitch = [axes for axes in figure.axes if axes.get_ylabel() == F0]
    limits = np.array([axes.get_ylim() for axes in of_pitch])
    for twin in of_pitch:
        twin.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    what = "mel spectrogram" if isinstance(row, Spectrogram) else "probability"
    bar = figure.colorbar(image, ax=panels, fraction=0.05, pad=0.01, aspect=40)
    bar.set_label(what, fontsize=7)
    bar.ax.tick_params(labelsize=7)
    content = BytesIO()
    with warnings.catch_warnings():  # symbols that the font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(content, format="png", dpi=100)
    return content.getvalue()


def _draw_spectrogram(axes: Axes, row: Spectrogram, frame_shift: float, scale: dict[str, Any]) -> AxesImage:
    """The spectrogram, the ends of its symbols, their names above it, and F0 in white."""
    num_frames, num_bins = row.mel.shape
    extent = (0, num_frames * frame_shift, 0, num_bins)
    image = axes.imshow(row.mel.T, origin="lower", aspect="auto", extent=extent, **scale)
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
        hertz.set_ylabel(F0, fontsize=7)
        hertz.tick_params(labelsize=7)
    return image


def _draw_alignment(axes: Axes, row: Alignment, frame_shift: float, scale: dict[str, Any]) -> AxesImage:
    """The probabilities, darker where they are higher, and the durations as a line."""
    num_frames, num_symbols = row.probabilities.shape
    extent = (0, num_frames * frame_shift, 0, num_symbols)
    image = axes.imshow(row.probabilities.T, origin="lower", aspect="auto", extent=extent, cmap="Greys", **scale)
    edges = np.cumsum([0, *row.durations]) * frame_shift
    axes.stairs(np.arange(num_symbols) + 0.5, edges, baseline=None, label="durations")
    axes.legend(loc="lower right", fontsize=7)
    axes.set_yticks(np.arange(num_symbols) + 0.5, labels=row.symbols, fontsize=5, parse_math=False)
    axes.tick_params(axis="x", labelsize=7)
    return image
