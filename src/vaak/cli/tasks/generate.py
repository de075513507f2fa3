"""``vaak generate``: continue a text with a trained language model."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, Output, add_options, on_a_run
from vaak.cli.output import print_or_write
from vaak.core.errors import DataError, UserError
from vaak.tasks.lm.config import GenerationOptions

if TYPE_CHECKING:
    from vaak.text.corpora.conversations import Conversation


@on_a_run
@add_options(GenerationOptions, into="sampling", show_defaults=True)
def generate(
    chosen: ModelInUse,
    text: Annotated[str, typer.Argument(help="The prompt; may be empty.")] = "",
    *,
    sampling: dict[str, Any],
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The text is a question, or a JSON file of messages: print the answer alone."),
    ] = False,
    samples: Annotated[int, typer.Option(min=1, help="Number of continuations.")] = 1,
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Continue a text, and print it while it is generated; the same seed gives the same text.

    Example: vaak generate runs/quickstart "लड़की" --temperature 0.7 --samples 3
    """
    opened = chosen.open_for("generate")
    task = opened.task
    asked = _conversation(text) if chat else None
    prompt = (
        task.prompt(text)
        if asked is None
        else task.chat_template.prompt(asked.messages, text, asked.tools, asked.options)
    )
    if cut := task.reads.describe_cut(prompt):
        print(f"warning: {cut}", file=sys.stderr)
    settings = task.sampling(**(GenerationOptions().model_dump() | sampling))
    with opened.precision.autocast():
        if samples == 1 and output is None and not chosen.as_json:
            write, begin, text = (
                (task.stream, text, text)
                if asked is None
                else (partial(task.answer, tools=asked.tools, options=asked.options), asked.messages, "")
            )
            for index, piece in enumerate(write(opened.model, begin, settings)):
                sys.stdout.write(piece if index else text + piece)
                sys.stdout.flush()
            sys.stdout.write("\n")
            return
        settings, text = (task.answering(settings), "") if chat else (settings, text)
        # One seed for each, so that any of them can be repeated alone.
        seeds = range(settings.seed, settings.seed + samples)
        continuations = task.written(opened.model, ((prompt, seed) for seed in seeds), settings, batch_size)
        lines = (
            json.dumps({"text": text + one, "seed": seed}, ensure_ascii=False) if chosen.as_json else text + one
            for seed, one in zip(seeds, continuations, strict=True)
        )
        print_or_write(lines, output, samples)


def _conversation(text: str) -> Conversation:
    """The conversation that a file has, with its tools, or a question. Raises UserError for what is neither."""
    from vaak.text.corpora.conversations import read_conversation

    if not text.strip():
        raise UserError("--chat: the question is empty; give one, or a JSON file of messages")
    if not text.endswith(".json"):
        return read_conversation({"messages": [{"role": "user", "content": text}]}, "--chat")
    try:
        given = json.loads(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"--chat: {text} can't be read: {error}") from error
    return read_conversation({"messages": given} if isinstance(given, list) else given, text)
