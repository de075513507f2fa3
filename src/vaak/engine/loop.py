"""The loop. Training is below the yield, watching is above it.

    for each optimizer step:   fetch its microbatches, take the step, tell about it, do what is due

Everything a step uses besides the state follows from its number, so the loop keeps no state of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

from vaak.core.errors import NonFiniteError
from vaak.core.report import StepReport
from vaak.data.loader import naming_lost_workers
from vaak.engine.evaluation import EvaluationInterruptedError
from vaak.engine.signals import stop_on_signal
from vaak.engine.step import take_step

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer


def train(trainer: Trainer) -> str:
    """Train to the last step or until someone asks to stop; return why it ended."""
    with stop_on_signal(trainer.request_stop):
        with trainer.telling_of_errors(), naming_lost_workers():
            trainer.tell("on_fit_start")
            if trainer.position.duties_pending:
                do_what_is_due(trainer)
            trainer.rehearse()
            trainer.agree()
            with closing(optimizer_steps(trainer)) as steps:
                for report in steps:
                    trainer.tell("on_step_end", report)
                    do_what_is_due(trainer)
            trainer.writer.finish()
        reason = "finished" if trainer.is_finished else str(trainer.stop_reason)
        trainer.tell("on_fit_end", reason)
    return reason


def optimizer_steps(trainer: Trainer) -> Generator[StepReport]:
    """Take the steps from the trainer's position to the last one, or until a stop is agreed on; report each."""
    microbatches = trainer.microbatches()
    while trainer.position.step < trainer.total_steps and not trainer.stop_reason:
        with trainer.phase("loading"):
            fetched = list(itertools.islice(microbatches, trainer.share_of_step()))
        trainer.writer.raise_failure()
        trainer.skipped.add(fetched)
        try:
            report = take_step(trainer, fetched)
        except NonFiniteError:
            trainer.save()  # what was reached before
            raise
        yield report


def do_what_is_due(trainer: Trainer) -> None:
    """At a step's boundary: evaluate, tell of an epoch's end, save.

    A run that is to stop leaves the scheduled evaluation to the run that resumes it: it has seconds, not minutes.
    """
    trainer.agree()
    evaluation_due, epoch_ended = trainer.evaluation_due(), trainer.position.place == 0
    evaluating = evaluation_due or trainer.wishes.evaluate
    pending = bool(trainer.stop_reason) and (evaluation_due or epoch_ended)
    try:
        if evaluating and not pending:
            with trainer.phase("evaluation"):
                trainer.evaluate(scheduled=evaluation_due)
    except EvaluationInterruptedError:
        pending = evaluation_due
    if epoch_ended and not pending:
        trainer.tell("on_epoch_end", trainer.position.epoch - 1, trainer.metrics)
    trainer.position.duties_pending = pending
    if evaluating or epoch_ended:  # who was told may have asked for something
        trainer.agree()
    if trainer.save_due() or trainer.stop_reason:
        with trainer.phase("saving"):
            trainer.save()
