"""Weights to torch.distributed.checkpoint and back: equal bits, whatever wrote them; nothing in a file is run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from vaak.config.training import CheckpointConfig
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.dcp import parse_pickle, read_dcp, write_dcp
from vaak.engine.snapshot import model_tensors
from vaak.engine.trained import initialise


def network(seed: int = 0) -> nn.Module:
    """One with tied weights, a buffer, and types of several sizes."""
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Embedding(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 5, bias=False))
    made[2].weight = made[0].weight
    made.register_buffer("rounded", torch.randn(3).bfloat16())
    made.register_buffer("empty", torch.zeros(0, 2))
    return made


def save(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.save(state, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]


def load(folder: Path) -> dict[str, torch.Tensor]:
    """Read a checkpoint with torch itself, as the code on an export's card does."""
    about: dict[str, Any] = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata  # type: ignore[attr-defined]
    found = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in about.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp.load(found, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]
    return found


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def test_torch_reads_what_is_written_and_it_comes_back_to_the_bit(tmp_path: Path):
    own = network()
    write_dcp(model_tensors(own), tmp_path / "dcp")
    assert_same(load(tmp_path / "dcp"), model_tensors(own))
    assert tmp_path.name.encode() not in (tmp_path / "dcp/.metadata").read_bytes()
    assert_same(read_dcp(tmp_path / "dcp"), model_tensors(own))
    other = network(1)
    initialise(other, CheckpointConfig(init_from=str(tmp_path / "dcp")))
    assert_same(model_tensors(other), model_tensors(own))


def test_what_a_trainer_keeps_is_left_out_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    own = model_tensors(network())
    save({**own, "optimizer": {"state": {"0.weight": torch.ones(2)}}, "train_state": {"step": 3}}, tmp_path / "dcp")
    assert_same(read_dcp(tmp_path / "dcp"), own)
    assert "2 entries of the optimizer and the trainer are left out" in caplog.text
    save({**own, "vocabulary": ["a", "b"]}, tmp_path / "more")
    with pytest.raises(CheckpointError, match=r"vocabulary\S* is a BytesStorageMetadata and not a tensor"):
        read_dcp(tmp_path / "more")


SHARDED = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
whole = {"odd": torch.arange(21.0).view(7, 3), "wide": torch.arange(10).view(2, 5), "same": torch.arange(4.0)}
places = {"odd": Shard(0), "wide": Shard(1), "same": Replicate()}
dcp.save({name: distribute_tensor(one, mesh, [places[name]]) for name, one in whole.items()}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_what_two_processes_wrote_in_parts_is_put_together(tmp_path: Path):
    (tmp_path / "write.py").write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    subprocess.run([*command, tmp_path / "write.py", tmp_path / "dcp"], check=True, capture_output=True)
    assert len([*(tmp_path / "dcp").glob("*.distcp")]) == 2
    whole = {"odd": torch.arange(21.0).view(7, 3), "wide": torch.arange(10).view(2, 5), "same": torch.arange(4.0)}
    assert_same(read_dcp(tmp_path / "dcp"), whole)


class Harmful:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_nothing_that_a_file_names_is_run(tmp_path: Path):
    (tmp_path / "dcp").mkdir()
    content = pickle.dumps(Harmful(tmp_path / "run"))
    assert parse_pickle(content).arguments == (str(tmp_path / "run"),)
    (tmp_path / "dcp/.metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="can't be read as a checkpoint of"):
        read_dcp(tmp_path / "dcp")
    # Nor what a tensor's own part names.
    write_dcp({"a": torch.ones(2)}, tmp_path / "part")
    (file,) = (tmp_path / "part").glob("*.distcp")
    torch.save(Harmful(tmp_path / "run"), file)
    with pytest.raises(CheckpointError):
        read_dcp(tmp_path / "part")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("places", [[0, 1], [0, 3], [-2, 0]])
def test_parts_that_leave_places_empty_are_refused(places: list[int], tmp_path: Path):
    """The parts have as many numbers as the tensor, but the gaps would hold whatever was in memory."""
    save({"a": torch.arange(4.0)}, tmp_path / "dcp")
    about = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()  # type: ignore[attr-defined]
    (index, place), kind = about.storage_data.popitem(), cast(Any, about.state_dict_metadata["a"])
    for begin in places:
        # The file's whole tensor stands for each part; only this offset names the part.
        about.storage_data[replace(index, offset=torch.Size([begin]))] = place
    kind.chunks = [replace(kind.chunks[0], offsets=torch.Size([one]), sizes=torch.Size([2])) for one in places]
    (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(about))
    with pytest.raises(CheckpointError, match="parts of a are missing, or overlap"):
        read_dcp(tmp_path / "dcp")


@pytest.mark.parametrize("damage", ["truncated metadata", "truncated part", "no part", "no pickle"])
def test_a_damaged_one_is_a_line(damage: str, tmp_path: Path):
    write_dcp(model_tensors(network()), tmp_path / "dcp")
    metadata, (part,) = tmp_path / "dcp/.metadata", (tmp_path / "dcp").glob("*.distcp")
    if damage == "no part":
        part.unlink()
    elif damage == "no pickle":
        metadata.write_text("{}")
    else:
        file = part if damage == "truncated part" else metadata
        file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(CheckpointError) as caught:
        read_dcp(tmp_path / "dcp")
    assert len(str(caught.value).splitlines()) == 1


def test_a_part_outside_of_the_folder_is_refused(tmp_path: Path):
    write_dcp({"a": torch.ones(2)}, tmp_path / "dcp")
    metadata = tmp_path / "dcp/.metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../../passwd"))
    with pytest.raises(CheckpointError, match="passwd"):
        read_dcp(tmp_path / "dcp")
