"""A picture of clusters: their rows in two dimensions, coloured by cluster and by group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vaak.core.errors import UserError
from vaak.core.storage.files import usual_mode
from vaak.tasks.asr.clustering.cluster import Clustering
from vaak.tasks.asr.clustering.reduction import reduced

MOST_POINTS = 20_000
MOST_NAMES = 20
"""Names in a legend."""


def draw_clusters(
    clustering: Clustering, groups: Sequence[str] | None, method: Literal["pca", "umap"], path: Path, seed: int = 42
) -> None:
    """Write the picture of a ``clustering`` to ``path``; the kind of file follows from its ending.

    ``method`` gives the two dimensions, with ``seed``; ``groups`` are the rows' values of a stratification column.
    Raises UserError where matplotlib is missing or the file can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing requires matplotlib: pip install 'vaak[plot]'") from error
    number = len(clustering.labels)
    chosen = np.sort(np.random.default_rng(seed).permutation(number)[:MOST_POINTS])
    places = reduced(clustering.points[chosen], method, 2, seed)
    if places.shape[1] == 1:  # one dimension is all there is
        places = np.column_stack([places, np.zeros(len(places), np.float32)])
    noise = clustering.is_noise[chosen]
    panels = {"cluster": [f"cluster {label}" for label in clustering.labels[chosen]]}
    if groups is not None:
        panels["group"] = [str(groups[place]) for place in chosen]
    figure = Figure(figsize=(6.5 * len(panels), 5), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _draw(axes, places, np.asarray(names), noise)
        axes.set(title=f"by {title}", xlabel=f"{method} 1", ylabel=f"{method} 2")
    try:
        with usual_mode(path):
            figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be written: {error}") from error


def _draw(axes: Any, places: np.ndarray, names: np.ndarray, noise: np.ndarray) -> None:
    """Points in a colour for each name; noise as crosses."""
    for count, name in enumerate(dict.fromkeys(sorted(names.tolist(), key=lambda name: (len(name), name)))):
        own = names == name
        colour, label = f"C{count % 10}", name if count < MOST_NAMES else None
        axes.plot(*places[own & ~noise].T, ".", color=colour, markersize=4, label=label)
        axes.plot(*places[own & noise].T, "x", color=colour, markersize=3, alpha=0.5)
    axes.legend(fontsize="small", markerscale=2)
