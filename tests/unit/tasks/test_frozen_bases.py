"""A frozen base in bf16 trains the same adapters as one in fp32, in half the memory; one in four bits trains, too.

Both are resumed and exported.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from contract_cases import CASES
from quick_cases import mostly_slow
from vaak.config.load import load
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.dry_pass import numberless
from vaak.engine.snapshot import model_tensors
from vaak.engine.trainer import Trainer
from vaak.nn.lora import FrozenLinear, merged
from vaak.runs.open_run import open_run
from vaak.runs.start import train

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


def iterate_adapters(trainer: Trainer) -> dict[str, Tensor]:
    return {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == torch.float32, name
        assert torch.equal(tensor, other[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_training_in_bf16_has_the_same_bits(name: str, tmp_path: Path):
    whole = trainer_of(name, tmp_path / "whole", "fp32", max_steps=3)
    half = trainer_of(name, tmp_path / "half", "bf16", max_steps=3)
    before = {parameter: one.clone() for parameter, one in iterate_adapters(half).items()}
    kept = {layer: one for layer, one in half.model.named_modules() if isinstance(one, FrozenLinear)}
    assert kept
    for layer, one in kept.items():
        assert 2 * one.weight.nbytes == whole.model.get_submodule(layer).weight.nbytes
    for trainer in (whole, half):
        trainer.fit()
    assert_same(iterate_adapters(half), iterate_adapters(whole))
    assert any(not torch.equal(one, before[parameter]) for parameter, one in iterate_adapters(half).items())


@pytest.mark.parametrize(
    ("name", "base_dtype"),
    [
        pytest.param(NAMES[0], "bf16", marks=pytest.mark.slow),
        (NAMES[0], "nf4"),
        pytest.param(NAMES[1], "nf4", marks=pytest.mark.slow),
        pytest.param(NAMES[2], "nf4", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_resumed_to_the_same_bits(name: str, base_dtype: str, tmp_path: Path):
    checkpoints = {"checkpoint": {"interval": 2}}
    straight = trainer_of(name, tmp_path / "straight", base_dtype, max_steps=4, **checkpoints)
    drawn = {parameter: one.clone() for parameter, one in iterate_adapters(straight).items()}
    straight.fit()
    trainer_of(name, tmp_path / "resumed", base_dtype, max_steps=2, **checkpoints).fit()
    resumed = trainer_of(name, tmp_path / "resumed", base_dtype, max_steps=4, **checkpoints)
    assert resumed.resume("auto")
    resumed.fit()
    assert_same(iterate_adapters(resumed), iterate_adapters(straight))
    assert any(not torch.equal(one, drawn[parameter]) for parameter, one in iterate_adapters(resumed).items())
    folders = [tmp_path / f"resumed/run/checkpoints/step-0000000{step}" for step in (2, 4)]
    kept = model_tensors(resumed.model)
    saved = load_checkpoint(folders[1], weights_only=True, base=resumed.model).model
    assert all(
        torch.equal(one, saved[parameter]) and one.dtype == saved[parameter].dtype for parameter, one in kept.items()
    )
    assert len({(folder / "frozen.safetensors").stat().st_ino for folder in folders}) == 1, "they are on disk once"
    frozen = load_file(folders[1] / "frozen.safetensors")
    in_nf4 = {parameter for parameter in kept if parameter.endswith(("codes", "absmax", "offset"))}
    assert in_nf4 <= frozen.keys()
    assert bool(in_nf4) == (base_dtype == "nf4")


@pytest.mark.parametrize("name", mostly_slow([*NAMES], NAMES[0]))
@pytest.mark.parametrize("base_dtype", ["bf16", "nf4"])
def test_a_model_is_sized_before_it_is_made_as_it_is_held(name: str, base_dtype: str, tmp_path: Path):
    """The tensors that config check and model show count have the run's names, shapes and types."""
    trainer = trainer_of(name, tmp_path / "run", base_dtype)
    with numberless(torch.device("cpu")):
        sized = trainer.task.meta_model()
    assert sized is not None
    assert describe_tensors(sized) == describe_tensors(trainer.model)


def describe_tensors(model: torch.nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (one.shape, one.dtype) for name, one in (*model.named_parameters(), *model.named_buffers())}


def tensors_by_kind(trainer: Trainer) -> set[torch.dtype]:
    """The types of what has a row for each token."""
    return {one.dtype for name, one in trainer.model.named_parameters() if name in OF_TOKENS}


OF_TOKENS = ("embedding.weight", "head.weight", "target_embedding.weight", "whisper.model.decoder.embed_tokens.weight")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_an_earlier_version_keeps_its_embeddings_in_fp32(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """QLoRA kept them so before; a checkpoint says how it has them."""
    with monkeypatch.context() as earlier:
        for module in ("model", "pretrained"):
            earlier.setattr(f"vaak.tasks.lm.{module}.has_token_vectors_in_bf16", lambda lora: False)
        for module in ("vaak.nn.lora", "vaak.tasks.text_task"):
            earlier.setattr(f"{module}.keep_token_vectors_in_bf16", lambda modules: None)
        earlier.setattr("vaak.tasks.seq2seq.pretrained.IN_BF16", ())
        straight = trainer_of(name, tmp_path / "straight", "nf4", max_steps=4, checkpoint={"interval": 2})
        straight.fit()
        assert tensors_by_kind(straight) == {torch.float32}
        trainer_of(name, tmp_path / "resumed", "nf4", max_steps=2, checkpoint={"interval": 2}).fit()
        train(load([tmp_path / "straight" / "case.yml"], [f"run_dir={tmp_path / 'real'}", "training.max_steps=1"]))
    resumed = trainer_of(name, tmp_path / "resumed", "nf4", max_steps=4, checkpoint={"interval": 2})
    assert tensors_by_kind(resumed) == {torch.bfloat16}
    assert resumed.resume("auto")
    assert tensors_by_kind(resumed) == {torch.float32}
    resumed.fit()
    assert_same(iterate_adapters(resumed), iterate_adapters(straight))
    opened = dict(open_run(tmp_path / "real", device="cpu").model.named_parameters())
    for parameter, one in straight.model.named_parameters():
        assert parameter not in OF_TOKENS or torch.equal(opened[parameter], one)


@pytest.mark.parametrize(("name", "base_dtype"), mostly_slow([(NAMES[0], "nf4"), (NAMES[1], "bf16")], NAMES[0]))
def test_what_is_exported_is_whole(name: str, base_dtype: str, tmp_path: Path):
    """The adapters are added in fp32 to weights that were rounded before."""
    trainer = trainer_of(name, tmp_path / "run", base_dtype, max_steps=3)
    trainer.fit()
    found = merged(trainer.model)
    assert not any(isinstance(one, FrozenLinear) for one in found.modules())
    assert {one.dtype for one in found.parameters()} == {torch.float32}
    assert any(isinstance(one, FrozenLinear) for one in trainer.model.modules()), "the model itself is as it was"
