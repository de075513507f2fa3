"""Every task trains on a GPU, with repeatable kernels too, and waits for it no more often than it has to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import varlen_reference
from base_cases import BASE_CASES
from contract_cases import CASES
from mock_cuda import MockDevice, Note
from quick_cases import mostly_slow
from vaak.core.batch import read_together, send
from vaak.engine.distributed.exchange import GradientBuckets
from vaak.engine.trainer import Trainer
from vaak.nn.decoding.beam_search import BeamSettings, beam_search
from vaak.nn.decoding.sampling import SamplingSettings, highest, write
from vaak.nn.kernels.variable_length import attend_segments
from vaak.nn.lora import FrozenLinear
from vaak.testing import Case

WAITS_OF_A_STEP = {
    "lm decoder, documents": 1,
    "lm decoder, packed": 1,
    "lm encoder": 1,
    "lm Performer": 1,
    "lm of transformers, packed": 1,
    "lm preferences, dpo": 1,
    "lm preferences, orpo": 1,
    "seq2seq": 1,
    "classification": 1,
    "classification, several labels": 1,
    "multitask": 1,
    "diarization": 1,
    "diarization, powerset, augmented": 1,
    "diarization, features on the device": 1,
    "tts": 1,
    "tts, learned durations": 1,
    "tts, flow matching, pitch, energy, learned durations": 1,
    "asr": 1,
    "asr, features on the device": 1,
    "asr, ctc": 1,
    "asr, ctc, features on the device": 1,
    "vocoder": 2,  # it has two objectives
}
"""The greatest number in a step of one microbatch: once, whether its numbers are finite, for each objective."""
WAITS_OF_BASES = {
    **dict.fromkeys(BASE_CASES, 1),
    "lm, qwen3_moe": 1 + 2 * 2,  # for each layer, how many tokens each expert has
    "lm, glm4_moe": 1 + 2,
    # as many as transformers has
    **dict.fromkeys(("decoder, qwen3_asr", "decoder, glmasr", "decoder, voxtral"), 26),
    **dict.fromkeys(("lm, mixtral", "lm, qwen3_moe, dense layers", "lm, glm4_moe, half rotary"), 13),
}
"""The greatest number in a step of a pretrained base."""
WAITS_OF_AN_EVALUATION = {
    "lm decoder, documents": 1,
    "lm encoder": 1,
    "seq2seq": 2 + 6,  # the losses, the sources, and a token of the translations each
    "classification": 1,
    "classification, several labels": 1,
    "multitask": 1,
    "diarization": 3,  # for each group of windows: a recording of this batch has three at most
    "tts": 1,
    "tts, learned durations": 1,
    "asr": 2 + 16,  # as in a step, and a token of the transcripts each
    "vocoder": 2,  # lengths, distances
}
"""The greatest number for each batch."""
QUICK = (
    "lm encoder", "seq2seq", "classification, several labels", "diarization", "tts", "asr", "vocoder",
    "asr, features on the device", "asr, ctc, features on the device", "diarization, features on the device",
)  # fmt: skip
"""One of each task, and features that are made on the GPU; the others are slow."""
QUICK_EVALUATIONS = tuple(name for name in QUICK if name not in ("seq2seq", "vocoder"))
"""Translations and transcripts are written by the same search, which takes seconds."""


def parameters(names: dict[str, int], quick: Sequence[str] = QUICK) -> list[Any]:
    slow = [name for name in names if name not in quick]
    return [
        pytest.param(name, number, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for name, number in names.items()
    ]


@pytest.fixture(autouse=True)
def _switches_are_put_back() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


Begin = Callable[..., Trainer]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Gives a case of the contract by its name; its data are prepared once."""
    cases = CASES | BASE_CASES
    return functools.cache(lambda name: cases[name].prepared(tmp_path_factory.mktemp("prepared")))


@pytest.fixture
def begin(prepared: Callable[[str], Case], gpu: MockDevice, tmp_path: Path) -> Begin:
    """Makes a trainer of a case by its name, on the GPU, where what isn't repeatable is an error."""

    def begun(name: str, **more: Any) -> Trainer:
        options: dict[str, Any] = {"device": "cuda", "deterministic": True, "gradient_accumulation_steps": 1, **more}
        return prepared(name).trainer(tmp_path / "run", **options)

    return begun


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
def test_a_step_waits_no_more_often_than_this(name: str, number: int, gpu: MockDevice, begin: Begin):
    waits = waits_of_a_step(begin(name), gpu)
    assert len(waits) <= number, "\n".join(map(str, waits))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), WAITS_OF_BASES.items())
def test_a_step_of_a_base_waits_no_more_often_than_this(name: str, number: int, gpu: MockDevice, begin: Begin):
    waits = waits_of_a_step(begin(name, deterministic=False), gpu)
    assert len(waits) <= number, "\n".join(map(str, waits))


@pytest.mark.parametrize(
    "name", mostly_slow(("lm decoder, packed", "lm encoder", "seq2seq", "asr"), "lm decoder, packed", "asr")
)
def test_nor_where_logits_are_never_whole(name: str, gpu: MockDevice, begin: Begin):
    waits = waits_of_a_step(begin(name, performance={"logits": "chunked"}), gpu)
    assert len(waits) <= WAITS_OF_A_STEP[name], "\n".join(map(str, waits))


@pytest.mark.parametrize("name", mostly_slow(("lm decoder, packed", "lm encoder"), "lm decoder, packed"))
def test_nor_where_no_pairs_are_masked(name: str, gpu: MockDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Packed rows, and padded ones of an encoder, by kernels of variable length in bf16."""
    pytest.importorskip("torch.nn.attention.varlen")
    options: dict[str, Any] = {"device": "cuda", "gradient_accumulation_steps": 1, "mixed_precision": "bf16"}
    losses, called = list[float](), list[bool]()

    def note(*given: Any, **more: Any) -> Tensor:
        called.append(True)
        return attend_segments(*given, **more)

    monkeypatch.setattr("vaak.nn.attention.attend_segments", note)
    there = torch.backends.cuda.is_built()
    with contextlib.nullcontext() if there else varlen_reference.kernels_on_cpu(monkeypatch):
        for attention in ("masked", "auto"):
            model = {**CASES[name].options["model"], "dropout": 0.0, "d_model": 32}
            case = replace(CASES[name], options={**CASES[name].options, "model": model}).prepared(tmp_path)
            trainer = case.trainer(tmp_path / attention, performance={"attention": attention}, **options)
            waits = waits_of_a_step(trainer, gpu)
            assert len(waits) <= 1, "\n".join(map(str, waits))
            assert bool(called) == (attention == "auto")
            losses.append(trainer.evaluator.evaluate(trainer.model, "valid")["val_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("base_dtype", mostly_slow(("bf16", "nf4"), "nf4"))
def test_nor_where_the_base_is_kept_in_fewer_bits(base_dtype: str, gpu: MockDevice, tmp_path: Path):
    pytest.importorskip("peft")
    case = CASES["lm pretrained, low-rank adapters"]
    model = {**case.options["model"], "lora": {**case.options["model"]["lora"], "base_dtype": base_dtype}}
    options: dict[str, Any] = {"device": "cuda", "deterministic": True, "gradient_accumulation_steps": 1}
    prepared = replace(case, options={**case.options, "model": model}).prepared(tmp_path)
    trainer = prepared.trainer(tmp_path / "run", mixed_precision="bf16", **options)
    frozen = next(one for one in trainer.model.modules() if isinstance(one, FrozenLinear))
    assert all(one.is_cuda for one in (*frozen.parameters(), *frozen.buffers()))
    waits = waits_of_a_step(trainer, gpu)
    assert len(waits) <= 1, "\n".join(map(str, waits))


@pytest.mark.parametrize(("name", "number"), parameters(WAITS_OF_AN_EVALUATION, QUICK_EVALUATIONS))
def test_an_evaluation_waits_no_more_often_than_this(name: str, number: int, gpu: MockDevice, begin: Begin):
    trainer = begin(name)
    dataset = trainer.task.dataset("valid")
    batches = -(-len(dataset.lengths) // trainer.config.batch_size)
    trainer.evaluator.evaluate(trainer.model, "test")  # kernels are compared before their first use
    before = len(gpu.waits())
    trainer.evaluator.evaluate(trainer.model, "valid")
    waits = gpu.waits()[before:]
    assert len(waits) <= number * batches, "\n".join(map(str, waits))


class Repeating:
    """Scores that are the same after every token, on their own device."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.rows = logits, torch.arange(len(logits))

    def next_logits(self, tokens: Tensor) -> Tensor:
        assert tokens.device == self.logits.device
        return self.logits[send(self.rows, self.logits.device)]

    def select(self, rows: Tensor) -> None:
        self.rows = self.rows[rows]


def test_a_sum_over_processes_waits_once(gpu: MockDevice):
    """Which parameters any rank has reached, and the terms' sums; this rank has reached half of its parameters."""
    ranks = SimpleNamespace(rank=0, world_size=2, device=torch.device("cuda:0"), add_up=lambda tensor: None)
    ranks.gather, ranks.start_adding_up = lambda value: [value, value], lambda tensor: lambda: None
    reached, not_reached = (torch.nn.Parameter(torch.ones(3).cuda()) for _ in range(2))
    buckets = GradientBuckets([reached, not_reached], ranks)
    for waits in (2, 1):  # the first sends the terms' names
        buckets.begin()
        total = (2 * reached).sum()
        total.backward()
        before = len(gpu.waits())
        sums, _ = buckets.reduce({"main": total.detach()}, {"main": "token"})
        assert len(gpu.waits()) - before == waits, "\n".join(map(str, gpu.waits()[before:]))
    assert sums["main"].is_cuda
    assert float(sums["main"]) == 6
    assert not_reached.grad is None
    assert reached.grad is not None
    assert reached.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 5}, {"min_p": 0.1, "repetition_penalty": 1.2}])
def test_writing_waits_once_a_token(options: dict[str, Any], gpu: MockDevice):
    logits = torch.randn(3, 600, generator=torch.Generator().manual_seed(0))
    settings = SamplingSettings(7, **options)
    expected = write(Repeating(logits), torch.zeros(3, dtype=torch.long), settings, keys=(1, 2, 3))
    begin, writer = torch.zeros(3, dtype=torch.long).cuda(), Repeating(logits.cuda())
    before = len(gpu.waits())
    found = write(writer, begin, settings, keys=(1, 2, 3))
    assert len(gpu.waits()) - before == 7
    assert found == expected


def test_a_beam_waits_once_a_token(gpu: MockDevice):
    logits = torch.randn(3, 600, generator=torch.Generator().manual_seed(0))
    settings = BeamSettings(end_id=599, max_new_tokens=7, beam_size=4)
    expected = beam_search(Repeating(logits), torch.zeros(3, dtype=torch.long), settings)
    begin, writer = torch.zeros(3, dtype=torch.long).cuda(), Repeating(logits.cuda())
    before = len(gpu.waits())
    found = beam_search(writer, begin, settings)
    assert len(gpu.waits()) - before <= 1 + 7  # the first tokens, too
    assert [[one.tokens for one in row] for row in found] == [[one.tokens for one in row] for row in expected]


@pytest.mark.parametrize("seed", range(20))
def test_the_highest_are_those_of_a_cpu(gpu: MockDevice, seed: int):
    """Also of equal ones, of either zero, and of what can't be."""
    generator = torch.Generator().manual_seed(seed)
    scores = 1.7 * torch.randint(-3, 4, (4, 8), generator=generator).float()
    scores = torch.where(scores == 0, -0.0 if seed % 2 else 0.0, scores).masked_fill(scores < -4, -torch.inf)
    for count in range(1, 9):
        values, places = highest(scores.cuda(), count)
        expected = highest(scores, count)
        assert torch.equal(values.cpu(), expected[0])
        assert torch.equal(places.cpu(), expected[1])


def test_what_is_read_together_may_be_anywhere(gpu: MockDevice):
    """A user's metric may be computed on the CPU; a batch may be on the GPU that is called just cuda."""
    found = [torch.tensor([1.5, 2.5]).cuda(), torch.tensor(7), torch.tensor([[True], [False]]).cuda()]
    before = len(gpu.waits())
    read = read_together(*found)
    assert len(gpu.waits()) - before == 1
    assert [one.tolist() for one in read] == [[1.5, 2.5], 7, [[True], [False]]]
    there = send(found[0], torch.device("cuda"))
    assert there.is_cuda
    assert there.tolist() == [1.5, 2.5]
