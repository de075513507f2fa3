"""Examples of a run's validation with their references, as its own evaluations kept them.

They are those of its report (``vaak.core.summaries``), so a run needs nothing else but its folder. One that was never
evaluated has none. Those of a language model are the beginnings of validation texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.summaries import LONGEST_TEXT
from vaak.report.run_facts import choose_summary, media, read_facts, summaries
from vaak.serve.models import Served

MOST_SHOWN = 5
INPUTS, REFERENCES = ("source", "text"), ("reference", "references", "class")
"""Keys of an example, of which one has the text that is read, and one what should come of it."""


@dataclass(frozen=True)
class Example:
    """What a model may be tried on, a text or a recording, and what should come of it, a text or a recording, too."""

    given: str | Path
    reference: str | Path


def read_examples(served: Served, folder: Path) -> list[Example]:
    """Return some examples of a run's validation; recordings are written to ``folder``. None for other models."""
    if pairs := served.task.examples_to_try(MOST_SHOWN):
        return [Example(*pair) for pair in pairs]
    run = served.opened.directory
    try:
        facts = read_facts(run)
        found = summaries(facts)
    except (UserError, OSError):  # a pretrained model, or a folder that has no more than a checkpoint
        return []
    _, _, part = served.name.partition("/")
    prefix = f"val_{part}/" if f"val_{part}/" in found else "val_"
    if prefix not in found:
        return []
    _, summary = choose_summary(found[prefix], facts.shown_step)
    kept = _Sounds(prefix.replace("/", "_"), {one.name: one.content for one in media(facts)[0]}, folder)
    shown = list[Example]()
    rows = summary.get("examples")
    for one in rows if isinstance(rows, list) else ():
        if isinstance(one, dict) and (given := _find_input(one, kept)) is not None:
            number = one.get("index")
            spoken = kept.write(f"recorded-{number + 1}") if isinstance(number, int) else None
            shown.append(Example(given, spoken or _write_reference(one)))
    return shown[:MOST_SHOWN]


@dataclass(frozen=True)
class _Sounds:
    """The sounds of a run, by their names, which begin with a prefix; they are written to a folder."""

    prefix: str
    contents: dict[str, bytes]
    folder: Path

    def write(self, name: str) -> Path | None:
        content = self.contents.get(self.prefix + name)
        if content is None:
            return None
        path = self.folder / f"{name}.wav".replace("/", "_")
        path.write_bytes(content)
        return path


def _find_input(one: dict[str, Any], kept: _Sounds) -> str | Path | None:
    name = one.get("audio")
    if isinstance(name, str):
        return kept.write(name)
    texts = [one[key] for key in INPUTS if isinstance(one.get(key), str)]
    # A longer one was cut for the report, and is another text.
    return next((text for text in texts if text.strip() and len(text) < LONGEST_TEXT), None)


def _write_reference(one: dict[str, Any]) -> str:
    for key in REFERENCES:
        found = one.get(key)
        if isinstance(found, str):
            return found
        if isinstance(found, list):  # several translations, or who speaks when
            lines = [one if isinstance(one, str) else _write_span(one) for one in found]
            return "\n".join(filter(None, lines))
    return ""


def _write_span(span: Any) -> str:
    if not isinstance(span, list) or len(span) != 3:
        return ""
    start, end, speaker = span
    return f"{start}–{end} s: {speaker}"
