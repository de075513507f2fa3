"""``vaak init``: list and copy recipes, or write a YAML for the data and the device that are there."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.arguments import AsJson, Delimiter, Encoding, Quotes, complete_tasks_and_recipes, dialect_said
from vaak.config.components import did_you_mean
from vaak.config.yaml.recipes import about, bundled_files, recipe_named, recipes
from vaak.core.errors import UserError
from vaak.core.machine import GIB

INDENTED: Any = {"initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}


def init(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK|RECIPE]",
            help="A task (lm, asr, …), or a recipe to copy.",
            autocompletion=complete_tasks_and_recipes,
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Your data: a folder or a file. It is only read.")] = None,
    hardware: Annotated[
        str, typer.Option(help="auto: this machine; or cpu, mps, or the memory of a GPU, such as 24gb.")
    ] = "auto",
    example: Annotated[
        bool, typer.Option("--example", help="Make a small example data set for the task in the folder --data.")
    ] = False,
    delimiter: Delimiter = None,
    quotes: Quotes = None,
    encoding: Encoding = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The YAML to write; default: TASK.yml.")] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="List the recipes that come with Vaak.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a YAML to begin with: for your data, for an example, or a copy of a recipe.

    It looks at the data (layout, hours, languages, labels, rates) and at the device, and says in comments why each size
    was chosen. On a terminal it asks for missing options. Existing files are never replaced.

    Example: vaak init asr --data recordings --hardware 24gb; vaak init lm --example; vaak init asr/ctc
    """
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if list_recipes or (what is None and data is None and not asks):
        _print_recipes(as_json)
        return
    if what is None and data is None:
        what, data, example, hardware = _questions(hardware)
    recipe = recipe_named(what) if what is not None else None
    if recipe is not None:
        if data is not None or example:
            raise UserError(f"{what} is a recipe, which is copied unchanged; --data and --example go with a task")
        written = _copy_recipe(recipe, output)
    else:
        dialect = dialect_said(delimiter, quotes, encoding)
        written = _for_data(what, data, hardware, example, output, dialect)
    if as_json:
        print(json.dumps({"written": [str(path) for path in written]}, ensure_ascii=False))
        return
    file = written[0]
    print(f"wrote {', '.join(map(str, written))}")
    print(f"next: vaak train {file} --try    everything once, in seconds\n      vaak train {file}")


def _print_recipes(as_json: bool) -> None:
    if as_json:
        rows = [{"name": name, "about": about(path), "file": str(path)} for name, path in recipes().items()]
        print(json.dumps(rows, ensure_ascii=False))
        return
    starts = ("quickstart", *(name for name in recipes() if name.endswith("/quickstart")))
    for name in (*starts, *(name for name in recipes() if name not in starts)):
        print(name)
        print(textwrap.fill(about(recipes()[name]).partition(". ")[0].rstrip(".") + ".", 80, **INDENTED))
    print("\nvaak train NAME trains one, vaak init NAME copies it, to change it;")
    print("vaak init TASK --data FOLDER writes a YAML for your data,")
    print("vaak init TASK --example for data that are made.")


def _questions(hardware: str) -> tuple[str | None, Path | None, bool, str]:
    """Ask on the terminal for the task, the data and the hardware."""
    from vaak.runs.starter import list_tasks

    def answer(question: str, default: str = "") -> str:
        print(textwrap.fill(question, 80, break_on_hyphens=False))
        return str(typer.prompt(">", default=default, show_default=False, prompt_suffix=" ")).strip()

    task = answer(f"Which task? {', '.join(list_tasks())}; empty: chosen by the data.") or None
    folder = answer("Where are the data? A folder; empty: a small example is made.")
    if not folder and task is None:
        raise UserError("an example is made for a task: vaak init TASK --example")
    here = get_device(hardware)
    hardware = answer(f"On what will it train? cpu, mps, or a GPU's memory (24gb); empty: {here.name}.", hardware)
    return task, Path(folder).expanduser() if folder else None, not folder, hardware


def _copy_recipe(recipe: Path, output: Path | None) -> list[Path]:
    """Copy a recipe with the files that it names and extends."""
    from vaak.config.yaml.text import read_yaml
    from vaak.core.storage.files import write_bytes, write_text

    target = output or Path(recipe.name)
    text = recipe.read_text(encoding="utf-8")
    task = re.search(r"^task: *(\w+)", text, re.MULTILINE)
    text = _with_schema(recipe.parent.name if task is None else task[1], text)
    written, tree = [target], read_yaml(recipe)
    base = tree.get("extends")
    others = {} if base is None else {str(base): recipe.parent / str(base)}
    for name, file in bundled_files(tree).items():
        text = text.replace(name, file.name)
        others[file.name] = file
    # All targets, before any is written.
    _require_new([target, *(target.parent / name for name in others)])
    for name, file in others.items():
        if file.suffix == ".yml":
            written += _copy_recipe(file, target.parent / name)
        else:
            write_bytes(target.parent / name, file.read_bytes())
            written.append(target.parent / name)
    try:
        write_text(target, text)
    except OSError as error:
        raise UserError(f"--output {target} can't be written: {error.strerror or error}") from error
    return written


def _require_new(files: list[Path]) -> None:
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists already; give another file by --output")


def _for_data(
    what: str | None, data: Path | None, hardware: str, example: bool, output: Path | None, dialect: dict[str, str]
) -> list[Path]:
    """Write a YAML for data, or for an example that is made; return what was written."""
    from vaak.core.storage.files import write_text
    from vaak.runs.starter import list_tasks, starter, task_for

    if what is not None and what not in list_tasks():
        hint = _tasks_meant(what) or did_you_mean(what, [*list_tasks(), *recipes()])
        known = f"expected a task ({', '.join(list_tasks())}) or a recipe (vaak init --list)"
        copied = f"vaak init {what}/quickstart copies one to start from"
        raise UserError(f"{what}: {copied if recipe_named(f'{what}/quickstart') else f'{known}{hint}'}")
    device = get_device(hardware)
    if example and what is None:
        raise UserError("an example is made for a task: vaak init TASK --example")
    if data is None and not example:
        raise UserError(f"where are the data? vaak init {what} --data FOLDER, or --example makes some")
    target = output or Path(f"{what or 'begin'}.yml")
    _require_new([target])
    made: list[Path] = []
    folder = data or Path(f"{what}-example")
    if example:
        from vaak.runs.example_data import write_example

        write_example(str(what), folder)
        made.append(folder)
    from vaak.report.corpora import render_lines
    from vaak.runs.preflight.doctor.folder import survey_folder

    written_in = target.parent if target.parent.is_dir() else Path()
    seen = folder if os.path.samefile(written_in, os.curdir) else Path(os.path.relpath(folder, written_in))
    # Paths in the YAML will be seen from its folder, so the data are described from there.
    with contextlib.chdir(written_in):
        found = survey_folder(seen, dialect=dialect)
        for one in found:
            print("\n".join(render_lines(one, seen)), end="\n\n", file=sys.stderr)
        task = what or task_for(found)
        text = _with_schema(task, starter(found, device, task, seen))
    try:
        write_text(target, text)
    except OSError as error:
        raise UserError(f"--output {target} can't be written: {error.strerror or error}") from error
    return [target, *made]


def _with_schema(task: str, text: str) -> str:
    """Return a YAML with a first line by which editors find its task's schema, to complete, check and explain options.

    A YAML without a schema of this name (a pipeline's file, a user's own task) is returned unchanged.
    """
    from vaak.config.reference import schema_file

    schema = schema_file(task)
    return f"# yaml-language-server: $schema={schema}\n{text}" if schema.is_file() else text


def _tasks_meant(what: str) -> str:
    """``; did you mean …?`` with the tasks whose names on the Hugging Face Hub have this word, or one much like it.

    >>> _tasks_meant("speech")
    '; did you mean asr (automatic speech recognition), tts (text to speech)?'
    """
    from vaak.config.tasks import load_spec
    from vaak.runs.starter import list_tasks

    tags = {task: (load_spec(task).hub_tag or "").split("-") for task in list_tasks()}
    words = {word for tag in tags.values() for word in tag}
    near = difflib.get_close_matches(what.lower(), words, n=1)
    meant = [f"{task} ({' '.join(tag)})" for task, tag in tags.items() if near and near[0] in tag]
    return f"; did you mean {', '.join(meant)}?" if meant else ""


def get_device(hardware: str) -> Any:
    """Return the device that ``--hardware`` means.

    >>> get_device("24gb").kind, get_device("24 GiB").total >> 30, get_device("cpu").kind
    ('cuda', 24, 'cpu')
    """
    from vaak.runs.preflight.doctor.devices import Device, devices_here, processor

    if hardware == "auto":
        return devices_here()[0]
    if hardware == "cpu":
        return processor()
    if hardware == "mps":
        return Device("mps", "Apple's GPU", processor().total, processor().free)
    memory = re.fullmatch(r"(\d+)\s*g(?:i?b)?", hardware.strip().lower())
    if memory is None or not 0 < int(memory[1]) < 10_000:
        raise UserError(f"--hardware is {hardware}; expected auto, cpu, mps, or the memory of a GPU, such as 24gb")
    return Device("cuda", f"a GPU of {memory[1]} GiB", int(memory[1]) * GIB, int(memory[1]) * GIB, (8, 0))
