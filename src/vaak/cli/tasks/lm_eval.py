"""``vaak lm-eval``: a language model by the task files of the LM Evaluation Harness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson, Device, Output, TrustCode, Weights, WhichWeights


def lm_eval(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    tasks: Annotated[
        str, typer.Option(help="Tasks, separated by commas: names of the harness, patterns, or task files (YAML).")
    ],
    *,
    include_path: Annotated[Path | None, typer.Option(help="A folder with further task files.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=FILE", help="A file that is read in place of a task's own data; may be repeated."),
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Number of solved examples before each.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of examples of each task; default: all.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts that are read at once.")] = 16,
    output: Output = None,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a language model by task files of lm-eval: minimal pairs, multiple choice, perplexity, answers.

    Example: vaak lm-eval runs/quickstart --tasks blimp_causative --data blimp_causative=causative.jsonl
    """
    from vaak.cli.output import create_folder
    from vaak.cli.results import print_figures
    from vaak.core.errors import UserError, optional_import
    from vaak.core.storage.files import write_json
    from vaak.runs.open_run import open_run

    with optional_import("vaak lm-eval requires lm-eval", "lm-eval"):
        from vaak.tasks.lm.harness.evaluation import Questions, evaluate
        from vaak.tasks.lm.harness.model import HarnessModel
    create_folder(None if output is None else output.parent)
    opened = open_run(run, device=device, weights=weights, trust_code=trust_code)
    if opened.experiment.task != "lm" or not opened.task.causal:
        what = f"task {opened.experiment.task}" if opened.experiment.task != "lm" else "an encoder"
        raise UserError(f"{run} is a run of {what}; vaak lm-eval requires a language model that is a decoder")
    names = tuple(name.strip() for name in tasks.split(",") if name.strip())
    if not names:
        raise UserError("--tasks: expected the name of a task, or a task file")
    files = {name: Path(file) for name, file in map(_pair, data or ())}
    questions = Questions(names, include_path, files, num_fewshot, limit, trust_code)
    report = {"checkpoint": str(opened.checkpoint)} | evaluate(
        HarnessModel(opened.task, opened.model, batch_size), questions
    )
    if output is not None:
        write_json(output, report)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(report["checkpoint"])
    print_figures(report["metrics"])
    for name, value in report["protocol"].items():
        print(f"{name}: {value}")


def _pair(text: str) -> tuple[str, str]:
    """Raises UserError for an option that isn't TASK=FILE."""
    from vaak.core.errors import UserError

    name, sign, file = text.partition("=")
    if not (name and sign and file):
        raise UserError(f"--data {text}: expected TASK=FILE")
    return name, file
