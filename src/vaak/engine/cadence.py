"""When evaluations and checkpoints are due: functions of the place in the run alone."""

from __future__ import annotations

from vaak.engine.position import Position


def due(position: Position, total_steps: int, interval: int | None, interval_epochs: int | None) -> bool:
    """Whether something done every ``interval`` steps, or else every ``interval_epochs`` epochs, is due here.

    The last step always has one; the place before the first step never.
    """
    if position.step == 0:
        return False
    if position.step >= total_steps:
        return True
    if interval is not None:
        return position.step % interval == 0
    return interval_epochs is not None and position.place == 0 and position.epoch % interval_epochs == 0
