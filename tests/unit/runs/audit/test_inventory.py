"""Which files are counted, which are named as not covered, singly or by their folder, and how many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.runs.audit.inventory import Inventory, list_files


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


def named(folder: Path) -> list[str]:
    found = Inventory(folder)
    found.name_uncovered()
    return found.not_covered


def test_files_are_named_singly_where_hardly_any_are_expected_and_else_by_their_folder(tmp_path: Path):
    make(tmp_path, "notes.txt", "wandb/a/one.log", "wandb/two.log", "pictures/one.png", "code/mine.py", "tasks/a/b.txt")
    make(tmp_path, "checkpoints/set-aside/step-00000002.1/state.json", "checkpoints/set-aside/step-00000004.1/x.json")
    make(tmp_path, ".lock", "prepared/.lock", "sessions/0009.yml", "checkpoints/step-00000002/extra.bin")
    assert sorted(named(tmp_path)) == [
        ".lock (2)",
        "checkpoints/set-aside/ (2)",
        "checkpoints/step-00000002/extra.bin",
        "code/mine.py",
        "notes.txt",
        "pictures/ (1)",
        "sessions/0009.yml",
        "tasks/a/b.txt",
        "wandb/ (2)",
    ]


@pytest.mark.parametrize("number", [8, 9])
def test_no_more_than_eight_are_named_singly(tmp_path: Path, number: int):
    make(tmp_path, *(f"code/{place}.py" for place in range(number - 3)), *(f"prepared/{place}" for place in range(3)))
    make(tmp_path, "checkpoints/set-aside/a", "checkpoints/set-aside/b", *(f"{place}.txt" for place in range(9)))
    said = named(tmp_path)
    assert [one for one in said if one[0] in "cp"] == [
        "checkpoints/set-aside/ (2)",
        *(f"code/{place}.py" for place in range(number - 3)),
        *(f"prepared/{place}" for place in range(3 if number == 8 else 2)),
    ]
    assert [one for one in said if "more" in one] == ["1 more files in code, prepared"] * (number - 8)
    assert len([one for one in said if one.endswith(".txt")]) == 9, "at the top each has its name"


def test_what_was_compared_or_explained_is_not_named_again(tmp_path: Path):
    make(tmp_path, "one.json", "two.json", "three.json")
    found = Inventory(tmp_path)
    found.compare(tmp_path / "one.json")
    found.leave_out("two.json (why)", tmp_path / "two.json")
    found.leave_out("two.json (why)")
    found.name_uncovered()
    assert found.not_covered == ["two.json (why)", "three.json"]


def test_a_file_once_found_wrong_stays_wrong_and_each_finding_is_said_once(tmp_path: Path):
    found = Inventory(tmp_path)
    found.compare(tmp_path / "one", None)
    found.compare(tmp_path / "two", "it is bad", None)
    found.compare(tmp_path / "two", None)
    found.compare(tmp_path / "three", "it is bad")
    found.say("the run is odd")
    assert found.findings == ["it is bad", "the run is odd"]
    assert found.compared == {
        tmp_path / "one": True,
        tmp_path / "two": False,
        tmp_path / "three": False,
        tmp_path: False,
    }
    assert found.num_files == (3, 1), "the directory itself isn't a file"


def test_json_that_is_damaged_is_a_finding_and_what_is_not_there_is_none(tmp_path: Path):
    found = Inventory(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    make(tmp_path, "good.json")
    assert [found.read(tmp_path / f"{name}.json") for name in ("good", "none", "bad", "folder")] == [
        {},
        None,
        None,
        None,
    ]
    assert found.findings == [f"{tmp_path / name}.json: this is damaged" for name in ("bad", "folder")]


def test_of_links_only_those_of_checkpoints_and_prepared_data_are_followed(tmp_path: Path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    make(elsewhere, "b/two.bin", "one.bin")
    make(run, "a.txt", "sub/c.txt")
    for name in ("prepared", "other"):
        (run / name).symlink_to(elsewhere)
    found = [path.relative_to(run).as_posix() for path in list_files(run)]
    assert found == ["a.txt", "other", "prepared/b/two.bin", "prepared/one.bin", "sub/c.txt"]
