"""The place in the data at which a run with other batches resumes.

It is converted exactly, or not at all. An epoch's end is the same place whatever the batches are. Within an epoch,
batches of a fixed number of rows follow one order of the examples, so the place can be kept where it falls between two
of the new batches. Every other plan orders its examples differently, so some would be seen twice in the epoch and
others never: that is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vaak.core.errors import CheckpointError
from vaak.engine.state import Position


@dataclass(frozen=True)
class PlanKind:
    """The kind of an epoch's plan.

    ``rows`` is how many examples each batch has, in one order whatever that number is; None if that isn't so.
    """

    fingerprint: str
    rows: int | None
    epoch_size: int

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)


def converted_place(position: Position, before: PlanKind, now: PlanKind, source: Path) -> int:
    """The place in the plan ``now`` up to which the same examples were seen as at ``position`` in the plan ``before``.

    Raises CheckpointError, naming the checkpoint ``source``, where there is none.
    """
    if position.place == 0 or before.fingerprint == now.fingerprint:
        return position.place
    if before.rows and now.rows and before.rows != now.rows:
        # With as many rows the order differs: that is another random seed.
        examples = position.place * before.rows
        # same order of examples, cut into batches of another size: only a common boundary has the same past
        if examples % now.rows == 0:
            return examples // now.rows
        why = f"{examples} examples of the epoch are done, which is not a whole number of batches of {now.rows}"
    else:
        why = "other batches have another order of examples"
    # Earlier versions didn't write it.
    of_all = f" of {before.epoch_size}" if before.epoch_size else ""
    raise CheckpointError(
        f"{source} is within epoch {position.epoch + 1}, at batch {position.place}{of_all}, and the "
        f"batches are different now: {why}; restore training.batch_size, training.batching and training.curriculum, "
        "or resume from a checkpoint at the end of an epoch"
    )
