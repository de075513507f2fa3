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
        bool,
        typer.Option("--embeddings", help="Print the embedding of each text as JSON (encoders and classifiers)."),
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Score pairs of texts separated by a tab (cross-encoders).")
    ] = False,
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Print one line per input: the prediction as text or, with --json, as JSON.

    Tasks that read audio take files, and folders to search for audio. Recordings are named as by vaak transcribe and
    vaak diarize; those that can't be read are reported at the end, and the exit code is 2. The commands of single tasks
    (generate, translate, classify, transcribe, diarize, speak) have more options; speak writes audio.

    Example: vaak predict runs/en_hi "The boy is good."

    Example: vaak predict sentence-transformers/all-MiniLM-L6-v2 "The boy is good." --embeddings

    Example: vaak predict cross-encoder/ms-marco-MiniLM-L6-v2 --pairs < pairs.tsv
    """
    if embeddings and pairs:
        raise UserError("--pairs: given together with --embeddings; keep one of them")
    texts = inputs or (line.rstrip("\n") for line in sys.stdin)
    if embeddings or pairs:
        lines = _score_pairs(chosen, texts) if pairs else _embed(chosen, texts, task, batch_size)
        print_or_write(lines, output, len(inputs) if inputs else None)
        return
    from vaak.runs.open_run import select_task
    from vaak.runs.use import predict_inputs, reads_files, to_json

    opened = select_task(chosen.open(), task)
    failed, number = dict[Path, UserError](), len(inputs) if inputs else None
    results: Iterator[Any]
    if reads_files(opened.task):
        from vaak.audio.audio_file import audio_files

        files, failed = audio_files(map(Path, texts))
        number = len(files)
        results = _without_failed(
            zip(files, predict_inputs(opened.task, opened.model, files, batch_size), strict=True), failed
        )
    else:
        results = predict_inputs(opened.task, opened.model, texts, batch_size)
    lines = (json.dumps(to_json(one), ensure_ascii=False) if chosen.as_json else str(one) for one in results)
    with opened.precision.autocast():
        print_or_write(lines, output, number)
    # Results are computed while they are printed, so failures are known only now.
    if reads_files(opened.task):
        print_failed("predicted", len(set(files) - failed.keys()), failed)
    if failed:
        raise typer.Exit(2)


def _embed(chosen: ModelInUse, texts: Iterable[str], task: str | None, batch_size: int | None) -> Iterator[str]:
    """Yield a line of JSON for each text. Raises UserError for a run of a task without embeddings."""
    from vaak.engine.distributed.launcher import pick_device
    from vaak.runs.base import is_base

    if is_base(chosen.run):
        from vaak.tasks.classification.sentence_encoder import embed

        found = embed(str(chosen.run), texts, pick_device(chosen.device))
    else:
        opened = chosen.open_part_for("predict --embeddings", task)
        found = opened.task.embed(opened.model, texts, batch_size)
    for text, vector in found:
        yield json.dumps({"text": text, "embedding": vector}, ensure_ascii=False)


def _score_pairs(chosen: ModelInUse, lines: Iterable[str]) -> Iterator[str]:
    """Yield the score of each pair, or a line of JSON. Raises UserError for a run, and a line without a pair."""
    from vaak.engine.distributed.launcher import pick_device
    from vaak.runs.base import is_base

    if not is_base(chosen.run):
        raise UserError(f"--pairs: {chosen.run} is a run; give a cross-encoder, a folder or OWNER/NAME")
    from vaak.tasks.classification.sentence_encoder import score_pairs

    def split() -> Iterator[tuple[str, str]]:
        for number, line in enumerate(lines, 1):
            first, tab, second = line.partition("\t")
            if not tab or "\t" in second:
                raise UserError(f"--pairs: input {number} has {line.count(chr(9))} tabs; expected two texts and a tab")
            yield first, second

    for (text, other), score in score_pairs(str(chosen.run), split(), pick_device(chosen.device)):
        about = {"text": text, "text_pair": other, "score": score}
        yield json.dumps(about, ensure_ascii=False) if chosen.as_json else str(score)


def _without_failed(found: Iterable[tuple[Path, Any]], failed: dict[Path, UserError]) -> Iterator[Any]:
    """Yield the results of files; errors of unreadable ones go to ``failed``."""
    for path, one in found:
        if isinstance(one, UserError):
            failed[path] = one
        else:
            yield one
