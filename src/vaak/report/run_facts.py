"""Facts of a run's folder for a report: curves, events, options, results, pictures and sound.

Reads files alone, without torch and without executing anything that a run names; a run may still be written, or have
been killed. What a run says is a stranger's: a value of the wrong kind is left out, and a file that a link takes out
of the run's folder isn't read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from vaak.config.changes import NOT_GIVEN, changes_between
from vaak.config.metrics import find_repeats, get_unit, split_part
from vaak.config.resolved import default_experiment, resolved_values
from vaak.config.tasks import TASKS, list_pipelines, spec_by_name
from vaak.core.errors import UserError
from vaak.core.storage.json_lines import read_json_lines
from vaak.core.summaries import SUMMARY
from vaak.engine.checkpoint.names import parse_step
from vaak.engine.metrics_file import METRICS_FILE
from vaak.report.history import LARGEST_STEP, History, summarize_history, to_number
from vaak.report.model_card import find_prepared, read_json_object, read_options, read_statistics
from vaak.runs.folder.directory import SAMPLES
from vaak.runs.folder.listing import RunSummary, summarize
from vaak.runs.use import FORMATS

PICTURE_BYTES, AUDIO_BYTES = 1_300_000, 3_000_000
LOG_BYTES, LOG_LINES = 4 << 20, 40
MOST_ROWS = 100
SUMMARY_BYTES = 1_000_000
MEDIA_NAME = re.compile(r"step-(\d{8,})\.(?:png|wav|json)")


class Media(NamedTuple):
    """A picture (PNG) or sound (WAV) of a run, and its step, if the file's name has one."""

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
    """The facts in a run's folder. ``sessions`` are its starts, ``history`` what metrics.jsonl says.

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
    history: History
    pipeline: Path | None = None
    """The folder of the pipeline of which it is the last training, if that was asked for."""

    @property
    def environment(self) -> dict[str, Any]:
        """Return the environment of the newest session."""
        return {**(self.sessions[-1] if self.sessions else {}), **read_json_object(self.directory / "environment.json")}

    @property
    def tasks(self) -> dict[str, Mapping[str, Any]]:
        """The options of the tasks that were trained at once, by name; empty for a run of one task."""
        data = self.options.get("data")
        tasks = data.get("tasks") if isinstance(data, dict) else None
        found = tasks if isinstance(tasks, dict) else {}
        return {str(name): one for name, one in found.items() if isinstance(one, dict) and "task" in one}

    @property
    def evaluations(self) -> list[tuple[int, dict[str, float | None]]]:
        """The step and the metrics of each evaluation, without those that repeat another (``find_repeats``)."""
        return [
            (step, {name: value for name, value in metrics.items() if name not in self.repeated})
            for step, metrics in self.history.evaluations
        ]

    @cached_property
    def repeated(self) -> set[str]:
        """The metrics that are left out, as they repeat others; never the one that chooses the best checkpoint."""
        return find_repeats([metrics for _, metrics in self.history.evaluations]) - {
            self.summary.best.rpartition(" ")[0]
        }

    @property
    def shown_evaluation(self) -> tuple[int, dict[str, float | None], str]:
        """The step and the metrics of the checkpoint that commands use, and which that is; without one, the newest."""
        if not self.evaluations:
            return 0, {}, ""
        by_step = dict(self.evaluations)
        if self.best_step in by_step:
            return self.best_step, by_step[self.best_step], "that of the best checkpoint, which commands use"
        return *self.evaluations[-1], "the newest evaluation"

    @property
    def shown_step(self) -> int:
        """The step of ``shown_evaluation``; without an evaluation, one after all others."""
        return self.shown_evaluation[0] if self.evaluations else LARGEST_STEP

    @property
    def best_step(self) -> int:
        """The step of the best checkpoint; -1 where none is marked."""
        pointer = self.directory / "checkpoints" / "best"
        try:
            found = parse_step(Path(pointer.read_text(encoding="utf-8").strip())) if pointer.is_file() else None
        except (OSError, ValueError):
            return -1
        return -1 if found is None else found

    @property
    def splits_to_evaluate(self) -> list[str]:
        """The splits that have prepared examples; valid, too, where it was evaluated."""
        statistics = read_statistics(self.directory)
        there = [
            split
            for split in ("valid", "test")
            if any(any(map(to_number, counts.get(split, {}).values())) for counts in statistics.values())
        ]
        return there or (["valid"] if self.evaluations else [])

    @property
    def formats(self) -> list[str]:
        """The formats that the run can be exported in, as its newest session wrote them down."""
        found = self.environment.get(FORMATS)
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _find_run_of_pipeline(folder: Path) -> Path | None:
    """Return the run in a folder of a pipeline that its task has declared to be shown; None if there is none."""
    runs = (folder / pipeline.shown for pipeline in list_pipelines().values() if pipeline.shown)
    return next((run for run in runs if (run / "config.yml").is_file()), None)


def read_facts(run: Path) -> RunFacts:
    """Read the folder of a run, or of a pipeline that trained one. Raises UserError if it is neither."""
    if not (run / "config.yml").is_file() and (shown := _find_run_of_pipeline(run)) is not None:
        return replace(read_facts(shown), pipeline=run)
    if not any((run / name).is_file() for name in ("config.yml", "metrics.jsonl")):
        raise UserError(f"{run} is not a run directory (no config.yml); give the folder of a run")
    options = read_options(run) if is_own(run, run / "config.yml") else {}
    changed, not_compared = _from_defaults(options)
    path = run / "sessions.jsonl"
    sessions = [one for _, one in read_json_lines(path).objects] if is_own(run, path) else []
    name = options.get("name")
    # Loading the spec of an installed task makes its metrics known from here on.
    spec_by_name(options.get("task"))
    return RunFacts(
        directory=run,
        name=name if isinstance(name, str) and name else run.resolve().name,
        summary=summarize(run, run),
        options=options,
        changed=changed,
        not_compared=not_compared,
        sessions=[one for one in sessions if all(type(one.get(key)) is int for key in ("number", "first_step"))],
        history=summarize_history(run) if is_own(run, run / METRICS_FILE) else History([]),
    )


def is_own(run: Path, path: Path) -> bool:
    """Return whether a path is a file in the run's folder, after all links are followed."""
    try:
        return path.is_file() and path.resolve().is_relative_to(run.resolve())
    except (OSError, RuntimeError):
        return False


# Options


def _from_defaults(options: Mapping[str, Any]) -> tuple[list[tuple[str, Any, Any]], str]:
    """Return the options that differ from the defaults of the run's task; and why, where these aren't known."""
    task = options.get("task")
    if not options:
        return [], "config.yml can't be read"
    if not isinstance(task, str) or task not in TASKS:
        # Its class would have to be executed, and a run's folder may be a stranger's.
        return [], "the defaults of a task that isn't installed aren't known here"
    try:
        untouched = resolved_values(default_experiment(str(task), str(options["name"]), str(options["run_dir"])))
        return [one for change in differences(untouched, options) for one in _inside_tasks(*change)], ""
    except (UserError, ValueError, KeyError, TypeError, AttributeError):
        return [], "config.yml isn't one that this version writes"


def _inside_tasks(name: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield a changed option; in a multitask run, one that differs from its task's own default."""
    inner = after if name == "data.tasks" and isinstance(after, Mapping) else {}
    if not inner or not all(isinstance(one, Mapping) and one.get("task") in TASKS for one in inner.values()):
        yield name, before, after
        return
    for task, values in inner.items():
        place = {"name": "inner", "run_dir": "inner"}
        defaults = resolved_values(default_experiment(str(values["task"]), **place))
        # Of the loop, a task has its loss alone.
        defaults["training"] = {option: defaults["training"][option] for option in values.get("training", {})}
        yield f"{name}.{task}.task", NOT_GIVEN, values["task"]
        for key, old, new in differences({key: defaults[key] for key in (*place, *values)}, {**place, **values}):
            yield f"{name}.{task}.{key}", old, new


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, value before and value after of each option that differs, without name and place of the run."""
    task = after.get("task")
    if isinstance(task, str) and task in TASKS:
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


def read_log_tail(run: Path) -> str:
    """Return the end of train.log."""
    path = run / "train.log"
    if not is_own(run, path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")


# Pictures, sound and tables


def media(facts: RunFacts) -> tuple[list[Media], list[str]]:
    """Pictures and sound of a run: of each name that of the shown step, then its first; and reasons for omissions."""
    run, pipeline = facts.directory, facts.pipeline
    by_name: dict[str, list[tuple[int | None, Path]]] = {}
    for path in sorted(run.glob("pictures/*/step-*.*")):
        match = MEDIA_NAME.fullmatch(path.name)
        if match and path.suffix != ".json" and is_own(run, path):
            by_name.setdefault(path.parent.name, []).append((int(match[1]), path))
    for path in sorted([*run.glob("*.png"), *run.glob("*.wav")]):
        if is_own(run, path):
            by_name.setdefault(path.stem, []).append((None, path))
    whole = pipeline or run
    for path in sorted(whole.glob("*/*.png")) if pipeline else ():
        if is_own(whole, path):
            by_name.setdefault(str(path.relative_to(whole).with_suffix("")), []).append((None, path))
    chosen = [(name, *_choose_path(paths, facts.shown_step)) for name, paths in by_name.items()]
    first = [(name, *paths[0]) for name, paths in by_name.items() if (name, *paths[0]) not in chosen]
    # By the first bytes of a file: its name is a stranger's.
    taken = {b"\x89PNG": 0, b"RIFF": 0}
    most = {b"\x89PNG": PICTURE_BYTES, b"RIFF": AUDIO_BYTES}
    found, left_out = [], []
    # Those of the shown step come first, so what doesn't fit is rather what is old.
    for name, step, path in [*chosen, *first]:
        with open(path, "rb") as file:
            kind, size = file.read(4), path.stat().st_size
            if kind not in most:
                continue
            if taken[kind] + size > most[kind]:
                left_out.append(f"{path.relative_to(whole)} ({size / 1e6:.1f} MB)")
                continue
            taken[kind] += size
            # A file that grows meanwhile is read no further than it was counted.
            found.append(Media(name, step, path, kind + file.read(size)))
    others = sum(len(paths) for paths in by_name.values()) - len(chosen) - len(first)
    return found, left_out + ([f"{others} of other steps"] if others else [])


def _choose_path(paths: Sequence[tuple[int | None, Path]], step: int) -> tuple[int | None, Path]:
    """The path of a step: a sound that didn't change then is under an earlier one, or, failing that, the first."""
    return next((one for one in reversed(paths) if one[0] is None or one[0] <= step), paths[0])


def read_samples(facts: RunFacts) -> tuple[int, list[str]]:
    """The samples that a run showed at its end, and the step that they are of; its own files by their names in it."""
    run, folder = facts.directory, f"{facts.options.get('run_dir')}/"
    found = read_json_object(run / SAMPLES) if is_own(run, run / SAMPLES) else {}
    step, lines = found.get("step"), found.get("samples")
    if type(step) is not int or not isinstance(lines, list):
        return 0, []
    return step, [line.removeprefix(folder) for line in lines if isinstance(line, str)][:MOST_ROWS]


def summaries(facts: RunFacts) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """The steps and summaries of evaluations that kept one, by the prefix of their metrics: ``val_``, ``val_TASK/``."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    run = facts.directory
    for path in sorted(run.glob(f"pictures/*{SUMMARY}/step-*.json")):
        match = MEDIA_NAME.fullmatch(path.name)
        if match and is_own(run, path) and path.stat().st_size <= SUMMARY_BYTES:
            summary, prefix = read_json_object(path), path.parent.name.removesuffix(SUMMARY)
            tasks = summary.get("tasks")
            of_tasks = {f"{prefix}{name}/": one for name, one in tasks.items()} if isinstance(tasks, dict) else {}
            for name, one in (of_tasks or {prefix: summary}).items():
                if isinstance(one, dict) and one:
                    found.setdefault(name, []).append((int(match[1]), one))
    return dict(sorted(found.items(), key=lambda one: not one[0].startswith("val_")))


def summaries_at(facts: RunFacts, step: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the summary of each prefix's evaluation at a step, where one was kept."""
    for prefix, steps in summaries(facts).items():
        yield from ((prefix, summary) for at, summary in steps if at == step)


def choose_summary(steps: Sequence[tuple[int, dict[str, Any]]], step: int) -> tuple[int, dict[str, Any]]:
    """Return the summary of a step, or, where none was kept, the newest; with its step."""
    return next((one for one in steps if one[0] == step), steps[-1])


def tabulate_groups(facts: RunFacts) -> list[Table]:
    """Return metrics of groups (``val_wer/GROUP``), one row each, of the shown evaluation or the newest with any."""
    rows: dict[str, dict[str, float | None]] = {}
    candidates = (facts.shown_evaluation[:2], *reversed(facts.evaluations))
    step, metrics = next((one for one in candidates if any(split_part(name)[1] for name in one[1])), (0, {}))
    for name, value in metrics.items():
        metric, group = split_part(name)
        if group:
            rows.setdefault(group, {})[metric] = value
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [
        (group, *(format_metric(name, row[name]) if name in row else "" for name in names))
        for group, row in rows.items()
    ]
    return [Table(f"By group, at step {step:,}", [("group", *names), *cells[: 4 * MOST_ROWS]])]


def tabulate_tokens(run: Path) -> list[Sequence[str]]:
    """A table of what the tokenizers make of the prepared texts: its head, then a row for each store of tokens."""
    statistics = read_statistics(run)
    rows: list[Sequence[str]] = [("texts", "tokens", "tokens a word", "bytes a token", "reproduced exactly")]
    for task, prepared in find_prepared(run).items():
        found = [_count_store(path, prepared, statistics[task]) for path in _list_stores(prepared)]
        rows += [(f"{task} {name}".lstrip(), *cells) for name, *cells in filter(None, found)]
    # Not every task counts words and bytes.
    kept = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    return [tuple(row[place] for place in kept) for row in rows] if len(rows) > 1 else []


def _list_stores(prepared: Path) -> list[Path]:
    return sorted([*prepared.glob("*/store.json"), *prepared.glob("*/*/store.json")])[:MOST_ROWS]


def _count_store(path: Path, prepared: Path, statistics: Mapping[str, Mapping[str, Any]]) -> Sequence[str] | None:
    """Return the name and the counts of a store of tokens; None if the file is another's, or empty."""
    about = read_json_object(path) if is_own(prepared, path) else {}
    tokens, documents, exact = (to_number(about.get(name)) for name in ("tokens", "documents", "reproduced"))
    if not str(about.get("format")).startswith("vaak tokens") or not tokens:
        return None
    parts = path.relative_to(prepared).parent.parts
    # Counts of several stores are of all together.
    alone = len(list(prepared.glob(f"{parts[0]}/*/store.json"))) <= 1
    counts = statistics.get(parts[0], {}) if alone else {}
    words, size = to_number(counts.get("words")), to_number(counts.get("bytes"))
    shown = (f"{tokens / words:.2f}" if words else "", f"{size / tokens:.2f}" if size else "")
    reproduced = f"{100 * exact / documents:.1f} %" if exact is not None and documents else ""
    return " ".join(parts), f"{tokens:,.0f}", *shown, reproduced


def format_metric(name: str, value: float | None) -> str:
    """Return a figure as people read it: percent, or five digits and its unit."""
    if value is None:
        return "not finite"
    unit = get_unit(name)
    return f"{100 * value:.2f} %" if unit == "%" else f"{value:.5g} {unit}".rstrip()


def read_evaluation_tables(run: Path) -> list[Table]:
    """Return the CSV files next to each ``evaluation.json`` that ``vaak eval --output`` wrote into the run."""
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
