"""Findings in a folder of data, as lines of 80 columns and as JSON."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.report.tables import aligned, format_hours
from vaak.runs.preflight.doctor.columns import NAMES_BY_ROLE, rank_name
from vaak.runs.preflight.doctor.folder import CorpusSurvey, SplitSurvey

WIDTH = 80
MOST_LISTED = 5
MOST_CHARACTERS = 120


def render_lines(corpus: CorpusSurvey, folder: Path) -> Iterator[str]:
    """Yield a paragraph for a corpus: a table of its splits, then what they have in common."""
    place = "." if corpus.folder == folder else str(corpus.folder.relative_to(folder))
    yield from _wrapped(f"{folder if place == '.' else place}: {corpus.kind}")
    if corpus.note:
        yield from _wrapped(corpus.note, "  ")
    if corpus.problem is not None:
        yield from _wrapped(f"problem: {corpus.problem}", "  ")
    if corpus.audio_problem is not None:
        yield from _wrapped(f"its recordings aren't read: {corpus.audio_problem}", "  ")
    if not corpus.splits:
        return
    yield ""
    head = ("split", "documents", "characters") if corpus.is_text else ("split", "recordings", "hours", "speakers")
    head = (*head, *(() if corpus.is_text else ("seconds: min, med, max",)), "characters: same")
    rows = [(name, *_cells(split, corpus.is_text)) for name, split in corpus.splits.items()]
    yield from aligned([head, *rows], left=1)
    yield ""
    everything = list(corpus.splits.values())
    if any(not one.is_exact for one in everything) and not corpus.is_text:
        yield from _wrapped("~ estimated, > at least: not everything was read in the time", "  ")
    if columns := corpus.options.get("columns"):
        named = ", ".join(f"{key} is {own!r}{_by_content(key, own)}" for key, own in columns.items())
        yield from _named_line("columns", f"{named} (option columns)")
    yield from _about(everything)
    for what, split, shared, number in corpus.leaks():
        percent = 100 * shared / number
        if shared:
            yield from _named_line(
                "leak", f"{shared:,} of {number:,} {what} of {split} are in train, too ({percent:.1f} %)"
            )
    yield from _broken_splits(everything, "texts" if corpus.is_text else "recordings")


def _by_content(role: str, name: str) -> str:
    """Return a note that a column was found by its contents, as its name isn't usual."""
    role = {"offset": "start"}.get(role, role)
    return "" if role not in NAMES_BY_ROLE or rank_name(name, role) is not None else " (by its contents)"


def _cells(split: SplitSurvey, is_text: bool) -> Iterator[str]:
    number = f"{'' if split.is_whole else '>'}{split.num_entries:,}"
    yield number
    if is_text:
        yield f"{'' if split.is_whole else '>'}{split.num_characters:,}"
    else:
        mark = "" if split.is_exact else "~" if split.is_whole else ">"
        yield "-" if split.hours is None else f"{mark}{format_hours(split.hours)}"
        yield f"{len(split.speakers):,}" if split.speakers else "-"
        yield _range([round(one, 1) for one in split.durations])
    yield _range(split.lengths)


def _range(values: list[Any]) -> str:
    """Least, median and greatest."""
    return f"{min(values):,}  {statistics.median_low(values):,}  {max(values):,}" if values else "-"


def _about(splits: list[SplitSurvey]) -> Iterator[str]:
    languages = {name for split in splits for name in split.languages}
    rates = sorted({rate for split in splits for rate in split.rates})
    if languages:
        yield from _named_line("languages", ", ".join(sorted(languages)[:20]))
    if rates:
        yield from _named_line("rates", ", ".join(f"{rate:,} Hz" for rate in rates))
    characters = {one for split in splits for one in split.characters}
    if characters:
        shown = "".join(sorted(one for one in characters if one.isprintable() and not one.isspace()))
        rest = " …" if len(shown) > MOST_CHARACTERS else ""
        yield from _named_line("characters", f"{len(characters):,}: {shown[:MOST_CHARACTERS]}{rest}")
    for text in next((split.examples for split in splits if split.examples), []):
        yield from _named_line("example", textwrap.shorten(text, 150, placeholder=" …"))


def _broken_splits(splits: list[SplitSurvey], what: str) -> Iterator[str]:
    messages = [message for split in splits for message in split.broken]
    read = sum(split.num_entries if what == "texts" else split.num_read for split in splits)
    without = sum(split.without_labels for split in splits)
    if without:
        yield from _named_line("skipped", f"{without:,} of {read:,} recordings read say nothing of speaker or text")
    if messages:
        why = "can't be used" if what == "texts" else "are missing or broken"
        yield from _named_line("problem", f"{len(messages):,} of {read:,} {what} read {why}:")
        for message in messages[:MOST_LISTED]:
            yield from _named_line("", message)


def _named_line(name: str, text: str) -> Iterator[str]:
    """Yield a line that begins with a name, and continues below its text."""
    yield from _wrapped(text, " " * 14, f"  {name:<12}")


def _wrapped(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """Lines of ``WIDTH``; a path is never broken."""
    first = indent if first is None else first
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def to_json(corpus: CorpusSurvey) -> dict[str, Any]:
    """Return all figures of a corpus; seconds and characters as [least, median, greatest]."""

    def span(values: list[Any]) -> list[Any] | None:
        return [min(values), statistics.median_low(values), max(values)] if values else None

    splits = {
        name: {
            "recordings": one.num_entries,
            "complete": one.is_exact or (corpus.is_text and one.is_whole),
            "hours": None if one.hours is None else round(one.hours, 4),
            "speakers": len(one.speakers),
            "texts": one.num_texts,
            "languages": dict(one.languages),
            "rates": {str(rate): number for rate, number in one.rates.items()},
            "seconds": span(one.durations),
            "text_characters": span(one.lengths),
            "characters": "".join(sorted(one.characters)),
            "examples": one.examples,
            "read": one.num_read,
            "broken": one.broken[:100],
        }
        for name, one in corpus.splits.items()
    }
    leaks = [dict(zip(("what", "split", "shared", "number"), one, strict=True)) for one in corpus.leaks()]
    about = {"folder": str(corpus.folder), "type": corpus.kind, "problem": corpus.problem}
    about |= {} if corpus.audio_problem is None else {"audio_problem": corpus.audio_problem}
    return {**about, "splits": splits, "leaks": leaks}
