"""A run's name became a folder's whatever it was: ``..``, two lines, or more than a file system takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.cli.arguments import files_and_overrides
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.config.yaml.tree import ConfigError


def problem(folder: Path, **options: str) -> str:
    """The message for options that no folder can have."""
    (folder / "run.yml").write_text(yaml_text({"task": "lm", **options}), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load([folder / "run.yml"])
    return str(error.value)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_is_not_a_folder_that_is_there(tmp_path, name):
    assert problem(tmp_path, name=name).endswith(f"name: is {name}, which can't name a new folder; give another name=")


@pytest.mark.parametrize("key", ["name", "run_dir"])
@pytest.mark.parametrize("text", ["two\nlines", "tab\t", "delete\x7f", "escape\x1b[2J", "c1\x85", "line\u2028line"])
def test_a_folder_has_no_control_characters(tmp_path, key, text):
    said = problem(tmp_path, **{key: text})
    assert f"{key}: is " in said
    assert "control character" in said
    assert text not in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["a" * 256, "क" * 86, "a" * 300])
def test_a_name_is_short_enough_for_a_file_system(tmp_path, name):
    said = problem(tmp_path, name=name)
    assert f"takes {len(name.encode())} bytes in UTF-8, and a folder name may have at most 255" in said


@pytest.mark.parametrize("name", ["a" * 255, "क" * 85, "hindi-v1.2", "हिन्दी क\u200dष", "...", "-x", "a b"])
def test_other_names_are_folders(tmp_path, name):
    (tmp_path / "run.yml").write_text(yaml_text({"task": "lm", "name": name}), encoding="utf-8")
    assert load([tmp_path / "run.yml"]).experiment.name == name
    (tmp_path / name).mkdir()


def test_a_name_with_separators_is_refused_as_before(tmp_path):
    for name in ("a/b", "a\\b", "/"):
        assert "expected text without / or \\" in problem(tmp_path, name=name)


def test_the_name_of_a_file_is_checked_too(tmp_path):
    (tmp_path / "two\nlines.yml").write_text("task: lm\n")
    with pytest.raises(ConfigError, match=r"name: is .*control character"):
        load([tmp_path / "two\nlines.yml"])


def test_an_override_that_is_too_long_for_a_file_is_an_override():
    """Whether it names a file was asked in a way that raised an error."""
    override = f"data.corpus.train=[{', '.join(['texts/part.txt'] * 40)}]"
    assert files_and_overrides(["run.yml", override]) == (["run.yml"], [override])
