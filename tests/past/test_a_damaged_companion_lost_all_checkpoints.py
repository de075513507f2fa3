"""One byte changed in a file that all checkpoints shared (config.yml, a tokenizer, frozen weights) lost every one."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

import tiny_runs
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.runs.open_run import open_run

TOKENIZER = "prepared/tokenizer/tokenizer.json"
LATER = ("training.max_steps=9", "training.checkpoint.resume=auto")
FROZEN = "frozen.safetensors"
WITH_FROZEN = ("training.freeze=[{match: embedding}]",)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    tiny_runs.write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    tiny_runs.train(text, run)
    return run


@pytest.fixture(scope="module")
def with_frozen(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose embeddings are never trained: the random seed gives them."""
    run = tmp_path_factory.mktemp("frozen") / "run"
    tiny_runs.train(text, run, *WITH_FROZEN)
    return run


def change_a_byte(file: Path) -> None:
    """In place, as an editor or a disk does: every hard link to the file changes with it."""
    with open(file, "r+b") as opened:
        opened.seek(-3, os.SEEK_END)
        byte = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte[0] ^ 1]))


def weights(run: Path, step: int = 9) -> dict[str, bytes]:
    found = load_checkpoint(run / "checkpoints" / f"step-{step:08d}")
    return {name: tensor.numpy().tobytes() for name, tensor in found.model.items()}


@pytest.fixture(scope="module")
def expected(trained: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of a run that nothing happened to, one step later."""
    copy = shutil.copytree(trained, tmp_path_factory.mktemp("whole") / "run")
    tiny_runs.train(text, copy, *LATER)
    return weights(copy)


@pytest.mark.parametrize("name", ["config.yml", TOKENIZER, "prepared/prepared.json"])
def test_a_changed_companion_is_restored_and_the_run_resumes_with_the_same_bits(
    name: str, trained: Path, text: Path, tmp_path: Path, expected: dict[str, bytes], capfd: pytest.CaptureFixture[str]
):
    run = shutil.copytree(trained, tmp_path / "run")
    older, newest = list_checkpoints(run / "checkpoints")
    content = (newest / name).read_bytes()
    assert not (older / name).samefile(newest / name), "one change is one checkpoint's"
    change_a_byte(newest / name)
    tiny_runs.train(text, run, *LATER)
    assert weights(run) == expected
    assert (newest / name).read_bytes() == content
    assert f"{newest / name} was damaged or missing: it is restored from {run}" in capfd.readouterr().err
    assert not (run / "checkpoints" / "set-aside").exists()


def test_one_without_another_copy_is_reported_and_the_run_resumes(
    trained: Path, text: Path, tmp_path: Path, expected: dict[str, bytes], capfd: pytest.CaptureFixture[str]
):
    run = shutil.copytree(trained, tmp_path / "run")
    for place in (run, *list_checkpoints(run / "checkpoints")):
        with open(place / "config.yml", "a") as file:
            file.write("# mine\n")
    tiny_runs.train(text, run, *LATER)
    assert weights(run) == expected
    assert "step-00000008/config.yml is damaged or missing, and it has no other copy" in capfd.readouterr().err


def test_checkpoints_of_earlier_versions_share_their_files_and_are_restored_all_the_same(
    trained: Path, text: Path, tmp_path: Path, expected: dict[str, bytes]
):
    run = shutil.copytree(trained, tmp_path / "run")
    older, newest = list_checkpoints(run / "checkpoints")
    (older / TOKENIZER).unlink()
    os.link(newest / TOKENIZER, older / TOKENIZER)
    change_a_byte(newest / TOKENIZER)
    tiny_runs.train(text, run, *LATER)
    assert weights(run) == expected
    assert (newest / TOKENIZER).read_bytes() == (run / TOKENIZER).read_bytes()


def test_a_damaged_companion_of_a_checkpoint_used_alone_is_a_warning(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    alone = shutil.copytree(list_checkpoints(trained / "checkpoints")[-1], tmp_path / "alone")
    with open(alone / "config.yml", "a") as file:
        file.write("# mine\n")
    with caplog.at_level(logging.WARNING, "vaak"):
        assert open_run(alone).directory == alone
    assert f"{alone / 'config.yml'} changed after it was saved" in caplog.text


def test_a_full_disk_is_not_taken_for_another_base(
    with_frozen: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """safetensors raises its own error for it, which used to be taken for a base with other weights."""
    run = shutil.copytree(with_frozen, tmp_path / "run")
    for path in list_checkpoints(run / "checkpoints"):
        (path / FROZEN).unlink()

    def fail(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("vaak.engine.checkpoint.bundled_files.save_file", fail)
    with pytest.raises(CheckpointError, match=r"it can't be restored: .*No space left on device"):
        tiny_runs.train(text, run, *WITH_FROZEN, *LATER)
    assert not list(run.rglob("*.tmp*"))


@pytest.mark.parametrize("lost", [False, True], ids=["changed", "lost"])
def test_frozen_weights_come_from_their_base(
    lost: bool, with_frozen: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run = shutil.copytree(with_frozen, tmp_path / "run")
    whole = shutil.copytree(with_frozen, tmp_path / "whole")
    tiny_runs.train(text, whole, *WITH_FROZEN, *LATER)
    for path in list_checkpoints(run / "checkpoints"):
        if lost:
            (path / FROZEN).unlink()
        else:
            change_a_byte(path / FROZEN)
    before = tiny_runs.hashes(run)
    with pytest.raises(CheckpointError, match="resuming its run restores it from its base"):
        open_run(run)  # it draws no weights as training does
    assert tiny_runs.hashes(run) == before, "what only reads a run changes nothing"
    tiny_runs.train(text, run, *WITH_FROZEN, *LATER)
    assert weights(run) == weights(whole)
    assert f"step-00000008/{FROZEN} was damaged or missing: it is restored from its base" in capfd.readouterr().err
    assert not list((run / "checkpoints").glob("frozen-*")), "no second copy of what the base gives"


def test_frozen_weights_of_another_run_have_a_second_copy(
    trained: Path, text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    run, options = tmp_path / "run", (*WITH_FROZEN, f"training.checkpoint.init_from={trained}")
    tiny_runs.train(text, run, *options)
    first, second = list_checkpoints(run / "checkpoints")
    assert (first / FROZEN).samefile(second / FROZEN), "checkpoints share one"
    (copy,) = (run / "checkpoints").glob("frozen-*.safetensors")
    assert not copy.samefile(second / FROZEN)
    whole = shutil.copytree(run, tmp_path / "whole")
    change_a_byte(first / FROZEN)
    assert (second / FROZEN).read_bytes() != copy.read_bytes()
    assert open_run(run).checkpoint == second, "the copy is read"
    for one in (run, whole):
        tiny_runs.train(text, one, *options, *LATER)
    assert weights(run) == weights(whole)
    assert f"{second / FROZEN} was damaged or missing: it is restored from {copy}" in capfd.readouterr().err


def test_frozen_weights_that_are_nowhere_else_are_one_line(trained: Path, text: Path, tmp_path: Path):
    run, options = tmp_path / "run", (*WITH_FROZEN, f"training.checkpoint.init_from={trained}")
    tiny_runs.train(text, run, *options)
    for file in (run / "checkpoints").rglob("frozen*"):
        file.write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"frozen\.safetensors .* no other copy does; nor does its base give it"):
        tiny_runs.train(text, run, *options, *LATER)
    assert not [file for file in run.rglob("*") if file.name.endswith(".tmp")], "nothing half-written is left"
