"""What training by shards reads next is read ahead: a piece and the one after it, each stretch of a file once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny_listener
from toy import ToyDataset
from vaak.config.training import TrainingConfig
from vaak.data import read_ahead
from vaak.data.batching import training_planner
from vaak.data.loader import training_addresses
from vaak.data.read_ahead import ByteStretch, ReadAhead, join_stretches, read_through
from vaak.engine.checkpoint.names import step_folder

SIZE = 1000


class InOneFile(ToyDataset):
    """Examples of 1,000 bytes each, one after another in a file."""

    path = Path("/data/all.tar")

    def list_bytes(self, indices: Sequence[int]) -> list[tuple[Path, int, int]]:
        return [(self.path, SIZE * index, SIZE) for index in indices]


class Broken(InOneFile):
    def list_bytes(self, indices: Sequence[int]) -> list[tuple[Path, int, int]]:
        raise OSError("gone")


def test_a_piece_and_the_next_are_read_in_as_many_stretches_as_shards(monkeypatch: pytest.MonkeyPatch):
    read, arrived = list[list[ByteStretch]](), threading.Semaphore(0)

    def record(stretches: list[ByteStretch]) -> None:
        read.append(stretches)
        arrived.release()

    monkeypatch.setattr(read_ahead, "read_through", record)
    monkeypatch.setattr(read_ahead.join_stretches, "__defaults__", (0,))
    dataset = InOneFile(400)
    config = TrainingConfig.model_validate({"batch_size": 4, "batching": {"shard_size": 20, "shards_mixed": 4}})
    planner, ahead = training_planner(config, dataset), ReadAhead(dataset)
    pieces = planner.plan(0).pieces
    addresses = training_addresses(planner, 1, ahead, step=0, epoch=0, place=0, rank=0, world_size=1)
    for reached in range(len(pieces)):
        for _ in range(pieces[reached].size):
            next(addresses)
        expected = min(reached + 2, len(pieces))
        while len(read) < expected:
            assert arrived.acquire(timeout=30)
        assert len(read) == expected
    ahead.close()
    for piece, stretches in zip(pieces, read, strict=True):
        assert sum(one.size for one in stretches) == SIZE * len(piece.make().indices)
        assert len(stretches) <= 4


def test_stretches_are_read_from_end_to_end_and_missing_files_are_left_to_the_reader(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(10_000))
    [whole] = join_stretches([(path, 4000, 1000), (path, 0, 3000), (path, 4500, 2000)], largest_gap=1000)
    assert whole == ByteStretch(path, 0, 6500)
    read_through([whole, ByteStretch(path, 9000, 5000)])
    with pytest.raises(FileNotFoundError):
        read_through([ByteStretch(tmp_path / "none", 0, 1)])
    config = TrainingConfig.model_validate({"batch_size": 4, "batching": {"shard_size": 2, "shards_mixed": 1}})
    dataset = Broken(8)
    ahead, plan = ReadAhead(dataset), training_planner(config, dataset).plan(0)
    ahead.reach(0, plan, 0)
    ahead.close()
    ahead._thread.join(30)
    assert not ahead._thread.is_alive()
    assert np.concatenate([piece.make().indices for piece in plan.pieces]).size == 8


@pytest.mark.slow
def test_a_recogniser_that_reads_by_shards_resumes_to_the_same_bits(tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    tiny_listener.write_listener(corpus)
    by_shards = ("training.batching.shard_size=3", "training.batching.shards_mixed=2", "training.batch_size=2")

    def train(name: str, *overrides: str) -> dict[str, torch.Tensor]:
        run = tiny_listener.train(corpus, tmp_path / name, "training.checkpoint.interval=7", *by_shards, *overrides)
        return load_file(run / "checkpoints" / step_folder(int(overrides[0].split("=")[1])) / "model.safetensors")

    whole = train("whole", "training.max_steps=16")
    train("resumed", "training.max_steps=7")
    resumed = train("resumed", "training.max_steps=16", "training.checkpoint.resume=auto")
    by_workers = train("workers", "training.max_steps=16", "training.performance.num_workers=2")
    at_random = train("random", "training.max_steps=16", "training.batching.shard_size=null")
    for name, values in whole.items():
        assert torch.equal(resumed[name], values)
        assert torch.equal(by_workers[name], values)
    assert not all(torch.equal(at_random[name], values) for name, values in whole.items())
