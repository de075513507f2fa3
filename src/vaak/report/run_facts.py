"""What a run's folder says of it, for a report: curves, events, options, results, pictures and sound.

Reads files alone, without torch and without executing anything that a run names; a run may still be written, or have
been killed. What a run says is a stranger's: a value of the wrong kind is left out, and a file that a link takes out
of the run's folder isn't read.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from vaak.config.changes import NOT_GIVEN, changes_between
from vaak.config.resolved import default_experiment, resolved_values
from vaak.config.tasks import built_in
from vaak.config.yaml.text import read_yaml
from vaak.config.yaml.tree import to_plain
from vaak.core.errors import UserError
from vaak.core.figures import is_fraction
from vaak.core.storage.json_lines import read_json_lines
from vaak.engine.checkpoint.names import list_checkpoints, step_of
from vaak.engine.metrics_file import read_history
from vaak.report.model_card import json_of, options_of
from vaak.runs.folder.directory import SAMPLES
from vaak.runs.folder.listing import RunSummary, summary_of

LARGEST_STEP = 1 << 53
"""Beyond it, JavaScript's numbers aren't whole."""
POINTS = 60_000
"""All points of a run's curves; a curve with more than its part is thinned."""
MOST_POINTS, FEWEST_POINTS = 1000, 100
MOST_CURVES, MOST_GROUPS, MOST_EVENTS = 150, 12, 500
PICTURE_BYTES, AUDIO_BYTES = 1_300_000, 3_000_000
LOG_BYTES, LOG_LINES = 4 << 20, 40
MOST_ROWS = 100
OF_EVERY_RECORD = ("kind", "step", "epoch", "clock", "scheduled")
PICTURE = re.compile(r"step-(\d{8,})\.(?:png|wav)")


class Curve(NamedTuple):
    """Values by step, in order; None where a value isn't finite."""

    label: str
    steps: list[int]
    values: list[float | None]


class Panel(NamedTuple):
    """Curves in one unit, which share a chart; ``log`` says that a logarithmic scale shows them best."""

    title: str
    unit: str
    curves: list[Curve]
    log: bool = False


class Event(NamedTuple):
    """Something that happened at a step: of kind ``checkpoint``, ``resume``, ``split`` or ``not finite``."""

    step: int
    kind: str
    text: str


class Media(NamedTuple):
    """A picture (PNG) or sound (WAV) of a run, and the step that it is of, if its name says it."""

    name: str
    step: int | None
    path: Path
    content: bytes


class Table(NamedTuple):
    """Rows of cells under a title, the first row being the head."""

    title: str
    rows: list[Sequence[str]]


@dataclass(frozen=True)
class RunFacts:
    """What a run's folder says. ``sessions`` are its starts, ``records`` those of metrics.jsonl.

    ``changed`` has the options that differ from their defaults: name, default, value; ``not_compared`` says why it is
    empty, where the defaults aren't known.
    """

    directory: Path
    name: str
    summary: RunSummary
    options: dict[str, Any]
    changed: list[tuple[str, Any, Any]]
    not_compared: str
    sessions: list[dict[str, Any]]
    records: list[dict[str, Any]]

    @property
    def environment(self) -> dict[str, Any]:
        """What the newest session ran on."""
        return {**(self.sessions[-1] if self.sessions else {}), **json_of(self.directory / "environment.json")}

    @property
    def evaluations(self) -> list[tuple[int, dict[str, float | None]]]:
        """The step and the figures of each evaluation."""
        found = [one for one in self.records if one["kind"] == "evaluation"]
        return [(one["step"], dict(_numbers(one))) for one in found]


def read_facts(run: Path) -> RunFacts:
    """What the folder of a run says. Raises UserError where it isn't one."""
    if not any((run / name).is_file() for name in ("config.yml", "metrics.jsonl")):
        raise UserError(f"{run} is not a run directory (no config.yml); give the folder of a run")
    options = options_of(run) if is_own(run, run / "config.yml") else {}
    changed, not_compared = _from_defaults(options)
    records = sorted(_valid(read_history(run)), key=lambda one: one["step"])
    name = options.get("name")
    return RunFacts(
        directory=run,
        name=name if isinstance(name, str) and name else run.resolve().name,
        summary=summary_of(run, run),
        options=options,
        changed=changed,
        not_compared=not_compared,
        sessions=_sessions(run),
        records=records,
    )


def _valid(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        if 0 <= record["step"] < LARGEST_STEP:
            clock = record.get("clock")
            yield {**record, "clock": clock if isinstance(clock, dict) else {}}


def _sessions(run: Path) -> list[dict[str, Any]]:
    path = run / "sessions.jsonl"
    found = [one for _, one in read_json_lines(path).objects] if is_own(run, path) else []
    return [one for one in found if all(type(one.get(name)) is int for name in ("number", "first_step"))]


def is_own(run: Path, path: Path) -> bool:
    """Return whether a path is a file in the run's folder, after all links are followed."""
    try:
        return path.is_file() and path.resolve().is_relative_to(run.resolve())
    except (OSError, RuntimeError):
        return False


# Options


def _from_defaults(options: Mapping[str, Any]) -> tuple[list[tuple[str, Any, Any]], str]:
    """The options that differ from the defaults of the run's task; and why, where these aren't known."""
    task = options.get("task")
    if not options:
        return [], "config.yml can't be read"
    if not isinstance(task, str) or task not in built_in():  # its class would have to be executed
        return [], "the defaults of a task from outside Vaak aren't known here"
    try:
        untouched = resolved_values(default_experiment(str(task), str(options["name"]), str(options["run_dir"])))
        return differences(untouched, options), ""
    except (UserError, ValueError, KeyError, TypeError, AttributeError):
        return [], "config.yml isn't one that this version writes"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, value before and value after of each option that differs, without name and place of the run."""
    task = after.get("task")
    if isinstance(task, str) and task in built_in():
        found = [(one.key, one.before, one.after) for one in changes_between(before, after)]
    else:
        old, new = dict(_flat(before)), dict(_flat(after))
        names = [name for name in {**old, **new} if old.get(name, NOT_GIVEN) != new.get(name, NOT_GIVEN)]
        found = [(name, old.get(name, NOT_GIVEN), new.get(name, NOT_GIVEN)) for name in names]
    return [one for one in found if one[0] not in ("name", "run_dir")]


def compared_options(runs: Sequence[RunFacts]) -> list[tuple[str, list[Any]]]:
    """Name and each run's value of the options that aren't the same in all runs."""
    first, *others = (one.options for one in runs)
    values: dict[str, list[Any]] = {}
    for number, other in enumerate(others, 1):
        try:
            found = differences(first, other)
        except (UserError, ValueError, KeyError, TypeError, AttributeError):
            found = [("config.yml", "as in its folder", "as in its folder")]
        for name, before, after in found:
            values.setdefault(name, [before] * len(runs))[number] = after
    return list(values.items())


def _flat(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from _flat(value, f"{path}.{name}".lstrip("."))
    else:
        yield path, values


# Curves


def number_of(value: Any) -> float | None:
    """A value as a finite float; None if it isn't one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The figures of a record; None for one that isn't finite."""
    for name, value in record.items():
        if name not in OF_EVERY_RECORD and isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), number_of(value)


def panels(facts: RunFacts) -> tuple[list[Panel], int]:
    """The charts of a run, and how many curves are left out because there are too many."""
    found: dict[str, dict[str, Curve]] = {}
    for record in facts.records:
        for panel, label, value in _points(record):
            curve = found.setdefault(panel, {}).setdefault(label, Curve(label, [], []))
            if curve.steps and curve.steps[-1] == record["step"]:  # the later one counts
                curve.values[-1] = value
            else:
                curve.steps.append(record["step"])
                curve.values.append(value)
    if list(found.get("parts of the loss", ())) == ["cross_entropy"] or _is_the_loss(found):
        found.pop("parts of the loss", None)
    order = [name for name in UNITS if name in found] + [name for name in found if name not in UNITS]
    kept, left_out, taken = [], 0, 0
    for name in order:
        curves = list(found[name].values())
        shown = curves[: max(0, min(len(curves), MOST_GROUPS, MOST_CURVES - taken))]
        taken, left_out = taken + len(shown), left_out + len(curves) - len(shown)
        if shown:
            unit = UNITS.get(name, "%" if is_fraction(name) else "")
            kept.append(Panel(name, unit, shown, name in ("throughput", "gradient norm")))
    most = max(FEWEST_POINTS, min(MOST_POINTS, POINTS // max(1, taken)))
    return [one._replace(curves=[_thinned(curve, most) for curve in one.curves]) for one in kept], left_out


UNITS = {
    "loss": "",
    "parts of the loss": "",
    "learning rate": "",
    "gradient norm": "",
    "loss scale": "",
    "throughput": "a second",
    "memory": "GiB",
    "memory pressure": "%",
    "processors": "%",
}
"""The charts that come first, in this order, and their units; those of evaluations follow."""
MEMORY = {"process_memory_gib": "process", "device_memory_gib": "device"}
PROCESSORS = {"cpu_percent": "processor (100 is one core)", "device_utilisation_percent": "device"}


def _points(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """The chart, the label and the value of each figure of a record."""
    kind = record["kind"]
    if kind == "evaluation":
        for name, value in _numbers(record):
            panel, _, part = name.partition("/")
            percent = 100 if value is not None and is_fraction(name) else 1
            yield (
                ("loss", "valid", value)
                if name == "val_loss"
                else (
                    panel,
                    part or name,
                    None if value is None else percent * value,
                )
            )
    elif kind == "learning_rates":
        yield from (("learning rate", name, value) for name, value in _numbers(record))
    elif kind == "step":
        yield from _points_of_training(record)
    for name, value in record["clock"].items() if kind in ("step", "system") else ():
        one = number_of(value)
        if kind == "step" and str(name).endswith("_per_second"):
            yield "throughput", str(name).removesuffix("_per_second"), one
        elif name in MEMORY:
            yield "memory", MEMORY[name], one
        elif name == "memory_pressure":
            yield "memory pressure", "pressure", None if one is None else 100 * one
        elif name in PROCESSORS:
            yield "processors", PROCESSORS[name], one


def _points_of_training(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    for name, value in _numbers(record):
        if name in ("loss", "smoothed_loss"):
            yield "loss", {"loss": "train", "smoothed_loss": "train, smoothed"}[name], value
        elif name == "learning_rate":
            yield "learning rate", "learning rate", value
        elif name.partition("/")[0] == "gradient_norm":
            yield "gradient norm", name.partition("/")[2] or "gradient norm", value
        elif name == "loss_scale":
            yield "loss scale", "loss scale", value
        elif name not in ("overflows", "non_finite_steps") and not name.startswith("smoothed_"):
            yield "parts of the loss", name, value


def _is_the_loss(found: Mapping[str, Mapping[str, Curve]]) -> bool:
    """Whether the loss has one part, which is the loss itself."""
    parts, whole = list(found.get("parts of the loss", {}).values()), found.get("loss", {}).get("train")
    return len(parts) == 1 and whole is not None and parts[0].values == whole.values


def _thinned(curve: Curve, most: int) -> Curve:
    """At most so many points of a curve: of each stretch of it the lowest and the highest, so that peaks stay."""
    count = len(curve.steps)
    if count <= most:
        return curve
    stretches = (most - 2) // 2
    kept = {0, count - 1}
    for first, last in pairwise(round(number * count / stretches) for number in range(stretches + 1)):
        there = [(value, place) for place in range(first, last) if (value := curve.values[place]) is not None]
        if there:
            kept |= {min(there)[1], max(there)[1]}
    places = sorted(kept)
    return Curve(curve.label, [curve.steps[place] for place in places], [curve.values[place] for place in places])


# Events


def events(facts: RunFacts) -> list[Event]:
    """What happened, by step; no more than MOST_EVENTS, the newest."""
    found = [*_checkpoints(facts), *_resumes(facts), *_splits(facts), *_not_finite(facts)]
    return sorted(set(found))[-MOST_EVENTS:]


def _checkpoints(facts: RunFacts) -> Iterator[Event]:
    best = _pointed(facts.directory, "best")
    there = {step_of(path) for path in list_checkpoints(facts.directory / "checkpoints")}
    written = re.findall(r"checkpoint written: .*step-(\d{8,15})$", log_of(facts.directory), re.MULTILINE)
    last = max([0, *(record["step"] for record in facts.records)])
    for step in sorted({*(step for step in there if step is not None), *map(int, written)}):
        if step < LARGEST_STEP and (step <= last or step in there):  # others were set aside by a resume
            remark = " (best)" if step == best else "" if step in there else " (removed since)"
            yield Event(step, "checkpoint", f"checkpoint{remark}")


def _pointed(run: Path, name: str) -> int | None:
    """The step of the checkpoint that best or last names."""
    path = run / "checkpoints" / name
    try:
        return step_of(Path(path.read_text(encoding="utf-8").strip())) if path.is_file() else None
    except (OSError, ValueError):
        return None


def _resumes(facts: RunFacts) -> Iterator[Event]:
    known = {one["number"]: one for one in facts.sessions}
    for session in facts.sessions:
        before = session.get("after")
        if not (type(before) is int and before in known and 0 < session["first_step"] < LARGEST_STEP):
            continue
        changes = _changes_of_session(facts.directory, before, session["number"])
        remark = f"; changed: {', '.join(changes)}" if changes else ""
        yield Event(session["first_step"], "resume", f"session {session['number']} begins{remark}")


def _changes_of_session(run: Path, before: int, number: int) -> list[str]:
    sides = []
    for one in (before, number):
        path = run / "sessions" / f"{one:04d}.yml"
        try:
            sides.append(to_plain(read_yaml(path)) if is_own(run, path) else {})
        except (OSError, ValueError, UserError, RecursionError):
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
                yield Event(step, "split", f"{where} in {cut.get('pieces')} pieces: {entry.get('reason')}")


def _not_finite(facts: RunFacts) -> Iterator[Event]:
    known = 0.0
    for record in facts.records:
        if record["kind"] == "step":
            skipped = number_of(record.get("non_finite_steps")) or 0.0
            if skipped > known:
                yield Event(record["step"], "not finite", f"{skipped - known:.0f} steps skipped, {skipped:.0f} so far")
            if isinstance(record.get("loss"), float) and number_of(record["loss"]) is None:
                yield Event(record["step"], "not finite", f"the loss is {record['loss']}")
            known = skipped


def log_of(run: Path) -> str:
    """The end of train.log."""
    path = run / "train.log"
    if not is_own(run, path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")


# Pictures, sound and tables


def media(run: Path) -> tuple[list[Media], list[str]]:
    """Pictures and sound of a run, the newest of each name first, then its first; and what is left out, and why."""
    by_name: dict[str, list[tuple[int | None, Path]]] = {}
    for path in sorted(run.glob("pictures/*/step-*.*")):
        match = PICTURE.fullmatch(path.name)
        if match and is_own(run, path):
            by_name.setdefault(path.parent.name, []).append((int(match[1]), path))
    for path in sorted([*run.glob("*.png"), *run.glob("*.wav")]):
        if is_own(run, path):
            by_name.setdefault(path.stem, []).append((None, path))
    newest = [(name, *paths[-1]) for name, paths in by_name.items()]
    first = [(name, *paths[0]) for name, paths in by_name.items() if len(paths) > 1]
    taken = {b"\x89PNG": 0, b"RIFF": 0}
    most = {b"\x89PNG": PICTURE_BYTES, b"RIFF": AUDIO_BYTES}
    found, left_out = [], []
    for name, step, path in [*newest, *first]:
        with open(path, "rb") as file:
            kind, size = file.read(4), path.stat().st_size
            if kind not in most:
                continue
            if taken[kind] + size > most[kind]:
                left_out.append(f"{path.relative_to(run)} ({size / 1e6:.1f} MB)")
                continue
            taken[kind] += size
            found.append(Media(name, step, path, kind + file.read(size)))
    others = sum(len(paths) for paths in by_name.values()) - len(newest) - len(first)
    return found, left_out + ([f"{others} of steps in between"] if others else [])


def samples_of(run: Path) -> tuple[int, list[str]]:
    """The samples that a run showed at its end, and the step that they are of."""
    found = json_of(run / SAMPLES) if is_own(run, run / SAMPLES) else {}
    step, lines = found.get("step"), found.get("samples")
    if type(step) is not int or not isinstance(lines, list):
        return 0, []
    return step, [line for line in lines if isinstance(line, str)][:MOST_ROWS]


def tables_of_groups(facts: RunFacts) -> list[Table]:
    """Figures of groups (``val_wer/GROUP``) of the newest evaluation that has some, a row for each group."""
    rows: dict[str, dict[str, float | None]] = {}
    newest = (one for one in reversed(facts.evaluations) if any("/" in name for name in one[1]))
    step, figures = next(newest, (0, {}))
    for name, value in figures.items():
        figure, slash, group = name.partition("/")
        if slash:
            rows.setdefault(group, {})[figure] = value
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [
        (group, *(figure_in_words(name, row[name]) if name in row else "" for name in names))
        for group, row in rows.items()
    ]
    return [Table(f"By group, at step {step:,}", [("group", *names), *cells[: 4 * MOST_ROWS]])]


def figure_in_words(name: str, value: float | None) -> str:
    """A figure as people read it: percent, or five digits."""
    if value is None:
        return "not finite"
    return f"{100 * value:.2f} %" if is_fraction(name) else f"{value:.5g}"


def tables_of_evaluations(run: Path) -> list[Table]:
    """The CSV files next to each ``evaluation.json`` that ``vaak eval --output`` wrote into the run."""
    found = []
    for about in sorted([*run.glob("evaluation.json"), *run.glob("*/evaluation.json")]):
        for path in sorted(about.parent.glob("*.csv")):
            if is_own(run, path):
                with open(path, encoding="utf-8", errors="replace", newline="") as file:
                    rows = _csv_rows(file)
                if rows:
                    found.append(Table(str(path.relative_to(run)), rows))
    return found


def _csv_rows(file: Iterable[str]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    try:
        for row in csv.reader(file):
            rows.append(row)
            if len(rows) > MOST_ROWS:
                break
    except csv.Error:
        pass
    return rows
