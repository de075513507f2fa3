"""metrics.jsonl held against the schedule and the checkpoints: a record wherever one is due, once, and no other.

A replay recomputes the contents of records. Checks that need no replay are made here, on every record:

    steps and evaluations   where the options of their session have them due; none twice, none left out
    order                   steps don't fall, an evaluation follows its step, an epoch's record ends it
    bytes                   the log was as long as each checkpoint says, when that was made
    states                  a checkpoint's metrics and its best are those of the evaluations logged before it
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from vaak.core.metrics import improves
from vaak.core.storage.files import read_json
from vaak.core.storage.json_lines import parse_json_lines
from vaak.engine.checkpoint.bundled_files import STATE
from vaak.engine.checkpoint.files import COMPLETED, read_state
from vaak.engine.checkpoint.names import parse_step
from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.sessions import Span, list_spans

METRICS_FILE = "metrics.jsonl"
RECORD_ORDER = {"step": 0, "model": 1, "learning_rates": 1, "evaluation": 2, "epoch": 3}
"""The kinds of records that training computes, in their order within a step."""
OF_CLOCKS = ("system", "memory", "profile")
"""Kinds of records whose figures no two runs share."""
KEYS_OF_ALL = ("kind", "step", "epoch", "scheduled", "clock")
MOST_MISSING = 5


@dataclass
class Record:
    """A record of the log: its line, and where that ends in the file."""

    line: int
    end: int
    values: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.values["kind"])

    @property
    def step(self) -> int:
        return int(self.values["step"])

    @property
    def epoch(self) -> int:
        return int(self.values["epoch"])

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key, which doesn't fall from record to record."""
        return self.step, RECORD_ORDER.get(self.kind, 0)

    @property
    def figures(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if name not in KEYS_OF_ALL}

    def __str__(self) -> str:
        return f"{METRICS_FILE}, line {self.line}: the {self.kind} record of step {self.step}"


@dataclass
class LogAudit:
    """The records of a run, and what is to be computed again of them in any case.

    ``doubtful_steps`` have a record although they aren't on their session's schedule: its last step has, and no other.
    ``doubtful_evaluations`` aren't scheduled: the last step's, and what a callback asked for.
    """

    records: list[Record]
    spans: list[Span]
    last: int = 0
    doubtful_steps: set[int] = field(default_factory=set)
    doubtful_evaluations: set[int] = field(default_factory=set)

    @cached_property
    def logged(self) -> Counter[tuple[str, int]]:
        return Counter((one.kind, one.step) for one in self.records if one.kind in RECORD_ORDER)

    @cached_property
    def epoch_ends(self) -> dict[int, int]:
        """The last step of each epoch that has a record."""
        return {one.epoch: one.step for one in self.records if one.kind == "epoch"}

    def of_kind(self, kind: str) -> list[Record]:
        return [one for one in self.records if one.kind == kind]

    def steps(self, kind: str) -> set[int]:
        """Return the steps that have a record of a kind."""
        return {step for of, step in self.logged if of == kind}

    def taken_under(self, step: int) -> Span:
        return next((span for span in reversed(self.spans) if span.first <= step), self.spans[0])

    def evaluated_under(self, step: int) -> Iterable[Span]:
        """The sessions that may have evaluated after a step: an evaluation that was still due is the next one's."""
        return {id(span): span for span in (self.taken_under(step), self.taken_under(step + 1))}.values()

    def is_scheduled(self, span: Span, step: int) -> bool:
        """Return whether a session evaluates after a step by its schedule."""
        interval, epochs = (span.option("validation", name) for name in ("interval", "interval_epochs"))
        if interval is not None:
            return bool(step % interval == 0)
        return epochs is not None and any(
            end == step and not (epoch + 1) % epochs for epoch, end in self.epoch_ends.items()
        )


def check_log(found: Inventory) -> LogAudit:
    """Check every record of a run's log without computing any; return them."""
    path = found.directory / METRICS_FILE
    content = path.read_bytes() if path.is_file() else b""
    records = list(_read_records(found, content))
    newest = parse_step(found.sound[-1]) or 0 if found.sound else 0
    last = max([newest, *(one.step for one in records)])
    log = LogAudit(records, list_spans(found.directory), last)
    if not path.is_file():
        found.say(f"{METRICS_FILE} is missing")
        return log
    problems = (*_misplaced(log), *_repeated(log), *_wrong_epochs(log), *_off_schedule(log), *_missing(log, found))
    found.compare(path, *problems)
    for checkpoint in found.sound:
        for name in (STATE, COMPLETED):
            state = read_json(checkpoint / STATE) if name == STATE else _completed(found, checkpoint)
            if state is not None:
                about = f"{checkpoint.name}/{name}"
                found.compare(path, *_wrong_length(log, content, state, about, parse_step(checkpoint) or 0))
                found.compare(checkpoint / name, *_wrong_metrics(log, state, about))
        found.compare(checkpoint / STATE, _lost_completion(log, checkpoint))
    _name_what_is_not_computed(found, log, content)
    return log


def _read_records(found: Inventory, content: bytes) -> Iterator[Record]:
    """Yield the records of the log; a line that isn't a record is a finding."""
    parsed = parse_json_lines(content)
    # Where each line ends in bytes: checkpoints say how long the log was (``metrics_bytes``).
    ends, end = [], 0
    for line in content.split(b"\n"):
        end += len(line) + 1
        ends.append(end)
    path = found.directory / METRICS_FILE
    found.compare(
        path, *(f"{METRICS_FILE}, line {number}: this isn't a record of a run" for number, _ in parsed.malformed)
    )
    for number, values in parsed.objects:
        # Not ``isinstance``: true and false are ints to Python.
        whole = isinstance(values.get("kind"), str) and all(type(values.get(name)) is int for name in ("step", "epoch"))
        if whole:
            yield Record(number, ends[number - 1], values)
        else:
            found.compare(path, f"{METRICS_FILE}, line {number}: this isn't a record of a run")
    if content[parsed.end :].strip():
        found.leave_out(f"{METRICS_FILE}: a half line at its end, as a kill leaves")


def _misplaced(log: LogAudit) -> Iterator[str]:
    highest = (0, 0)
    for one in log.records:
        if one.place < highest:
            yield f"{one} comes after one of step {highest[0]}"
        highest = max(highest, one.place)
    first = log.spans[0].first
    for one in log.records:
        if one.step < first - (one.kind in ("evaluation", "epoch")):
            yield f"{one} is from before the run's first step, {first}"
            return


def _repeated(log: LogAudit) -> Iterator[str]:
    for (kind, step), number in log.logged.items():
        if number > 1:
            yield f"step {step}: {METRICS_FILE} has {number} {kind} records of it"


def _wrong_epochs(log: LogAudit) -> Iterator[str]:
    """Yield which records name another epoch than that of their step, by the records of epochs."""
    ends = log.of_kind("epoch")
    for before, after in pairwise(ends):
        if after.epoch != before.epoch + 1:
            yield f"{after} is of epoch {after.epoch}, and the one before of {before.epoch}"
            return
    places = [one.step for one in ends]
    first = ends[0].epoch if ends else min((one.epoch for one in log.records), default=0)
    for one in log.records:
        # The step that ends an epoch still belongs to it.
        expected = first + sum(end < one.step for end in places)
        if one.epoch != expected:
            yield f"{one} is of epoch {one.epoch}, and the step of {expected}"


def _off_schedule(log: LogAudit) -> Iterator[str]:
    """Yield which records stand where none is due; the doubtful ones are left to a replay."""
    for one in log.records:
        if one.kind == "step" and one.step > 1 and one.step % log.taken_under(one.step).option("logging", "interval"):
            log.doubtful_steps.add(one.step)
        elif one.kind == "model" and one.step != 1:
            yield f"{one} isn't due there"
        elif one.kind == "evaluation" and "scheduled" in one.values:
            if one.step == 0:
                # That of a model that begins pretrained (training.validation.at_start).
                if one.values["scheduled"] is True:
                    yield f"{one} is marked as scheduled, and the schedule has none there"
                continue
            due = [log.is_scheduled(span, one.step) for span in log.evaluated_under(one.step)]
            if one.values["scheduled"] is True and not any(due):
                yield f"{one} is marked as scheduled, and the schedule has none there"
            elif one.values["scheduled"] is not True and all(due):
                yield f"{one} isn't marked as scheduled, and is"
            elif one.values["scheduled"] is not True:
                log.doubtful_evaluations.add(one.step)


def _missing(log: LogAudit, found: Inventory) -> Iterator[str]:
    yield from _named_missing("record", [step for step in _due_steps(log) if ("step", step) not in log.logged])
    if not log.of_kind("evaluation") and not any(_collect_metrics(read_state(one)) for one in found.sound):
        # The task evaluates nothing.
        return
    done = {parse_step(one) for one in found.sound if not read_state(one)["position"].get("duties_pending")}
    due = {step for span in log.spans for step in _due_evaluations(log, span)}
    # the last one may not have been made yet, or be left to a resume
    lost = sorted(step for step in due - log.steps("evaluation") if step < log.last or step in done)
    yield from _named_missing("evaluation", lost)
    epochs = log.steps("epoch")
    ended = {
        parse_step(one)
        for one in found.sound
        if parse_step(one) in done and read_state(one)["position"].get("place") == 0
    }
    yield from _named_missing("epoch's record", sorted(step for step in ended - epochs if step is not None))


def _due_steps(log: LogAudit) -> Iterator[int]:
    first = log.spans[0].first
    if first == 1 and log.last:
        yield 1
    for span in log.spans:
        interval = span.option("logging", "interval")
        begin = max(span.first, 2)
        yield from range(begin + -begin % interval, int(min(span.last, log.last)) + 1, interval)


def _due_evaluations(log: LogAudit, span: Span) -> Iterator[int]:
    interval = span.option("validation", "interval")
    last = int(min(span.last, log.last))
    steps = (
        range(span.first + -span.first % interval, last + 1, interval) if interval else sorted(log.epoch_ends.values())
    )
    for step in steps:
        if span.first <= step <= last and all(log.is_scheduled(one, step) for one in log.evaluated_under(step)):
            yield step


def _named_missing(what: str, steps: Sequence[int]) -> Iterator[str]:
    for step in steps[:MOST_MISSING]:
        yield f"step {step}: its {what} is missing in {METRICS_FILE}"
    if len(steps) > MOST_MISSING:
        yield f"{len(steps) - MOST_MISSING} more are missing in {METRICS_FILE}, the last at step {steps[-1]}"


def _lost_completion(log: LogAudit, checkpoint: Path) -> str | None:
    """Report that the run continued from a checkpoint that lacks work that was due there."""
    pending = read_json(checkpoint / STATE)["position"].get("duties_pending")
    if pending and log.last > (parse_step(checkpoint) or 0) and not (checkpoint / COMPLETED).exists():
        return f"{checkpoint / COMPLETED} is missing: the run continued from there"
    return None


def _completed(found: Inventory, checkpoint: Path) -> dict[str, Any] | None:
    """The state after what was due, as the file has it; None if it isn't there, or is damaged (reported)."""
    about = found.read(checkpoint / COMPLETED)
    state = about.get("state") if isinstance(about, dict) else None
    return state if isinstance(state, dict) and isinstance(state.get("position"), dict) else None


def _wrong_length(log: LogAudit, content: bytes, state: Mapping[str, Any], about: str, step: int) -> Iterator[str]:
    """Yield where the log can't have been as long as a checkpoint says when that was made."""
    length = state.get("metrics_bytes")
    if not isinstance(length, int) or not (0 <= length <= len(content)):
        yield f"{METRICS_FILE} has {len(content)} bytes, and had {length} when {about} was written"
        return
    if length and content[length - 1 : length] != b"\n":
        yield f"{METRICS_FILE} was changed before its byte {length}, where a record ended when {about} was written"
        return
    after = next((one for one in log.records if one.end <= length and one.step > step), None)
    before = next((one for one in log.records if one.end > length and one.step < step), None)
    if after is not None:
        yield f"{after} can't have been there when {about} was written"
    elif before is not None:
        yield f"{before} wasn't there when {about} was written"


def _collect_metrics(state: Mapping[str, Any]) -> dict[str, Any]:
    metrics = state.get("metrics") or {}
    return dict(metrics.get("figures", {}) if "scheduled" in metrics else metrics)


def _wrong_metrics(log: LogAudit, state: Mapping[str, Any], about: str) -> Iterator[str]:
    """Yield which metrics of a state aren't those of the evaluation before it, and a best that isn't the best."""
    position = state["position"]
    # With duties pending, the evaluation after this very step isn't in the state yet.
    done = position["step"] - bool(position.get("duties_pending"))
    evaluations = [one for one in log.of_kind("evaluation") if one.step <= done]
    # A run that began from another run's checkpoint has metrics of evaluations that its own log never had.
    begins_here = log.spans[0].first == 1
    if evaluations or begins_here:
        metrics = {name: _as_logged(value) for name, value in _collect_metrics(state).items()}
        logged = evaluations[-1].figures if evaluations else {}
        for name in sorted(metrics.keys() | logged.keys()):
            if metrics.get(name) != logged.get(name):
                yield f"{about}: {name} is {metrics.get(name)} there, and {logged.get(name)} in {METRICS_FILE}"
    yield from _wrong_best(log, state.get("best") or {}, evaluations, about)


def _as_logged(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _wrong_best(log: LogAudit, best: Mapping[str, Any], evaluations: Sequence[Record], about: str) -> Iterator[str]:
    metric, mode, value, step = str(best.get("metric")), best.get("mode"), best.get("value"), best.get("step")
    since = _since_same_metric(log, metric, mode)
    counted = [one for one in evaluations if one.step >= since and isinstance(one.figures.get(metric), int | float)]
    own = [one for one in evaluations if one.step == step]
    if step is not None and step >= log.spans[0].first and not (own and own[-1].figures.get(metric) == value):
        yield f"{about}: the recorded best is {metric} {value} at step {step}; {METRICS_FILE} has no such evaluation"
        return
    for one in counted:
        better = isinstance(value, float | int | None) and improves(one.figures[metric], value, mode or "min")
        if one.values.get("scheduled") is True and better:
            yield f"{about}: the recorded best is at step {step}, but step {one.step} has a better {metric}"
            return


def _since_same_metric(log: LogAudit, metric: Any, mode: Any) -> int:
    """Return the first step of the newest sessions with the same metric, since another metric starts over."""
    since = log.last + 1
    for span in reversed(log.spans):
        if (span.option("checkpoint", "metric"), span.option("checkpoint", "mode")) != (metric, mode):
            break
        since = span.first
    return since


def _name_what_is_not_computed(found: Inventory, log: LogAudit, content: bytes) -> None:
    clocks = [kind for kind in OF_CLOCKS if log.of_kind(kind)]
    found.leave_out(f"{METRICS_FILE}: clocks{' and ' * bool(clocks)}{', '.join(clocks)}{' records' * bool(clocks)}")
    others = Counter(one.kind for one in log.records if one.kind not in RECORD_ORDER and one.kind not in OF_CLOCKS)
    for kind, number in others.items():
        found.leave_out(f"{METRICS_FILE}: {number} records {kind}, which only a callback knows")
