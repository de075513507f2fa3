"""Names of the TTS trainer: configurations that train, a gradient scaler for a loop of one's own, devices."""

from __future__ import annotations

import copy
import json
import operator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiny_voice
from vaak.compat.english_tts import (
    OPTIONS,
    OTHER_NAMES,
    DeviceType,
    EnglishTrainingConfig,
    MPSGradScaler,
    find_latest_checkpoint,
    get_default_config,
    get_small_config,
    load_checkpoint,
    load_phoneme_processor,
    save_checkpoint,
    save_phoneme_processor,
)
from vaak.config.tasks import task_class
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import UserError
from vaak.engine.optim.optimizers import build_parameter_optimizers, trained_parameters
from vaak.runs.open_run import open_run


def trained(scaler: MPSGradScaler | torch.amp.GradScaler, model: nn.Module, overflow_at: int) -> list[float]:
    """Ten steps of a loop as the TTS trainer writes it; the scale after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    generator, scales = torch.Generator().manual_seed(0), []
    for step in range(10):
        loss = model(torch.randn(4, 3, generator=generator)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss * (float("inf") if step == overflow_at else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def test_a_loop_with_the_scaler_gives_the_weights_of_torchs():
    torch.manual_seed(0)
    ours = nn.Linear(3, 2)
    theirs = copy.deepcopy(ours)
    scales = trained(MPSGradScaler(), ours, overflow_at=3)
    assert scales == trained(torch.amp.GradScaler("cpu"), theirs, overflow_at=3)
    assert scales == [65536.0] * 3 + [32768.0] * 7
    assert torch.equal(ours.weight, theirs.weight)


def test_its_state_goes_on_and_disabled_it_does_nothing():
    scaler, other, off = MPSGradScaler(), MPSGradScaler(), MPSGradScaler(enabled=False)
    trained(scaler, nn.Linear(3, 2), overflow_at=0)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 32768
    assert (off.scale(torch.ones(())).item(), off.get_scale(), off.is_enabled()) == (1.0, 1.0, False)


def test_unscaling_twice_is_an_error():
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    scaler = MPSGradScaler()
    scaler.unscale_(optimizer)
    with pytest.raises(UserError, match="already been called"):
        scaler.unscale_(optimizer)


def test_devices_are_those_of_the_configuration():
    assert [kind.value for kind in DeviceType] == ["cuda", "mps", "cpu"]
    assert DeviceType("cpu").device == torch.device("cpu")
    assert DeviceType.best() in DeviceType


def options_of(config: EnglishTrainingConfig) -> dict[str, Any]:
    """The options that the trainer's documents give a value."""
    experiment: Any = config.loaded.experiment
    training, model = experiment.training, experiment.model
    widths = {model.encoder.d_model, model.decoder.d_model}
    return {
        "batch": training.batch_size,
        "hidden": widths.pop() if len(widths) == 1 else widths,
        "layers": (model.encoder.num_layers, model.decoder.num_layers),
        "lr": training.optimizer.lr,
        "clipping": training.gradient_clipping.norm,
        "precision": training.mixed_precision,
        "checkpointing": training.performance.gradient_checkpointing,
        "workers": training.performance.num_workers,
        "schedule": training.scheduler.type,
        "logging": training.logging.interval,
        "checkpoints": training.checkpoint.interval_epochs,
        "wandb": training.logging.wandb,
        "profiling": training.profiling,
    }


DEFAULT = {
    "batch": 16, "hidden": 512, "layers": (6, 6), "lr": 1e-4, "clipping": 1.0, "precision": "fp16",
    "checkpointing": True, "workers": 2, "schedule": "cosine_restarts", "logging": 10, "checkpoints": 5,
    "wandb": False, "profiling": False,
}  # fmt: skip


def test_the_default_configuration_is_the_trainers():
    assert options_of(get_default_config()) == options_of(EnglishTrainingConfig()) == DEFAULT


def test_the_small_configuration_is_the_trainers():
    assert options_of(get_small_config()) == DEFAULT | {"batch": 8, "hidden": 256, "layers": (4, 4)}


def custom(folder: Path, **changes: Any) -> EnglishTrainingConfig:
    """The custom example of the trainer's documents."""
    values: dict[str, Any] = {
        "data_dir": str(folder),
        "batch_size": 32,
        "learning_rate": 5e-5,
        "hidden_dim": 768,
        "n_encoder_layers": 8,
        "use_wandb": True,
        "enable_profiling": False,
    }
    return EnglishTrainingConfig(**{**values, **changes})


def test_the_custom_example_is_what_its_values_say(tmp_path: Path):
    changed = {"batch": 32, "lr": 5e-5, "hidden": 768, "layers": (8, 6), "wandb": True}
    assert options_of(custom(tmp_path)) == DEFAULT | changed


def test_unknown_options_are_an_error():
    with pytest.raises(ConfigError, match="lerning_rate"):
        _ = EnglishTrainingConfig(options={"training": {"lerning_rate": 1}}).loaded
    with pytest.raises(TypeError, match="n_layers"):
        get_small_config(n_layers=3)


CHANGED: dict[str, Any] = {
    "batch_size": 3, "num_workers": 1, "hidden_dim": 64, "n_encoder_layers": 3, "n_decoder_layers": 2, "n_heads": 4,
    "encoder_ff_dim": 96, "decoder_ff_dim": 128, "dropout": 0.3, "learning_rate": 3e-4, "num_epochs": 7,
    "optimizer": "adam", "weight_decay": 0.2, "scheduler": "cosine_restarts", "first_cycle_epochs": 2,
    "cycle_growth": 3, "min_learning_rate": 1e-6, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2, "seed": 7,
    "sample_rate": 16000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 40, "f_min": 50.0,
    "f_max": 7000.0, "device": "cpu", "use_mixed_precision": False, "gradient_checkpointing": False,
    "adaptive_memory": False, "memory_thresholds": (0.5, 0.6, 0.7), "memory_cleanup_interval": 9,
    "checkpoint_dir": "kept", "save_every": 2, "save_total_limit": 4, "resume": "auto", "output_dir": "runs/mine",
    "use_wandb": True, "wandb_project": "voices", "wandb_entity": "team", "wandb_run_name": "first",
    "wandb_tags": ("a", "b"), "log_interval": 5, "enable_profiling": True,
}  # fmt: skip
"""Another value for every field, among them all that the trainer's documents list without naming them."""
READ_AS = {"use_mixed_precision": "no", "output_dir": Path("runs/mine")}


def test_every_field_is_its_option_by_name_and_by_its_other_names():
    named = {field.name for field in fields(EnglishTrainingConfig)} - {"data_dir", "alignment_dir", "options"}
    assert named == set(OPTIONS) == set(CHANGED)
    reported: Any = EnglishTrainingConfig(**CHANGED).loaded.experiment
    for name, option in OPTIONS.items():
        sides = [option] if "global_config." not in option or option.startswith("global_config") else [
            option.replace("global_config", side) for side in ("encoder", "decoder")
        ]  # fmt: skip
        for dotted in sides:
            assert operator.attrgetter(dotted)(reported) == READ_AS.get(name, CHANGED[name]), name
    values = CHANGED | {"alignment_dir": "mfa"}
    for other, name in OTHER_NAMES.items():
        config = get_small_config(**{other: values[name]})
        assert getattr(config, other) == getattr(config, name) == values[name]
        setattr(config, other, getattr(EnglishTrainingConfig(), name))
        assert getattr(config, name) == getattr(EnglishTrainingConfig(), name)


def test_fields_have_the_values_that_the_run_will_have():
    """A program may read fields that it didn't set: each is None or the value that Vaak uses."""
    config = EnglishTrainingConfig()
    experiment: Any = config.loaded.experiment
    for name, option in OPTIONS.items():
        dotted = option.replace("model.global_config", "model.encoder")
        found, value = operator.attrgetter(dotted)(experiment), getattr(config, name)
        same_words = {"CosineAnnealingWarmRestarts": "cosine_restarts", True: found if found == "fp16" else True}
        assert value is None or same_words.get(value, value) == found, name


def test_two_names_of_one_field_are_an_error():
    with pytest.raises(UserError, match="lr is another name of learning_rate: give one of them"):
        EnglishTrainingConfig(lr=1e-3, learning_rate=1e-3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="lerning_rate"):
        EnglishTrainingConfig(lerning_rate=1)  # type: ignore[call-arg]


def test_alignments_that_are_elsewhere_give_durations(tmp_path: Path):
    experiment: Any = EnglishTrainingConfig(data_dir=str(tmp_path), alignment_dir="mfa").loaded.experiment
    assert (experiment.model.durations, experiment.datasets[0].alignments) == ("given", "mfa")


QUICK: dict[str, Any] = {
    "global_config": {"mel": tiny_voice.MEL},
    "data": {"samples": ["He saw me."], "speaking": {"num_iterations": 2}},
    "training": {
        "device": "cpu",
        "max_steps": 1,
        "performance": {"num_workers": 0},
        "logging": {"wandb": False, "tensorboard": False, "progress_bar": False},
    },
}


@pytest.mark.parametrize("aligned", [True, False])
def test_a_configuration_trains_a_voice_that_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aligned: bool):
    """With TextGrids, durations are theirs; without, they are learned."""
    monkeypatch.chdir(tmp_path)
    folder = tiny_voice.write_ljspeech(tmp_path / "corpus")
    if not aligned:
        (folder / "TextGrid").rename(tmp_path / "elsewhere")
    sizes = {"hidden_dim": 32, "n_encoder_layers": 1, "n_decoder_layers": 1, "batch_size": 4}
    options = {**QUICK, "model": {"global_config": {"num_heads": 2}}}
    outcome = get_small_config(data_dir=str(folder), options=options, **sizes).train()
    opened = open_run(outcome.directory)
    assert opened.experiment.model.durations == ("given" if aligned else "learned")
    assert len(opened.task.speaker(opened.model).speech("He saw me.").samples)
    newest = find_latest_checkpoint(outcome.directory / "checkpoints")
    assert newest is not None
    snapshot = load_checkpoint(newest)
    assert snapshot.step == 1
    written = save_checkpoint("written", snapshot)
    assert find_latest_checkpoint("written") == written
    assert load_checkpoint(str(written)).step == 1
    processor = load_phoneme_processor(outcome.directory)
    assert save_phoneme_processor(processor, tmp_path / "mine").parent == tmp_path / "mine"
    assert load_phoneme_processor(tmp_path / "mine").encode("He saw me.") == processor.encode("He saw me.")
    [step] = [
        line for line in map(json.loads, (outcome.directory / "metrics.jsonl").read_text().splitlines())
        if line["kind"] == "step"
    ]  # fmt: skip
    assert step["loss"] == pytest.approx(sum(value for name, value in step.items() if name in NAMES), rel=1e-4)


NAMES = ("mel", "duration", "stop", "alignment", "binarisation")


@pytest.mark.slow
def test_the_custom_example_trains_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    experiment: Any = custom(tiny_voice.write_ljspeech(tmp_path / "corpus"), options=QUICK).loaded.experiment
    task = task_class("tts")(experiment, tmp_path / "run", tmp_path)
    task.prepare()
    torch.manual_seed(0)
    model, dataset = task.model(), task.dataset("train")
    [optimizer] = build_parameter_optimizers(trained_parameters(model), experiment.training.optimizer, tmp_path)
    assert [len(model.encoder.blocks), len(model.decoder.blocks)] == [8, 6]
    batch = dataset.collate([[dataset.example(index, np.random.default_rng(0))] for index in range(2)])
    losses = []
    for _ in range(2):
        loss = sum(term.total / batch.counts[term.per].sum() for term in task.losses(model.train(), batch).values())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
