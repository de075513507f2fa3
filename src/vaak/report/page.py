"""A run, or several side by side, as one HTML page that needs nothing else: ``vaak report``.

    head        what ran, how it ended, its figures, how to resume, use and cite it
    charts      of metrics.jsonl, with events; uPlot draws them (assets/uPlot.iife.min.js, MIT, its licence beside it)
    evaluations, pictures and sound, options, lineage, sessions, log

What a run says is a stranger's: every value is escaped, and the page's own policy (CSP) lets it run two scripts, by
their hashes, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from vaak import __version__
from vaak.config.yaml.text import flow_text
from vaak.core.errors import UserError
from vaak.core.figures import chance_of
from vaak.core.storage.files import write_text
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints
from vaak.report.model_card import json_of, rows_of_splits
from vaak.report.run_facts import (
    LOG_LINES,
    MOST_GROUPS,
    Curve,
    Event,
    Panel,
    RunFacts,
    Table,
    compared_options,
    events,
    figure_in_words,
    log_of,
    media,
    number_of,
    panels,
    read_facts,
    samples_of,
    tables_of_evaluations,
    tables_of_groups,
)

log = logging.getLogger("vaak")

MOST_FIGURES, MOST_EVALUATIONS, MOST_REMARKS = 12, 50, 40
LONGEST = 2000
"""Characters of a value that are shown."""
MOST_TEXT = 100_000
REPORT = "report.html"
MOST_RECORDED = 1_500_000
"""Bytes of metrics.jsonl that are read, and drawn, in less than half a second."""
FOLDED = 12
"""A table with more rows is folded up."""
USE = {
    "lm": 'vaak generate {run} "…"',
    "seq2seq": 'vaak translate {run} "…"',
    "classification": 'vaak classify {run} "…"',
    "asr": "vaak transcribe {run} recording.wav",
    "diarization": "vaak diarize {run} recording.wav",
    "tts": 'vaak speak {run} "…" --output speech.wav',
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src {hashes}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<footer>Made by Vaak {version} from the files of the run; everything is in this file, which loads nothing. Charts: uPlot, MIT licence.</footer>
<!-- uPlot: {licence} -->
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""  # noqa: E501


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def html_of(value: object) -> Html:
    """A value as HTML: escaped, shortened where it is very long, without signs that no page may have.

    >>> html_of("<b> & 'c'"), html_of(Html("<b>"))
    ('&lt;b&gt; &amp; &#x27;c&#x27;', '<b>')
    """
    if isinstance(value, Html):
        return value
    text = str(value)
    return long_html(text if len(text) <= LONGEST else f"{text[:LONGEST]} …")


def long_html(text: str) -> Html:
    """A text as HTML, whole up to a length that no option file has."""
    return Html(
        escape(re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text[:MOST_TEXT]))
    )


def element(name: str, *children: object, **attributes: object) -> Html:
    """An element; ``css`` is its class, and underscores in names of attributes are hyphens."""
    given = {key.replace("css", "class").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(f' {key}="{html_of(value)}"' for key, value in given.items() if value is not None)
    return Html(f"<{name}{written}>{''.join(map(html_of, children))}</{name}>")


def section(title: str, *children: object, identity: str) -> Html:
    return element("section", element("h2", title, id=identity), *children, aria_labelledby=identity)


def data_table(rows: Sequence[Sequence[object]], caption: str) -> Html:
    """A table whose first row is its head; a long one is folded up."""
    head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in rows[0])))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows[1:])
    table = element("table", element("caption", caption), head, element("tbody", *body), css="data")
    scrolled = element("div", table, css="scroll", tabindex=0, role="region", aria_label=caption)
    if len(rows) <= FOLDED + 1:
        return scrolled
    return element("details", element("summary", f"{caption} ({len(rows) - 1} rows)"), scrolled)


def pairs(entries: Iterable[tuple[str, object]]) -> Html:
    shown = (element("dt", name) + element("dd", value) for name, value in entries if value not in (None, ""))
    return element("dl", *map(Html, shown))


def code(text: str) -> Html:
    return element("pre", element("code", text), tabindex=0)


def write_page(path: Path, page: str) -> None:
    """Write a page. Raises UserError where it can't be written."""
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def report_of_trained(run: Path) -> Path | None:
    """Write RUN/report.html at the end of training; None, with a warning, where it can't be made, which fails no run.

    None, too, where it would take longer than half a second: of a very long run ``vaak report`` makes it.
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


def run_page(facts: RunFacts) -> str:
    """The page of one run."""
    found, left_out = panels(facts)
    happened = events(facts)
    groups, others = tables_of_groups(facts), tables_of_evaluations(facts.directory)
    sections = {
        "charts": ("Charts", _charts(found, happened, left_out)),
        "evaluations": ("Evaluations", _evaluations(facts, [*groups, *others])),
        "media": ("Samples, pictures and sound", [*_samples(facts), *_media(facts.directory)]),
        "options": ("Options", _options(facts)),
        "use": ("Resume, use, cite", _use(facts)),
        "lineage": ("Lineage", _lineage(facts)),
        "log": ("Sessions and log", _log(facts)),
    }
    shown = {identity: one for identity, one in sections.items() if one[1]}
    links = (element("li", element("a", title, href=f"#{identity}")) for identity, (title, _) in shown.items())
    body = [
        element("header", _head(facts), element("nav", element("ul", *links), aria_label="Sections")),
        element("main", *(section(title, *parts, identity=identity) for identity, (title, parts) in shown.items())),
    ]
    return _page(f"{facts.name}: report", body, found, happened)


def comparison_page(runs: Sequence[RunFacts]) -> str:
    """The page of several runs: options that differ, figures side by side, and their curves in one chart each."""
    names = _distinct_names(runs)
    rows: list[Sequence[object]] = [("", *names)]
    columns = [dict(_about(one)) for one in runs]
    for name in dict.fromkeys(name for column in columns for name in column):
        rows.append((name, *(column.get(name, "") for column in columns)))
    options = compared_options(runs)
    differing = [("option", *names), *((name, *map(_value, values)) for name, values in options)]
    found = _overlaid([panels(one)[0] for one in runs], names)
    newest = [one.evaluations[-1][1] if one.evaluations else {} for one in runs]
    figures: list[Sequence[object]] = [("figure", *names)]
    for name in dict.fromkeys(name for one in newest for name in one if "/" not in name):
        figures.append((name, *(figure_in_words(name, one[name]) if name in one else "" for one in newest)))
    same = element("p", "All options but the name and the folder are the same.")
    directories = " ".join(shlex.quote(str(one.directory)) for one in runs)
    tested = [element("p", "Whether they differ by more than chance:"), code(f"vaak compare {directories}")]
    body = [
        element("header", element("h1", f"{len(runs)} runs"), element("p", ", ".join(names), css="lead")),
        element(
            "main",
            section(
                "Options that differ",
                data_table(differing, "Options that differ") if options else same,
                identity="options",
            ),
            section("Runs", data_table(rows, "The runs"), identity="runs"),
            section("Figures", data_table(figures, "The newest evaluation of each"), *tested, identity="figures")
            if len(figures) > 1
            else "",
            section("Charts", *_charts(found, [], 0), identity="charts") if found else "",
        ),
    ]
    return _page(f"{len(runs)} runs: report", body, found, [])


def _page(title: str, body: Sequence[Html], charts: Sequence[Panel], happened: Sequence[Event]) -> str:
    assets = files("vaak.report") / "assets"
    library, script, style, licence = (
        (assets / name).read_text(encoding="utf-8")
        for name in ("uPlot.iife.min.js", "report.js", "report.css", "uPlot.LICENSE")
    )
    data = {
        "panels": [
            {
                "unit": panel.unit,
                "curves": [
                    {
                        "label": shortened(curve.label),
                        "x": curve.steps,
                        "y": [_rounded(value) for value in curve.values],
                    }
                    for curve in panel.curves
                ],
            }
            for panel in charts
        ],
        "events": [{**one._asdict(), "text": shortened(one.text)} for one in happened],
    }
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in (library, script)
    )
    return PAGE.format(
        title=html_of(title),
        style=(assets / "uPlot.min.css").read_text(encoding="utf-8") + style,
        body="\n".join(body),
        version=html_of(__version__),
        licence=licence.strip(),
        hashes=hashes,
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        library=library,
        script=script,
    )


def shortened(text: str) -> str:
    """Text for the script, which shows it as text; shortened."""
    return text if len(text) <= 200 else f"{text[:200]} …"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


# The sections of a run


def _head(facts: RunFacts) -> Html:
    summary, newest = facts.summary, facts.evaluations[-1:]
    state = element("span", summary.state, css=f"state {summary.state.replace(' ', '-')}")
    shown = [(name, value) for name, value in (newest[0][1] if newest else {}).items() if "/" not in name]
    figures = [
        element("div", element("b", figure_in_words(name, value)), element("span", name, _chance(name)), css="figure")
        for name, value in shown[:MOST_FIGURES]
    ]
    where = f"Figures of the validation data at step {newest[0][0]:,}." if newest else "Not evaluated yet."
    return Html(
        element("h1", facts.name, " ", state)
        + (element("p", summary.reason, css="lead") if summary.reason not in ("", summary.state) else "")
        + pairs(one for one in _about(facts) if one[0] != "state")
        + (element("div", *figures, css="figures") if figures else "")
        + element("p", where, css="lead")
        + _verified(facts.directory)
    )


def _chance(name: str) -> str:
    chance = chance_of(name)
    return "" if chance is None else f" (chance: {figure_in_words(name, chance)})"


def _about(facts: RunFacts) -> list[tuple[str, object]]:
    summary, there = facts.summary, facts.environment
    packages = there.get("packages")
    torch = packages.get("torch") if isinstance(packages, dict) else None
    minutes, seconds = divmod(round(number_of(summary.seconds) or 0), 60)
    best = figure_in_words(summary.best.rpartition(" ")[0], number_of(summary.best_value))
    trained = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    of = f" of {summary.total_steps:,}" if summary.total_steps else ""
    parameters = "" if summary.parameters is None else f"{summary.parameters:,}"
    machine = [f"{there.get('device', '?')}", f"{there.get('world_size', 1)} process(es)", there.get("platform", "")]
    return [
        ("task", summary.task),
        ("state", summary.state),
        ("step", f"{summary.step:,}{of}"),
        ("best", "" if summary.best_value is None else f"{summary.best.rpartition(' ')[0]} {best}"),
        ("training took", trained),
        ("last written", summary.date),
        ("parameters", parameters),
        ("on", ", ".join(str(one) for one in machine if one) if there else ""),
        ("Vaak", _version(there) if there else ""),
        ("torch", torch or ""),
        ("command", element("code", _command(there)) if _command(there) else ""),
    ]


def _version(there: Mapping[str, Any]) -> str:
    commit = there.get("commit")
    return f"{there.get('vaak', '?')}{f', commit {commit}' if commit else ''}"


def _command(there: Mapping[str, Any]) -> str:
    """The command of a session, as it would be typed."""
    found = there.get("command")
    if not isinstance(found, list) or not found:
        return ""
    program, *arguments = map(str, found)
    name = "vaak" if Path(program).name in ("vaak", "-c", "__main__.py") else f"python {shlex.quote(program)}"
    return f"{name} {shlex.join(arguments)}" if arguments else ""


def _verified(run: Path) -> Html:
    found = json_of(run / "verification.json")
    if not isinstance(found.get("sentence"), str):
        return Html("")
    verdict = found.get("verified") is True
    said = "Verified" if verdict else "Differs from what it says"
    state = element("span", said, css=f"state {'true' if verdict else 'false'}")
    findings = found.get("findings")
    lines = [element("li", one) for one in (findings if isinstance(findings, list) else [])[:MOST_REMARKS]]
    about = element("p", state, f" by vaak verify on {str(found.get('time'))[:10]}: {found['sentence']}.")
    return Html(about + (element("ul", *lines) if lines else ""))


def _charts(found: Sequence[Panel], happened: Sequence[Event], left_out: int) -> list[Html]:
    if not found:
        return [element("p", "No step has been logged yet.")]
    kinds = dict.fromkeys(one.kind for one in happened)
    counts = [(kind, sum(one.kind == kind for one in happened)) for kind in kinds]
    legend = (
        element("li", element("i", css=kind, data_kind=kind), element("span", f"{kind} ({count})"))
        for kind, count in counts
    )
    drag = "Hover to read values, drag to zoom, double-click to reset. Keyboard: arrows, + and −, Escape."
    charts = (_chart(number, panel) for number, panel in enumerate(found))
    table = [("step", "what", ""), *((f"{one.step:,}", one.kind, one.text) for one in happened)]
    return [
        element("p", drag, css="lead"),
        element("ul", *legend, css="kinds", aria_label="Events on the time axis") if happened else Html(""),
        element("div", *charts, css="charts"),
        element("p", f"{left_out} curves of groups are left out; the tables have them.") if left_out else Html(""),
        data_table(table, "Events") if happened else Html(""),
    ]


def _chart(number: int, panel: Panel) -> Html:
    title = f"{panel.title}, {panel.unit}" if panel.unit else panel.title
    button = element("button", "log", type="button", aria_pressed="true" if panel.log else "false", title="log scale")
    label = f"{title}. {'; '.join(map(_spoken, panel.curves[:4]))}. Arrow keys read the values."
    return element(
        "section",
        element("header", element("h3", title, id=f"chart-{number}"), button),
        element("div", css="plot", tabindex=0, role="group", aria_label=label),
        element("p", css="read", aria_live="polite"),
        css="chart",
        aria_labelledby=f"chart-{number}",
    )


def _spoken(curve: Curve) -> str:
    """A curve in words, for who doesn't see it."""
    values = [value for value in curve.values if value is not None]
    if not values:
        return f"{curve.label}: no finite value"
    span = f"from {values[0]:.4g} to {values[-1]:.4g}, lowest {min(values):.4g}, highest {max(values):.4g}"
    return f"{curve.label}: {span}, steps {curve.steps[0]} to {curve.steps[-1]}"


def _evaluations(facts: RunFacts, tables: Sequence[Table]) -> list[Html]:
    found: list[Html] = []
    if facts.evaluations:
        newest = facts.evaluations[-MOST_EVALUATIONS:]
        names = list(dict.fromkeys(name for _, figures in newest for name in figures if "/" not in name))
        rows: list[Sequence[object]] = [("step", *names)]
        for step, figures in reversed(newest):
            rows.append(
                (f"{step:,}", *(figure_in_words(name, figures[name]) if name in figures else "" for name in names))
            )
        found.append(data_table(rows, "Evaluations in training, the newest first"))
        found.append(_baselines(facts))
    return found + [data_table(table.rows, table.title) for table in tables]


def _baselines(facts: RunFacts) -> Html:
    """What methods without a network reach on the validation data (``vaak baseline``), next to the newest figure."""
    about = json_of(facts.directory / "baselines.json").get("valid")
    figures = about.get("figures") if isinstance(about, dict) else None
    if not isinstance(figures, dict) or not isinstance(about, dict):
        return Html("")
    name = f"val_{about.get('figure')}"
    reached = facts.evaluations[-1][1].get(name)
    rows: list[Sequence[object]] = [("method", name)]
    for method, one in figures.items():
        value = number_of(one.get(about.get("figure"))) if isinstance(one, dict) else None
        rows.append((method, "" if value is None else figure_in_words(name, value)))
    rows.append(("this run", "" if reached is None else figure_in_words(name, reached)))
    return data_table(rows, "Without a network (vaak baseline), and this run")


def _samples(facts: RunFacts) -> list[Html]:
    step, lines = samples_of(facts.directory)
    if not lines or step > facts.summary.step:  # of steps that a resume took back
        return []
    return [element("p", f"At step {step:,}:"), element("ul", *(element("li", line) for line in lines), css="samples")]


def _media(run: Path) -> list[Html]:
    found, left_out = media(run)
    shown = []
    for one in found:
        kind = "audio/wav" if one.content.startswith(b"RIFF") else "image/png"
        source = Html(f"data:{kind};base64,{base64.b64encode(one.content).decode()}")
        label = one.name if one.step is None else f"{one.name}, step {one.step:,}"
        seen = (
            element("audio", controls="", preload="none", src=source, aria_label=label)
            if kind == "audio/wav"
            else Html(f'<img src="{source}" alt="{html_of(label)}">')
        )
        shown.append(element("figure", seen, element("figcaption", label)))
    parts = [element("div", *shown, css="media")] if shown else []
    if left_out:
        parts.append(
            element("p", f"Left out, to keep this file small: {'; '.join(left_out[:MOST_REMARKS])}.", css="lead")
        )
    return parts


def _options(facts: RunFacts) -> list[Html]:
    rows: list[Sequence[object]] = [("option", "default", "this run")]
    rows += [(name, _value(before), _value(after)) for name, before, after in facts.changed]
    parts = [data_table(rows, "Options that differ from the defaults")] if facts.changed else []
    if facts.not_compared:
        parts.append(element("p", f"Options aren't compared with defaults: {facts.not_compared}.", css="lead"))
    if facts.options:
        whole = json.dumps(facts.options, ensure_ascii=False, indent=1, default=str)
        parts.append(element("details", element("summary", "All options"), code(long_html(whole))))
    return parts


def _value(value: Any) -> str:
    return value if isinstance(value, str) else flow_text(value)


def _use(facts: RunFacts) -> list[Html]:
    run, summary = shlex.quote(str(facts.directory)), facts.summary
    parts: list[Html] = []
    if summary.go_on is not None:
        parts += [element("p", f"Resume from step {summary.checkpoint:,}:"), code(summary.go_on)]
    parts += [element("p", problem) for problem in summary.damaged]
    if summary.checkpoint is not None:
        use = USE.get(summary.task, "vaak predict {run} …").format(run=run)
        commands = [use, f"vaak eval {run} --split test", f"vaak verify {run}", f"vaak export {run} --format hf"]
        parts += [element("p", "Use:"), code("\n".join(commands))]
    key = re.sub(r"\W+", "-", facts.name).strip("-") or "run"
    there = facts.environment
    note = f"Trained with Vaak {_version(there)}" + (f"; run {summary.id}" if summary.id else "")
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
    checkpoint = facts.options.get("training", {})
    checkpoint = checkpoint.get("checkpoint") if isinstance(checkpoint, dict) else None
    begins = checkpoint.get("init_from") if isinstance(checkpoint, dict) else None
    model = facts.options.get("model")
    base = model.get("base") if isinstance(model, dict) else None
    parent = facts.summary.parent
    fork = f"{parent.get('directory')}, from step {parent.get('step')}" if isinstance(parent, dict) else ""
    prepared = json_of(facts.directory / "prepared" / "prepared.json")
    rows = rows_of_splits(facts.directory)
    whole = list_checkpoints(facts.directory / "checkpoints")
    manifest = json_of(whole[-1] / MANIFEST).get("files") if whole else None
    hashes: list[tuple[str, object]] = []
    for name in ("model.safetensors", "frozen.safetensors"):
        about = manifest.get(name) if isinstance(manifest, dict) else None
        if isinstance(about, dict):
            hashes.append((f"SHA-256 of {whole[-1].name}/{name}", element("code", about.get("sha256"))))
    known = [
        ("run", element("code", facts.summary.id) if facts.summary.id else ""),
        ("folder", element("code", facts.directory)),
        ("fork of", fork),
        ("weights begin as", begins or ""),
        ("base", base or ""),
        ("fingerprint of the data", element("code", prepared["fingerprint"]) if "fingerprint" in prepared else ""),
        *hashes,
    ]
    return [pairs(known), *([data_table(rows, "The prepared data")] if rows else [])]


def _log(facts: RunFacts) -> list[Html]:
    head = ("session", "first step", "when", "device", "Vaak", "command")
    rows: list[Sequence[object]] = [head]
    for one in facts.sessions:
        what = (one["number"], one["first_step"], one.get("time", ""), one.get("device", ""), _version(one))
        rows.append((*what, element("code", _command(one))))
    lines = log_of(facts.directory).splitlines()
    remarks = [line for line in lines if re.search(r" (WARNING|ERROR|CRITICAL) ", line[:60])]
    parts = [data_table(rows, "Sessions")] if facts.sessions else []
    for title, shown in (("Warnings", remarks[-MOST_REMARKS:]), ("End of the log", lines[-LOG_LINES:])):
        if shown:
            text = code(long_html("\n".join(shown)))
            parts.append(element("details", element("summary", f"{title} ({len(shown)} lines)"), text))
    return parts


# Several runs


def _distinct_names(runs: Sequence[RunFacts]) -> list[str]:
    """The runs' names; those of their folders, or the whole paths, where two have the same."""
    ways = ([one.name for one in runs], [one.directory.resolve().name for one in runs])
    return next((names for names in ways if len(set(names)) == len(names)), [str(one.directory) for one in runs])


def _overlaid(found: Sequence[Sequence[Panel]], names: Sequence[str]) -> list[Panel]:
    """A chart for each curve that any run has, with that curve of every run; those of groups are left out."""
    charts: dict[str, Panel] = {}
    for panels_of_run, name in zip(found, names, strict=True):
        for panel in panels_of_run:
            whole = [one for one in panel.curves if panel.title in KEPT or one.label == panel.title]
            for curve in whole:
                title = panel.title if curve.label == panel.title else f"{panel.title}: {curve.label}"
                chart = charts.setdefault(title, panel._replace(title=title, curves=[]))
                if len(chart.curves) < 2 * MOST_GROUPS:
                    chart.curves.append(curve._replace(label=name))
    return list(charts.values())


KEPT = ("loss", "parts of the loss", "gradient norm", "throughput", "memory", "memory pressure", "processors")
