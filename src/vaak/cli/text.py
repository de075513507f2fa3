"""Text as a model gets it: ``vaak tokenizer`` (tokens) and ``vaak phonemes`` (sounds)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import AsJson, Output, add_options
from vaak.core.errors import DataError
from vaak.text.speech.config import FrontEndConfig

if TYPE_CHECKING:
    from vaak.text.speech.processor import PhonemeProcessor, Processed

app = typer.Typer(
    help="Inspect a tokenizer.",
    epilog="Example: vaak tokenizer show runs/quickstart",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def tokenizer() -> None:
    """Inspect a tokenizer."""


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A run, a tokenizer.json, or a folder with one.")],
    text: Annotated[str | None, typer.Argument(help="Show its tokens; without it, the vocabulary.")] = None,
    first: Annotated[int, typer.Option(min=0, help="The first token of the vocabulary to show.")] = 0,
    number: Annotated[int, typer.Option(min=1, help="How many tokens of the vocabulary to show.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show tokens as readable text: ␣ is a space, ⏎ a newline, ‹E0› a byte that isn't a character by itself.

    Example: vaak tokenizer show runs/quickstart "लड़की सोती है।"
    """
    from vaak.runs.folder.directory import require_own_run
    from vaak.runs.prepared import prepared_folder
    from vaak.text.tokenizer import Tokenizer, normalise

    if (path / "config.yml").is_file():
        require_own_run(path)
        path = prepared_folder(path) / "tokenizer"
    found = Tokenizer.load(path)
    vocabulary = range(first, min(first + number, found.vocab_size))
    ids = list(vocabulary) if text is None else found.encode(normalise(text))
    named = [token for token in ids if found.backend.id_to_token(token) is not None]
    if as_json:
        tokens = [{"id": token, "token": found.readable(token)} for token in named]
        print(json.dumps({"vocab_size": found.vocab_size, "tokens": tokens}, ensure_ascii=False))
        return
    if text is not None:
        print(" ".join(found.readable(token) for token in named))
        return
    for token in named:
        print(f"{token:>7}  {found.readable(token)}")
    print(f"{len(named):,} of {found.vocab_size:,} tokens")


TEXTS_AT_ONCE = 200
"""Lines that are pronounced with one loading of espeak-ng."""


@add_options(FrontEndConfig, into="front_end", show_defaults=True)
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
    """Print for each line its normalised text, a tab, and its phonemes with | between words.

    A blank line stays blank. A line that can't be spoken becomes blank and is listed at the end, with exit code 2.

    Example: vaak phonemes "Dr. Roe paid $3.50 in 1999." --alphabet arpabet
    """
    from vaak.cli.arguments import read_texts
    from vaak.cli.output import print_or_write
    from vaak.config.base import from_options
    from vaak.text.speech.guesses import count_guesses, summarize_guesses
    from vaak.text.speech.processor import PhonemeProcessor
    from vaak.text.speech.unspoken import Unspoken

    processor = PhonemeProcessor(from_options(FrontEndConfig, front_end, "vaak phonemes"))
    texts, where = read_texts(text)
    problems: list[str] = []
    unspoken = Unspoken()

    def leave_out(index: int, symbols: tuple[str, ...]) -> None:
        unspoken.add(symbols, where(index))

    def note(index: int, error: DataError) -> None:
        if len(texts) == 1:
            raise DataError(f"{where(index)}: {error}") from error
        problems.append(f"{where(index)}: {error}")

    found = (_normalised if normalised_only else _phonemize)(processor, texts, note, leave_out)
    with count_guesses() as guesses:
        print_or_write((json.dumps(one, ensure_ascii=False) if as_json else _line(one) for one in found), output)
    for problem in problems:
        print(problem, file=sys.stderr)
    if unspoken.counts:
        print(unspoken, file=sys.stderr)
    if guesses:
        print(summarize_guesses(guesses), file=sys.stderr)
    if problems:
        raise typer.Exit(2)


Note = Callable[[int, DataError], None]
LeaveOut = Callable[[int, tuple[str, ...]], None]
"""Called with the index of a text, and what of it isn't spoken."""


def _normalised(
    processor: PhonemeProcessor, texts: list[str], note: Note, leave_out: LeaveOut
) -> Iterator[dict[str, Any]]:
    for index, text in enumerate(texts):
        try:
            lost: list[str] = []
            yield {"text": text, "normalised": processor.normalise(text, (), lost)}
            leave_out(index, tuple(lost))
        except DataError as error:
            note(index, error)
            yield {"text": text, "normalised": ""}


def _phonemize(
    processor: PhonemeProcessor, texts: list[str], note: Note, leave_out: LeaveOut
) -> Iterator[dict[str, Any]]:
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = texts[first : first + TEXTS_AT_ONCE]
        processed = _process_texts(processor, some, first, note)
        for index, (text, one) in enumerate(zip(some, processed, strict=True), first):
            if one is None:
                yield {"text": text, "normalised": "", "symbols": [], "ids": []}
            else:
                leave_out(index, one.unspoken)
                yield {"text": text, "normalised": one.normalised, "symbols": one.symbols, "ids": one.ids}


def _process_texts(
    processor: PhonemeProcessor, texts: list[str], first: int, note: Callable[[int, DataError], None]
) -> Iterator[Processed | None]:
    """Yield what each text became; None of blank ones, and of those that can't be spoken, which are noted."""
    try:
        at_once = iter(processor.process_all([text for text in texts if text.strip()]))
        yield from (next(at_once) if text.strip() else None for text in texts)
    # process_all gives all texts or none, so nothing was yielded yet; one by one shows which text is at fault.
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
