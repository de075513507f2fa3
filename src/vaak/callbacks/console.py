"""Console output of a run, for people or for machines.

For people a line for each record, and a progress bar where there is a terminal; in a notebook curves in place of both.
For machines lines of JSON on standard output, the records of ``metrics.jsonl`` among them.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from vaak.callbacks.notebook import NotebookProgress, in_notebook
from vaak.callbacks.trackers import Tracker
from vaak.config.metrics import in_words, split_part
from vaak.core.console import format_time, hide, is_terminal
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.memory import read_memory
from vaak.engine.metrics_file import Record, json_line, read_history

log = logging.getLogger("vaak.console")
"""Below ``vaak``, so that a console of JSON lines, which has the records already, can leave these out."""
REDRAW_SECONDS = 0.5
LIVE_WEIGHT = 0.9
"""The weight of the past in the bar's loss, after one step."""


class ConsoleCallback(Callback):
    """Logs every record in a line; with ``progress_bar``, draws what a person follows below them."""

    main_process_only = True

    def __init__(self, progress_bar: bool = True) -> None:
        self.progress_bar = progress_bar
        self.progress: Any = None
        self.curves: NotebookProgress | None = None
        self.total_steps, self.first_step = 0, 0
        self.loss: float | None = None
        self.seen_step = 0
        self.evaluated = ""
        self.begun = self.next_redraw = 0.0
        self.memory = ""

    def on_fit_start(self, trainer: Run) -> None:
        self.total_steps, self.first_step = trainer.total_steps, trainer.position.step
        self.begun = time.monotonic()
        self.evaluated = self._last_evaluation(trainer)
        if self.progress_bar and in_notebook():
            begun = self.first_step, self.total_steps, self.evaluated
            self.curves = self.progress = NotebookProgress(*begun, read_history(trainer.directory))
        elif self.progress_bar and is_terminal():
            from vaak.callbacks.progress_bar import start_progress

            self.progress = start_progress(self.first_step, self.total_steps, self.evaluated)
        # A run that is over is freed at once.
        watched = weakref.ref(trainer)
        trainer.records.subscribe(lambda record: self.say(record, watched()))

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if self.progress is not None and time.monotonic() >= self.next_redraw:
            # A step can be quicker than the bar.
            self.next_redraw = time.monotonic() + REDRAW_SECONDS
            loss = sum(trainer.loss_weights.get(name, 1.0) * float(mean) for name, mean in report.losses.items())
            self.loss = smooth_loss(self.loss, loss, report.step - self.seen_step)
            self.seen_step = report.step
            self.memory = _memory(trainer)
            shown = {
                "loss": "-" if self.loss is None else f"{self.loss:.4f}",
                "rate": f"lr {report.learning_rate:.2e}",
                "evaluated": self.evaluated,
            }
            shown |= {"memory": self.memory, "epoch": f"epoch {report.epoch + 1}"}
            self.progress.update(0, completed=report.step, **shown)

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        self.evaluated = self._last_evaluation(trainer)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.curves is not None:
            # The bar stays on the screen.
            self.curves.update(0, completed=trainer.position.step, evaluated=self.evaluated)
        elif self.progress is not None:
            hide(self.progress)

    def say(self, record: Record, trainer: Run | None = None) -> None:
        """Log a record as one line, which isn't printed where curves show it."""
        shown_already: dict[str, bool] = {}
        if self.curves is not None:
            self.curves.add(record)
            shown_already = {"on_console": False}
        if record["kind"] == "step":
            log.info("%s", "  ".join(filter(None, self._parts_of_step(record, trainer))), extra=shown_already)
        elif record["kind"] == "evaluation":
            # without those of groups, such as pairs_accuracy/number
            metrics = {
                name: value for name, value in record.items() if isinstance(value, float) and not split_part(name)[1]
            }
            shown = "  ".join(f"{name} {in_words(name, value)}" for name, value in metrics.items())
            log.info("step %d  %s", record["step"], shown, extra=shown_already)
        elif record["kind"] == "epoch":
            log.info("epoch %d ended  train loss %.4f", record["epoch"] + 1, record["train_loss"], extra=shown_already)

    def _parts_of_step(self, record: Record, trainer: Run | None) -> Iterator[str]:
        step, gone = record["step"], time.monotonic() - self.begun
        yield f"step {step}/{self.total_steps}"
        yield f"loss {record['loss']:.4f}  lr {record['learning_rate']:.2e}  grad {record['gradient_norm']:.3f}"
        yield f"epoch {record['epoch'] + 1}"
        yield self.evaluated
        rates = {name: value for name, value in record["clock"].items() if name != "seconds"}
        yield from (f"{value:,.0f} {name.replace('_per_second', '/s')}" for name, value in list(rates.items())[:1])
        if trainer is not None:
            yield _memory(trainer)
        if step > self.first_step and self.total_steps:
            left = gone / (step - self.first_step) * (self.total_steps - step)
            yield f"{format_time(gone)} elapsed, {format_time(left)} left"

    @staticmethod
    def _last_evaluation(trainer: Run) -> str:
        """Return the last metric by which checkpoints are compared, and the best."""
        best, name = trainer.best, trainer.best.metric
        if name not in trainer.metrics:
            return ""
        last = f"{name} {in_words(name, trainer.metrics[name])}"
        return last if best.value is None else f"{last} (best {in_words(name, best.value)})"


def smooth_loss(past: float | None, loss: float, steps: int) -> float | None:
    """Return the loss that the bar shows, ``steps`` after it showed ``past``; one that isn't finite changes nothing."""
    if not math.isfinite(loss):
        return past
    weight = LIVE_WEIGHT**steps
    return loss if past is None else weight * past + (1 - weight) * loss


def _memory(trainer: Run) -> str:
    return f"{read_memory(trainer.ranks.device).own / 2**30:.1f} GiB"


class JsonLinesCallback(Tracker):
    """Prints each record in the form of ``metrics.jsonl``. A reader that goes away doesn't end training."""

    name = "standard output"

    def write(self, record: Record) -> None:
        print_line(record)


def print_line(record: Record) -> None:
    """Print a line of JSON in one piece, so that lines of several processes don't mix."""
    sys.stdout.write(json_line(record) + "\n")
    sys.stdout.flush()
