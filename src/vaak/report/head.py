"""The head of a run's page: a title and notes of one's own, the result in a sentence, the data, metrics, how it ran.

RUN/notes.md has the title, after ``#`` in its first line, and the notes. Metrics are those of the checkpoint that
commands use: the best one, or the newest where none is marked best.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.metrics import find_metric, split_part
from vaak.core.left_out import CONTENTS
from vaak.core.secrets import hide_arguments
from vaak.report.examples import chances, intervals, read_phenomena, scored
from vaak.report.history import to_number
from vaak.report.html import Html, element, pairs
from vaak.report.model_card import read_json_object, read_statistics
from vaak.report.run_facts import RunFacts, format_metric, is_own, summaries_at

MOST_TILES, MOST_REMARKS = 12, 40
MOST_NAMED_SPEAKERS = 6
"""The labels, languages or corpora that are named one by one."""
NOTES, MOST_NOTES = "notes.md", 20_000


def title_and_notes(run: Path) -> tuple[str, list[str]]:
    """Return the title that RUN/notes.md gives, and the paragraphs of its notes; empty if there are none."""
    path = run / NOTES
    if not is_own(run, path):
        return "", []
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(MOST_NOTES)
    first, _, rest = text.strip().partition("\n")
    title, notes = (first.lstrip("# ").strip(), rest) if first.startswith("#") else ("", text)
    return title, [one for paragraph in notes.split("\n\n") if (one := " ".join(paragraph.split()))]


def render_head(facts: RunFacts) -> Html:
    """Return the first screen of the page."""
    summary = facts.summary
    title, notes = title_and_notes(facts.directory)
    state = element("span", summary.state, css=f"state {summary.state.replace(' ', '-')}")
    step, metrics, which = facts.shown_evaluation
    where = f"Metrics on the validation data at step {step:,}, {which}." if metrics else "Not evaluated yet."
    return Html(
        element("h1", title or facts.name, " ", state)
        + "".join(element("p", one) for one in notes)
        + "".join(element("p", one, css="result") for one in filter(None, [_result(facts)]))
        + "".join(element("p", one, css="lead") for one in _data(facts))
        + (element("p", summary.reason, css="lead") if summary.reason not in ("", summary.state) else "")
        + _tiles(facts, metrics, step)
        + element("p", where, css="lead")
        + _verified(facts.directory)
        + pairs(one for one in about_run(facts) if one[0] != "state")
    )


def _tiles(facts: RunFacts, metrics: Mapping[str, float | None], step: int) -> Html:
    shown = [(name, value) for name, value in metrics.items() if not split_part(name)[1]]
    limits, guesses = intervals(facts, step), chances(facts, step)
    tiles = []
    for name, value in shown[:MOST_TILES]:
        more = [element("span", name)]
        if name in limits:
            low, high = (format_metric(name, limit) for limit in limits[name])
            more.append(element("span", f"95 %: {low} to {high}"))
        if name in guesses:
            more.append(element("span", f"chance: {format_metric(name, guesses[name])}"))
        tiles.append(element("div", element("b", format_metric(name, value)), *more, css="figure"))
    return element("div", *tiles, css="figures") if tiles else Html("")


def _result(facts: RunFacts) -> str:
    """The result in a sentence: counted over the examples where the run kept their scores, else its best metric."""
    step, metrics, _ = facts.shown_evaluation
    if not metrics:
        return ""
    if (counted := _count_examples(facts, step)) is not None:
        return counted
    name = facts.summary.best.rpartition(" ")[0] if facts.summary.best_value is not None else next(iter(metrics))
    value = metrics.get(name)
    first = facts.evaluations[0]
    before = first[1].get(name)
    if value is None:
        return ""
    said = f"{name} is {format_metric(name, value)} after {step:,} steps"
    return f"{said}; it was {format_metric(name, before)} at step {first[0]:,}." if first[0] < step else f"{said}."


def _count_examples(facts: RunFacts, step: int) -> str | None:
    """Return the result at a step as counts of what was right or wrong, with what a guess has; None if none were kept.

    Of several tasks it has a sentence for each whose examples can be counted.
    """
    guesses = chances(facts, step)
    said: dict[str, str] = {}
    for prefix, summary in summaries_at(facts, step):
        task = prefix.partition("_")[2].rstrip("/")
        counted = None if task in said else _count_summary(summary, prefix, guesses)
        if counted is not None:
            said[task] = f"{task}: {counted}" if task else counted
    return " ".join(said.values()) or None


def _count_summary(summary: Mapping[str, Any], prefix: str, guesses: Mapping[str, float]) -> str | None:
    scores, phenomena = scored(summary), read_phenomena(summary)
    if phenomena:
        right, number = map(sum, zip(*phenomena.values(), strict=True))
        return f"{right:,.0f} of {number:,.0f} minimal pairs are right; guessing has {number / 2:,.0f}."
    if scores is None:
        return None
    part, number = (sum(column) for column in zip(*scores.sums, strict=True))
    guess = guesses.get(prefix + scores.figure)
    metric = find_metric(scores.figure)
    if metric is not None and metric.percent and metric.higher:
        said = f"{part:,.0f} of {number:,.0f} are right"
        return f"{said}; guessing has {guess * number:,.0f}." if guess is not None else f"{said}."
    if metric is not None and metric.errors and number:
        return f"{part:,.4g} of {number:,.4g} {metric.errors} are wrong ({100 * part / number:.1f} %)."
    return None


def _data(facts: RunFacts) -> Iterator[str]:
    """Yield a line on the data, of each task: how much each split has, and which labels, languages and corpora."""
    for task, splits in read_statistics(facts.directory).items():
        options = facts.tasks.get(task, facts.options)
        said = [f"{name} {', '.join(counts)}" for name, one in splits.items() if (counts := [*_counts(one)])]
        languages = _named(options, ("language", "languages", "source_language", "target_language"))
        corpora = _named(options, ("type",), below="corpus") or _named(options, ("name",), below="datasets")
        more = [
            *([f"languages: {_listed(languages)}"] if languages else []),
            *([f"from {_listed(corpora)}"] if corpora else []),
        ]
        if said:
            yield f"Data{f' of {task}' if task else ''}: {'; '.join([*said, *more])}."


def _counts(split: Mapping[str, Any]) -> Iterator[str]:
    contents = split.get(CONTENTS)
    if isinstance(contents, dict) and (number := to_number(contents.get("number"))) is not None:
        yield f"{number:,.0f} {contents.get('unit')}"
    if (seconds := to_number(split.get("seconds"))) is not None:
        yield f"{seconds / 3600:,.2f} hours" if seconds >= 360 else f"{seconds / 60:,.1f} minutes"
    speakers = split.get("speakers")
    number = to_number(len(speakers) if isinstance(speakers, list | dict) else speakers)
    if number:
        yield f"{number:,.0f} {'speaker' if number == 1 else 'speakers'}"
    groups = split.get("groups")
    if isinstance(groups, dict) and len(groups) > 1:
        yield f"{len(groups)} groups by {split.get('group')}"
    labels = split.get("labels")
    for one in labels if isinstance(labels, list) else ():
        if isinstance(one, dict) and one:
            yield (
                f"{len(one)} labels ({_listed(list(one))})" if len(one) <= MOST_NAMED_SPEAKERS else f"{len(one)} labels"
            )


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED_SPEAKERS
    return ", ".join(map(str, names[:MOST_NAMED_SPEAKERS])) + (f" and {more} more" if more > 0 else "")


def _named(options: Any, keys: tuple[str, ...], below: str = "") -> list[str]:
    """The texts that options have under any of the keys, once each; with ``below``, only in sections of that name."""
    found: dict[str, None] = {}

    def look(value: Any, inside: bool) -> None:
        if isinstance(value, Mapping):
            for name, one in value.items():
                texts = one if isinstance(one, list) else [one]
                if inside and name in keys:
                    found.update(dict.fromkeys(text for text in texts if isinstance(text, str) and text))
                look(one, inside or name == below)
        elif isinstance(value, list):
            for one in value:
                look(one, inside)

    look({name: options.get(name) for name in ("data", "datasets")}, not below)
    return [*found]


def about_run(facts: RunFacts) -> list[tuple[str, object]]:
    summary, there = facts.summary, facts.environment
    packages = there.get("packages")
    torch = packages.get("torch") if isinstance(packages, dict) else None
    minutes, seconds = divmod(round(to_number(summary.seconds) or 0), 60)
    best = format_metric(summary.best.rpartition(" ")[0], to_number(summary.best_value))
    trained = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    of = f" of {summary.total_steps:,}" if summary.total_steps else ""
    parameters = "" if summary.parameters is None else f"{summary.parameters:,}"
    processes = there.get("world_size", 1)
    shared = f"{processes} {'process' if processes == 1 else 'processes'}"
    machine = [f"{there.get('device', '?')}", shared, there.get("platform", "")]
    return [
        ("task", summary.task),
        ("state", summary.state),
        ("step", f"{summary.step:,}{of}"),
        ("best", "" if summary.best_value is None else f"{summary.best.rpartition(' ')[0]} {best}"),
        ("training took", trained),
        ("last written", summary.date),
        ("parameters", parameters),
        ("on", ", ".join(str(one) for one in machine if one) if there else ""),
        ("Vaak", get_session_version(there) if there else ""),
        ("torch", torch or ""),
        ("command", element("code", get_session_command(there)) if get_session_command(there) else ""),
    ]


def get_session_version(there: Mapping[str, Any]) -> str:
    commit = there.get("commit")
    return f"{there.get('vaak', '?')}{f', commit {commit}' if commit else ''}"


def get_session_command(there: Mapping[str, Any]) -> str:
    """Return the command of a session, as it would be typed."""
    found = there.get("command")
    # Arguments that an earlier version wrote down are hidden, too.
    found = hide_arguments(list(map(str, found))) if isinstance(found, list) else found
    if not isinstance(found, list) or not found:
        return ""
    program, *arguments = map(str, found)
    name = "vaak" if Path(program).name in ("vaak", "-c", "__main__.py") else f"python {shlex.quote(program)}"
    return f"{name} {shlex.join(arguments)}" if arguments else ""


def _verified(run: Path) -> Html:
    found = read_json_object(run / "verification.json")
    if not isinstance(found.get("sentence"), str):
        return Html("")
    verdict = found.get("verified") is True
    said = "Verified" if verdict else "Differs from what it says"
    state = element("span", said, css=f"state {'true' if verdict else 'false'}")
    findings = found.get("findings")
    lines = [element("li", one) for one in (findings if isinstance(findings, list) else [])[:MOST_REMARKS]]
    about = element("p", state, f" by vaak verify on {str(found.get('time'))[:10]}: {found['sentence']}.")
    return Html(about + (element("ul", *lines) if lines else ""))
