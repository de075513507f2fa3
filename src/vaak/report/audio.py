"""Pictures of recordings over their seconds, as PNG: who speaks when; spectrograms with symbols and pitch; alignments.

Timelines: the reference is above the hypothesis, with a lane for each speaker. A speaker of the hypothesis has the
colour and the place of the reference speaker it is taken for: the one-to-one mapping with most time in common. Those
beyond it are grey. Long recordings continue in the next row, like text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vaak.audio.segments import Segment, merged
from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import write_bytes
from vaak.report.charts import make_figure, render_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

ROW_SECONDS = (60, 120, 300, 600, 900, 1800, 3600)
"""How long a row may be; the shortest of which a recording needs at most MOST_AUDIO_ROWS."""
MOST_AUDIO_ROWS = 12
MOST_LANES = 16
"""Speakers of the reference, or of the hypothesis, with a separate lane; the others share one."""
LONGEST_NAME = 20

WIDTH, LANE_HEIGHT, AXIS_HEIGHT, TITLE_HEIGHT = 13.0, 0.2, 0.4, 0.35  # inches
# Parts of the width.
LEFT, RIGHT = 0.14, 0.985
GREYS = ("0.35", "0.5", "0.65")

Recording = tuple[str, Sequence[Segment], Sequence[Segment] | None, float]
"""Name, hypothesis, reference or None, seconds."""

Parts = list[tuple[float, float]]
"""Starts and ends in seconds, of one speaker, in order."""


class Lane(NamedTuple):
    """One speaker's speech."""

    name: str
    colour: Any
    parts: Parts


Lanes = dict[str, list[Lane]]
"""Lanes from the top down, of the reference and of the hypothesis."""


class TimelineRow(NamedTuple):
    """A section of a recording, in seconds; a title at its beginning."""

    title: str
    start: float
    end: float
    duration: float
    lanes: Lanes

    @property
    def lane_inches(self) -> float:
        return LANE_HEIGHT * (sum(map(len, self.lanes.values())) + 0.5 * (len(self.lanes) - 1))

    @property
    def inches(self) -> float:
        return self.lane_inches + AXIS_HEIGHT + TITLE_HEIGHT * bool(self.title)


def draw_timeline(
    path: Path, hypothesis: Sequence[Segment], reference: Sequence[Segment] | None, duration: float, title: str
) -> None:
    """Write a PNG of one recording. Raises UserError if matplotlib is missing or the file can't be written.

    The file is ``path``, the picture ``duration`` seconds long, with a ``title``; ``hypothesis`` is drawn below the
    ``reference``, if there is one.
    """
    draw_timelines(path, [(title, hypothesis, reference, duration)])


def draw_timelines(path: Path, recordings: Sequence[Recording]) -> None:
    """Write a PNG of several recordings, one below the other. Raises UserError as ``draw_timeline``."""
    content = timelines_png(recordings)
    try:
        write_bytes(Path(path), content)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def timelines_png(recordings: Sequence[Recording]) -> bytes:
    """Return the picture that ``draw_timelines`` writes. Raises UserError if matplotlib is missing."""
    rows = [row for recording in recordings for row in make_rows(*recording)]
    height = sum(row.inches for row in rows)
    figure = make_figure(WIDTH, max(0.5, height), layout=None)
    below = height
    for row in rows:
        below -= row.inches
        _draw_row(figure, row, (LEFT, (below + 0.75 * AXIS_HEIGHT) / height, RIGHT - LEFT, row.lane_inches / height))
    return render_png(figure, dpi=110)


def best_mapping(reference: dict[str, Parts], hypothesis: dict[str, Parts]) -> dict[str, str]:
    """Return the reference speaker that each speaker of the hypothesis is taken for; those with none aren't in it."""
    from scipy.optimize import linear_sum_assignment

    together = np.array(
        [[_seconds_together(one, other) for one in reference.values()] for other in hypothesis.values()]
    )
    if not together.size:
        return {}
    speakers, names = list(hypothesis), list(reference)
    pairs = zip(*linear_sum_assignment(together, maximize=True), strict=True)
    return {speakers[row]: names[column] for row, column in pairs if together[row, column] > 0}


def _seconds_together(one: Parts, other: Parts) -> float:
    (starts, ends), (from_, to) = np.array(one).T, np.array(other).T
    return float(np.clip(np.minimum.outer(ends, to) - np.maximum.outer(starts, from_), 0, None).sum())


def make_rows(
    name: str, hypothesis: Sequence[Segment], reference: Sequence[Segment] | None, duration: float
) -> list[TimelineRow]:
    """Return the rows of a recording, with the same lanes and of one length."""
    lanes = assign_lanes(hypothesis, reference)
    length = next(
        (float(seconds) for seconds in ROW_SECONDS if duration <= MOST_AUDIO_ROWS * seconds), duration / MOST_AUDIO_ROWS
    )
    count = max(1, math.ceil(duration / length - 1e-9))
    if count == 1:
        length = max(duration, 0.1)
    return [TimelineRow("" if row else name, row * length, (row + 1) * length, duration, lanes) for row in range(count)]


def assign_lanes(hypothesis: Sequence[Segment], reference: Sequence[Segment] | None) -> Lanes:
    """Return the lanes; speakers that are taken for one another come in the same order, and in one colour."""
    with optional_import("drawing requires matplotlib", "plot"):
        from matplotlib import colormaps

    upper, lower = _parts(reference or ()), _parts(hypothesis)
    leading = upper or lower
    shades = colormaps["tab20"].colors  # type: ignore[attr-defined]
    # The two greys are left out.
    palette = [shades[number] for number in (*range(0, 20, 2), *range(1, 20, 2)) if number not in (14, 15)]
    colours = {name: palette[number % len(palette)] for number, name in enumerate(leading)}
    match = best_mapping(leading, lower)
    rank = list(leading)
    order = sorted(lower, key=lambda name: rank.index(match[name]) if name in match else len(rank))
    others = [name for name in order if name not in match]
    found = {name: colours[match[name]] if name in match else GREYS[others.index(name) % len(GREYS)] for name in order}
    lanes = {"hypothesis": _longest_lanes([Lane(name, found[name], lower[name]) for name in order])}
    if reference is None:
        return lanes
    return {"reference": _longest_lanes([Lane(name, colours[name], upper[name]) for name in upper])} | lanes


def _parts(segments: Sequence[Segment]) -> dict[str, Parts]:
    """Return each speaker's parts, speakers in the order in which they begin."""
    parts: dict[str, Parts] = {}
    for start, end, speaker in merged(segments):
        parts.setdefault(speaker, []).append((start, end))
    return parts


def _longest_lanes(lanes: list[Lane]) -> list[Lane]:
    """Return the lanes of those who speak most, and one of all others; an empty one if there is nobody."""
    if not lanes:
        return [Lane("nobody", "0.5", [])]
    if len(lanes) <= MOST_LANES:
        return lanes
    longest = sorted(lanes, key=lambda lane: -sum(end - start for start, end in lane.parts))
    own, shared = longest[: MOST_LANES - 1], longest[MOST_LANES - 1 :]
    others = Lane(f"{len(shared)} others", "0.7", [part for lane in shared for part in lane.parts])
    return [lane for lane in lanes if lane in own] + [others]


def _draw_row(figure: Figure, row: TimelineRow, place: tuple[float, float, float, float]) -> None:
    """Draw a row at ``place``: left, bottom, width and height as parts of the figure."""
    axes = figure.add_axes(place)
    height, ticks, names = 0.0, [], []
    for group, lanes in row.lanes.items():
        middle = height - len(lanes) / 2
        axes.text(-0.155, middle, group, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color="0.4")
        for lane in lanes:
            height -= 1
            inside = [(start, end - start) for start, end in lane.parts if end > row.start and start < row.end]
            axes.broken_barh(inside, (height + 0.1, 0.8), facecolors=lane.colour, linewidth=0)
            ticks.append(height + 0.5)
            names.append(_shorten_text(lane.name))
        height -= 0.5
    axes.set(xlim=(row.start, row.end), ylim=(height + 0.5, 0))
    axes.set_yticks(ticks, labels=names, fontsize=7)
    if len(row.lanes) > 1:
        axes.axhspan(-len(row.lanes["reference"]) - 0.5, -len(row.lanes["reference"]), color="0.92", linewidth=0)
    if row.end > row.duration:
        axes.axvspan(row.duration, row.end, color="0.92", linewidth=0)
    _draw_time(axes, row)
    if row.title:
        axes.set_title(_shorten_text(row.title, 120), fontsize=9, loc="left", pad=4, parse_math=False)
    for label in axes.get_yticklabels():
        # A name with a $ is a name.
        label.set_parse_math(False)


def _draw_time(axes: Axes, row: TimelineRow) -> None:
    """Ticks of time: ``10 s`` in short recordings, ``1:30`` in longer ones, ``1:02:30`` beyond an hour."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)
    step = next((step for step in steps if row.end - row.start <= 15 * step), row.end - row.start)
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: time_label(seconds, row.duration)))
    axes.tick_params(axis="x", labelsize=7, length=2)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.85", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def time_label(seconds: float, duration: float) -> str:
    """Return a time as a recording of ``duration`` seconds writes it.

    >>> time_label(7.5, 60), time_label(90, 600), time_label(90, 7200)
    ('7.5 s', '1:30', '0:01:30')
    """
    if duration <= 120:
        return f"{round(seconds, 2):g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if duration <= 3600 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _shorten_text(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a text in one line, truncated if it is too long."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


MOST_SPECTROGRAMS = 8
"""The most spectrograms of a picture."""
INCHES_PER_SECOND = 2.5
WIDEST = 40.0
SCALE, ABOVE, BELOW = 1.3, 0.4, 0.4
"""Inches around each panel, on the right, above and below; on the left it depends on the labels. Fixed ones: matplotlib
would draw everything several times to find its own."""
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
    """Return a PNG of the first of these, one below the other, on one scale of seconds and one of colours.

    All are of one kind. A frame has ``frame_shift`` seconds.

    Raises UserError if matplotlib is missing.
    """
    rows = rows[:MOST_SPECTROGRAMS]
    seconds = max(int(row.durations.sum()) for row in rows) * frame_shift
    heights = [1.95 if isinstance(row, Spectrogram) else max(1.95, 0.085 * len(row.symbols)) for row in rows]
    longest = max(len(symbol) for row in rows for symbol in row.symbols)
    left = 0.55 if isinstance(rows[0], Spectrogram) else 0.2 + 0.05 * longest
    width, height = min(max(6.0, INCHES_PER_SECOND * seconds), WIDEST), sum(heights) + len(rows) * (ABOVE + BELOW)
    figure = make_figure(width, height, layout=None)
    values = [row.mel if isinstance(row, Spectrogram) else row.probabilities for row in rows]
    scale: dict[str, Any] = {"vmin": min(one.min() for one in values), "vmax": max(one.max() for one in values)}
    top = height
    for row, inches in zip(rows, heights, strict=True):
        bottom = top - ABOVE - inches
        axes = figure.add_axes((left / width, bottom / height, 1 - (left + SCALE) / width, inches / height))
        if isinstance(row, Spectrogram):
            image = _draw_spectrogram(axes, row, frame_shift, scale)
        else:
            image = _draw_alignment(axes, row, frame_shift, scale)
        axes.set_xlim(0, seconds)
        above = 14.0 if isinstance(row, Spectrogram) else 5.0
        axes.set_title(row.title, fontsize=9, loc="left", y=1.0, pad=above, parse_math=False)
        top = bottom - BELOW
    axes.set_xlabel("seconds", fontsize=7)
    # Every row has drawn its own scale of pitch; they become one, as the colours have one.
    of_pitch = [axes for axes in figure.axes if axes.get_ylabel() == F0]
    limits = np.array([axes.get_ylim() for axes in of_pitch])
    for twin in of_pitch:
        twin.set_ylim(limits[:, 0].min(), limits[:, 1].max())
    of_colours = figure.add_axes((1 - 0.65 / width, BELOW / height, 0.15 / width, 1 - (ABOVE + BELOW) / height))
    bar = figure.colorbar(image, cax=of_colours)
    bar.set_label("mel spectrogram" if isinstance(row, Spectrogram) else "probability", fontsize=7)
    of_colours.tick_params(labelsize=7)
    return render_png(figure)


def _draw_spectrogram(axes: Axes, row: Spectrogram, frame_shift: float, scale: dict[str, Any]) -> AxesImage:
    """Return the spectrogram, the ends of its symbols, their names above it, and F0 in white."""
    num_frames, num_bins = row.mel.shape
    extent = (0, num_frames * frame_shift, 0, num_bins)
    image = axes.imshow(row.mel.T, origin="lower", aspect="auto", extent=extent, **scale)
    ends = np.cumsum(row.durations) * frame_shift
    axes.vlines(ends[:-1], 0, num_bins, colors="white", linewidth=0.3)
    for symbol, end, frames in zip(row.symbols, ends, row.durations, strict=True):
        # A symbol without frames leaves no room for its name.
        if frames:
            middle = (end - frames * frame_shift / 2, 1.02)
            axes.text(*middle, symbol, transform=axes.get_xaxis_transform(), ha="center", fontsize=6, parse_math=False)
    axes.set_ylabel("mel bin", fontsize=7)
    axes.tick_params(labelsize=7)
    if row.pitch.any():
        hertz = axes.twinx()
        # Unvoiced frames have no pitch: NaN breaks the line there.
        hertz.plot((np.arange(num_frames) + 0.5) * frame_shift, np.where(row.pitch > 0, row.pitch, np.nan), "w-")
        hertz.set_ylabel(F0, fontsize=7)
        hertz.tick_params(labelsize=7)
    return image


def _draw_alignment(axes: Axes, row: Alignment, frame_shift: float, scale: dict[str, Any]) -> AxesImage:
    """Return the probabilities, darker where they are higher, and the durations as a line."""
    num_frames, num_symbols = row.probabilities.shape
    extent = (0, num_frames * frame_shift, 0, num_symbols)
    image = axes.imshow(row.probabilities.T, origin="lower", aspect="auto", extent=extent, cmap="Greys", **scale)
    edges = np.cumsum([0, *row.durations]) * frame_shift
    axes.stairs(np.arange(num_symbols) + 0.5, edges, baseline=None, label="durations")
    axes.legend(loc="lower right", fontsize=7)
    axes.set_yticks(np.arange(num_symbols) + 0.5, labels=row.symbols, fontsize=5, parse_math=False)
    axes.tick_params(axis="x", labelsize=7)
    return image
