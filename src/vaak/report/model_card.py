"""A model card: what an exported model is, what it was trained on, how good it is, how to use and to check it.

It is Markdown with the metadata of the Hugging Face Hub at its head, made of what a run's folder holds. What a run says
is a stranger's: no name of a file outside of it is repeated, and nothing is read as Markdown or HTML.

Source: Mitchell et al. 2019, "Model Cards for Model Reporting". Differs: what a run can't know (intended use, ethical
considerations) is left for people to write.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.config.metrics import find_repeats, in_words
from vaak.config.tasks import ExportedFolder, ExportFormat, TaskSpec, spec_by_name
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.core.errors import UserError
from vaak.core.secrets import OWN_PREFIX, is_secret, refer
from vaak.core.storage.files import read_json, warn_unread
from vaak.engine.metrics_file import iterate_evaluations
from vaak.report.start import compare_with_start
from vaak.report.tables import format_hours, markdown_table

COUNTS = ("documents", "words", "utterances", "examples", "pairs", "texts", "recordings", "speakers", "seconds")
"""The statistics of prepared data that are shown, of those that a task has; seconds as hours."""


@dataclass(frozen=True)
class AboutExport:
    """The facts of a card that the run doesn't hold.

    ``step`` is that of the exported checkpoint, if its name says it. ``license`` is the model's, and ``data_licenses``
    are those of its data, each in a user's words. ``languages`` are codes as of ISO 639. ``spec`` is that of the run's
    task; without it, that of the name which the run's configuration has.
    """

    form: str
    step: int | None
    folder: str
    files: Sequence[str] = ()
    license: str | None = None
    data_licenses: Sequence[str] = ()
    languages: Sequence[str] = ()
    quantization: str | None = None
    spec: TaskSpec | None = None


def model_card(run: Path, about: AboutExport) -> str:
    """Return the card of a model that was exported from a ``run``'s folder."""
    options = read_options(run)
    task, name = str(options.get("task", "model")), str(options.get("name") or run.name)
    spec = about.spec or spec_by_name(task)
    declared = spec.exports.get(about.form, ExportFormat(about.form))
    head = {
        "library_name": declared.library,
        **({"pipeline_tag": spec.hub_tag} if spec.hub_tag else {}),
        **({"license": about.license} if about.license else {}),
        **({"language": list(about.languages)} if about.languages else {}),
        "tags": ["vaak", task],
    }
    environment = read_json_object(run / "environment.json")
    sections = [
        ("", _opening(task, about, environment)),
        ("Use", _use(declared, about, options)),
        ("Data", _data(run, options, about)),
        ("Results", _results(run, about.step)),
        ("Training", _training(options, environment)),
        ("Check", _check(run)),
    ]
    body = "".join(f"{f'## {title}{chr(10) * 2}' if title else ''}{text}\n\n" for title, text in sections if text)
    return f"---\n{yaml_text(head)}---\n\n# {plain(name)}\n\n{body.rstrip()}\n"


def plain(text: object) -> str:
    """Return untrusted text escaped, so that Markdown shows it literally."""
    return re.sub(r"([\\`*_{}\[\]()#!|~])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def _opening(task: str, about: AboutExport, environment: Mapping[str, Any]) -> str:
    version = plain(environment.get("vaak", "?"))
    license = plain(about.license) if about.license else "not said (`vaak export --license`)"
    weights = f", weights in {plain(about.quantization)}" if about.quantization else ""
    step = "" if about.step is None else f", step {about.step:,}"
    return f"A model of task {plain(task)}, trained by Vaak {version}{step}{weights}. Licence: {license}."


def _use(declared: ExportFormat, about: AboutExport, options: Mapping[str, Any]) -> str:
    name = re.sub(r"[^\w./-]", "_", about.folder)
    code = declared.code(ExportedFolder(name, about.files, options, about.languages))
    return f"```python\n{code}\n```\n{declared.note}".rstrip() if code else ""


def _data(run: Path, options: Mapping[str, Any], about: AboutExport) -> str:
    rows = [tuple(map(plain, row)) for row in tabulate_splits(run)]
    named = [*(options.get("datasets") or ()), (options.get("data") or {}).get("corpus")]
    sources = [str(one.get("name") or one.get("type")) for one in named if isinstance(one, dict)]
    lines = [f"Sources: {', '.join(map(plain, sources))}."] if sources else []
    said = "; ".join(map(plain, about.data_licenses)) or "not said (`vaak export --data-license`)"
    lines += [f"Licences of the data: {said}.", *([f"\n{markdown_table(rows)}".rstrip()] if rows else [])]
    return "\n".join(lines)


def tabulate_splits(run: Path) -> list[tuple[str, ...]]:
    """Return a table of the prepared data: its head, then the counts of each split; empty if nothing was counted."""
    splits = {
        f"{task} {split}".lstrip(): one for task, its in read_statistics(run).items() for split, one in its.items()
    }
    keys = [key for key in COUNTS if any(isinstance(one.get(key), int | float) for one in splits.values())]
    if not keys:
        return []
    head = ("split", *("hours" if key == "seconds" else key for key in keys))
    return [head, *((name, *(_count(key, one.get(key)) for key in keys)) for name, one in splits.items())]


def find_prepared(run: Path) -> dict[str, Path]:
    """Return the folders of a run's prepared data: under an empty name, or by task where several train at once."""
    apart = {path.parent.name: path for path in sorted(run.glob("tasks/*/prepared"))}
    return apart or {"": run / "prepared"}


def read_statistics(run: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the counts of each split of the prepared data, by task as in ``find_prepared``."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for task, folder in find_prepared(run).items():
        counts = read_json_object(folder / "prepared.json").get("statistics")
        splits = counts.items() if isinstance(counts, dict) else ()
        found[task] = {split: one for split, one in splits if isinstance(one, dict)}
    return found


def _count(key: str, value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    return format_hours(value / 3600) if key == "seconds" else f"{value:,.0f}"


def _results(run: Path, step: int | None) -> str:
    """Return the metrics of the evaluation at this step: those of the whole first, then those of its groups."""
    by_step: dict[Any, dict[str, float]] = {
        record["step"]: {name: one for name, one in record.items() if isinstance(one, float)}
        for record in iterate_evaluations(run)
    }
    repeated = find_repeats([*by_step.values()])
    found = {name: one for name, one in by_step.get(step, {}).items() if name not in repeated}
    if not found:
        return "This checkpoint wasn't evaluated in training: `vaak eval RUN --split test`."
    rows: list[tuple[str, ...]] = [
        ("metric", "value"),
        *((f"`{_code(name)}`", in_words(name, value)) for name, value in found.items()),
    ]
    about = f"On the validation data, at step {step:,}. A name after a slash is that of a group, or of a task's metric."
    changes = {} if step is None else {one.name: one for one in compare_with_start(run, step)}
    if changes:
        about += (
            " Before is the model that training began with; intervals are of 95 %, by paired bootstrap over examples."
        )
        of_changes = [changes[name].cells if name in changes else ("", "") for name in found]
        before = [("before", "difference"), *of_changes]
        rows = [(row[0], old, row[1], by) for row, (old, by) in zip(rows, before, strict=True)]
    return f"{about}\n\n{markdown_table(rows).rstrip()}"


def _training(options: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    shown = {name: options[name] for name in ("model", "training") if isinstance(options.get(name), dict)}
    text = yaml_text(_shown(shown)).replace("```", "'''")
    packages = environment.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    where = f"On {plain(environment.get('device', '?'))}, {plain(environment.get('world_size', 1))} process(es), "
    where += f"torch {plain(packages.get('torch', '?'))}, commit {plain(environment.get('commit') or 'unknown')}."
    return f"{where}\n\n```yaml\n{text}```" if shown else where


def _shown(value: Any) -> Any:
    """Options without those that are null, and without the folders of files, which are this machine's."""
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _check(run: Path) -> str:
    found = read_json_object(run / "verification.json")
    if not isinstance(found.get("sentence"), str):
        return "Not verified: `vaak verify RUN` takes steps of the run again and compares its metrics."
    verdict = "is what it says" if found.get("verified") is True else "**isn't what it says**"
    when = plain(str(found.get("time"))[:10])
    return f"The run {verdict}, by `vaak verify` on {when}: {plain(found['sentence'])}."


def _code(name: str) -> str:
    return " ".join(name.replace("`", "'").split())


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one where it is missing, and, with a warning, where it is damaged."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warn_unread(path, error)
        return {}
    if not isinstance(found, dict):
        warn_unread(path, "it has no object")
        return {}
    return found


def read_options(run: Path) -> dict[str, Any]:
    """Return the run's options, without secrets.

    None if there are variables in them, as no run writes any but those of secrets: their values would be in the
    card.
    """
    path = run / "config.yml"
    try:
        text = OWN_REFERENCE.sub("", REFERRING.sub(_without_secret, path.read_text(encoding="utf-8")))
        # Reading replaces any other variable by its value, which would then be public with the card.
        if re.search(r"(?<!\$)\$\{", text):
            return {}
        found = read_yaml(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, UserError) as error:
        warn_unread(path, error)
        return {}
    return refer(found) if isinstance(found, dict) else {}


OWN_REFERENCE = re.compile(rf"\$\{{{OWN_PREFIX}\w+\}}")
REFERRING = re.compile(r"(?<![\w.-])([\w.-]+): \"(\$\{\w+\})\"")


def _without_secret(line: re.Match[str]) -> str:
    return "" if is_secret(line[1], line[2]) else line[0]
