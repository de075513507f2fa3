"""When evaluations and checkpoints are due: functions of the position in the run only."""

from __future__ import annotations

from vaak.engine.position import Position


def on_schedule(position: Position, interval: int | None, interval_epochs: int | None) -> bool:
    """Whether this is the boundary of something done every ``interval`` steps, or else every ``interval_epochs``.

    The place before the first step is on no schedule.
    """
    if position.step == 0:
        return False
    if interval is not None:
        return position.step % interval == 0
    return interval_epochs is not None and position.place == 0 and position.epoch % interval_epochs == 0


def due(position: Position, total_steps: int, interval: int | None, interval_epochs: int | None) -> bool:
    """Whether it is due here: on schedule, or after the last step."""
    if 0 < position.step >= total_steps:
        return True
    return on_schedule(position, interval, interval_epochs)
