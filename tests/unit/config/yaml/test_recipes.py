"""Recipes are found by name from any folder; a user's file of that name comes first, and a line names the used one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vaak as library
from vaak.config.load import load
from vaak.config.yaml import recipes as module
from vaak.config.yaml.recipes import about, recipe_named, recipes

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_recipe_of_the_repository_has_its_name_and_says_what_it_is():
    files = {
        str(path.relative_to(REPOSITORY / "configs").with_suffix("")) for path in REPOSITORY.glob("configs/**/*.yml")
    }
    assert set(recipes()) == files
    assert all(recipe_named(name) == path and about(path) for name, path in recipes().items())


def test_a_recipe_is_taken_where_no_file_has_its_name(vaak, tmp_path: Path):
    code, out, said = vaak("config", "check", "quickstart")
    assert (code, out.partition(";")[0]) == (0, "valid: task lm, run quickstart in runs/quickstart")
    assert said.startswith(f"quickstart: using Vaak's recipe {recipes()['quickstart']}")
    assert vaak("config", "check", "configs/asr/ctc.yml")[0] == 0, "as the documentation writes it"
    (tmp_path / "quickstart.yml").write_text("task: lm\nname: mine\n")
    code, out, said = vaak("config", "check", "quickstart")
    assert out.startswith("valid: task lm, run mine in runs/mine")
    assert said == "quickstart: using quickstart.yml in this folder, not Vaak's recipe of that name\n"
    code, _, said = vaak("config", "check", "quikstart")
    assert (code, said) == (2, "quikstart: file not found; did you mean quickstart?\n")
    assert (
        vaak("config", "check", "asr/quikstart")[2] == "asr/quikstart: file not found; did you mean asr/quickstart?\n"
    )
    assert vaak("config", "check", "x/y")[2] == "x/y: file not found; vaak init --list names the recipes\n"


@pytest.mark.parametrize("name", ["../pyproject", "/etc/passwd", "configs/../../pyproject.yml", "a b", "", "a.json"])
def test_other_names_are_no_recipes(name: str):
    assert recipe_named(name) is None


def test_files_extend_recipes_and_the_library_finds_them(tmp_path: Path):
    (tmp_path / "mine.yml").write_text("extends: configs/decoder_model.yml\nname: mine\n")
    assert load(["mine.yml"]).experiment.model == library.load_config("decoder_model").model


def test_a_recipe_finds_its_data_from_any_folder(tmp_path: Path):
    named = load(["lm/preferences"]).experiment.data.corpus.train
    assert named == (str(recipes()["lm/preferences"].parent / "preferences.jsonl"),)
    (tmp_path / "configs/lm").mkdir(parents=True)
    (tmp_path / "configs/lm/preferences.jsonl").write_text("{}")
    assert load(["lm/preferences"]).experiment.data.corpus.train == ("configs/lm/preferences.jsonl",)


def test_an_installed_vaak_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "vaak/recipes").mkdir(parents=True)
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "vaak")
    assert module.recipes_folder() == tmp_path / "vaak/recipes"


def test_they_are_listed_in_80_columns(vaak):
    code, out, _ = vaak("init", "--list")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert set(recipes()) <= set(out.splitlines())
    listed = json.loads(vaak("init", "--list", "--json")[1])
    assert {one["name"]: one["file"] for one in listed} == {name: str(path) for name, path in recipes().items()}
