"""A checkpoint gives back every bit, is whole or not there, and says exactly what is wrong with it or the model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import nn

from toy import ToyModel, same_bits
from vaak.core.errors import CheckpointError
from vaak.core.storage import files as storage
from vaak.engine.checkpoint.files import (
    complete_checkpoint,
    find_latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    point,
    pointed,
    read_state,
    resolve_checkpoint,
    save_checkpoint,
    set_aside,
    step_folder,
    verify,
)
from vaak.engine.checkpoint.names import listed_files
from vaak.engine.snapshot import FileLayout, Snapshot, copy_to_cpu, load_weights, model_tensors

names = st.lists(st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True), min_size=1, max_size=4, unique=True)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def snapshot(step: int = 1, **tensors: torch.Tensor) -> Snapshot:
    return Snapshot(step, tensors or {"weight": torch.ones(2)}, {}, {"position": {"step": step}})


@given(names=names, data=st.data(), step=st.integers(0, 10**8))
def test_what_is_saved_is_loaded_to_the_bit(
    names: list[str], data: st.DataObject, step: int, tmp_path_factory: pytest.TempPathFactory
):
    """Of every type and shape, 0-dimensional and empty ones, NaN, infinities and negative zeros."""
    tensors = {}
    for name in names:
        bits = torch.tensor([float("nan"), -0.0, float("inf"), 1e-3, 3.0, -7.0]).repeat(5)
        shape = data.draw(shapes)
        tensors[name] = bits[: torch.Size(shape).numel()].view(shape).to(data.draw(dtypes))
    state = {"position": {"step": step}, "value": 0.1, "none": None}
    path = save_checkpoint(
        tmp_path_factory.mktemp("checkpoint"), Snapshot(step, tensors, {"0.m.x": torch.ones(())}, state)
    )
    assert path.name == step_folder(step)
    loaded = load_checkpoint(path)
    assert same_bits(loaded.model, tensors)
    assert same_bits(loaded.optimizer, {"0.m.x": torch.ones(())})
    assert (loaded.step, loaded.state) == (step, state)
    assert load_checkpoint(path, weights_only=True).optimizer == {}


def test_weights_that_are_never_trained_are_on_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, made = torch.randn(50), []
    for step in (1, 2, 3):
        one = Snapshot(step, {"base": base, "head": torch.full((2,), float(step))}, frozen=frozenset({"base"}))
        one.state = {"position": {"step": step}}
        if step == 3:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
        made.append(save_checkpoint(tmp_path, one))
    first, second, third = (path / "frozen.safetensors" for path in made)
    assert os.path.samefile(first, second)
    assert not os.path.samefile(first, third)
    for step, path in enumerate(made, 1):
        verify(path)
        assert same_bits(
            load_checkpoint(path, weights_only=True).model, {"base": base, "head": torch.full((2,), float(step))}
        )
    monkeypatch.undo()
    third.write_bytes(b"damaged")
    newest = save_checkpoint(tmp_path, Snapshot(4, {"base": base}, state={"position": {"step": 4}}, frozen=one.frozen))
    verify(newest)  # what is damaged isn't shared
    shutil.rmtree(made[0])
    assert same_bits(load_checkpoint(made[1]).model, {"base": base, "head": torch.full((2,), 2.0)})


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"torn")])
def test_damaged_frozen_weights_are_read_from_their_base_and_from_no_other(
    damage: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    base, other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    tensors = {name: one.clone() for name, one in model_tensors(base).items()}
    state = {"position": {"step": 1}}
    path = save_checkpoint(tmp_path, Snapshot(1, tensors, state=state, frozen=frozenset({"0.weight", "0.bias"})))
    damage(path / "frozen.safetensors")
    with torch.no_grad():
        base.get_parameter("1.weight").add_(1)  # the trained ones of a base aren't looked at
    assert same_bits(load_checkpoint(path, weights_only=True, base=base).model, tensors)
    assert "is damaged or missing: its base is read" in caplog.text
    for model in (other, None):
        with pytest.raises(CheckpointError, match="resuming its run restores it from its base"):
            load_checkpoint(path, weights_only=True, base=model)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path):
    model, other = Tied(), Tied()
    path = save_checkpoint(tmp_path, snapshot(1, **copy_to_cpu(model_tensors(model))))
    stored = load_checkpoint(path).model
    assert list(stored) == ["embedding.weight"]
    load_weights(other, stored, path)
    assert other.head.weight is other.embedding.weight
    assert other.head.weight.equal(model.head.weight)


def test_a_snapshot_does_not_change_with_the_model():
    model = ToyModel()
    copied = copy_to_cpu(model_tensors(model))
    before = {name: tensor.clone() for name, tensor in copied.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert same_bits(copied, before)


def test_another_models_weights_give_the_list_of_what_does_not_fit(tmp_path: Path):
    model = ToyModel()
    before = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    tensors = before | {"head.bias": torch.zeros(4), "extra": torch.zeros(1)}
    del tensors["embedding.weight"]
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, tensors, tmp_path)
    for part in (
        f"{tmp_path} is from another model",
        "embedding.weight is missing",
        "extra is not in the model",
        "head.bias has shape (4,), the model (13,)",
    ):
        assert part in str(caught.value)
    assert same_bits(model_tensors(model), before)  # nothing was copied


def test_a_long_list_of_misfits_is_shortened(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"model: (layer\d+ is not in the model; ){8}and 12 more$"):
        load_weights(nn.Module(), {f"layer{number}": torch.ones(1) for number in range(20)}, tmp_path)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def unlist(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    del manifest["files"][name]
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped byte": lambda folder: flip_a_byte(folder / "model.safetensors"),
    "truncated": lambda folder: os.truncate(folder / "optimizer.safetensors", 4),
    "missing": lambda folder: (folder / "state.json").unlink(),
    "no manifest": lambda folder: (folder / "MANIFEST.json").unlink(),
    "half a manifest": lambda folder: os.truncate(folder / "MANIFEST.json", 20),
    "a manifest of nothing": lambda folder: (folder / "MANIFEST.json").write_text("[]"),
    "a state that its manifest doesn't have": lambda folder: unlist(folder, "state.json"),
    "weights that its manifest doesn't have": lambda folder: unlist(folder, "model.safetensors"),
    "moments that its manifest doesn't have": lambda folder: unlist(folder, "optimizer.safetensors"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_and_the_one_before_is_used(damage: Callable[[Path], object], tmp_path: Path):
    whole, damaged = save_checkpoint(tmp_path, snapshot(1)), save_checkpoint(tmp_path, snapshot(2))
    damage(damaged)
    with pytest.raises(CheckpointError, match=step_folder(2)):
        load_checkpoint(damaged)
    assert find_latest_checkpoint(tmp_path) == whole
    assert list_checkpoints(tmp_path) == [whole]
    assert (tmp_path / "set-aside" / f"{step_folder(2)}.1").is_dir()


def test_where_all_are_damaged_nothing_is_moved(tmp_path: Path):
    path = save_checkpoint(tmp_path, snapshot(1))
    flip_a_byte(path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is complete"):
        find_latest_checkpoint(tmp_path)
    assert list_checkpoints(tmp_path) == [path]


def test_the_newest_is_found_by_its_step_and_none_in_an_empty_folder(tmp_path: Path):
    for step in (9, 10, 100_000_000, 3):
        save_checkpoint(tmp_path, snapshot(step))
    found = find_latest_checkpoint(tmp_path)
    assert found is not None
    assert load_checkpoint(found).step == 100_000_000
    assert find_latest_checkpoint(tmp_path / "nowhere") is None


def test_a_checkpoint_that_is_written_again_is_replaced(tmp_path: Path):
    save_checkpoint(tmp_path, snapshot(1, a=torch.zeros(1)))
    path = save_checkpoint(tmp_path, snapshot(1, b=torch.ones(1)))
    assert list(load_checkpoint(path).model) == ["b"]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_writer_of_the_same_process_left_is_replaced(tmp_path: Path):
    left = storage.name_temporary(tmp_path / step_folder(1))
    left.mkdir()
    (left / "extra.bin").touch()
    path = save_checkpoint(tmp_path, snapshot(1))
    assert not (path / "extra.bin").exists()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_checkpoint(tmp_path, snapshot(1))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for step in (1, 2):
            with pytest.raises(CheckpointError, match="No space left on device; the earlier ones are complete"):
                save_checkpoint(tmp_path, snapshot(step))
    verify(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_completion_of_another_state_is_ignored(tmp_path: Path):
    one, other = save_checkpoint(tmp_path, snapshot(1)), save_checkpoint(tmp_path, snapshot(2))
    state = {"position": {"step": 1}, "metrics": {"val_loss": 1.0}}
    complete_checkpoint(one, state)
    assert read_state(one) == load_checkpoint(one).state == state
    shutil.copy(one / "completed.json", other / "completed.json")
    assert read_state(other) == load_checkpoint(other).state == {"position": {"step": 2}}


def test_a_checkpoint_is_there_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each file is flushed before the rename, and the folder, which has the names, after it."""
    happened: list[str] = []
    flush, flush_folder = storage.sync_file, storage.sync_directory
    monkeypatch.setattr(storage, "sync_file", lambda path: (happened.append(path.name), flush(path))[1])
    monkeypatch.setattr(
        storage,
        "sync_directory",
        lambda path: (happened.append(f"{path.name}: {len(list_checkpoints(path))}"), flush_folder(path))[1],
    )
    (tmp_path / "copied.bin").write_text("x")
    bundled_files: dict[str, str | Path] = {"written.yml": "a: 1", "gone.bin": tmp_path / "gone.bin"}
    bundled_files |= {"copied.bin": tmp_path / "copied.bin"}
    path = save_checkpoint(tmp_path / "checkpoints", snapshot(1), None, bundled_files)
    assert [one for one in happened if one.endswith("safetensors")] == ["model.safetensors", "optimizer.safetensors"]
    assert "copied.bin" in happened
    assert [name for name in listed_files(path) if name.endswith((".bin", ".yml"))] == ["written.yml", "copied.bin"]
    assert happened[-1] == "checkpoints: 1"


@pytest.mark.parametrize("verified", [True, False])
def test_tensors_that_the_manifest_does_not_have_are_no_part_of_a_checkpoint(
    verified: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = save_checkpoint(tmp_path, snapshot(1, weight=torch.ones(2)))
    for name in ("average", "loss", "frozen"):
        save_file({"weight": torch.zeros(2), "more": torch.zeros(1)}, path / f"{name}.safetensors")
    loaded = load_checkpoint(path, verify=verified)
    assert same_bits(loaded.model, {"weight": torch.ones(2)})
    assert (loaded.average, loaded.loss) == ({}, {})
    assert [one for one in caplog.messages if one.endswith("is not in its MANIFEST.json: it is ignored")] == [
        f"{path / name}.safetensors is not in its MANIFEST.json: it is ignored"
        for name in ("average", "frozen", "loss")
    ]


def test_tensors_that_come_in_parts_are_in_the_file_that_the_library_would_write(tmp_path: Path):
    """As ranks give theirs: one after another in the layout's order, some in several parts."""
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3, dtype=torch.int64), "c": torch.zeros(0)}
    layouts = tuple(FileLayout.of(f"{part}.safetensors", own) for part, own in (("model", tensors), ("optimizer", {})))
    assert layouts[0].order == ("a", "b", "c")
    parts = [tensors["a"], tensors["b"][:1], tensors["b"][1:], torch.ones(1)]
    given = iter(parts)
    one = Snapshot(1, {}, state={"position": {"step": 1}}, files=layouts, chunks=given)
    path = save_checkpoint(tmp_path, one)
    assert same_bits(load_checkpoint(path).model, tensors)
    assert (path / "model.safetensors").read_bytes() == save(tensors)
    assert next(given, None) is None, "the rest is consumed, too: its producers wait"


def test_frozen_weights_of_which_no_copy_is_whole_make_a_checkpoint_damaged(tmp_path: Path):
    tensors, frozen = {"base": torch.ones(3), "head": torch.zeros(1)}, frozenset({"base"})
    one = Snapshot(1, tensors, state={"position": {"step": 1}}, frozen=frozen, base_is_enough=False)
    path = save_checkpoint(tmp_path, one)
    (second,) = tmp_path.glob("frozen-*.safetensors")
    assert second.read_bytes() == (path / "frozen.safetensors").read_bytes()
    assert same_bits(load_checkpoint(path, verify=False).model, tensors)
    (path / "frozen.safetensors").unlink()
    verify(path)  # the second copy is whole
    assert same_bits(load_checkpoint(path).model, tensors)
    flip_a_byte(second)
    with pytest.raises(CheckpointError, match=r"frozen\.safetensors does not match its MANIFEST\.json, and no other"):
        verify(path)
    enough = save_checkpoint(tmp_path / "other", Snapshot(1, tensors, state=one.state, frozen=frozen))
    assert [file.name for file in enough.parent.iterdir()] == [enough.name], "its base gives it"


def test_a_manifest_that_can_not_be_read_is_named_with_the_reason(tmp_path: Path):
    path = save_checkpoint(tmp_path, snapshot(1))
    (path / "MANIFEST.json").unlink()
    (path / "MANIFEST.json").mkdir()
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json can't be read: Is a directory$"):
        listed_files(path)


@pytest.mark.parametrize(("written", "is_read"), [(1, True), (2, False)])
def test_a_manifest_of_a_later_version_is_refused(written: int, is_read: bool, tmp_path: Path):
    path = save_checkpoint(tmp_path, snapshot(1))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["format"] == 1
    (path / "MANIFEST.json").write_text(json.dumps(manifest | {"format": written}))
    if is_read:
        assert set(listed_files(path)) == {"model.safetensors", "optimizer.safetensors", "state.json"}
        return
    with pytest.raises(CheckpointError, match=r"written by a later version of Vaak \(format 2\): update Vaak"):
        listed_files(path)


def test_set_aside_finds_a_free_name(tmp_path: Path):
    for number in (1, 2):
        aside = set_aside(save_checkpoint(tmp_path, snapshot(1)))
        assert aside == tmp_path / "set-aside" / f"{step_folder(1)}.{number}"


def test_pointers_and_what_a_path_means(tmp_path: Path):
    folder = tmp_path / "run" / "checkpoints"
    first, second = save_checkpoint(folder, snapshot(1)), save_checkpoint(folder, snapshot(2))
    assert resolve_checkpoint(tmp_path / "run") == second  # the newest, where none is the best
    point(folder, "best", first.name)
    point(folder, "last", second.name)
    assert pointed(folder, "best") == first
    expected = {"": first, "checkpoints": first, "checkpoints/best": first, "checkpoints/last": second}
    for path, checkpoint in expected.items():
        assert resolve_checkpoint(tmp_path / "run" / path) == checkpoint
    assert resolve_checkpoint(second) == second


@pytest.mark.parametrize("text", ["step-00000009", "../outside", ""])
def test_a_pointer_to_what_is_not_there_points_nowhere(text: str, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "best").write_text(text)
    assert pointed(folder, "best") is None
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        resolve_checkpoint(folder / "best")


@pytest.mark.parametrize(("name", "size"), [("../../etc/passwd", 1), ("more", float("inf")), ("more", None)])
def test_a_manifest_with_names_outside_its_folder_or_sizes_that_are_none_is_refused(name, size, tmp_path: Path):
    path = save_checkpoint(tmp_path, snapshot(1))
    manifest = json.loads((path / "MANIFEST.json").read_text())
    manifest["files"][name] = {"bytes": size, "sha256": ""}
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"its MANIFEST\.json is not valid"):
        verify(path)
