"""Runs with one save_dir and name shared a folder: the second overwrote, deleted or resumed the first's checkpoints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.artifact import LOCK
from vaak.core.errors import UserError
from vaak.core.storage.lock import locked

QUICK = ("training.max_steps=2", "training.validation.interval=null", "training.checkpoint.interval=1")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    tiny_runs.write_corpus(tmp_path / "text")
    return tmp_path / "text"


def train(text: Path, run: Path, *overrides: str):
    return tiny_runs.train(text, run, *QUICK, f"training.checkpoint.save_dir={text / 'saved'}", *overrides)


@pytest.mark.parametrize("resume", ["auto", "null"])
def test_a_second_run_is_refused_and_the_first_is_as_it_was(text: Path, tmp_path: Path, resume: str):
    train(text, tmp_path / "first")
    before = tiny_runs.hashes(text / "saved")
    with pytest.raises(UserError) as caught:
        train(text, tmp_path / "second", f"training.checkpoint.resume={resume}")
    assert f"has the checkpoints of another run, {tmp_path / 'first'}" in str(caught.value)
    assert "give another name= or training.checkpoint.save_dir" in str(caught.value)
    assert tiny_runs.hashes(text / "saved") == before
    assert not (tmp_path / "second").exists()


def test_a_copy_does_not_write_into_the_originals_checkpoints(text: Path, tmp_path: Path):
    train(text, tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy", symlinks=True)
    before = tiny_runs.hashes(text / "saved")
    with pytest.raises(UserError, match=r"another run, .*first: .*remove the link .*copy/checkpoints"):
        train(text, tmp_path / "copy", "training.checkpoint.resume=auto", "training.max_steps=3")
    assert tiny_runs.hashes(text / "saved") == before
    (tmp_path / "copy" / "checkpoints").unlink()
    own = f"training.checkpoint.save_dir={text / 'others'}"
    first = text / "saved" / "tiny" / "step-00000002"
    assert train(text, tmp_path / "copy", own, f"training.checkpoint.resume={first}", "training.max_steps=3").step == 3
    assert tiny_runs.hashes(text / "saved") == before
    assert (tmp_path / "copy" / "run.json").read_text() != (tmp_path / "first" / "run.json").read_text()


def test_a_run_that_was_moved_goes_on(text: Path, tmp_path: Path):
    train(text, tmp_path / "first")
    identity = (tmp_path / "first" / "run.json").read_text()
    (tmp_path / "first").rename(tmp_path / "moved")
    assert train(text, tmp_path / "moved", "training.checkpoint.resume=auto", "training.max_steps=3").step == 3
    assert (tmp_path / "moved" / "run.json").read_text().splitlines()[1] == identity.splitlines()[1]
    with pytest.raises(UserError, match=r"another run, .*moved:"):
        train(text, tmp_path / "first", "training.checkpoint.resume=auto")


def test_a_run_whose_directory_is_lost_takes_its_checkpoints_over(text: Path, tmp_path: Path, capfd):
    """As on machines whose own disk doesn't outlive them: only save_dir is there when the run resumes."""
    train(text, tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(UserError, match="saved/tiny already holds a run"):
        train(text, tmp_path / "again")
    assert train(text, tmp_path / "again", "training.checkpoint.resume=auto", "training.max_steps=3").step == 3
    assert "first, which is gone: this run takes them over" in capfd.readouterr().err


def test_another_runs_directory_is_no_save_dir(text: Path, tmp_path: Path):
    tiny_runs.train(text, tmp_path / "first", *QUICK)
    before = tiny_runs.hashes(tmp_path / "first" / "checkpoints")
    with pytest.raises(UserError, match=r"another run, .*first:"):
        tiny_runs.train(
            text,
            tmp_path / "second",
            *QUICK,
            f"training.checkpoint.save_dir={tmp_path / 'first'}",
            "name=checkpoints",
            "training.checkpoint.resume=auto",
        )
    assert tiny_runs.hashes(tmp_path / "first" / "checkpoints") == before


def test_checkpoints_that_are_being_written_are_refused(text: Path, tmp_path: Path):
    train(text, tmp_path / "first")
    shutil.rmtree(tmp_path / "first")  # so that its writer's lock on the run directory is seen by no one
    saved = text / "saved" / "tiny"
    with (
        locked(saved / LOCK),
        pytest.raises(UserError, match=r"tiny is being written by this process .*first.*; wait for it"),
    ):
        train(text, tmp_path / "second", "training.checkpoint.resume=auto")


LATER = ("training.checkpoint.resume=auto", "training.max_steps=3")


@pytest.mark.parametrize("begun_elsewhere", [False, True])
def test_with_another_save_dir_a_resume_says_how_to_move_the_checkpoints(
    text: Path, tmp_path: Path, begun_elsewhere: bool
):
    run, other = tmp_path / "run", tmp_path / "other disk"
    if begun_elsewhere:
        train(text, run)
    else:
        tiny_runs.train(text, run, *QUICK)
    before, where = tiny_runs.hashes(run), (run / "checkpoints").resolve()
    options = (*QUICK, f"training.checkpoint.save_dir={other}", *LATER)
    with pytest.raises(UserError, match=r"the checkpoints of this run are in .*move that folder \(mkdir") as caught:
        tiny_runs.train(text, run, *options)
    assert {name: one for name, one in tiny_runs.hashes(run).items() if name != "train.log"} == {
        name: one for name, one in before.items() if name != "train.log"
    }
    command = str(caught.value).split("move that folder (")[1].split("), or restore")[0]
    subprocess.run(command, shell=True, check=True)
    assert not where.exists()
    assert tiny_runs.train(text, run, *options).step == 3
    assert (run / "checkpoints").resolve() == other / "tiny"


def test_who_owned_a_folder_of_checkpoints_is_said_as_it_is(text: Path, tmp_path: Path, capfd):
    """A run was "gone" that was there: its checkpoints had been put elsewhere, or another run had its name."""
    train(text, tmp_path / "first")
    elsewhere = tmp_path / "first" / "checkpoints"
    elsewhere.unlink()
    shutil.copytree(text / "saved" / "tiny", elsewhere)
    train(text, tmp_path / "second", *LATER)
    assert f"{tmp_path / 'first'}, whose checkpoints are in {elsewhere} now: this run takes" in capfd.readouterr().err
    shutil.rmtree(tmp_path / "second")
    tiny_runs.train(text, tmp_path / "second", *QUICK)
    train(text, tmp_path / "third", *LATER, "training.max_steps=4")
    assert f"{tmp_path / 'second'}, which is another run now: this run takes them over" in capfd.readouterr().err
