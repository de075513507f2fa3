"""``vaak phonemes``: what text becomes before a model speaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.config import AsJson, Output
from vaak.cli.section_options import with_options_of
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

    A blank line stays blank.

    Example: vaak phonemes "Dr. Roe paid $3.50 in 1999." --alphabet arpabet
    """
    from vaak.cli.output import print_or_write
    from vaak.cli.texts import texts_of
    from vaak.config.base import from_options
    from vaak.text.speech.processor import PhonemeProcessor

    processor = PhonemeProcessor(from_options(FrontEndConfig, front_end, "vaak phonemes"))
    texts, where = texts_of(text)
    found = _normalised(processor, texts, where) if normalised_only else _spoken(processor, texts, where)
    print_or_write((json.dumps(one, ensure_ascii=False) if as_json else _line(one) for one in found), output)


def _normalised(processor: PhonemeProcessor, texts: list[str], where: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    for index, text in enumerate(texts):
        yield {"text": text, "normalised": _placed(processor.normalise, text, where(index))}


def _spoken(processor: PhonemeProcessor, texts: list[str], where: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), AT_ONCE):
        some = texts[first : first + AT_ONCE]
        found = _processed(processor, some, [where(first + index) for index in range(len(some))])
        for text, one in zip(some, found, strict=True):
            if one is None:
                yield {"text": text, "normalised": "", "symbols": [], "ids": []}
            else:
                yield {"text": text, "normalised": one.normalised, "symbols": one.symbols, "ids": one.ids}


def _processed(processor: PhonemeProcessor, texts: list[str], where: list[str]) -> Iterator[Processed | None]:
    """What each text became, None of blank ones. Those before one that can't be spoken are given before its error."""
    from vaak.core.errors import DataError

    try:
        at_once = iter(processor.process_all([text for text in texts if text.strip()]))
    except DataError:
        for text, place in zip(texts, where, strict=True):
            yield _placed(processor.process, text, place) if text.strip() else None
    else:
        yield from (next(at_once) if text.strip() else None for text in texts)


def _placed(function: Callable[[str], Any], text: str, where: str) -> Any:
    """What a function makes of a text; its error says where the text is."""
    from vaak.core.errors import DataError

    try:
        return function(text)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _line(found: dict[str, Any]) -> str:
    if not found["normalised"] or "symbols" not in found:
        return str(found["normalised"])
    return f"{found['normalised']}\t{' '.join('|' if one == ' ' else one for one in found['symbols'])}"
