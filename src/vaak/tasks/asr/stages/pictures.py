"""Pictures of clusters, gate and experts, from what the stages of ``vaak pipeline moe-asr`` make.

Gate and experts are drawn as matplotlib figures, and written to ``path`` where one is given. UserError is raised where
a stage hasn't written its figures yet, where matplotlib is missing, or where the file can't be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json, usual_mode
from vaak.engine.metrics_file import read_records
from vaak.study.drawing import saved
from vaak.tasks.asr.stages.clustering import Clustering, reduced

GATE, EXPERTS, JOINT = "gate/gate.json", "experts/experts.json", "joint/joint.json"
MOST_NUMBERS = 20
"""Experts that are named one by one."""


def draw_gate(folder: Path, path: Path | None = None) -> Any:
    """The gate's choices for held-out utterances of each cluster, whether it is as sure as it is right, its losses."""
    about = _figures_of(folder, GATE)
    bins = [one for one in about["calibration"]["bins"] if one["count"]]
    number, which = sum(one["count"] for one in bins), "held-out" if about["held_out"] else "training"
    figure = _figure(f"{folder}: gate, accuracy {100 * about['accuracy']:.1f} % of {number} {which} utterances")
    matrix, reliability, losses = figure.subplots(1, 3)
    confusion = np.array(about["confusion"])
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    image = matrix.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=matrix, label="share of the cluster")
    matrix.set(title="confusion", xlabel="expert chosen", ylabel="cluster")
    if len(confusion) <= MOST_NUMBERS:
        ticks = range(len(confusion))
        matrix.set(xticks=ticks, yticks=ticks)
        for (row, column), count in np.ndenumerate(confusion):
            colour = "white" if shares[row, column] > 0.5 else "black"
            matrix.text(column, row, str(count), ha="center", va="center", color=colour)
    sure = [one["confidence"] for one in bins]
    reliability.plot([0, 1], [0, 1], "--", color="0.6", label="perfectly calibrated")
    reliability.plot(sure, [one["accuracy"] for one in bins], "-", color="C0", alpha=0.5)
    sizes = [400 * one["count"] / number for one in bins]
    reliability.scatter(sure, [one["accuracy"] for one in bins], s=sizes, color="C0", label="utterances (area: number)")
    title = f"reliability, expected calibration error {100 * about['calibration']['error']:.1f} %"
    reliability.set(
        title=title, xlabel="probability of the choice", ylabel="accuracy", xlim=(0, 1.02), ylim=(-0.02, 1.05)
    )
    reliability.legend(loc="lower right")
    reliability.grid(alpha=0.3)
    for name, label in (("loss", "train"), ("val_loss", "valid")):
        _curve(losses, folder / "gate" / "run", name, label)
    losses.set(title="loss", xlabel="step", ylabel="nats an utterance")
    losses.grid(alpha=0.3)
    losses.legend()
    return saved(figure, path)


def draw_experts(folder: Path, path: Path | None = None) -> Any:
    """Use and word error rate of each expert, after its own training and in the joint model, as far as it is made."""
    own = _figures_of(folder, EXPERTS)["experts"]
    joint = _figures_of(folder, JOINT) if (folder / JOINT).exists() else None
    number = max(1, sum(one["train"] for one in own))
    use: dict[str, Sequence[float | None]] = {"training utterances": [one["train"] / number for one in own]}
    errors: dict[str, Sequence[float | None]] = {"alone": [one["wer"] for one in own]}
    if joint is not None:
        use["chosen by the joint model"] = joint["use"]
        errors["in the joint model"] = [joint["figures"].get(f"val_expert_wer/{one['expert']}") for one in own]
    figure = _figure(f"{folder}: {len(own)} experts")
    left, right, curves = figure.subplots(1, 3)
    _bars(left, use)
    left.set(title="use", xlabel="expert", ylabel="% of utterances")
    _bars(right, errors)
    right.set(title="word error rate, validation", xlabel="expert", ylabel="WER, %")
    for one in own:
        run = folder / "experts" / f"expert-{one['expert']}"
        _curve(curves, run, "val_wer", f"expert {one['expert']}" if len(own) <= MOST_NUMBERS else None, 100)
    curves.set(title="word error rate in the training of each", xlabel="step", ylabel="WER, %")
    curves.grid(alpha=0.3)
    if curves.lines and len(own) <= MOST_NUMBERS:
        curves.legend()
    return saved(figure, path)


def _bars(axes: Any, shares: Mapping[str, Sequence[float | None]]) -> None:
    """Bars for each expert, in per cent, side by side; none where there is no figure."""
    width = 0.8 / len(shares)
    for place, (label, values) in enumerate(shares.items()):
        shown = [(expert, 100 * value) for expert, value in enumerate(values) if value is not None]
        at = [expert + (place - (len(shares) - 1) / 2) * width for expert, _ in shown]
        axes.bar(at, [value for _, value in shown], width, label=label)
    number = max(map(len, shares.values()))
    axes.set(xticks=range(number), xlim=(-0.6, number - 0.4))
    axes.margins(y=0.25)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def _curve(axes: Any, run: Path, name: str, label: str | None, factor: float = 1.0) -> None:
    """The figure ``name`` of a ``run`` over its steps, times ``factor``, in ``axes``; nothing where it isn't logged.

    ``label`` is for the legend.
    """
    path = run / "metrics.jsonl"
    records = read_records(path) if path.is_file() else []
    points = [(one["step"], factor * one[name]) for one in records if isinstance(one.get(name), float)]
    if points:
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 40 else None, label=label)


def _figures_of(folder: Path, name: str) -> Any:
    """Return the results that a stage wrote. Raises UserError where it hasn't run."""
    if not (folder / name).is_file():
        stage = name.partition("/")[0]
        raise UserError(
            f"{folder} has no {name}, which the stage {stage} of vaak pipeline moe-asr writes when it is done"
        )
    return read_json(folder / name)


def _figure(title: str) -> Any:
    with optional_import("drawing requires matplotlib", "plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    figure.suptitle(title)
    return figure


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
        _scatter(axes, places, np.asarray(names), noise)
        axes.set(title=f"by {title}", xlabel=f"{method} 1", ylabel=f"{method} 2")
    try:
        with usual_mode(path):
            figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be written: {error}") from error


def _scatter(axes: Any, places: np.ndarray, names: np.ndarray, noise: np.ndarray) -> None:
    """Points in a colour for each name; noise as crosses."""
    for count, name in enumerate(dict.fromkeys(sorted(names.tolist(), key=lambda name: (len(name), name)))):
        own = names == name
        colour, label = f"C{count % 10}", name if count < MOST_NAMES else None
        axes.plot(*places[own & ~noise].T, ".", color=colour, markersize=4, label=label)
        axes.plot(*places[own & noise].T, "x", color=colour, markersize=3, alpha=0.5)
    axes.legend(fontsize="small", markerscale=2)
