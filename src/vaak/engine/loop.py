"""The loop, and what it requires of a trainer.

    for each step:   read its data and meet the other ranks; do what is due at this boundary; take the step; report it

Everything a step uses besides the state follows from its number, so the loop itself has no state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextlib import closing
from typing import Any, Protocol

from vaak.core.report import StepReport
from vaak.data.loader import naming_lost_workers
from vaak.engine.distributed.messages import StepMessage
from vaak.engine.evaluation import EvaluationInterruptedError
from vaak.engine.position import Position
from vaak.engine.resuming.saving import Saving
from vaak.engine.signals import stop_on_signal
from vaak.engine.timing.clock import Clock
from vaak.engine.timing.phases import Phases
from vaak.engine.training_data import StepData


def train(trainer: Trains) -> str:
    """Train to the last step or until someone asks to stop; return why it ended."""
    with stop_on_signal(trainer.request_stop):
        with trainer.ending_well(), naming_lost_workers():
            trainer.tell("on_fit_start")
            trainer.rehearse()
            with closing(trainer.upcoming()) as steps:
                for data in steps:
                    with trainer.clock.aside():
                        do_what_is_due(trainer)
                    if trainer.is_over:
                        break
                    trainer.tell("on_step_end", trainer.take_step(data))
            trainer.finish_saving()
        reason = "finished" if trainer.is_finished else str(trainer.stop_reason)
        trainer.tell("on_fit_end", reason)
    return reason


def do_what_is_due(trainer: Trains) -> None:
    """At a step's boundary: save, evaluate, report an epoch's end, mark the best.

    It is saved first, with what else is due marked as pending: an error in an evaluation then costs nothing. A run that
    is to stop leaves that to the run that resumes it: it has seconds, not minutes.
    """
    position, asked = trainer.position, trainer.agreed
    evaluation_due = position.duties_pending and trainer.evaluation_due()
    epoch_ended = position.duties_pending and position.place == 0
    position.duties_pending = evaluation_due or epoch_ended
    stopping = trainer.stop_reason is not None and trainer.saving.saved_step != position.step > 0
    if trainer.save_due() or stopping:
        save(trainer)
    if trainer.stop_reason or not (evaluation_due or epoch_ended or asked.evaluate):
        return
    with trainer.saving.doing_what_is_due(), contextlib.suppress(EvaluationInterruptedError):
        if evaluation_due or asked.evaluate:
            with trainer.phases.measure("evaluation"):
                trainer.evaluate(evaluation_due)
        if epoch_ended:
            trainer.tell("on_epoch_end", position.epoch - 1, trainer.metrics)
        position.duties_pending = False
    trainer.meet([])  # a callback may have asked for something
    if trainer.saving.saved_step == position.step:
        trainer.saving.complete()
    elif trainer.saving.is_best or trainer.stop_reason or trainer.agreed.save:
        save(trainer, is_periodic=trainer.stop_reason is not None or trainer.agreed.save)
    if trainer.agreed.evaluate:
        trainer.request_evaluate()  # after the next step: the one here is done


def save(trainer: Trains, is_periodic: bool = True) -> None:
    """Save at this boundary; ``is_periodic`` is False where that is only for being the best."""
    with trainer.phases.measure("saving"):
        trainer.saving.save(is_periodic)


class Trains(Protocol):
    """What the loop asks of a trainer (trainer.py)."""

    agreed: StepMessage
    stop_reason: str | None
    saving: Saving
    phases: Phases
    clock: Clock

    @property
    def position(self) -> Position: ...

    @property
    def metrics(self) -> dict[str, float]: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def is_finished(self) -> bool: ...

    def rehearse(self) -> None: ...

    def upcoming(self) -> Generator[StepData, None, None]: ...

    def take_step(self, data: StepData) -> StepReport: ...

    def evaluation_due(self) -> bool: ...

    def save_due(self) -> bool: ...

    def evaluate(self, due: bool) -> None: ...

    def meet(self, fetched: list[Any], saved: int = 0) -> dict[str, float]: ...

    def finish_saving(self) -> None: ...

    def request_stop(self, reason: str) -> None: ...

    def request_evaluate(self) -> None: ...

    def tell(self, event: str, *arguments: Any) -> None: ...

    def ending_well(self) -> contextlib.AbstractContextManager[None]: ...
