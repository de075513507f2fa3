"""The page of a run: ``vaak report``; that of several is ``vaak.report.comparison``.

    head        the result in a sentence, the data, the metrics of the best checkpoint (``vaak.report.head``)
    examples    of the same checkpoint (``vaak.report.examples``)
    charts      of metrics.jsonl, with events; uPlot draws them (assets/uPlot.iife.min.js, MIT, its licence next to it)
    evaluations, pictures and sound, options, how to resume, use and cite it, lineage, sessions, log

A run's texts are untrusted: every value is escaped.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from vaak.config.metrics import describe_counts, split_part
from vaak.config.tasks import spec_by_name
from vaak.core.errors import UserError
from vaak.core.storage.text_lines import split_lines
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints
from vaak.report.curves import Event, Panel, drawn, events, panels
from vaak.report.examples import make_example_sections
from vaak.report.head import get_session_command, get_session_version, render_head, title_and_notes
from vaak.report.history import to_number
from vaak.report.html import (
    Html,
    code,
    data_table,
    document,
    element,
    long_html,
    option_text,
    pairs,
    render_charts,
    section,
    to_html,
    write_page,
)
from vaak.report.model_card import find_prepared, read_json_object, tabulate_splits
from vaak.report.run_facts import (
    LOG_LINES,
    Media,
    RunFacts,
    Table,
    format_metric,
    media,
    read_evaluation_tables,
    read_facts,
    read_log_tail,
    read_samples,
    tabulate_groups,
    tabulate_tokens,
)
from vaak.report.start import compare_with_start
from vaak.runs.use import command_lines

log = logging.getLogger("vaak")

MOST_EVALUATIONS, MOST_REMARKS = 50, 40
REPORT = "report.html"
MOST_RECORDED = 100_000_000
"""Bytes of metrics.jsonl that are read, and drawn, in about ten seconds at the end of training."""


def stat_records(run: Path) -> tuple[int, int] | None:
    """When a run's records were last written, and their size; None if there are none."""
    try:
        about = (run / "metrics.jsonl").stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def report_of_trained(run: Path) -> Path | None:
    """Write RUN/report.html at the end of training; None, with a warning, where that fails: the run itself mustn't.

    None, too, where it would take longer than about ten seconds: of a very long run ``vaak report`` makes it.
    """
    path, records = run / REPORT, run / "metrics.jsonl"
    try:
        if not records.is_file() or records.stat().st_size > MOST_RECORDED:
            return None
        write_page(path, run_page(read_facts(run)))
    except Exception as error:
        log.warning("no report: %s", error if isinstance(error, UserError | OSError) else repr(error))
        return None
    return path


def run_page(facts: RunFacts, live: bool = False) -> str:
    """Return the page of one run; ``live`` as of a document."""
    found, left_out = panels(facts)
    happened = events(facts)
    groups, others = tabulate_groups(facts), read_evaluation_tables(facts.directory)
    gallery = Gallery(facts)
    examples = make_example_sections(facts, gallery.player)
    sections = {
        "examples": ("Examples", examples),
        "charts": ("Charts", render_charts(found, happened, left_out)),
        "evaluations": ("Evaluations", _evaluations(facts, [*groups, *others])),
        "media": ("Samples, pictures and sound", [*_samples(facts), *gallery.others()]),
        "options": ("Options", _options(facts)),
        "use": ("Resume, use, cite", _use(facts)),
        "lineage": ("Lineage", _lineage(facts)),
        "log": ("Sessions and log", _log(facts)),
    }
    name = title_and_notes(facts.directory)[0] or facts.name
    return render_page(f"{name}: report", [render_head(facts)], sections, (found, happened), live)


def render_page(
    title: str,
    head: Sequence[Html],
    sections: Mapping[str, tuple[str, Sequence[Html]]],
    charts: tuple[Sequence[Panel], Sequence[Event]],
    live: bool,
) -> str:
    """A page with links to its sections in the header; empty ones are left out. ``charts`` are curves and events."""
    shown = {identity: one for identity, one in sections.items() if one[1]}
    links = (element("li", element("a", title, href=f"#{identity}")) for identity, (title, _) in shown.items())
    body = [
        element("header", *head, element("nav", element("ul", *links), aria_label="Sections")),
        element("main", *(section(title, *parts, identity=identity) for identity, (title, parts) in shown.items())),
    ]
    return document(title, body, drawn(charts[0]), charts[1], live)


# The sections of a run


def _evaluations(facts: RunFacts, tables: Sequence[Table]) -> list[Html]:
    found: list[Html] = []
    if facts.evaluations:
        newest = facts.evaluations[-MOST_EVALUATIONS:]
        names = list(dict.fromkeys(name for _, metrics in newest for name in metrics if not split_part(name)[1]))
        rows: list[Sequence[object]] = [("step", *names)]
        for step, metrics in reversed(newest):
            place = f"{step:,} (best)" if step == facts.best_step else f"{step:,}"
            rows.append((place, *(format_metric(name, metrics[name]) if name in metrics else "" for name in names)))
        found.append(data_table(rows, "Evaluations in training, the newest first"))
        found += [element("p", line) for line in describe_counts(newest[-1][1])]
        found.append(_changes(facts))
        found.append(_baselines(facts))
    return found + [data_table(table.rows, table.title) for table in tables]


def _changes(facts: RunFacts) -> Html:
    """Render what training changed: the metrics before the first step, and those of the checkpoint that is used."""
    step, metrics, _ = facts.shown_evaluation
    changes = [one for one in compare_with_start(facts.directory, step) if not split_part(one.name)[1]]
    if not changes:
        return Html("")
    rows: list[Sequence[object]] = [("metric", "before", f"step {step:,}", "difference")]
    rows += [(one.name, one.cells[0], format_metric(one.name, metrics.get(one.name)), one.cells[1]) for one in changes]
    return data_table(rows, "Before training and after it; intervals of 95 %, by paired bootstrap over the examples")


def _baselines(facts: RunFacts) -> Html:
    """Render the scores of simple baselines on the validation data (``vaak baseline``) next to the run's metric."""
    about = read_json_object(facts.directory / "baselines.json").get("valid")
    metrics = about.get("figures") if isinstance(about, dict) else None
    if not isinstance(metrics, dict) or not isinstance(about, dict):
        return Html("")
    name = f"val_{about.get('figure')}"
    step, reached = facts.shown_evaluation[0], facts.shown_evaluation[1].get(name)
    rows: list[Sequence[object]] = [("method", name)]
    for method, one in metrics.items():
        value = to_number(one.get(about.get("figure"))) if isinstance(one, dict) else None
        rows.append((method, "" if value is None else format_metric(name, value)))
    rows.append((f"this run, step {step:,}", "" if reached is None else format_metric(name, reached)))
    return data_table(rows, "Without a network (vaak baseline), and this run")


def _samples(facts: RunFacts) -> list[Html]:
    step, lines = read_samples(facts)
    if not lines or step > facts.summary.step:
        # They are of steps that a resume took back.
        return []
    return [element("p", f"At step {step:,}:"), element("ul", *(element("li", line) for line in lines), css="samples")]


class Gallery:
    """The pictures and the sound of a run, each shown once: next to its example, or else with the others."""

    def __init__(self, facts: RunFacts) -> None:
        found, self.left_out = media(facts)
        self.media = {(one.name, one.step): one for one in found}
        self.shown: set[tuple[str, int | None]] = set()

    def player(self, name: str, step: int) -> Html:
        """Return the player of the sound that a name had at a step, unchanged since then; empty if there is none."""
        steps = [at for own, at in self.media if own == name and at is not None and at <= step]
        key = (name, max(steps, default=None))
        one = self.media.get(key)
        if one is None or not one.content.startswith(b"RIFF"):
            return Html("")
        self.shown.add(key)
        return _shown(one)

    def others(self) -> list[Html]:
        """Return the media that no example has shown, and the notes on omitted ones."""
        metrics = []
        for key, one in self.media.items():
            if key not in self.shown:
                metrics.append(element("figure", _shown(one), element("figcaption", _label(one))))
        parts = [element("div", *metrics, css="media")] if metrics else []
        if self.left_out:
            listed = "; ".join(self.left_out[:MOST_REMARKS])
            parts.append(element("p", f"Left out, to keep this file small: {listed}.", css="lead"))
        return parts


def _shown(one: Media) -> Html:
    kind = "audio/wav" if one.content.startswith(b"RIFF") else "image/png"
    source = Html(f"data:{kind};base64,{base64.b64encode(one.content).decode()}")
    if kind == "audio/wav":
        return element("audio", controls="", preload="none", src=source, aria_label=_label(one))
    return Html(f'<img src="{source}" alt="{to_html(_label(one))}">')


def _label(one: Media) -> str:
    return one.name if one.step is None else f"{one.name}, step {one.step:,}"


def _options(facts: RunFacts) -> list[Html]:
    rows: list[Sequence[object]] = [("option", "default", "this run")]
    rows += [(name, option_text(before), option_text(after)) for name, before, after in facts.changed]
    parts = [data_table(rows, "Options that differ from the defaults")] if facts.changed else []
    if facts.not_compared:
        parts.append(element("p", f"Options aren't compared with defaults: {facts.not_compared}.", css="lead"))
    if facts.options:
        whole = json.dumps(facts.options, ensure_ascii=False, indent=1, default=str)
        parts.append(element("details", element("summary", "All options"), code(long_html(whole))))
    return parts


def _use(facts: RunFacts) -> list[Html]:
    run, summary = shlex.quote(str(facts.directory)), facts.summary
    parts: list[Html] = []
    if summary.go_on is not None:
        parts += [element("p", f"Resume from step {summary.checkpoint:,}:"), code(summary.go_on)]
    parts += [element("p", problem) for problem in summary.damaged]
    if summary.checkpoint is not None:
        splits = facts.splits_to_evaluate
        formats = facts.formats
        spec = spec_by_name(summary.task)
        commands = command_lines(spec, facts.options, facts.directory, splits=splits, formats=formats)
        parts += [element("p", "Use:"), code("\n".join([*commands, f"vaak verify {run}"]))]
    # A BibTeX key has neither spaces nor commas.
    key = re.sub(r"\W+", "-", facts.name).strip("-") or "run"
    there = facts.environment
    note = f"Trained with Vaak {get_session_version(there)}" + (f"; run {summary.id}" if summary.id else "")
    lines = [
        f"@misc{{{key},",
        f"  title = {{{_bibtex(facts.name)}}},",
        f"  year = {{{summary.date[:4]}}},",
        f"  note = {{{_bibtex(note)}}}",
        "}",
    ]
    return [*parts, element("p", "Cite (BibTeX):"), code("\n".join(lines))]


def _bibtex(text: str) -> str:
    return re.sub(r"([\\{}%#$&_^~])", r"\\\1", text)


def _lineage(facts: RunFacts) -> list[Html]:
    # Options are a stranger's: each level may be of any type.
    checkpoint = facts.options.get("training", {})
    checkpoint = checkpoint.get("checkpoint") if isinstance(checkpoint, dict) else None
    begins = checkpoint.get("init_from") if isinstance(checkpoint, dict) else None
    model = facts.options.get("model")
    base = model.get("base") if isinstance(model, dict) else None
    parent = facts.summary.parent
    fork = f"{parent.get('directory')}, from step {parent.get('step')}" if isinstance(parent, dict) else ""
    prints: list[tuple[str, object]] = []
    for task, folder in find_prepared(facts.directory).items():
        prepared = read_json_object(folder / "prepared.json")
        if "fingerprint" in prepared:
            which = f"the data of {task}" if task else "the data"
            prints.append((f"fingerprint of {which}", element("code", prepared["fingerprint"])))
    rows = tabulate_splits(facts.directory)
    whole = list_checkpoints(facts.directory / "checkpoints")
    manifest = read_json_object(whole[-1] / MANIFEST).get("files") if whole else None
    hashes: list[tuple[str, object]] = []
    for name in ("model.safetensors", "frozen.safetensors"):
        about = manifest.get(name) if isinstance(manifest, dict) else None
        if isinstance(about, dict):
            hashes.append((f"SHA-256 of {whole[-1].name}/{name}", element("code", about.get("sha256"))))
    known = [
        ("pipeline", element("code", facts.pipeline) if facts.pipeline else ""),
        ("run", element("code", facts.summary.id) if facts.summary.id else ""),
        ("folder", element("code", facts.directory)),
        ("fork of", fork),
        ("weights begin as", begins or ""),
        ("base", base or ""),
        *prints,
        *hashes,
    ]
    tokens = tabulate_tokens(facts.directory)
    tables = [data_table(rows, "The prepared data")] if rows else []
    return [pairs(known), *tables, *([data_table(tokens, "The tokenizer, on the prepared data")] if tokens else [])]


def _log(facts: RunFacts) -> list[Html]:
    head = ("session", "first step", "when", "device", "Vaak", "command")
    rows: list[Sequence[object]] = [head]
    for one in facts.sessions:
        what = (one["number"], one["first_step"], one.get("time", ""), one.get("device", ""), get_session_version(one))
        rows.append((*what, element("code", get_session_command(one))))
    lines = split_lines(read_log_tail(facts.directory))
    # Only at a line's head (time, rank, level): the message after it may have any of these words.
    remarks = [line for line in lines if re.search(r" (WARNING|ERROR|CRITICAL) ", line[:60])]
    parts = [data_table(rows, "Sessions")] if facts.sessions else []
    for title, shown in (("Warnings", remarks[-MOST_REMARKS:]), ("End of the log", lines[-LOG_LINES:])):
        if shown:
            text = code(long_html("\n".join(shown)))
            parts.append(element("details", element("summary", f"{title} ({len(shown)} lines)"), text))
    return parts
