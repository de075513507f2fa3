"""``vaak tokenizer``: look at a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson

app = typer.Typer(
    help="Look at a tokenizer.",
    epilog="Example: vaak tokenizer show runs/quickstart",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def tokenizer() -> None:
    """Look at a tokenizer."""


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
    from vaak.runs.prepared import prepared_folder
    from vaak.text.tokenizers.normalise import normalise
    from vaak.text.tokenizers.tokenizer import Tokenizer

    found = Tokenizer.load(prepared_folder(path) / "tokenizer" if (path / "config.yml").is_file() else path)
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
