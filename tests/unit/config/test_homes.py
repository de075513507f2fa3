"""A leading ~ in an option that names a file or a folder is a home, as for the shell that leaves it there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter

from vaak.config.base import Place
from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.tasks import TASKS
from vaak.core.names import from_home
from vaak.tasks.asr.stages.options import MoeOptions

NAMES_OTHERWISE = {
    "name": "of people, or of a folder in another",
    "train": "of parts of a recipe",
    "upload_to": "a URL",
    "match": "a pattern",
    "options": "of a user's class, which reads them itself",
    "columns": "of a table",
    "text_column": "of a table",
    "label_columns": "of a table",
    "source_column": "of a table",
    "target_column": "of a table",
    "resume": "of a stage",
    "samples": "sentences",
    "init_except": "patterns",
    "init_rename": "patterns",
    "checkpoints": "which",
    "type": "a class, ./file.py:Name",
    "task": "a class, ./file.py:Name",
    "group": "a key of a manifest",
    "speaker_features": "options",
    "tags": "labels",
    "tasks": "experiments, read by themselves",
    "auxiliary": "classes",
    "subset": "of a dataset",
    "metric": "of an evaluation",
    "prompt": "a text",
    "fold": "a number",
    "data": "a section",
    "base_config": "sections",
}
"""Options whose description speaks of files, folders or runs, and what they name."""
SPOKEN_OF = re.compile(r"\b(files?|folders?|a run|checkpoint|dictionary|directory)\b", re.IGNORECASE)


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


def all_sections() -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    waiting: list[type[BaseModel]] = [MoeOptions, *map(experiment_type, TASKS)]
    while waiting:
        section = waiting.pop()
        if section not in found:
            found.add(section)
            waiting += [one for field in section.model_fields.values() for one in sections_in(field.annotation)]
    return found


def whole(field: Any) -> Any:
    """The annotation of a field with what pydantic took off it."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def holds(annotation: Any, kinds: tuple[Any, ...]) -> bool:
    if get_origin(annotation) is Annotated and "from_home" in repr(get_args(annotation)[1:]):
        return Place in kinds
    return annotation in kinds or any(holds(part, kinds) for part in get_args(annotation))


PLACES = sorted(
    (section.__name__.split("[")[0], name, str(field.annotation)[:9], whole(field))
    for section in all_sections()
    for name, field in section.model_fields.items()
    if holds(whole(field), (Place,))
)


@pytest.mark.parametrize(("section", "name", "annotation"), [(*one[:2], one[3]) for one in PLACES])
def test_every_option_that_names_a_file_knows_homes(
    monkeypatch: pytest.MonkeyPatch, section: str, name: str, annotation: Any
) -> None:
    """The options are found by their types; blanks, newlines and Devanagari in a name stay."""
    monkeypatch.setenv("HOME", "/homes/me")
    adapter = TypeAdapter(annotation)
    for typed, meant in {
        "~/a b/\u0915\nc": "/homes/me/a b/\u0915\nc",
        "~": "/homes/me",
        "~root/x": from_home("~root/x"),
        "~nobody-has-this-name/x": "~nobody-has-this-name/x",
        "a/~/b": "a/~/b",
        "./~/b": "./~/b",
    }.items():
        try:
            read = adapter.validate_python(typed)
        except ValueError:
            (read,) = adapter.validate_python((typed,))
        # A text with commas between its parts is a list of them.
        (read,) = read if isinstance(read, tuple) else (read,)
        assert str(read) == (str(Path(meant)) if isinstance(read, Path) else meant), (section, name)
    assert from_home("~root/x") != "~root/x"


def test_every_option_that_speaks_of_files_is_one_or_says_why_not() -> None:
    """An option added later is here, too."""
    assert len(PLACES) >= 50
    left = {
        f"{section.__name__.split('[')[0]}.{name}"
        for section in all_sections()
        for name, field in section.model_fields.items()
        if holds(whole(field), (str, Path))
        and not holds(whole(field), (Place,))
        and SPOKEN_OF.search(field.description or "")
        and name not in NAMES_OTHERWISE
    }
    assert not left


def test_an_option_after_an_equals_sign_is_read_as_a_word_of_its_own(
    vaak: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Shells leave the ~ of ``--output=~/x``; that of ./~ is a folder's name."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    for typed, written in (("~/a b.yml", "home/a b.yml"), ("./~/c.yml", "~/c.yml")):
        (tmp_path / written).parent.mkdir(exist_ok=True)
        monkeypatch.setattr("sys.argv", ["vaak", "init", "quickstart", f"--output={typed}"])
        code, _, said = vaak("init", "quickstart", f"--output={typed}")
        assert (code, (tmp_path / written).is_file()) == (0, True), said


def test_the_command_line_and_files_mean_homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stored paths are absolute, so that a process with another home resolves them."""
    home = tmp_path / "a home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "own.py").write_text("class Mine:\n    pass\n")
    (home / "base.yml").write_text("task: lm\ndata: {cache_dir: ~/cache, corpus: {type: text, train: [~/a b.txt]}}\n")
    upper = tmp_path / "upper.yml"
    upper.write_text("extends: ~/base.yml\nrun_dir: ~/runs/x\n")
    read = load([upper]).experiment
    assert read.run_dir == home / "runs/x"
    assert read.data.cache_dir == f"{home}/cache"
    assert read.data.corpus.train == (f"{home}/a b.txt",)
    over = load(["~/base.yml"], ["run_dir=~/y", "training.loss=~/own.py:Mine", "training.checkpoint.save_dir=~/s"])
    assert over.experiment.run_dir == home / "y"
    assert over.experiment.training.checkpoint.save_dir == f"{home}/s"
    assert not (tmp_path / "~").exists()
