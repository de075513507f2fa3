"""``vaak translate``: translate texts with a trained sequence-to-sequence model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import ModelInUse, Output, Text, add_options, on_a_run, read_texts
from vaak.cli.output import print_or_write
from vaak.tasks.seq2seq.config import TranslationOptions

if TYPE_CHECKING:
    from vaak.tasks.seq2seq.predict import Translation, Translator


@on_a_run
@add_options(TranslationOptions, into="decoding", leave_out=("valid_examples",))
def translate(
    chosen: ModelInUse,
    text: Text,
    decoding: dict[str, Any],
    output: Output = None,
    attention: Annotated[
        Path | None, typer.Option(help="An HTML page to write: the attention in the first text's translation.")
    ] = None,
) -> None:
    """Translate a text, or each line of a file; a blank line stays blank.

    With --n-best, a line per translation: the number of its text, its score and the translation, separated by tabs.

    Options that are not given come from data.decoding of the run.

    Example: vaak translate runs/translator "the boy" --beam-size 4 --n-best 2
    """
    texts, where = read_texts(text)
    opened = chosen.open_for("translate")
    settings = opened.task.decoding(**decoding)
    translator = opened.task.translator(opened.model)
    translations = translator.translate(texts, settings, where)
    if attention is not None:
        translations = _drawn(translations, translator, attention)
    numbered = "n_best" in decoding
    total = None if numbered and not chosen.as_json else len(texts)
    with opened.precision.autocast():
        print_or_write(_lines(translations, as_json=chosen.as_json, numbered=numbered), output, total)


def _drawn(translations: Iterator[Translation], translator: Translator, attention: Path) -> Iterator[Translation]:
    """Yield the same translations; the picture of the first that isn't blank is drawn on the way."""
    from vaak.tasks.seq2seq.predict import draw_translation

    drawn = False
    for translation in translations:
        if translation.candidates and not drawn:
            draw_translation(translator, translation, attention)
            drawn = True
        yield translation


def _lines(translations: Iterator[Translation], *, as_json: bool, numbered: bool) -> Iterator[str]:
    for number, translation in enumerate(translations, 1):
        found = [{"text": one.text, "score": one.score, "ended": one.ended} for one in translation.candidates]
        if as_json:
            said = {"source": translation.source, "text": translation.text, "translations": found}
            yield json.dumps(said, ensure_ascii=False)
        elif numbered:
            yield from (f"{number}\t{one.score:.4f}\t{_one_line(one.text)}" for one in translation.candidates)
        else:
            yield _one_line(translation.text)


def _one_line(text: str) -> str:
    """``text`` without line breaks and tabs, which would look like another line or column."""
    return " ".join(text.split())
