"""A checkpoint alone, copied out of its run, is opened, used and evaluated as in its run; in a run it means the run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.runs.folder.listing import list_runs
from vaak.runs.open_run import open_run, resolve_run


def alone(run: Path, folder: Path) -> Path:
    """The newest checkpoint of a run, copied."""
    newest = list_checkpoints(run / "checkpoints")[-1]
    return shutil.copytree(newest, folder / newest.name)


def figures(vaak, run: Path, *options: str) -> dict[str, float]:
    code, out, err = vaak("eval", run, *options, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])["metrics"]


def test_it_means_its_run_wherever_that_is(tiny_run: Path, tmp_path: Path):
    newest = list_checkpoints(tiny_run / "checkpoints")[-1]
    assert resolve_run(newest) == resolve_run(tiny_run / "checkpoints") == tiny_run
    copy = shutil.copytree(tiny_run, tmp_path / "copy")
    assert resolve_run(copy / "checkpoints" / newest.name) == copy
    assert resolve_run(copy / "checkpoints" / "best") == copy


def test_it_is_evaluated_as_in_its_run(vaak, tiny_run: Path, tmp_path: Path):
    copy = alone(tiny_run, tmp_path)
    assert resolve_run(copy) == copy
    assert figures(vaak, copy, "--split", "valid") == figures(
        vaak, list_checkpoints(tiny_run / "checkpoints")[-1], "--split", "valid"
    )
    with pytest.raises(UserError, match="isn't kept with the checkpoint"):
        open_run(copy).task.dataset("valid")


def test_it_writes_and_says_tokens_as_in_its_run(vaak, tiny_run: Path, tmp_path: Path):
    said = [vaak("generate", run, "the", "--max-new-tokens", "4") for run in (tiny_run, alone(tiny_run, tmp_path))]
    assert said[0][0] == 0, said[0][2]
    assert said[0][1] == said[1][1]


def test_a_voice_speaks(vaak, voice_run: Path, tmp_path: Path, monkeypatch):
    copy = alone(voice_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    for run, name in ((list_checkpoints(voice_run / "checkpoints")[-1], "a.wav"), (copy, "b.wav")):
        code, _, err = vaak("speak", run, "He saw me.", "-o", name)
        assert code == 0, err
    assert Path("a.wav").read_bytes() == Path("b.wav").read_bytes()


def test_folders_of_checkpoints_alone(tiny_run: Path, tmp_path: Path):
    copy = shutil.copytree(tiny_run / "checkpoints", tmp_path / "alone")
    assert resolve_run(copy).parent == copy
    assert open_run(copy / "best").checkpoint.parent == copy


def test_each_checkpoint_has_its_own_files_without_the_data(tiny_run: Path):
    first, *_, last = list_checkpoints(tiny_run / "checkpoints")
    name = "prepared/tokenizer/tokenizer.json"
    assert (first / name).read_bytes() == (last / name).read_bytes() == (tiny_run / name).read_bytes()
    assert not (first / name).samefile(last / name)
    assert not (last / "prepared" / "train").exists()


def test_without_hard_links_they_are_copied(tmp_path: Path, tiny_text: Path, monkeypatch):
    def no_link(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_link)
    options = ("training.max_steps=2", "training.checkpoint.interval=1")
    tiny_runs.train(tiny_text, tmp_path / "run", *options)
    *_, last = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert load_checkpoint(last).step == 2
    shutil.move(last, tmp_path / "alone")
    assert open_run(tmp_path / "alone").directory == tmp_path / "alone"


def test_a_checkpoint_is_not_listed_as_a_run(tiny_run: Path, tmp_path: Path):
    shutil.copytree(tiny_run, tmp_path / "run")
    alone(tiny_run, tmp_path)
    assert [run.name for run in list_runs(tmp_path)] == ["run"]
