"""Tables of stages: what was done, or would be, with time, disk and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vaak.core.progress import time_of
from vaak.pipeline.stage import Forecast, Options, Pipeline
from vaak.runs.doctor.finding import size

HEADER = ("stage", "state", "time", "disk", "memory", "figures")


@dataclass(frozen=True)
class Row:
    """A stage: its state, and why; what it took when it ran, its figures, and what it reports (``Stage.report``)."""

    stage: str
    state: str
    why: str = ""
    seconds: float | None = None
    disk_bytes: float | None = None
    memory_bytes: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, stage: str, state: str, manifest: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> Row:
        """The row of a stage that is done, from its manifest and its report."""
        seconds, disk_bytes, memory_bytes = (manifest[name] for name in ("seconds", "disk_bytes", "memory_bytes"))
        return cls(stage, state, "", seconds, disk_bytes, memory_bytes, manifest["figures"], report or {})

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells below the header."""
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in self.figures.items())
        return self.stage, self.state, *took(self.seconds, self.disk_bytes, self.memory_bytes), self.why or figures


def took(seconds: float | None, disk_bytes: float | None, memory_bytes: float | None) -> tuple[str, ...]:
    """Time, disk and memory for a reader; a dash for what isn't known.

    >>> took(75, 1024, None)
    ('1:15', '1.0 KiB', '-')
    """
    return (
        "-" if seconds is None else time_of(seconds),
        *("-" if number is None else size(number) for number in (disk_bytes, memory_bytes)),
    )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns.

    >>> aligned([("a", "bcd"), ("ef", "g")])
    ['a   bcd', 'ef  g']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(rows: Sequence[Row]) -> list[str]:
    """The table of what was done, and the time that it took; below it what stages report."""
    seconds = sum(row.seconds or 0 for row in rows if row.state != "up to date")
    return [*aligned([HEADER, *(row.cells for row in rows)]), f"in all: {time_of(seconds)}", *_reported(rows)]


def _reported(rows: Sequence[Row]) -> list[str]:
    """The lines that stages report, each report after an empty line."""
    return [line for row in rows if row.report for line in ("", *row.report["lines"])]


def forecast_table(planned: Sequence[tuple[Row, Forecast]], free: int) -> list[str]:
    """The table of what would be done, and what it takes in all; ``free`` are the bytes on the disk."""
    rows = [(row.stage, row.state, *took(it.seconds, it.disk_bytes, it.memory_bytes), row.why) for row, it in planned]
    needed = [it for row, it in planned if row.state != "done"]
    unknown = sum(None in (it.seconds, it.disk_bytes, it.memory_bytes) for it in needed)
    seconds, disk = (sum(getattr(it, name) or 0 for it in needed) for name in ("seconds", "disk_bytes"))
    memory = max((it.memory_bytes or 0 for it in needed), default=0)
    total = f"in all: {' / '.join(took(seconds, disk, memory))} of time, disk and memory; {size(free)} of disk are free"
    more = [f"of {unknown} stage(s) something isn't known before they have run once"] if unknown else []
    of = {it.certainty: [row.stage for row, other in planned if other.certainty == it.certainty] for _, it in planned}
    sure = [f"{', '.join(stages)}: {certainty}" for certainty, stages in of.items() if certainty]
    return [*aligned([("stage", "state", "time", "disk", "memory", "why"), *rows]), total, *sure, *more]


def markdown(pipeline: Pipeline, options: Options, rows: Sequence[Row]) -> str:
    """The table of results as Markdown, with the options."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells for row in rows)]
    body = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    given = "".join(f"- {name}: {value}\n" for name, value in options.model_dump(mode="json").items())
    reported = "".join(f"    {line}".rstrip() + "\n" for line in _reported(rows))
    return f"# {pipeline.name}\n\n{body}{reported}\nOptions:\n\n{given}"
