"""save_total_limit deleted a user's copy of a checkpoint, and superseded bests used up the limit of periodic ones."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import torch

from toy import ToyTask, toy_trainer
from vaak.engine.checkpoint.files import CheckpointWriter, list_checkpoints, pointed
from vaak.engine.snapshot import Snapshot


def write(writer: CheckpointWriter, step: int, *, best: bool, periodic: bool) -> None:
    snapshot = Snapshot(step, {"weight": torch.ones(2)}, {}, {"position": {"step": step}})
    writer.write(snapshot, is_best=best, is_periodic=periodic)
    writer.finish()


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder)]


def test_superseded_bests_do_not_use_up_the_limit(tmp_path: Path):
    """The loss falls at each of ten evaluations; every fifth is saved anyway."""
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", 2)
    for step in range(1, 14):
        write(writer, step, best=True, periodic=step % 5 == 0)
    assert steps_in(tmp_path) == [5, 10, 13]
    write(writer, 14, best=False, periodic=True)
    assert steps_in(tmp_path) == [10, 13, 14]
    assert pointed(tmp_path, "best") == tmp_path / "step-00000013"


def test_what_is_written_again_as_the_best_stays_periodic(tmp_path: Path):
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", 2)
    write(writer, 5, best=False, periodic=True)
    write(writer, 5, best=True, periodic=False)
    for step in (6, 7):
        write(writer, step, best=True, periodic=False)
    assert steps_in(tmp_path) == [5, 7]


def test_a_users_copy_is_neither_deleted_nor_taken_for_a_checkpoint(tmp_path: Path):
    task = ToyTask(scripted=map(float, count(1)))
    options: dict[str, Any] = {"validation": {"interval": 1}, "checkpoint": {"interval": 1, "save_total_limit": 1}}
    folder = tmp_path / "checkpoints"
    trainer = toy_trainer(tmp_path, task=task, **options)
    trainer.fit()
    shutil.copytree(folder / "step-00000008", folder / "step-00000008-copy")
    (folder / "step-notes").mkdir()
    (folder / "step-00000001.bak").mkdir()
    (folder / "step-00000003").mkdir()  # without a manifest: not of ours
    longer = toy_trainer(tmp_path, task=task, **(options | {"epochs": 3}))
    assert longer.resume("auto")
    longer.fit()
    left = {path.name for path in folder.iterdir() if path.is_dir()}
    copies = {"step-00000008-copy", "step-notes", "step-00000001.bak", "step-00000003"}
    assert left == {"step-00000001", "step-00000012", *copies}


def test_what_was_finished_is_told_once_and_is_there(tmp_path: Path):
    writer = CheckpointWriter(tmp_path, tmp_path / "metrics.jsonl", None)
    assert writer.finished == []
    for step in (1, 2):
        write(writer, step, best=False, periodic=True)
    assert writer.finished == list_checkpoints(tmp_path)
    assert all((path / "MANIFEST.json").is_file() for path in writer.finished)
