"""Which numbers of a record go to trackers, and under which names."""

from __future__ import annotations

from vaak.engine.records import Record

GROUPS = {"step": "train", "evaluation": "evaluation", "epoch": "epoch", "learning_rates": "learning_rates"}


def numbers(record: Record, only: tuple[str, ...] | None) -> dict[str, float]:
    """The numbers of a record by ``group/name``; with ``only``, those names alone.

    >>> numbers({"kind": "step", "step": 3, "epoch": 0, "loss": 2.0, "clock": {"seconds": 0.5}}, None)
    {'train/loss': 2.0, 'train/seconds': 0.5}
    """
    group = GROUPS.get(record["kind"], record["kind"])
    flat = {**record, **record.get("clock", {})}
    return {
        f"{group}/{name}": float(value)
        for name, value in flat.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "epoch")
        if only is None or name in only or name.removeprefix("val_") in only
    }
