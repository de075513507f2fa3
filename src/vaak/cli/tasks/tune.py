"""``vaak tune``: options of inference that are chosen on development data, kept with the run."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import ChosenRun, files_and_overrides, on_a_run
from vaak.cli.output import print_contents
from vaak.core.left_out import files_to_json, noting_files
from vaak.core.storage.files import scratch_folder

if TYPE_CHECKING:
    from vaak.core.task import TunedOptions


@on_a_run
def tune(
    chosen: ChosenRun,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA.yml… key=value…]", help="YAML files and options that override the run's own."),
    ] = None,
    split: Annotated[str, typer.Option(help="The development recordings; test is not allowed.")] = "valid",
) -> None:
    """Tune inference options of a diarizer or CTC recogniser on development data.

    Those of a diarizer are threshold, median filter and minimum durations; of a recogniser the weights of its language
    model, alpha and beta. They are written to RUN/tuned.yml with all of data.inference or data.decoding. Commands that
    use the run take them from there unless their command line overrides them; training doesn't use them. To undo,
    delete the file.

    Example: vaak tune runs/diarizer
    """
    from vaak.runs.evaluate import collect_split_contents
    from vaak.runs.open_run import write_tuned

    files, overrides = files_and_overrides(arguments or [])
    with scratch_folder("tune") as temporary_folder, noting_files() as noted:
        data: dict[str, Any] = {"temporary_folder": temporary_folder, "splits": (split,)}
        opened = chosen.open_for("tune", overrides, files=[Path(file) for file in files], **data)
        found: TunedOptions = opened.task.tune(opened.model, split)
        data_read = collect_split_contents(opened.task, [split])
    *groups, section = found.section.split(".")
    kept: dict[str, Any] = {section: dict(found.options)}
    for group in reversed(groups):
        kept = {group: kept}
    number = f"{found.num_examples} {found.unit}"
    remarks = [
        f"By vaak tune, on {split} ({number}), with {opened.checkpoint.name}.",
        f"{found.before.short} before, {found.after.short} with these options.",
    ]
    path = write_tuned(opened.directory, kept, remarks)
    if chosen.as_json:
        about = {"split": split, found.unit: found.num_examples}
        written = {"file": str(path), "checkpoint": str(opened.checkpoint)}
        scores = {"before": found.before.values, "after": found.after.values}
        data_said = {"data": data_read, "files": files_to_json(noted)}
        protocol = opened.task.meters(split).protocol
        print(json.dumps({**about, **written, **scores, section: found.options, "protocol": protocol, **data_said}))
        return
    print(f"{split}: {found.unit} {found.num_examples}")
    print(f"before  {found.before.line}")
    print(f"after   {found.after.line}")
    before = attrgetter(found.section)(opened.experiment).model_dump(mode="json")
    for name, value in found.options.items():
        if value != before[name]:
            print(f"{name:<17} {before[name]} → {value}")
    print_contents(data_read)
    print(f"in {path}: commands that use this run read it from now on; report metrics on test, not on this split")
