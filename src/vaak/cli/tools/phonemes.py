"""``vaak phonemes``: what text becomes before a model speaks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.config import AsJson, Output
from vaak.cli.section_options import with_options_of
from vaak.core.errors import DataError
from vaak.text.speech.config import FrontEndConfig

if TYPE_CHECKING:
    from vaak.text.speech.processor import PhonemeProcessor, Processed

AT_ONCE = 200
"""Lines that are pronounced with one loading of espeak-ng."""


@with_options_of(FrontEndConfig, into="front_end", show_defaults=True)
def phonemes(
    front_end: dict[str, Any],
    text: Annotated[
        str, typer.Argument(help="A text, a file with a text in each line, or - for standard input.")
    ] = "-",
    normalised_only: Annotated[
        bool, typer.Option("--normalised-only", help="Print the normalised text without its phonemes.")
    ] = False,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print what each line becomes: its normalised text, a tab, and its phonemes with | between words.

    A blank line stays blank. One that can't be spoken is blank, too, and is listed at the end; the exit code is 2 then.

    Example: vaak phonemes "Dr. Roe paid $3.50 in 1999." --alphabet arpabet
    """
    from vaak.cli.output import print_or_write
    from vaak.cli.texts import texts_of
    from vaak.config.base import from_options
    from vaak.text.speech.processor import PhonemeProcessor

    processor = PhonemeProcessor(from_options(FrontEndConfig, front_end, "vaak phonemes"))
    texts, where = texts_of(text)
    problems: list[str] = []

    def note(index: int, error: DataError) -> None:
        if len(texts) == 1:
            raise DataError(f"{where(index)}: {error}") from error
        problems.append(f"{where(index)}: {error}")

    found = (_normalised if normalised_only else _spoken)(processor, texts, note)
    print_or_write((json.dumps(one, ensure_ascii=False) if as_json else _line(one) for one in found), output)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(2)


def _normalised(
    processor: PhonemeProcessor, texts: list[str], note: Callable[[int, DataError], None]
) -> Iterator[dict[str, Any]]:
    for index, text in enumerate(texts):
        try:
            yield {"text": text, "normalised": processor.normalise(text)}
        except DataError as error:
            note(index, error)
            yield {"text": text, "normalised": ""}


def _spoken(
    processor: PhonemeProcessor, texts: list[str], note: Callable[[int, DataError], None]
) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), AT_ONCE):
        some = texts[first : first + AT_ONCE]
        for text, one in zip(some, _processed(processor, some, first, note), strict=True):
            if one is None:
                yield {"text": text, "normalised": "", "symbols": [], "ids": []}
            else:
                yield {"text": text, "normalised": one.normalised, "symbols": one.symbols, "ids": one.ids}


def _processed(
    processor: PhonemeProcessor, texts: list[str], first: int, note: Callable[[int, DataError], None]
) -> Iterator[Processed | None]:
    """What each text became; None of blank ones, and of those that can't be spoken, which are noted."""
    try:
        at_once = iter(processor.process_all([text for text in texts if text.strip()]))
        yield from (next(at_once) if text.strip() else None for text in texts)
    except DataError:
        for index, text in enumerate(texts, first):
            try:
                yield processor.process(text) if text.strip() else None
            except DataError as error:
                note(index, error)
                yield None


def _line(found: dict[str, Any]) -> str:
    if not found["normalised"] or "symbols" not in found:
        return str(found["normalised"])
    return f"{found['normalised']}\t{' '.join('|' if one == ' ' else one for one in found['symbols'])}"
