"""Curves over the steps of a run, from its records (``vaak.report.history``), and events."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vaak.config.metrics import get_unit
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.core.machine import THRESHOLDS
from vaak.core.storage.files import warn_unread
from vaak.core.storage.json_lines import read_json_lines
from vaak.engine.checkpoint.names import list_checkpoints, parse_step
from vaak.report.history import LARGEST_STEP, MOST_EVENTS, to_number
from vaak.report.run_facts import RunFacts, differences, is_own, read_log_tail

POINTS = 60_000
"""All points of a run's curves; a curve with more than its part is thinned."""
MOST_POINTS, FEWEST_POINTS = 1000, 100
MOST_CURVES, MOST_GROUPS = 150, 12


class Curve(NamedTuple):
    """Values by step, in order; None if a value isn't finite. ``colour`` counts; None: the curve's place."""

    label: str
    steps: list[int]
    values: list[float | None]
    colour: int | None = None


class Panel(NamedTuple):
    """Curves in one unit, which share a chart; ``log`` says that a logarithmic scale shows them best.

    ``bands`` are the values from which on the chart is shaded, with what they mean.
    """

    title: str
    unit: str
    curves: list[Curve]
    log: bool = False
    bands: Sequence[tuple[float, str]] = ()

    @property
    def is_machine(self) -> bool:
        """Whether it is about the machine, not the model."""
        return self.title.partition(":")[0] in MACHINE_CHARTS

    @property
    def is_table(self) -> bool:
        """Whether it has too few points for a line."""
        return all(len(curve.steps) <= FEW_POINTS for curve in self.curves)


MACHINE_CHARTS = ("throughput", "gap between batches", "memory", "memory pressure", "processors", "loss scale")
"""Charts that are folded: of interest where a run is slow or fails."""
FEW_POINTS = 2
"""The points of a curve that say more as numbers."""


def drawn(found: Sequence[Panel]) -> list[Panel]:
    """Return the charts of a page in their order: not those that are tables, and those of the machine last."""
    return sorted((one for one in found if not one.is_table), key=lambda one: one.is_machine)


class Event(NamedTuple):
    """Something that happened at a step.

    ``kind`` is ``checkpoint``, ``resume``, ``options`` (changed at a resume), ``split`` or ``not finite``.
    """

    step: int
    kind: str
    text: str


# Curves


def panels(facts: RunFacts) -> tuple[list[Panel], int]:
    """Return the charts of a run, and how many curves are left out because there are too many."""
    found = {
        panel: shown
        for panel, curves in facts.history.curves.items()
        if panel not in facts.repeated
        and (shown := {label: one for label, one in curves.items() if f"{panel}/{label}" not in facts.repeated})
    }
    parts, loss = found.get("parts of the loss", {}), found.get("loss", {}).get("train")
    if list(parts) == ["cross_entropy"] or (loss is not None and len(parts) == 1 and loss.matches(*parts.values())):
        # One part: the loss itself.
        found.pop("parts of the loss", None)
    best = facts.summary.best.rpartition(" ")[0]
    evaluations = sorted((name for name in found if name not in UNIT_BY_PANEL), key=lambda name: name != best)
    first = ("loss", "parts of the loss")
    order = [name for name in (*first, *evaluations, *UNIT_BY_PANEL) if name in found]
    order = list(dict.fromkeys(order))
    kept, left_out, taken = [], 0, 0
    for name in order:
        all_curves = list(found[name].items())
        chosen = all_curves[: max(0, min(len(all_curves), MOST_GROUPS, MOST_CURVES - taken))]
        taken, left_out = taken + len(chosen), left_out + len(all_curves) - len(chosen)
        if chosen:
            unit = UNIT_BY_PANEL.get(name, get_unit(name))
            bands = get_pressure_bands(facts) if name == "memory pressure" else ()
            kept.append((Panel(name, unit, [], name in ("throughput", "gradient norm"), bands), chosen))
    # All curves share the points, so that the size of the page doesn't grow with the run.
    most = max(FEWEST_POINTS, min(MOST_POINTS, POINTS // max(1, taken)))
    drawn_curves = [(one, [Curve(label, *curve.thin(most)) for label, curve in chosen]) for one, chosen in kept]
    return [one._replace(curves=curves) for one, curves in drawn_curves], left_out


UNIT_BY_PANEL = {
    "loss": "",
    "parts of the loss": "",
    "learning rate": "",
    "gradient norm": "",
    "loss scale": "",
    "throughput": "a second",
    "gap between batches": "ms a step",
    "memory": "GiB",
    "memory pressure": "%",
    "processors": "%",
}
"""Charts and their units. Those of the loss come first, then evaluations, first the one that chooses the best."""


def get_pressure_bands(facts: RunFacts) -> list[tuple[float, str]]:
    """The percentages from which memory pressure is moderate, high and critical, as in ``vaak.engine.memory``."""
    training = facts.options.get("training")
    memory = training.get("memory") if isinstance(training, dict) else None
    given = memory.get("thresholds") if isinstance(memory, dict) else None
    numbers = [to_number(one) for one in given] if isinstance(given, list) else []
    device = str(facts.environment.get("device", "cpu")).partition(":")[0]
    edges = [one for one in numbers if one is not None] or THRESHOLDS.get(device, THRESHOLDS["cuda"])
    return [(100 * edge, name) for edge, name in zip(edges, ("moderate", "high", "critical"), strict=False)]


# Events


def events(facts: RunFacts) -> list[Event]:
    """Return the newest events, at most MOST_EVENTS, by step."""
    found = [*_checkpoints(facts), *_resumes(facts), *_splits(facts), *_not_finite(facts)]
    return sorted(set(found))[-MOST_EVENTS:]


def _checkpoints(facts: RunFacts) -> Iterator[Event]:
    best, pointer = None, facts.directory / "checkpoints" / "best"
    with contextlib.suppress(OSError, ValueError):
        if pointer.is_file():
            best = parse_step(Path(pointer.read_text(encoding="utf-8").strip()))
    there = {parse_step(path) for path in list_checkpoints(facts.directory / "checkpoints")}
    written = re.findall(r"checkpoint written: .*step-(\d{8,15})$", read_log_tail(facts.directory), re.MULTILINE)
    last = facts.history.last_step
    for step in sorted({*(step for step in there if step is not None), *map(int, written)}):
        if step < LARGEST_STEP and (step <= last or step in there):
            # Others were set aside by a resume.
            remark = " (best)" if step == best else "" if step in there else " (removed since)"
            yield Event(step, "checkpoint", f"checkpoint{remark}")


def _resumes(facts: RunFacts) -> Iterator[Event]:
    known = {one["number"]: one for one in facts.sessions}
    for session in facts.sessions:
        before = session.get("after")
        if not (type(before) is int and before in known and 0 < session["first_step"] < LARGEST_STEP):
            continue
        changes = _list_session_changes(facts.directory, before, session["number"])
        remark = f"; changed: {', '.join(changes)}" if changes else ""
        yield Event(session["first_step"], "resume", f"session {session['number']} begins{remark}")
        if changes:
            yield Event(session["first_step"], "options", f"changed: {', '.join(changes)}")


def _list_session_changes(run: Path, before: int, number: int) -> list[str]:
    sides = []
    for one in (before, number):
        path = run / "sessions" / f"{one:04d}.yml"
        try:
            sides.append(read_yaml(path) if is_own(run, path) else {})
        except (OSError, ValueError, UserError, RecursionError) as error:
            warn_unread(path, error)
            return []
    try:
        return [f"{name} {old} → {new}" for name, old, new in differences(*sides)] if all(sides) else []
    except (UserError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _splits(facts: RunFacts) -> Iterator[Event]:
    """Where batches were split after running out of memory."""
    for path in sorted(facts.directory.glob("splits*.jsonl")):
        for _, entry in read_json_lines(path).objects if is_own(facts.directory, path) else ():
            cut = entry.get("cut")
            if not isinstance(cut, dict):
                continue
            step = cut.get("step")
            if type(step) is int and 0 <= step < LARGEST_STEP:
                where = "evaluation" if cut.get("split") else "batches"
                yield Event(step, "split", f"{where} in {cut.get('pieces')} chunks: {entry.get('reason')}")


def _not_finite(facts: RunFacts) -> Iterator[Event]:
    yield from (Event(step, "not finite", text) for step, text in facts.history.not_finite)
