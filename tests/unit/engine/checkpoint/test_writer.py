"""Checkpoints are written in the background: one at a time, failures raised at the next step, best and last kept."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toy import toy_trainer
from vaak.core.errors import CheckpointError
from vaak.core.storage import files as storage
from vaak.core.storage.files import remove_leftovers
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.files import (
    CheckpointWriter,
    list_checkpoints,
    load_checkpoint,
    pointed,
    save_checkpoint,
    step_folder,
)
from vaak.engine.snapshot import Snapshot


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"weight": torch.full((2,), float(step))}, {}, {"position": {"step": step}})


def steps_in(folder: Path) -> list[int]:
    return [load_checkpoint(path).step for path in list_checkpoints(folder)]


@given(bests=st.lists(st.booleans(), min_size=1, max_size=8), limit=st.integers(1, 3))
@settings(max_examples=15)
def test_the_newest_are_kept_and_best_and_last_whatever_their_age(
    bests: list[bool], limit: int, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("run")
    writer = CheckpointWriter(folder, folder / "metrics.jsonl", limit)
    for step, is_best in enumerate(bests, 1):
        writer.write(snapshot(step), is_best)
        writer.finish()
        best = max((number for number, is_best in enumerate(bests[:step], 1) if is_best), default=None)
        newest = list(range(max(1, step - limit + 1), step + 1))
        assert steps_in(folder) == sorted({*newest, *([best] if best else [])})
        assert pointed(folder, "last") == folder / step_folder(step)
        assert pointed(folder, "best") == (folder / step_folder(best) if best else None)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_those_of_every_so_many_steps_are_kept_beyond_the_limit(tmp_path: Path):
    """Saved when they are due, whatever the interval."""
    options = {"interval": 5, "interval_epochs": None, "save_total_limit": 2, "keep_every": 4}
    toy_trainer(tmp_path, epochs=4, checkpoint=options).fit()
    assert steps_in(tmp_path / "checkpoints") == [4, 8, 10, 12, 15, 16]
    again = toy_trainer(tmp_path, epochs=5, checkpoint=options | {"save_total_limit": 1, "keep_every": 8})
    assert again.resume("auto")
    again.fit()
    assert steps_in(tmp_path / "checkpoints") == [8, 16, 20]


def test_a_new_best_lets_the_one_before_go(tmp_path: Path):
    """Known only after the evaluation that was due at its step, when it has been written."""
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", 1)
    for step in (1, 2, 3):
        writer.write(snapshot(step), is_best=step == 1)
    writer.complete(3, {"position": {"step": 3}}, is_best=False)
    assert steps_in(tmp_path) == [1, 3]
    writer.complete(3, {"position": {"step": 3}, "best": {"step": 3}}, is_best=True)
    assert steps_in(tmp_path) == [3]
    assert pointed(tmp_path, "best") == tmp_path / step_folder(3)
    assert load_checkpoint(tmp_path / step_folder(3)).state["best"] == {"step": 3}
    assert writer.finished == [tmp_path / step_folder(step) for step in (1, 2, 3)], "each is reported once"


def test_without_a_limit_all_are_kept(tmp_path: Path):
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", None)
    for step in range(1, 6):
        writer.write(snapshot(step), is_best=False)
    writer.finish()
    assert steps_in(tmp_path) == [1, 2, 3, 4, 5]


def test_training_goes_on_while_one_is_written_and_a_second_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    release, writing = threading.Event(), []

    def slow(folder: Path, snapshot: Snapshot, about: dict[str, Any], *_: Any) -> Path:
        writing.append(snapshot.step)
        assert release.wait(10)
        assert len(writing) == 1 or release.is_set()
        return save_checkpoint(folder, snapshot, about)

    monkeypatch.setattr(checkpoint, "save_checkpoint", slow)
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", None)
    writer.write(snapshot(1), is_best=False)  # comes back though nothing is written yet
    second = threading.Thread(target=writer.write, args=(snapshot(2), False))
    second.start()
    second.join(0.1)
    assert second.is_alive()  # one in flight: it waits
    assert writing == [1]
    release.set()
    second.join(10)
    writer.finish()
    assert steps_in(tmp_path) == [1, 2]


def test_without_room_for_a_thread_it_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", None)
    writer.write(snapshot(3), is_best=False)
    assert steps_in(tmp_path) == [3]
    writer.finish()


def test_a_failure_is_raised_once_and_later_checkpoints_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(folder: Path, snapshot: Snapshot, about: dict[str, Any], *_: Any) -> Path:
        raise CheckpointError("the disk is full")

    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", None)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_checkpoint", broken)
        writer.write(snapshot(1), is_best=False)
        assert writer.thread is not None
        writer.thread.join()
        with pytest.raises(CheckpointError, match="the disk is full"):
            writer.raise_failure()
        writer.raise_failure()
    writer.write(snapshot(2), is_best=False)
    writer.finish()
    assert steps_in(tmp_path) == [2]


def test_the_run_hears_of_a_failure_at_its_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(folder: Path, snapshot: Snapshot, about: dict[str, Any], *_: Any) -> Path:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", broken)
    trainer = toy_trainer(tmp_path, checkpoint={"interval": 2})
    write = trainer.saving.writer.write

    def write_and_wait(*one: Any) -> None:
        write(*one)
        assert trainer.saving.writer.thread is not None
        trainer.saving.writer.thread.join()

    monkeypatch.setattr(trainer.saving.writer, "write", write_and_wait)
    with pytest.raises(CheckpointError, match="the disk is full"):
        trainer.fit()
    assert trainer.position.step == 3, "at the boundary after the step that began while it was written"


def test_a_failure_of_the_last_checkpoint_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(folder: Path, snapshot: Snapshot, about: dict[str, Any], *_: Any) -> Path:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", broken)
    with pytest.raises(CheckpointError, match="the disk is full"):
        toy_trainer(tmp_path).fit()


def test_the_log_is_flushed_before_the_checkpoint_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    happened: list[str] = []
    metrics = tmp_path / "metrics.jsonl"
    metrics.touch()
    folder = tmp_path / "checkpoints"
    flush = storage.sync_file
    monkeypatch.setattr(storage, "sync_file", lambda path: (happened.append(path.name), flush(path))[1])
    monkeypatch.setattr(
        checkpoint, "point", lambda folder, name, _: happened.append(f"{name} {len(list_checkpoints(folder))}")
    )
    writer = CheckpointWriter(folder, metrics, None)
    writer.write(snapshot(1), is_best=True)
    writer.finish()
    named = [name for name in happened if name[0] != "."]  # without temporary files
    assert named == ["metrics.jsonl", "model.safetensors", "optimizer.safetensors", "last 1", "best 1"]


def test_leftovers_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path):
    whole = save_checkpoint(tmp_path, snapshot(1))
    for name in (".step-00000002.123.tmp", ".step-00000003.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / ".last.123.tmp").touch()
    (tmp_path / "notes.tmp").touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, "notes.tmp"}
    remove_leftovers(tmp_path / "nowhere")


def test_a_writer_killed_while_replacing_loses_nothing(tmp_path: Path):
    whole = save_checkpoint(tmp_path, snapshot(1))
    whole.rename(tmp_path / f".{whole.name}{storage.REPLACED}")
    remove_leftovers(tmp_path)
    assert steps_in(tmp_path) == [1]
    assert list(tmp_path.iterdir()) == [whole]
