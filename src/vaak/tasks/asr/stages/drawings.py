"""Charts of clusters, gate and experts, of what the stages of ``vaak pipeline moe-asr`` wrote into its folder.

They are drawn as those of ``charts.py`` are. UserError is also raised where a stage hasn't written its figures yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.engine.metrics_file import read_history
from vaak.report.charts import MOST_MARKED, draw_runs, draw_shares, make_figure, saved

GATE, EXPERTS, JOINT = "gate/gate.json", "experts/experts.json", "joint/joint.json"
MOST_NUMBERS = 20
"""Experts, or groups, that are named one by one."""


def draw_gate(folder: Path, path: Path | None = None) -> Any:
    """Draw the gate's choices for held-out utterances of each cluster, its calibration and its losses."""
    about = _read_results(folder, GATE)
    bins = [one for one in about["calibration"]["bins"] if one["count"]]
    number, which = sum(one["count"] for one in bins), "held-out" if about["held_out"] else "training"
    figure = _figure(f"{folder}: gate, accuracy {100 * about['accuracy']:.1f} % of {number} {which} utterances")
    matrix, reliability, losses = figure.subplots(1, 3)
    confusion = np.array(about["confusion"])
    matrix.set(title="confusion", xlabel="expert chosen", ylabel="cluster")
    written: Sequence[tuple[int, ...]] = ()
    if len(confusion) <= MOST_NUMBERS:
        matrix.set(xticks=range(len(confusion)), yticks=range(len(confusion)))
        written = list(np.ndindex(confusion.shape))
    draw_shares(matrix, confusion, written, "share of the cluster")
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
    """Draw use and word error rate of each expert, after its own training and in the joint model, as far as known."""
    own = _read_results(folder, EXPERTS)["experts"]
    joint = _read_results(folder, JOINT) if (folder / JOINT).exists() else None
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


def plot_gate(folders: Sequence[Path], path: Path) -> None:
    """Draw the gate of one pipeline for ``vaak plot``. Raises UserError for several."""
    draw_gate(_require_one(folders, "gate"), path)


def plot_experts(folders: Sequence[Path], path: Path) -> None:
    """Draw the experts of one pipeline for ``vaak plot``. Raises UserError for several."""
    draw_experts(_require_one(folders, "experts"), path)


def plot_joint_training(folders: Sequence[Path], path: Path) -> None:
    """Draw the joint trainings of pipelines together; a run that isn't a pipeline is drawn itself."""
    draw_runs(folders, path, inner="joint/run")


def _require_one(folders: Sequence[Path], picture: str) -> Path:
    if len(folders) > 1:
        raise UserError(f"{picture} is drawn of one pipeline, not of {len(folders)}")
    return folders[0]


def _bars(axes: Any, shares: Mapping[str, Sequence[float | None]]) -> None:
    """Draw bars for each expert, in percent, side by side; none where a metric is missing."""
    width = 0.8 / len(shares)
    for index, (label, values) in enumerate(shares.items()):
        shown = [(expert, 100 * value) for expert, value in enumerate(values) if value is not None]
        at = [expert + (index - (len(shares) - 1) / 2) * width for expert, _ in shown]
        axes.bar(at, [value for _, value in shown], width, label=label)
    number = max(map(len, shares.values()))
    axes.set(xticks=range(number), xlim=(-0.6, number - 0.4))
    axes.margins(y=0.25)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def _curve(axes: Any, run: Path, name: str, label: str | None, factor: float = 1.0) -> None:
    """The metric ``name`` of a ``run`` over its steps, times ``factor``, in ``axes``; nothing where it isn't logged.

    ``label`` is for the legend.
    """
    points = [(one["step"], factor * one[name]) for one in read_history(run) if isinstance(one.get(name), float)]
    if points:
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < MOST_MARKED else None, label=label)


def _read_results(folder: Path, name: str) -> Any:
    """Return the results that a stage wrote. Raises UserError where it hasn't run."""
    if not (folder / name).is_file():
        stage = name.partition("/")[0]
        raise UserError(
            f"{folder} has no {name}, which the stage {stage} of vaak pipeline moe-asr writes when it is done"
        )
    return read_json(folder / name)


def _figure(title: str) -> Any:
    figure = make_figure(15, 4.5)
    figure.suptitle(title)
    return figure


def draw_clusters(
    points: np.ndarray, panels: Mapping[str, Sequence[str]], noise: np.ndarray, axes_name: str, path: Path | None = None
) -> Any:
    """Draw ``points`` ``(point, 2)`` once in each panel, coloured by the names that the panel has for them.

    Those that are ``noise`` ``(point,)`` are crosses. ``axes_name`` is that of the axes, which are numbered.
    """
    figure = make_figure(6.5 * len(panels), 5)
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        each = np.asarray(names)
        for count, name in enumerate(sorted(set(each.tolist()), key=lambda name: (len(name), name))):
            colour, label = f"C{count % 10}", name if count < MOST_NUMBERS else None
            axes.plot(*points[(each == name) & ~noise].T, ".", color=colour, markersize=4, label=label)
            axes.plot(*points[(each == name) & noise].T, "x", color=colour, markersize=3, alpha=0.5)
        axes.legend(fontsize="small", markerscale=2)
        axes.set(title=f"by {title}", xlabel=f"{axes_name} 1", ylabel=f"{axes_name} 2")
    return saved(figure, path)
