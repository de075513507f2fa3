"""With CUDA graphs a run has the bits that it has without, and what can't be captured is computed without, and said."""

from __future__ import annotations

import functools
import logging
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from base_cases import BASE_CASES, make_listener_case
from contract_cases import CASES
from mock_cuda import MockDevice
from quick_cases import mostly_slow
from task_case import TaskCase
from tiny_bases import write_w2v_bert
from tiny_wav2vec2 import write_base
from vaak.core.batch import Batch, Term
from vaak.engine import graphs
from vaak.engine.trainer import Trainer
from vaak.testing import Case

CAPTURED = (
    "classification", "classification, several labels", "seq2seq", "tts", "asr", "diarization",
    "diarization, powerset, augmented", "asr, ctc", "vocoder", "vocoder, no discriminators",
    "lm decoder, documents", "lm decoder, packed", "lm encoder", "lm encoder, packed", "lm chat, packed",
    "lm preferences, dpo", "lm preferences, orpo", "lm of transformers, packed",
    "lm pretrained, low-rank adapters", "seq2seq pretrained, low-rank adapters",
)  # fmt: skip
"""Cases whose microbatches all have a graph."""
NOT_CAPTURED = {
    "diarization, features on the device": "copy from the CPU",
    "asr, features on the device": "copy from the CPU",
    "asr, ctc, features on the device": "copy from the CPU",
    "diarization, attractors, stored features": "copy between the device and the CPU",
    "asr, experts": "copy between the device and the CPU",
    "asr, ctc, experts": "copy between the device and the CPU",
    "lm experts": "shape that depends on numbers",
    "seq2seq experts": "shape that depends on numbers",
    "lm local, convolutional, packed": "read a number",
    "multitask": "read batch.counts",
    **{f"decoder, {kind}": "read a number|index by a mask" for kind in ("qwen3_asr", "glmasr", "voxtral")},
    **{f"lm, {kind}": "shape that depends on numbers" for kind in ("qwen3_moe", "glm4_moe")},
}
"""Cases without a graph, and why."""
CAPTURED_BASES = tuple(name for name in BASE_CASES if name not in NOT_CAPTURED)
GRAPHS: dict[str, Any] = {"performance": {"cuda_graphs": True}}


@pytest.fixture(autouse=True)
def _switches_are_put_back() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Gives a case of the contract by its name; its data are prepared once."""
    cases = CASES | BASE_CASES
    return functools.cache(lambda name: cases[name].prepared(tmp_path_factory.mktemp("prepared")))


@pytest.fixture
def begin(prepared: Callable[[str], Case], gpu: MockDevice, tmp_path: Path) -> Callable[..., Trainer]:
    """Makes a trainer of a case by its name, on the GPU, where what isn't repeatable is an error."""
    number = iter(range(100))

    def begun(name: str, **more: Any) -> Trainer:
        options: dict[str, Any] = {"device": "cuda", "deterministic": True, **more}
        return prepared(name).trainer(tmp_path / f"run-{next(number)}", **options)

    return begun


def bits(trainer: Trainer, steps: int = 3) -> list[Any]:
    """Losses and norms of some steps, and the weights after them."""
    found = list[Any]()
    with closing(trainer.upcoming()) as upcoming:
        for data in islice(upcoming, steps):
            report = trainer.take_step(data)
            found.append([*(float(one).hex() for one in report.losses.values()), float(report.gradient_norm).hex()])
    return [*found, *(one.detach().cpu() for one in trainer.model.state_dict().values())]


def require_same(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def kept(trainer: Trainer) -> graphs.ShapeGraphs:
    assert trainer._trained.graphs is not None
    return trainer._trained.graphs


@pytest.mark.parametrize("name", mostly_slow(CAPTURED, "classification"))
@pytest.mark.parametrize("precision", mostly_slow(("no", "bf16"), "no"))
def test_a_run_with_graphs_has_the_bits_of_one_without(name: str, precision: str, begin: Callable[..., Trainer]):
    """With dropout, in two microbatches a step, whose gradients are added up."""
    trainer = begin(name, mixed_precision=precision, **GRAPHS)
    found = bits(trainer)
    assert kept(trainer).captured
    assert not kept(trainer).refused
    require_same(found, bits(begin(name, mixed_precision=precision)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURED_BASES)
def test_a_base_has_the_bits_that_it_has_without(name: str, begin: Callable[..., Trainer]):
    """In one microbatch a step; transformers looks at no numbers, with graphs and without."""
    # CUDA's histogram and running sum don't repeat to the bit
    options: dict[str, Any] = {"deterministic": not re.search("mixtral|moe|opt", name)}
    trainer = begin(name, gradient_accumulation_steps=1, **options, **GRAPHS)
    found = bits(trainer, 2)
    assert kept(trainer).captured
    assert not kept(trainer).refused
    require_same(found, bits(begin(name, gradient_accumulation_steps=1, **options), 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_others_are_computed_without(name: str, begin: Callable[..., Trainer], caplog: pytest.LogCaptureFixture):
    trainer = begin(name, deterministic=False, gradient_accumulation_steps=1, **GRAPHS)
    bits(trainer, 1)
    assert not kept(trainer).captured
    [said] = [one for one in caplog.messages if "is computed without a graph" in one]
    assert re.search(NOT_CAPTURED[name], said)


@pytest.mark.parametrize(
    "name", mostly_slow([*CASES, *BASE_CASES], "multitask", "diarization, attractors, stored features")
)
def test_config_check_says_which_have_none(name: str, tmp_path: Path):
    case = (CASES | BASE_CASES)[name]
    if case.write is not None:
        case.write(tmp_path / "data")
    options: Any = {"device": "cuda", "performance": {**case.training.get("performance", {}), **GRAPHS["performance"]}}
    said = [one for one in case.load(tmp_path, **options).warnings if "no graph can be captured" in one]
    assert len(said) == (name in NOT_CAPTURED), said


def change_model(name: str, **model: Any) -> TaskCase:
    case = CASES[name]
    return replace(case, options={**case.options, "model": {**case.options["model"], **model}})


CONVOLVED: dict[str, Any] = {"position_type": "convolutional"}
SELDOM = {
    "lm, convolutional": (change_model("lm decoder, documents", **CONVOLVED), True),
    "lm encoder, convolutional": (change_model("lm encoder", **CONVOLVED), False),
    "seq2seq, convolutional": (change_model("seq2seq", decoder=CONVOLVED), True),
    "seq2seq encoder, convolutional": (change_model("seq2seq", encoder=CONVOLVED), False),
    "tts, convolutional": (change_model("tts", encoder=CONVOLVED), False),
    "lm, learned positions": (change_model("lm decoder, packed", position_type="learned"), True),
    "ctc, streaming": (
        change_model("asr, ctc", conformer={**CASES["asr, ctc"].options["model"]["conformer"], "streaming": True}),
        False,
    ),
    "wav2vec2, norms of recordings": (
        make_listener_case(lambda folder: write_base(folder, "wav2vec2", "group"), architecture="ctc"),
        False,
    ),
    "w2v-BERT, adapter": (
        make_listener_case(lambda folder: write_w2v_bert(folder, adapts=True), architecture="ctc"),
        False,
    ),
}
"""Options that no other case has, and whether there is a graph."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SELDOM)
def test_config_check_knows_options_of_which_there_are_none(
    name: str, gpu: MockDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    case, is_captured = SELDOM[name]
    prepared = case.prepared(tmp_path)
    trainer = prepared.trainer(tmp_path / "run", device="cuda", gradient_accumulation_steps=1, **GRAPHS)
    bits(trainer, 1)
    assert bool(kept(trainer).captured) == is_captured, caplog.messages
    said = [one for one in case.load(tmp_path, device="cuda", **GRAPHS).warnings if "no graph can be captured" in one]
    assert bool(said) != is_captured


@pytest.mark.slow
def test_a_vocoder_has_a_graph_before_its_discriminators_and_another_with_them(begin: Callable[..., Trainer]):
    def begin_late(**more: Any) -> Trainer:
        trainer = begin("vocoder", gradient_accumulation_steps=1, **more)
        options: Any = vars(trainer.task)["options"]
        object.__setattr__(trainer.task, "options", options.model_copy(update={
            "discriminators": options.discriminators.model_copy(update={"start_step": 3})
        }))  # fmt: skip
        return trainer

    trainer = begin_late(**GRAPHS)
    found = bits(trainer, 4)
    assert len(kept(trainer).captured) == 3, "the generator's alone, and both"
    assert len(kept(trainer).refused) == 1, "there are no losses of discriminators"
    require_same(found, bits(begin_late(), 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "diarization"])
def test_a_run_that_resumes_has_the_bits_of_one_that_never_stopped(name: str, prepared: Any, gpu: Any, tmp_path: Path):
    """The resumed run captures its graphs again; the other one has some of them from before."""
    options: dict[str, Any] = {"device": "cuda", "deterministic": True, "max_steps": 6, **GRAPHS}
    whole = prepared(name).trainer(tmp_path / "whole", **options)
    whole.fit()
    begun = prepared(name).trainer(tmp_path / "resumed", **options)
    bits(begun, 4)
    begun.saving.save(True)
    begun.finish_saving()
    resumed = prepared(name).trainer(tmp_path / "resumed", **options)
    assert resumed.resume("auto")
    assert resumed.position.step == 4
    resumed.fit()
    assert kept(resumed).captured
    for one, other in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@pytest.mark.slow
def test_shapes_beyond_the_most_are_computed_without(begin: Callable[..., Trainer], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    trainer = begin("classification", performance={"cuda_graphs": True, "cuda_graph_shapes": 1})
    found = bits(trainer)
    assert len(kept(trainer).captured) == 1
    assert sum("as many as cuda_graph_shapes allows" in one for one in caplog.messages) == 1
    require_same(found, bits(begin("classification")))


def read_a_number(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    return loss if loss.item() > 0 else 2 * loss


def read_what_is_no_tensor(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    assert batch.step is not None
    return loss


def draw_on_the_cpu(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    return loss * (1 + random.random())


def draw_by_torch_on_the_cpu(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    return loss * (1 + float(torch.rand(())))


def send_numbers(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    return loss * torch.tensor([2.0]).to(loss.device)[0]


REFUSED = {
    read_a_number: "read a number from the device",
    read_what_is_no_tensor: "read batch.step, which isn't a tensor on the device",
    draw_on_the_cpu: "draw random numbers on the CPU",
    draw_by_torch_on_the_cpu: "draw random numbers on the CPU",
    send_numbers: "copy from the CPU",
}


def changed(trainer: Trainer, change: Callable[[Batch, torch.Tensor], torch.Tensor]) -> Trainer:
    """A trainer whose losses are changed by a function of the batch."""
    [objective] = trainer.step.objectives
    forward = objective.gradient.forward
    losses = forward.losses

    def changed(model: Any, batch: Batch) -> dict[str, Term]:
        return {name: Term(change(batch, one.total), one.per) for name, one in losses(model, batch).items()}

    object.__setattr__(forward, "losses", changed)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("change", REFUSED, ids=lambda one: one.__name__)
def test_what_a_graph_would_not_repeat_is_computed_without(
    change: Any, begin: Callable[..., Trainer], caplog: pytest.LogCaptureFixture
):
    trainer = changed(begin("classification", **GRAPHS), change)
    found = bits(trainer)
    assert not kept(trainer).captured
    said = [one for one in caplog.messages if "is computed without a graph" in one]
    assert len(said) == len(kept(trainer).refused) <= graphs.MOST_FAILURES
    assert all(REFUSED[change] in one for one in said)
    require_same(found, bits(changed(begin("classification"), change)))


@pytest.mark.slow
def test_a_capture_that_fails_is_said_and_computed_without(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    renewed = list[torch.device]()
    monkeypatch.setattr(graphs, "renew_generator", renewed.append)
    end = torch.cuda.CUDAGraph.capture_end

    def fail(self: Any) -> None:
        end(self)
        raise RuntimeError("CUDA error: operation not permitted\nCompile with ...")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", fail)
    trainer = begin("classification", **GRAPHS)
    found = bits(trainer)
    assert renewed == [trainer.ranks.device] * len(kept(trainer).refused)
    assert "is computed without a graph: RuntimeError: CUDA error: operation not permitted" in caplog.text
    monkeypatch.undo()
    require_same(found, bits(begin("classification")))


@pytest.mark.slow
def test_a_graph_that_gives_another_gradient_is_not_used(
    begin: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    broken = list[graphs.CapturedShape]()

    replay = graphs._replay

    def replay_wrongly(shape: graphs.CapturedShape, work: graphs.Work) -> None:
        replay(shape, work)
        broken.append(shape)
        for one in shape.results.gradients:
            if one is not None:
                one.mul_(1.5)

    monkeypatch.setattr(graphs, "_replay", replay_wrongly)
    for deterministic in (True, False):
        trainer = begin("classification", deterministic=deterministic, **GRAPHS)
        found = bits(trainer, 1)
        assert broken
        assert not kept(trainer).captured
        assert "doesn't give the gradient of the same microbatch" in caplog.text
        require_same(found, bits(begin("classification", deterministic=deterministic), 1))


@pytest.mark.slow
def test_weights_that_have_moved_are_captured_again(begin: Callable[..., Trainer]):
    trainer, other = begin("classification", **GRAPHS), begin("classification")
    for one in (trainer, other):
        with closing(one.upcoming()) as upcoming:
            data = next(upcoming)
            one.take_step(data)
        for parameter in one.model.parameters():
            parameter.data = parameter.data.clone()
    before = dict(kept(trainer).captured)
    require_same(bits(trainer, 6), bits(other, 6))
    assert any(kept(trainer).captured[key] is not graph for key, graph in before.items())
