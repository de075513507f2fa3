"""``vaak predict``: a trained model of any task, run on new inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, Output, on_a_run
from vaak.cli.output import print_failed, print_or_write
from vaak.core.errors import UserError


@on_a_run
def predict(
    chosen: ModelInUse,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Inputs of the task: texts, or files and folders of audio; default: lines of stdin."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name of the task, in a run of several.")] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Of a pretrained encoder: the embedding of each text, as JSON.")
    ] = False,
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Print one line per input: the prediction as text or, with --json, as JSON.

    Tasks that read audio take files and folders, which are searched for it. Recordings are called as vaak transcribe
    and vaak diarize call them; those that can't be read are reported at the end, and the exit code is 2. The commands
    of the tasks (generate, translate, diarize, transcribe, speak) have more options; speak writes audio.

    Example: vaak predict runs/en_hi "The boy is good."
    Example: vaak predict sentence-transformers/all-MiniLM-L6-v2 "The boy is good." --embeddings
    """
    if embeddings:
        _print_embeddings(chosen, inputs, output)
        return
    from vaak.runs.open_run import select_task
    from vaak.runs.use import predict_inputs, reads_files, to_json

    opened = select_task(chosen.open(), task)
    named = inputs or (line.rstrip("\n") for line in sys.stdin)
    failed, number = dict[Path, UserError](), len(inputs) if inputs else None
    results: Iterator[Any]
    if reads_files(opened.task):
        from vaak.audio.audio_file import audio_files

        files, failed = audio_files(map(Path, named))
        number = len(files)
        results = _without_failed(
            zip(files, predict_inputs(opened.task, opened.model, files, batch_size), strict=True), failed
        )
    else:
        results = predict_inputs(opened.task, opened.model, named, batch_size)
    lines = (json.dumps(to_json(one), ensure_ascii=False) if chosen.as_json else str(one) for one in results)
    with opened.precision.autocast():
        print_or_write(lines, output, number)
    # Results are computed while they are printed, so failures are known only now.
    if reads_files(opened.task):
        print_failed("predicted", len(set(files) - failed.keys()), failed)
    if failed:
        raise typer.Exit(2)


def _print_embeddings(chosen: ModelInUse, inputs: list[str] | None, output: Path | None) -> None:
    """Print or write a line of JSON for each text. Raises UserError for a run, whose classes are what it predicts."""
    from vaak.engine.distributed.launcher import pick_device
    from vaak.runs.base import is_base

    if not is_base(chosen.run):
        raise UserError(f"--embeddings: {chosen.run} is a run; give a pretrained encoder, a folder or OWNER/NAME")
    from vaak.tasks.classification.sentence_encoder import embed

    texts = inputs or (line.rstrip("\n") for line in sys.stdin)
    found = embed(str(chosen.run), texts, pick_device(chosen.device))
    lines = (json.dumps({"text": text, "embedding": vector}, ensure_ascii=False) for text, vector in found)
    print_or_write(lines, output, len(inputs) if inputs else None)


def _without_failed(found: Iterable[tuple[Path, Any]], failed: dict[Path, UserError]) -> Iterator[Any]:
    """Yield the results of files; errors of unreadable ones go to ``failed``."""
    for path, one in found:
        if isinstance(one, UserError):
            failed[path] = one
        else:
            yield one
