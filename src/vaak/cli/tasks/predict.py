"""``vaak predict``: a trained model of any task, run on new inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, is_dataclass
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
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Print one line per input: the prediction as text or, with --json, as JSON.

    Tasks that read audio take files and folders, which are searched for it. Recordings are called as vaak transcribe
    and vaak diarize call them; those that can't be read are reported at the end, and the exit code is 2. The commands
    of the tasks (generate, translate, diarize, transcribe, speak) have more options; speak writes audio.

    Example: vaak predict runs/en_hi "The boy is good."
    """
    from vaak.runs.open_run import select_task

    opened = select_task(chosen.open(), task)
    # A user's own task may not have the option, so it is passed only if given.
    given = {} if batch_size is None else {"batch_size": batch_size}
    named = inputs or (line.rstrip("\n") for line in sys.stdin)
    failed, number = dict[Path, UserError](), len(inputs) if inputs else None
    results: Iterator[Any]
    if hasattr(opened.task, "predict_files"):
        from vaak.audio.audio_file import audio_files

        files, failed = audio_files(map(Path, named))
        number = len(files)
        results = _without_failed(opened.task.predict_files(opened.model, files, **given), failed)
    else:
        results = opened.task.predict(opened.model, named, **given)
    lines = (json.dumps(_plain(result), ensure_ascii=False) if chosen.as_json else str(result) for result in results)
    with opened.precision.autocast():
        print_or_write(lines, output, number)
    # Results are computed while they are printed, so failures are known only now.
    if hasattr(opened.task, "predict_files"):
        print_failed("predicted", len(set(files) - failed.keys()), failed)
    if failed:
        raise typer.Exit(2)


def _without_failed(found: Iterable[tuple[Path, Any]], failed: dict[Path, UserError]) -> Iterator[Any]:
    """Yield the results of files; errors of unreadable ones go to ``failed``."""
    for path, one in found:
        if isinstance(one, UserError):
            failed[path] = one
        else:
            yield one


def _plain(result: Any) -> Any:
    """A result that can be written as JSON."""
    if hasattr(result, "to_json"):
        return result.to_json()
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    return result if isinstance(result, str | int | float | bool | list | dict | None) else str(result)
