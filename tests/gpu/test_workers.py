"""On a GPU, processes that load data start without this one's state, or a message says why not."""

from __future__ import annotations

import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from contract_cases import CASES
from mock_cuda import MockDevice
from toy import ToyDataset, ToyTask
from vaak.data import workers
from vaak.engine.callback import Callback, StepReport
from vaak.testing import Case

OPTIONS: dict[str, Any] = {
    "device": "cuda",
    "deterministic": True,
    "max_steps": 3,
    "validation": {"interval": 3, "interval_epochs": None},
    "memory": {"rehearsal": False},
}


class Parents(Callback):
    """The parents of the workers of a run."""

    def __init__(self) -> None:
        self.found: set[int] = set()

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        for worker in multiprocessing.active_children():
            stat = Path(f"/proc/{worker.pid}/stat").read_text()
            self.found.add(int(stat.rpartition(")")[2].split()[1]))


def weights_after(case: Case, folder: Path, parents: Parents, **performance: Any) -> dict[str, torch.Tensor]:
    trainer = case.trainer(folder, parents, **{**OPTIONS, "performance": performance})
    trainer.fit()
    return {name: value.cpu() for name, value in trainer.model.state_dict().items()}


@pytest.mark.slow
def test_workers_are_not_copies_of_a_process_that_uses_a_gpu_and_read_the_same(gpu: MockDevice, tmp_path: Path):
    case = CASES["lm decoder, documents"].prepared(tmp_path)
    parents = Parents()
    whole = weights_after(case, tmp_path / "whole", Parents(), num_workers=0)
    read = weights_after(case, tmp_path / "read", parents, num_workers=2)
    assert len(parents.found) == 1
    assert os.getpid() not in parents.found
    assert all(whole[name].equal(read[name]) for name in whole)


class Changed(ToyDataset):
    def __init__(self, num_examples: int) -> None:
        super().__init__(num_examples)
        self.change = lambda row: row


class ChangedTask(ToyTask):
    def dataset(self, split: str) -> Any:
        return Changed(40)


def test_a_dataset_that_cant_be_sent_is_trained_on_and_said(
    gpu: MockDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers, "_said", set())
    parents = Parents()
    with caplog.at_level(logging.INFO, "vaak"):
        weights_after(Case(ChangedTask), tmp_path, parents, num_workers=1)
    assert parents.found == {os.getpid()}
    (line,) = [line for line in caplog.messages if "are forked" in line]
    assert "Changed can't be sent: Changed is in the module" in line
