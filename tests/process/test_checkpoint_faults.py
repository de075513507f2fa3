"""Checkpoints that are torn, of another model, or can't be written: one clear line, and nothing lost that was whole."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from commands import TOTAL_STEPS, Commands, Ended, assert_same_run, checkpoints_of, steps_of

FINAL = f"step-{TOTAL_STEPS:08d}"


@pytest.fixture
def run(reference: Path, tmp_path: Path) -> Path:
    """A copy of the uninterrupted run, to be damaged."""
    return shutil.copytree(reference, tmp_path / "run")


def truncate(checkpoint: Path) -> None:
    file = checkpoint / "optimizer.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def lose_the_manifest(checkpoint: Path) -> None:
    (checkpoint / "MANIFEST.json").unlink()


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "state.json").unlink()


def empty_the_manifest(checkpoint: Path) -> None:
    (checkpoint / "MANIFEST.json").write_text("")


def assert_one_line(ended: Ended, *parts: str) -> None:
    """The command failed as a user's mistake does: exit 2, and its last line says what is wrong."""
    assert ended.status == 2, ended.errors
    assert "Traceback" not in ended.errors
    last = ended.errors.splitlines()[-1]
    for part in parts:
        assert part in last


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        lose_the_manifest,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (truncate, lose_a_file, empty_the_manifest)),
    ],
)
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_used(
    train: Callable[..., Ended], reference: Path, run: Path, damage: Callable[[Path], None]
) -> None:
    damage(run / "checkpoints" / FINAL)
    ended = train(run)
    assert ended.status == 0, ended.errors
    assert "it is set aside and the previous one is used" in ended.errors
    assert f"resuming from {run}/checkpoints/{checkpoints_of(reference)[-2]}" in ended.errors
    assert (run / "checkpoints" / "set-aside" / f"{FINAL}.1").is_dir()
    shutil.rmtree(run / "checkpoints" / "set-aside")
    assert_same_run(run, reference)


def test_where_every_checkpoint_is_damaged_nothing_is_touched(train: Callable[..., Ended], run: Path) -> None:
    for name in checkpoints_of(run):
        flip_a_bit(run / "checkpoints" / name)
    before = checkpoints_of(run), (run / "metrics.jsonl").read_bytes()
    assert_one_line(train(run), "no checkpoint in", "is complete", "model.safetensors")
    assert (checkpoints_of(run), (run / "metrics.jsonl").read_bytes()) == before


def test_a_checkpoint_of_another_model_gives_the_list_of_what_does_not_fit(
    train: Callable[..., Ended], run: Path
) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    ended = train(run, "model.d_model=16", "model.num_layers=3")
    assert_one_line(ended, "model.d_model was 32, is 16", "model.num_layers was 1, is 3", "init_from=")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_other_data_than_the_checkpoints_is_an_error(train: Callable[..., Ended], run: Path, tmp_path: Path) -> None:
    begun = f"training.checkpoint.resume={run / 'checkpoints' / FINAL}"
    ended = train(tmp_path / "other", begun, "data.corpus.num_sentences=190")
    assert_one_line(ended, "data.corpus.num_sentences was 200, is 190", "init_from")


def test_batches_that_have_no_such_place_in_the_epoch_are_an_error(train: Callable[..., Ended], run: Path) -> None:
    """Step 18 is within the third epoch, after 12 batches of 8."""
    before = (run / "metrics.jsonl").read_bytes()
    within = f"training.checkpoint.resume={run / 'checkpoints' / 'step-00000018'}"
    refused = train(run, within, "training.batch_size=5")
    assert_one_line(refused, "is within epoch 3", "96 examples", "not a whole number of batches of 5")
    assert (run / "metrics.jsonl").read_bytes() == before


def test_init_from_takes_the_weights_and_nothing_else(
    train: Callable[..., Ended], reference: Path, tmp_path: Path
) -> None:
    source = reference / "checkpoints" / FINAL
    run = tmp_path / "tuned"
    options = ("training.optimizer.lr=1e-12", "training.scheduler.warmup_steps=0", "training.max_steps=2")
    ended = train(run, f"training.checkpoint.init_from={source}", *options)
    assert ended.status == 0, ended.errors
    assert steps_of(run) == [1, 2]
    ours = load_file(run / "checkpoints" / "step-00000002" / "model.safetensors")
    for name, tensor in load_file(source / "model.safetensors").items():
        assert (ours[name] - tensor).abs().max() < 1e-9


@pytest.mark.slow
def test_init_except_draws_parameters_anew(train: Callable[..., Ended], reference: Path, tmp_path: Path) -> None:
    source = reference / "checkpoints" / FINAL
    init, wider = f"training.checkpoint.init_from={source}", "model.d_ff=128"
    slowly = ("training.optimizer.lr=1e-12", "training.scheduler.warmup_steps=0", "training.max_steps=1")
    refused = train(tmp_path / "refused", init, wider, *slowly)
    assert_one_line(refused, "is from another model", "has shape", "training.checkpoint.init_except lists what to")
    unknown = train(tmp_path / "unknown", init, "training.checkpoint.init_except=[embeding]", *slowly)
    assert_one_line(unknown, "training.checkpoint.init_except: 'embeding' matches no parameter")
    run = tmp_path / "adapted"
    ended = train(run, init, wider, "training.checkpoint.init_except=[feed_forward]", *slowly)
    assert ended.status == 0, ended.errors
    ours = load_file(run / "checkpoints" / "step-00000001" / "model.safetensors")
    theirs = load_file(source / "model.safetensors")
    taken = [name for name in theirs if "feed_forward" not in name]
    assert taken
    moved = {name: (ours[name] - theirs[name]).abs().max().item() for name in taken}
    assert max(moved.values()) < 1e-9, moved
    (down,) = (name for name in theirs if name.endswith("feed_forward.down.weight"))
    assert ours[down].shape != theirs[down].shape


@pytest.mark.slow
def test_from_an_earlier_checkpoint_the_run_goes_on_as_if_the_later_had_not_been(
    train: Callable[..., Ended], reference: Path, run: Path
) -> None:
    earlier = run / "checkpoints" / checkpoints_of(run)[0]
    ended = train(run, f"training.checkpoint.resume={earlier}")
    assert ended.status == 0, ended.errors
    assert "is set aside: it is later than the checkpoint from which this run resumes" in ended.errors
    set_aside = run / "checkpoints" / "set-aside"
    later = [f"{name}.1" for name in checkpoints_of(reference)[1:]]
    assert sorted(path.name for path in set_aside.glob("step-*")) == later
    shutil.rmtree(set_aside)
    assert_same_run(run, reference)


def test_from_another_runs_checkpoint_the_own_ones_are_set_aside(
    train: Callable[..., Ended], reference: Path, run: Path
) -> None:
    other = reference / "checkpoints" / checkpoints_of(reference)[0]
    ended = train(run, f"training.checkpoint.resume={other}")
    assert ended.status == 0, ended.errors
    assert len(list((run / "checkpoints" / "set-aside").glob("step-*"))) == len(checkpoints_of(reference))
    assert steps_of(run)[0] == int(other.name.removeprefix("step-")) + 1
    newest = run / "checkpoints" / FINAL / "model.safetensors"
    assert newest.read_bytes() == (reference / "checkpoints" / FINAL / "model.safetensors").read_bytes()


def test_a_checkpoint_that_is_not_there_is_an_error(train: Callable[..., Ended], tmp_path: Path) -> None:
    ended = train(tmp_path / "run", "training.checkpoint.resume=nowhere/step-00000007")
    assert_one_line(ended, "training.checkpoint.resume: nowhere/step-00000007 doesn't exist")


def test_a_replaced_checkpoint_is_put_back_where_its_successor_never_came(
    train: Callable[..., Ended], reference: Path, run: Path
) -> None:
    folder = run / "checkpoints"
    (folder / FINAL).rename(folder / f".{FINAL}.replaced")
    (folder / f".{FINAL}.4711.tmp").mkdir()
    ended = train(run)
    assert ended.status == 0, ended.errors
    assert_same_run(run, reference)


def test_a_file_where_the_run_directory_is_to_be_is_an_error(train: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert_one_line(train(tmp_path / "file"), "the run directory", "can't be created", "run_dir=")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_checkpoints_that_can_no_longer_be_written_end_the_run(
    train: Callable[..., Ended], reference: Path, tmp_path: Path
) -> None:
    """Files may not grow beyond what the model's takes: the first checkpoint fails while it is written."""
    run = tmp_path / "run"
    limit = (reference / "checkpoints" / FINAL / "model.safetensors").stat().st_size * 3 // 2
    ended = train(run, file_size_limit=limit)
    assert_one_line(ended, "checkpoint", "step-00000003 can't be written", "too large")
    assert checkpoints_of(run) == []
    assert steps_of(run)[-1] < TOTAL_STEPS, "it ends soon after"
    ended = train(run)
    assert ended.status == 0, ended.errors
    assert_same_run(run, reference)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here: this takes root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_ends_the_run_and_the_checkpoint_before_stays_whole(
    commands: Commands, tiny: Path, reference: Path, small_disk: Path
) -> None:
    run = shutil.copytree(reference, small_disk / "run")
    earlier, *later = checkpoints_of(run)
    for name in later:
        shutil.rmtree(run / "checkpoints" / name)
    arguments: list[str | Path] = ["train", tiny, f"run_dir={run}"]
    fill(small_disk / "ballast", leaving=400_000)
    assert_one_line(commands.start(arguments, small_disk).wait(), "can't be written", "o space left on device")
    assert checkpoints_of(run) == [earlier]
    (small_disk / "ballast").unlink()
    ended = commands.start(arguments, small_disk).wait()
    assert ended.status == 0, ended.errors
    assert_same_run(run, reference)


def test_a_disk_without_any_space_is_one_line_too(commands: Commands, tiny: Path, small_disk: Path) -> None:
    fill(small_disk / "ballast", leaving=0)
    ended = commands.start(["train", tiny, f"run_dir={small_disk / 'run'}"], small_disk).wait()
    assert_one_line(ended, "o space left on device")


def fill(file: Path, leaving: int) -> None:
    """Fill the disk that holds a file, except for some bytes."""
    disk = os.statvfs(file.parent)
    file.write_bytes(bytes(max(disk.f_bavail * disk.f_frsize - leaving, 0)))
