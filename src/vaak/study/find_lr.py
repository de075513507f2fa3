"""A learning-rate range test of what a configuration describes, with the engine's own step."""

from __future__ import annotations

import csv
import importlib.util
import io
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vaak.config.load import Loaded
from vaak.core.errors import NonFiniteError, UserError
from vaak.core.progress import followed
from vaak.core.report import StepReport
from vaak.core.storage import files
from vaak.engine.trainer import Trainer
from vaak.runs.temporary_run import temporary_trainer
from vaak.study.certainty import certainty_of
from vaak.study.drawing import draw_curve
from vaak.study.lr_range import Curve, RateRange


def find_lr(loaded: Loaded, rates: RateRange) -> Curve:
    """The losses of the run's first steps, each taken with its rate of the range instead of the schedule's.

    Steps are those of training: accumulated, clipped, in its precision. ``training.optimizer.lr`` is what varies; the
    rates of parameter groups, and muon's ``adamw_lr``, keep their proportion to it. Nothing is kept.
    """
    with temporary_trainer(loaded) as trainer:
        return _tested(trainer, rates)


def _tested(trainer: Trainer, rates: RateRange) -> Curve:
    curve, peak = Curve(), trainer.config.optimizer.lr
    step = replace(trainer.step, schedule=lambda step: rates.rate(step - 1) / peak)
    numbers = followed(range(rates.num_iter), "trying learning rates", rates.num_iter)
    with closing(trainer.data.steps(trainer.position)) as steps, closing(numbers):
        for number, data in zip(numbers, steps, strict=False):
            try:
                report = step(trainer.state, data)
            except NonFiniteError:
                curve.diverged = True
                break
            if not curve.add(rates.rate(number), _objective(trainer, report)):
                break
    return curve


def _objective(trainer: Trainer, report: StepReport) -> float:
    """What the step descended on."""
    return sum(trainer.loss_weights.get(name, 1.0) * float(loss) for name, loss in report.losses.items())


def described(curve: Curve) -> dict[str, Any]:
    """A curve, its suggestion, and how sure that is."""
    return {**curve.as_json(), **asdict(certainty_of(curve))}


def write_curve(curve: Curve, folder: Path) -> list[Path]:
    """Write ``lr-range.json``, ``.csv`` and, where matplotlib is installed, ``.png``; return what was written."""
    written = [folder / "lr-range.json", folder / "lr-range.csv"]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("lr", "loss", "smoothed"))
    writer.writerows(zip(curve.rates, curve.losses, curve.smoothed, strict=True))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(written[0], described(curve))
        files.write_text(written[1], table.getvalue())
    except OSError as error:
        raise UserError(f"the curve can't be written to {folder}: {error.strerror or error}") from error
    if importlib.util.find_spec("matplotlib") is not None:
        written.append(folder / "lr-range.png")
        draw_curve(curve, written[-1])
    return written
