"""The operations of the language model are those of the formula; counting them changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from quick_cases import mostly_slow
from toy import ToyTask, same_bits, toy_trainer, weights
from vaak.core.batch import Batch, Term
from vaak.engine.dry_pass import LiveStorages
from vaak.engine.flops import PEAKS, count_flops, peak_flops
from vaak.engine.precision import Precision
from vaak.tasks.lm.model import AnyLanguageModel
from vaak.tasks.lm.task import LanguageModelTask

CPU = torch.device("cpu")
SHAPES = {
    "multi-head": ("model.num_layers=2", "model.num_heads=4"),
    "grouped queries": ("model.num_heads=4", "model.num_key_value_heads=2"),
    "untied head": ("model.tie_embeddings=false",),
    "without attention dropout": ("model.dropout=0",),
}


def whole_batch(task: LanguageModelTask, rows: int = 3, length: int = 40) -> Batch:
    """Rows of one length, so that no token is padding."""
    ids = torch.randint(5, task.tokenizer.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    tensors = {"inputs": ids, "targets": ids, "documents": torch.zeros_like(ids)}
    return Batch(tensors, {"token": torch.full((rows,), length)}, extra={"packed": False})


def by_formula(task: LanguageModelTask, model: AnyLanguageModel, batch: Batch) -> int:
    """6 for each parameter that is a matrix and each token, and 12 · layers · width · length a token for attention."""
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    if model.head is not None:
        matrices -= model.embedding.weight.numel()  # looked up, not multiplied
    tokens, length = batch["inputs"].numel(), batch["inputs"].shape[1]
    return 6 * matrices * tokens + 12 * task.options.num_layers * task.options.d_model * length * tokens


@pytest.mark.parametrize("precision", mostly_slow(("no", "bf16"), "no"))
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_the_language_model_takes_what_the_formula_says(
    tiny_text: Path, tmp_path: Path, options: tuple[str, ...], precision: str
):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "run", *options)
    model, batch = task.model(), whole_batch(task)
    assert count_flops(task, model, batch, Precision(precision, CPU)) == by_formula(task, model, batch)


class DeepTask(ToyTask):
    """Layers that are large for what passes through them."""

    objectives = ()

    def losses(self, model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        return {"main": Term(model(batch["x"]).sum(), per="row")}


def test_no_two_gradients_are_held_at_a_time():
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(10)))
    kept = torch.ones(64)
    model[3].bias.grad = kept
    batch = Batch({"x": torch.ones(2, 64)}, {"row": torch.ones(2)})
    with LiveStorages([*model.parameters(), kept]) as storages:
        flops = count_flops(DeepTask(), model, batch, Precision("no", CPU))
    assert flops == (3 * 10 - 1) * 2 * 2 * 64 * 64, "the first layer's input needs no gradient"
    assert storages.peak < 3 * model[0].weight.nbytes
    assert [name for name, one in model.named_parameters() if one.grad is not None] == ["3.bias"]
    assert model[3].bias.grad is kept


def draws() -> list[Any]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


def test_counting_leaves_weights_gradients_mode_and_generators_as_they_were(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    before, model = weights(trainer), trainer.model.eval()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert trainer.count_work(peak_tflops=1.0) is not None
    assert draws() == expected
    assert same_bits(before, weights(trainer))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


class Counting(torch.nn.BatchNorm1d):
    """A module whose forward pass writes its buffers, as a user's may."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


def test_buffers_that_a_forward_pass_writes_are_put_back(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    trainer.model.dropout = Counting(8)
    before = weights(trainer)
    trainer.count_work(peak_tflops=1.0)
    assert same_bits(before, weights(trainer))


def test_work_is_in_seconds_of_all_devices_at_their_peak_for_a_token(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    work, on_two = trainer.count_work(peak_tflops=1.0), trainer.count_work(peak_tflops=2.0)
    assert work is not None
    assert on_two is not None
    assert work.unit == "token"
    assert work.seconds == pytest.approx(2 * on_two.seconds)
    head_and_features = 8 * 13 + 8 * 8
    assert work.seconds * 1e12 >= 4 * head_and_features


@pytest.mark.parametrize(
    ("name", "precision", "tf32", "tera"),
    [
        ("Tesla V100-SXM2-16GB", "fp16", False, 125.0),
        ("Tesla V100-SXM2-16GB", "no", True, 15.7),
        ("Tesla V100-PCIE-32GB", "bf16", False, None),
        ("Tesla T4", "fp16", False, 65.0),
        ("NVIDIA A10", "bf16", False, 125.0),
        ("NVIDIA A10G", "bf16", False, None),
        ("NVIDIA A100-SXM4-40GB", "no", False, 19.5),
        ("NVIDIA A100 80GB PCIe", "no", True, 156.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", False, None),
        ("NVIDIA L4", "bf16", False, 121.0),
        ("NVIDIA L40S", "bf16", False, 362.0),
        ("NVIDIA GeForce RTX 3090", "bf16", False, 71.0),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", False, None),
        ("NVIDIA GeForce RTX 4090", "no", False, 82.6),
        ("NVIDIA GeForce RTX 4090", "fp16", False, 165.2),
        ("NVIDIA H100 PCIe", "bf16", False, 756.0),
        ("NVIDIA H100 80GB HBM3", "bf16", False, 989.4),
        ("NVIDIA H200", "bf16", False, 989.4),
        ("NVIDIA H200 NVL", "bf16", False, 835.5),
        ("NVIDIA B200", "bf16", False, 2250.0),
        ("cpu", "no", False, None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name: str, precision: str, tf32: bool, tera: float | None):
    peak = peak_flops(name, precision, tf32)
    assert peak is None if tera is None else peak == tera * 1e12


def test_no_gpu_is_slower_in_fewer_bits():
    for peak in PEAKS.values():
        assert peak.fp32 <= (peak.tf32 or peak.fp16) <= peak.fp16
        assert peak.bf16 in (None, peak.fp16)


class NoMemory(ToyTask):
    def losses(self, model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_microbatch_that_does_not_fit_leaves_mfu_out_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "vaak")
    assert toy_trainer(tmp_path, task=NoMemory()).count_work(peak_tflops=1.0) is None
    assert "can't be run whole, so MFU is left out" in caplog.text


class Broken(ToyTask):
    def losses(self, model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_an_error_that_is_none_of_memory_is_raised(tmp_path: Path):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        toy_trainer(tmp_path, task=Broken()).count_work(peak_tflops=1.0)


def test_where_the_peak_is_not_known_it_is_said_and_nothing_is_run(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "vaak")
    assert toy_trainer(tmp_path, task=NoMemory()).count_work(peak_tflops=None) is None
    assert "the peak of this device (cpu) isn't known, so MFU is left out" in caplog.text
