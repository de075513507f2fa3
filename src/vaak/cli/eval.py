"""``vaak eval``: metrics on a split. ``vaak lm-eval``: tasks of lm-eval. ``vaak baseline``: simple baselines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import (
    AsJson,
    ChosenModel,
    Device,
    Output,
    TrustCode,
    Weights,
    WhichWeights,
    complete_runs,
    files_and_overrides,
    on_a_run,
    require_model,
    resolve_file,
)
from vaak.core.errors import UserError
from vaak.report.tables import aligned

if TYPE_CHECKING:
    from vaak.core.task import Meters
    from vaak.runs.open_run import OpenedRun

EMPTY = ("", "[]", "null")


def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run (its best checkpoint), a checkpoint (a folder step-…, best or last), or a pretrained model: a "
            "folder, a file, OWNER/NAME on the Hub.",
            autocompletion=complete_runs,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA.yml… key=value…]", help="YAML files and options that override the run's own."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="The split to evaluate on; may be repeated. Default: valid; test with --data, --model-path or "
            "--data-config."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--output-dir",
            help="Write evaluation.json, and tables and pictures, if the task has some, to this folder.",
        ),
    ] = None,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
    model_path: Annotated[
        Path | None, typer.Option("--model-path", help="The run or checkpoint, instead of the first argument.")
    ] = None,
    data_config: Annotated[
        list[str] | None, typer.Option("--data-config", help="A YAML of data, like DATA.yml; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="A file or folder to evaluate on: a manifest, a table, texts; recognised as by vaak init."
        ),
    ] = None,
) -> None:
    """Evaluate a run, or a pretrained model, in fp32 and print its metrics with the evaluation protocol.

    Example: vaak eval runs/quickstart --split test --output evaluation

    Example: vaak eval openai/whisper-base --data test.jsonl data.language=hi
    """
    given = [*(data_config or []), *(arguments or [])]
    if model_path is not None:
        # With --model-path, the first argument is a YAML of data or an override.
        run, given = model_path, [*([] if run is None else [str(run)]), *given]
    if run is None:
        raise UserError("give a run or a checkpoint: vaak eval RUN, or --model-path RUN")
    # Checked before the seconds that importing torch takes.
    require_model(run)

    from vaak.cli.output import create_folder
    from vaak.config.metrics import percents
    from vaak.core.storage.files import write_json
    from vaak.runs.evaluate import evaluate_run

    create_folder(output)
    files, overrides = files_and_overrides(given)
    paths = [Path(file) for file in files]
    # These two flags are the research kit's "test set evaluation".
    kit_flags = [flag for flag, value in (("--model-path", model_path), ("--data-config", data_config)) if value]
    splits = split or ["test" if kit_flags or data else "valid"]
    overrides = [*_override_data(run, data, splits), *overrides]
    if kit_flags and not split:
        print(f"{' and '.join(kit_flags)}: evaluating test; for the other split, add --split valid", file=sys.stderr)
    _require_evaluated(overrides, splits)
    evaluated: dict[str, Meters] = {}

    def keep_meters(opened: OpenedRun, name: str, meters: Meters) -> Meters:
        evaluated[name] = meters
        return meters

    report = evaluate_run(run, paths, overrides, splits, device, weights, trust_code=trust_code, watched=keep_meters)
    report["percent"] = percents(report["metrics"])
    if output is not None:
        write_json(output / "evaluation.json", report)
        for name, meters in evaluated.items():
            _write_tables(output, name, meters)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    _print_report(report)


def _override_data(run: Path, data: Path | None, splits: list[str]) -> list[str]:
    """Return overrides that make ``data`` the data of the split that is evaluated; none without ``data``.

    Raises UserError for several splits.
    """
    if data is None:
        return []
    if len(splits) > 1:
        raise UserError(f"--data replaces one split: give only --split {splits[0]}, or a YAML of data")
    from vaak.runs.evaluate import make_data_overrides

    return make_data_overrides(run, data, splits[0])


def _print_report(report: dict[str, Any]) -> None:
    from vaak.cli.output import print_contents, print_metrics

    print(f"{report['checkpoint']}")
    print_metrics(report["metrics"])
    for name, protocol in report["protocol"].items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in protocol.items() if key != "split"))
    print_contents(report["data"])
    for line in report["below_baselines"]:
        print(line)


def _require_evaluated(overrides: list[str], splits: list[str]) -> None:
    """Raise UserError if the command line names files of a split that isn't evaluated."""
    for key, _, value in (override.partition("=") for override in overrides):
        section, _, name = key.rpartition(".")
        names_files = section == "data.corpus" or section.startswith("datasets.")
        if names_files and name in ("valid", "test", "out_of_scope") and name not in splits and value not in EMPTY:
            raise UserError(f"{key} is not read, because only {', '.join(splits)} is evaluated; add --split {name}")


def _write_tables(folder: Path, split: str, meters: Meters) -> None:
    """Write the tables of a split to ``folder`` as CSV, and its pictures, if any, as PNG."""
    from vaak.core.storage.files import write_bytes, write_text

    tables = meters.tables()
    for name, content in tables.items():
        write_text(folder / f"{split}_{name}.csv", content)
    try:
        for name, picture in meters.pictures().items() if tables else ():
            write_bytes(folder / f"{split}_{name}.png", picture)
    except UserError as error:
        # The plot extra isn't installed.
        print(f"warning: no pictures: {error}", file=sys.stderr)


@on_a_run
def lm_eval(
    chosen: ChosenModel,
    tasks: Annotated[
        str, typer.Option(help="Tasks, separated by commas: names of the harness, patterns, or task files (YAML).")
    ],
    *,
    include_path: Annotated[Path | None, typer.Option(help="A folder with further task files.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=FILE", help="A file to read instead of a task's own data; may be repeated."),
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Number of solved examples in the prompt.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of examples of each task; default: all.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of texts computed together.")] = 16,
    output: Output = None,
) -> None:
    """Evaluate a language model on tasks of lm-eval: minimal pairs, multiple choice, perplexity, answers.

    Example: vaak lm-eval runs/quickstart --tasks blimp_causative --data blimp_causative=causative.jsonl
    """
    from vaak.cli.output import create_folder, print_metrics
    from vaak.core.errors import optional_import
    from vaak.core.storage.files import write_json

    with optional_import("vaak lm-eval requires lm-eval", "lm-eval"):
        from vaak.tasks.lm.evaluation_harness import HarnessModel, Questions, evaluate
    create_folder(None if output is None else output.parent)
    opened = chosen.open_for("lm-eval")
    names = tuple(name.strip() for name in tasks.split(",") if name.strip())
    if not names:
        raise UserError("--tasks: expected names of tasks, or task files")
    files = {}
    for text in data or ():
        name, sign, file = text.partition("=")
        if not (name and sign and file):
            raise UserError(f"--data {text}: expected TASK=FILE")
        files[name] = Path(file)
    questions = Questions(names, include_path, files, num_fewshot, limit, chosen.trust_code)
    report = {"checkpoint": str(opened.checkpoint)} | evaluate(
        HarnessModel(opened.task, opened.model, batch_size), questions
    )
    if output is not None:
        write_json(output, report)
    if chosen.as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(report["checkpoint"])
    print_metrics(report["metrics"])
    for name, value in report["protocol"].items():
        print(f"{name}: {value}")


THIS_RUN = "this run"


def baseline(
    file: Annotated[Path, typer.Argument(help="A YAML (its data are prepared if necessary) or a run directory.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.yml… key=value…]", help="Further files and options.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate on.")] = "valid",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Score simple baselines without a neural network on the data of a YAML or a run, with the same metrics.

    Each task has its own, such as n-grams for a language model and TF-IDF with a linear SVM for a classifier. Their
    metrics are stored with the run: vaak train and vaak eval warn if a model is worse.

    Example: vaak baseline runs/quickstart --split test
    """
    files, overrides = files_and_overrides(arguments or [])
    first = Path(resolve_file(str(file)))

    from vaak.cli.output import print_contents
    from vaak.config.load import load
    from vaak.config.metrics import in_words
    from vaak.core.left_out import files_to_json, noting_files
    from vaak.engine.evaluation import PREFIXES
    from vaak.runs.evaluate import below_baselines, evaluate_run, make_baselines
    from vaak.runs.folder.directory import holds_a_run
    from vaak.runs.open_run import list_layers, resolve_run

    layers = list_layers(resolve_run(file)) if file.is_dir() else [first]
    loaded = load([*layers, *files], overrides, trust_code=trust_code)
    with noting_files() as noted:
        found, data = make_baselines(loaded, split)
    directory = loaded.experiment.run_dir
    columns, below = dict(found.figures), list[str]()
    if holds_a_run(directory) and (directory / "checkpoints" / "last").exists():
        report = evaluate_run(directory, [], [], [split], trust_code=trust_code)
        prefix = PREFIXES.get(split, f"{split}_")
        columns[THIS_RUN] = {name.removeprefix(prefix): value for name, value in report["metrics"].items()}
        below = below_baselines(directory, report["metrics"])
    if as_json:
        about = {"data": data, "files": files_to_json(noted)}
        print(json.dumps({"split": split, "figure": found.figure, "figures": columns, "below": below, **about}))
        return
    # Metrics of the run that no baseline has are omitted.
    names = dict.fromkeys(name for method, metrics in columns.items() if method != THIS_RUN for name in metrics)
    rows = [["metric", *columns]]
    for name in names:
        rows.append([name, *(in_words(name, one[name]) if name in one else "–" for one in columns.values())])
    print("\n".join([*aligned(rows, left=1), *below]))
    print_contents(data)
