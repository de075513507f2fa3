"""A mixture that is balanced by a loss: a step has one gradient, however it is divided, and survives a shortage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_listener
import tiny_mixture
from backwards import out_of_memory
from toy import one_step
from vaak.config.base import from_options
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.storage.files import hash_file, read_json
from vaak.engine.state import ChunkRule
from vaak.engine.trainer import Trainer
from vaak.runs.open_run import open_run
from vaak.runs.start import train
from vaak.tasks.asr.stages.pipeline import PIPELINE
from vaak.tasks.asr.whisper.model import AsrModel
from vaak.tasks.asr.whisper.task import WhisperTask

BALANCED: dict[str, Any] = {"loss": {"auxiliary": {"load_balancing": 0.5}}, "gradient_clipping": {"norm": None}}
SMALL = 2
"""Rows that a small machine has memory for."""


def model_on(whisper: Path) -> dict[str, Any]:
    experts = {"num_experts": 3, "rank": 2, "gate_width": 8, "targets": ["q_proj"]}
    return {"base": str(whisper), "experts": experts}


def small_machine(patched: pytest.MonkeyPatch, interrupted_after: int = 1000) -> list[int]:
    """From now on, training has memory for a few rows only; the sizes of batches that didn't fit.

    It is interrupted in the middle of a step, after a number of chunks.
    """
    whole, shortages, chunks = AsrModel.forward, list[int](), list[int]()

    def forward(self: AsrModel, features: Tensor, *others: Any) -> Any:
        if torch.is_grad_enabled() and len(features) > SMALL:
            shortages.append(len(features))
            raise out_of_memory()
        chunks.append(len(features))
        if len(chunks) > interrupted_after:
            raise KeyboardInterrupt
        return whole(self, features, *others)

    patched.setattr(AsrModel, "forward", forward)
    return shortages


@pytest.mark.slow
def test_a_step_of_sixteen_has_one_gradient(corpus: Path, whisper_folder: Path, tmp_path: Path) -> None:
    """At once, in four microbatches, one by one, and in chunks."""

    def step(size: int, chunks: int = 1) -> tuple[float, dict[str, Tensor]]:
        training = {**BALANCED, "batch_size": size, "gradient_accumulation_steps": 16 // size}
        folder = tmp_path / f"{size}-{chunks}"
        folder.mkdir()
        (folder / "case.yml").write_text(
            yaml_text(tiny_listener.options(corpus, model=model_on(whisper_folder), training=training))
        )
        experiment: Any = load([folder / "case.yml"]).experiment
        task = WhisperTask(experiment, folder, folder)
        task.prepare()
        trainer = Trainer(task, experiment.training, folder, ())
        if chunks > 1:
            trainer.state.chunk_rules.add(ChunkRule(1, chunks), "a small machine")
        read: list[int] = []
        model: Any = trainer.model
        model.whisper.model.encoder.register_forward_hook(lambda *_: read.append(1))
        report, gradients = one_step(trainer)
        assert len(read) == 2 * chunks * 16 // size, "counting first costs no further pass over the audio"
        return float(report.losses["load_balancing"]), gradients

    loss, expected = step(16)
    assert loss > 1.0
    assert max(float(one.abs().max()) for name, one in expected.items() if name.startswith("gate")) > 1e-3
    for divided in (step(4), step(1), step(16, 3), step(4, 2)):
        assert divided[0] == pytest.approx(loss, rel=1e-5)
        for name, gradient in divided[1].items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_joint_training_recovers_from_a_shortage_and_ends(
    corpus: Path, whisper_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default of load balancing; to the figures of a large machine."""
    options = {"skip_pretraining": True, "num_experts": 3, "asr_batch_size": 8, "asr_lr": 1e-3, "gate_lr_scale": 0.1}
    given = tiny_mixture.options(corpus, whisper_folder, **options)
    made: Any = from_options(PIPELINE.options, given, PIPELINE.name)
    assert made.load_balancing > 0
    tiny_mixture.run(given, tmp_path / "large")
    shortages = small_machine(monkeypatch)
    assert [row.state for row in tiny_mixture.run(given, tmp_path / "small")] == ["run"]
    assert set(shortages) == {8, 4}, "halved twice, in the rehearsal, and then never again"
    assert len(shortages) == 2
    found, expected = (read_json(tmp_path / name / "joint" / "joint.json") for name in ("small", "large"))
    groups = open_run(tmp_path / "small" / "joint" / "run", device="cpu").experiment.training.optimizer.groups
    assert [(one.match, one.lr_scale) for one in groups] == [(r"^gate\.", 0.1)]
    assert found["steps"] == expected["steps"] == 6
    assert found["use"] == expected["use"]
    assert found["figures"] == pytest.approx(expected["figures"], rel=1e-3)


@pytest.mark.slow
def test_a_run_stopped_after_a_shortage_resumes_to_the_same_bits(
    corpus: Path, whisper_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has enough memory by then."""
    training = {**BALANCED, "max_steps": 8, "checkpoint": {"interval": 3, "interval_epochs": None}}
    options = tiny_listener.options(corpus, model=model_on(whisper_folder), training=training)
    (tmp_path / "case.yml").write_text(yaml_text(options))

    def weights(run: str, *overrides: str) -> str:
        outcome = train(load([tmp_path / "case.yml"], [f"run_dir={tmp_path / run}", *overrides]))
        assert outcome.step == 8
        return hash_file(outcome.directory / "checkpoints" / "step-00000008" / "model.safetensors")

    with monkeypatch.context() as patched:
        assert small_machine(patched) == []
        expected = weights("once")
    with monkeypatch.context() as patched:
        small_machine(patched, interrupted_after=25)
        with pytest.raises(KeyboardInterrupt):
            weights("again")
    assert (tmp_path / "again" / "checkpoints" / "step-00000003").exists()
    assert not (tmp_path / "again" / "checkpoints" / "step-00000008").exists()
    assert weights("again", "training.checkpoint.resume=auto") == expected
