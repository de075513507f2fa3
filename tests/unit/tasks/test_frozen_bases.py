"""A frozen base in bf16 trains the same adapters as one in fp32, in half the memory; it is resumed and exported."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract_cases import CASES
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.trainer import Trainer
from vaak.nn.lora import FrozenLinear, merged

pytest.importorskip("peft")
pytest.importorskip("transformers")
NAMES = ("lm pretrained, low-rank adapters", "seq2seq pretrained, low-rank adapters", "asr, experts")


def trainer_of(name: str, folder: Path, base_dtype: str, **training: Any) -> Trainer:
    """A trainer of a case of the contract, in bf16."""
    options = copy.deepcopy(CASES[name].options)
    adapters = options["model"].get("lora") or options["model"]["experts"]
    adapters["base_dtype"] = base_dtype
    folder.mkdir(exist_ok=True)
    case = replace(CASES[name], options=options).prepared(folder)
    return case.trainer(folder / "run", mixed_precision="bf16", **training)


def adapters_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == torch.float32, name
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("name", NAMES)
def test_training_in_bf16_has_the_same_bits(name: str, tmp_path: Path):
    whole = trainer_of(name, tmp_path / "whole", "fp32", max_steps=3)
    half = trainer_of(name, tmp_path / "half", "bf16", max_steps=3)
    before = {parameter: one.clone() for parameter, one in adapters_of(half).items()}
    kept = {layer: one for layer, one in half.model.named_modules() if isinstance(one, FrozenLinear)}
    assert kept
    for layer, one in kept.items():
        assert 2 * one.weight.nbytes == whole.model.get_submodule(layer).weight.nbytes
    for trainer in (whole, half):
        trainer.fit()
    assert_same(adapters_of(half), adapters_of(whole))
    assert any(not torch.equal(one, before[parameter]) for parameter, one in adapters_of(half).items())


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_resumed_to_the_same_bits(name: str, tmp_path: Path):
    checkpoints = {"checkpoint": {"interval": 2}}
    straight = trainer_of(name, tmp_path / "straight", "bf16", max_steps=4, **checkpoints)
    straight.fit()
    trainer_of(name, tmp_path / "resumed", "bf16", max_steps=2, **checkpoints).fit()
    resumed = trainer_of(name, tmp_path / "resumed", "bf16", max_steps=4, **checkpoints)
    assert resumed.resume("auto")
    resumed.fit()
    assert_same(adapters_of(resumed), adapters_of(straight))
    saved = load_checkpoint(tmp_path / "resumed/run/checkpoints/step-00000004", weights_only=True, base=resumed.model)
    for parameter, one in resumed.model.named_parameters():
        if parameter in saved.model:
            assert saved.model[parameter].dtype == one.dtype, parameter


@pytest.mark.parametrize("name", NAMES[:2])
def test_what_is_exported_is_whole(name: str, tmp_path: Path):
    """The adapters are added in fp32 to weights that were rounded before."""
    trainer = trainer_of(name, tmp_path / "run", "bf16", max_steps=3)
    trainer.fit()
    found = merged(trainer.model)
    assert not any(isinstance(one, FrozenLinear) for one in found.modules())
    assert {one.dtype for one in found.parameters()} == {torch.float32}
    assert any(isinstance(one, FrozenLinear) for one in trainer.model.modules()), "the model itself is as it was"
