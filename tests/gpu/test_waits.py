"""Every task trains on a GPU, with repeatable kernels too, and waits for it no more often than it has to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from contract_cases import CASES
from mock_cuda import MockDevice, Note
from vaak.engine.trainer import Trainer

WAITS_OF_A_STEP = {
    "lm decoder, documents": 1,
    "lm decoder, packed": 1,
    "lm encoder": 1,
    "lm Performer": 1,
    "seq2seq": 1,
    "classification": 1,
    "classification, several labels": 1,
    "multitask": 1,
    "diarization": 1,
    "diarization, powerset, augmented": 1,
    "tts": 1,
    "tts, learned durations": 2,  # the paths are searched on the CPU
    "tts, flow matching, pitch, energy, learned durations": 2,
    "asr": 2,  # transformers asks whether rows are packed
    "vocoder": 2,  # it has two objectives
}
"""The greatest number in a step of one microbatch: once, whether its numbers are finite, for each objective."""
WAITS_OF_AN_EVALUATION = {"lm decoder, documents": 1, "lm encoder": 1, "classification": 1}
"""The greatest number for each batch."""
QUICK = ("lm encoder", "seq2seq", "classification, several labels", "diarization", "tts", "asr", "vocoder")
"""One of each task; the others are slow."""


def parameters(names: dict[str, int]) -> list[Any]:
    slow = [name for name in names if names is WAITS_OF_A_STEP and name not in QUICK]
    return [
        pytest.param(name, number, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for name, number in names.items()
    ]


@pytest.fixture(autouse=True)
def _switches_are_put_back() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def begun(name: str, folder: Path, **more: Any) -> Trainer:
    """A trainer of a case of the contract, on the GPU, where what isn't repeatable is an error."""
    options: dict[str, Any] = {"device": "cuda", "deterministic": True, "gradient_accumulation_steps": 1, **more}
    return CASES[name].prepared(folder).trainer(folder / "run", **options)


def waits_of_a_step(trainer: Trainer, gpu: MockDevice) -> list[Note]:
    """What the third step of a run waits for: the first ones also set up what later ones have."""
    waits = list[list[Note]]()
    with closing(trainer.upcoming()) as steps:
        for data in islice(steps, 3):
            before = len(gpu.waits())
            report = trainer.take_step(data)
            waits.append(gpu.waits()[before:])
    assert report.skipped is None
    assert all(one.is_cuda for one in report.losses.values())
    return waits[-1]


@pytest.mark.parametrize(("name", "number"), parameters(WAITS_OF_A_STEP))
def test_a_step_waits_no_more_often_than_this(name: str, number: int, gpu: MockDevice, tmp_path: Path):
    waits = waits_of_a_step(begun(name, tmp_path), gpu)
    assert len(waits) <= number, "\n".join(map(str, waits))


@pytest.mark.parametrize("name", ["lm decoder, packed", "lm encoder", "seq2seq", "asr"])
def test_nor_where_logits_are_never_whole(name: str, gpu: MockDevice, tmp_path: Path):
    waits = waits_of_a_step(begun(name, tmp_path, performance={"logits": "chunked"}), gpu)
    assert len(waits) <= WAITS_OF_A_STEP[name], "\n".join(map(str, waits))


@pytest.mark.parametrize(("name", "number"), parameters(WAITS_OF_AN_EVALUATION))
def test_an_evaluation_waits_no_more_often_than_this(name: str, number: int, gpu: MockDevice, tmp_path: Path):
    trainer = begun(name, tmp_path)
    dataset = trainer.task.dataset("valid")
    batches = -(-len(dataset.lengths) // trainer.config.batch_size)
    before = len(gpu.waits())
    trainer.evaluator.evaluate(trainer.model, "valid")
    waits = gpu.waits()[before:]
    assert len(waits) <= number * batches, "\n".join(map(str, waits))
