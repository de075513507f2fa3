"""Low-rank adapters train nothing else, change nothing at first, and adapt the weights of a run that had none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vaak.config.training import CheckpointConfig
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import save_checkpoint
from vaak.engine.snapshot import Snapshot, model_tensors
from vaak.engine.trained import initialise
from vaak.nn.config import EncoderDecoderConfig, LoraConfig
from vaak.nn.lora import FrozenLinear, NF4Linear, add_lora, iterate_adapters, merged, write_adapter
from vaak.nn.models import EncoderDecoderModel
from vaak.nn.nf4 import dequantise, num_weights
from vaak.runs.preflight.estimate import model_tree

pytest.importorskip("peft")


def translator(seed: int, lora: LoraConfig | None = None) -> EncoderDecoderModel:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    config = EncoderDecoderConfig.model_validate({"encoder": sizes, "decoder": sizes, "tie_embeddings": False})
    return add_lora(EncoderDecoderModel(config, 20, 20), lora, also_trained=("decoder.norm",))


def scores(model: EncoderDecoderModel) -> torch.Tensor:
    tokens = torch.arange(12).view(2, 6)
    with torch.no_grad():
        return model.eval()(tokens, tokens >= 0, tokens)


def test_a_run_without_low_rank_changes_is_adapted(tmp_path: Path):
    plain = translator(0)
    state = {"position": {"step": 1}}
    run = save_checkpoint(tmp_path / "checkpoints", Snapshot(1, model_tensors(plain), state=state))
    model = translator(1, LoraConfig(rank=2, targets=("query", "up")))
    drawn = {name: one.detach().clone() for name, one in model.named_parameters() if "lora_" in name}
    initialise(model, CheckpointConfig(init_from=str(run)))
    assert torch.equal(scores(model), scores(plain))
    for name, one in model.named_parameters():
        assert one.requires_grad == ("lora_" in name or name == "decoder.norm.weight"), name
        assert name not in drawn or torch.equal(one, drawn[name])
    assert {adapter.name.split(".")[0] for adapter in iterate_adapters(model)} == {"encoder", "decoder"}
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_()
    assert merged(plain) is plain
    whole = merged(model)
    assert set(model_tensors(whole)) == set(model_tensors(plain))
    torch.testing.assert_close(scores(whole), scores(model), rtol=0, atol=1e-5)


def changed_at_random(model: EncoderDecoderModel) -> EncoderDecoderModel:
    """The model, with adapters that change something, and lengths, if it has any, that aren't those of its weights."""
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_()
            elif "magnitude" in name:
                one.mul_(1.5)
    return model


def test_dora_begins_with_the_lengths_of_the_run_that_it_adapts_and_is_merged_as_peft_computes_it(tmp_path: Path):
    plain = translator(0)
    run = save_checkpoint(tmp_path / "checkpoints", Snapshot(1, model_tensors(plain), state={"position": {"step": 1}}))
    model = translator(1, LoraConfig(rank=2, targets=("query", "up"), dora=True, rslora=True))
    initialise(model, CheckpointConfig(init_from=str(run)))
    torch.testing.assert_close(scores(model), scores(plain), rtol=0, atol=1e-5)
    assert {adapter.scale for adapter in iterate_adapters(model)} == {16 / 2**0.5}
    for name, one in model.named_parameters():
        assert one.requires_grad == ("lora_" in name or name == "decoder.norm.weight"), name
    before = scores(model)
    expected = scores(changed_at_random(model.train()))  # by peft's own forward
    assert (expected - before).abs().max() > 1e-3
    torch.testing.assert_close(scores(merged(model)), expected, rtol=0, atol=1e-6)
    adapter = next(iter(iterate_adapters(model)))
    assert adapter.lengths is not None
    torch.testing.assert_close(adapter.changed().norm(dim=1), adapter.lengths)


def test_lengths_are_those_of_exact_weights():
    with pytest.raises(ValueError, match="dora needs base_dtype: fp32, not nf4"):
        LoraConfig(dora=True, base_dtype="nf4")


def test_a_base_in_four_bits_is_that_of_the_run_that_it_begins_with(tmp_path: Path):
    plain = translator(0)
    state = {"position": {"step": 1}}
    run = save_checkpoint(tmp_path / "checkpoints", Snapshot(1, model_tensors(plain), state=state))
    model = translator(1, LoraConfig(rank=2, base_dtype="nf4"))
    initialise(model, CheckpointConfig(init_from=str(run)))
    expected = translator(0, LoraConfig(rank=2, base_dtype="nf4"))  # rounded from the same weights
    kept = [name for name, one in model.named_modules() if isinstance(one, NF4Linear)]
    assert {name.rpartition(".")[2] for name in kept} >= {"base_layer", "key", "up", "down"}
    found, wanted = model_tensors(model), model_tensors(expected)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted if "lora_" not in name)
    assert num_weights(model.parameters()) == num_weights(translator(0, LoraConfig(rank=2)).parameters())
    trees = [model_tree(one) for one in (model, translator(0, LoraConfig(rank=2)))]
    assert [one.parameters for one in trees[0]] == [one.parameters for one in trees[1]]
    whole = merged(model)
    merged_weights, weights = (dict(one.named_parameters()) for one in (whole, plain))
    for name in kept:
        weight = weights[f"{name.removesuffix('.base_layer')}.weight"]
        change = merged_weights[f"{name.removesuffix('.base_layer')}.weight"] - weight
        assert 0 < change.abs().max() < 0.16 * weight.abs().max()  # half of the widest gap between levels
    torch.testing.assert_close(scores(whole), scores(model), rtol=0, atol=1e-5)


def test_adapters_are_added_without_making_weights_of_four_bits_whole(monkeypatch: pytest.MonkeyPatch):
    """Each was made whole for peft, which reads its device, and glibc kept the memory."""
    model = nn.Sequential(NF4Linear(nn.Linear(64, 64)), NF4Linear(nn.Linear(64, 64)))
    made = list[Any]()
    monkeypatch.setattr("vaak.nn.lora.dequantise", lambda *given: made.append(given) or dequantise(*given))
    add_lora(model, LoraConfig(rank=2, targets=("0", "1"), base_dtype="nf4"))
    assert not made
    layer: Any = model.get_submodule("1")
    assert layer.base_layer.weight.abs().max() > 0
    assert len(made) == 1


@pytest.mark.parametrize("autocast", [False, True])
def test_a_base_in_bf16_computes_what_its_rounded_weights_do(autocast: bool):
    half = translator(0, LoraConfig(rank=2, base_dtype="bf16"))
    rounded = translator(0, LoraConfig(rank=2))
    kept = {name for name, one in half.named_modules() if isinstance(one, FrozenLinear)}
    assert {name.rpartition(".")[2] for name in kept} >= {"base_layer", "key", "up", "down"}
    weights = dict(rounded.named_parameters())
    with torch.no_grad():
        for name in kept:
            weight = weights[f"{name}.weight"]
            assert torch.equal(dict(half.named_parameters())[f"{name}.weight"], weight.bfloat16())
            if not autocast:  # else it is rounded where it is used
                weight.copy_(weight.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert torch.equal(scores(half), scores(rounded))
    assert torch.equal(scores(merged(half)), scores(half))  # adapters change nothing yet


def test_an_adapted_output_layer_of_ours_changes_the_scores_and_is_trained():
    in_bf16 = translator(0, LoraConfig(rank=2, targets=("head",), base_dtype="bf16"))
    assert type(in_bf16.get_submodule("head.base_layer")) is torch.nn.Linear, "the output layer is kept whole"
    plain, adapted = (translator(0, lora) for lora in (None, LoraConfig(rank=2, targets=("head",))))
    assert torch.equal(scores(adapted), scores(plain))
    changed_at_random(adapted)
    tokens = torch.arange(12).view(2, 6)
    found = adapted(tokens, tokens >= 0, tokens, project=False)
    assert (found - scores(plain)).abs().max() > 0.01
    found.square().sum().backward()
    assert all(one.grad is not None and one.grad.any() for name, one in adapted.named_parameters() if "lora_" in name)
    torch.testing.assert_close(scores(merged(adapted)), found.detach(), rtol=0, atol=1e-5)


def test_what_can_not_be_adapted_or_written_is_said_in_a_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"model\.lora\.targets: no layer is called 'wq'; there are .*query"):
        translator(0, LoraConfig(targets=("wq",)))
    with pytest.raises(UserError, match=r"no layer is called 'valeu'; did you mean 'value'\?; there are .*query"):
        translator(0, LoraConfig(targets=("query", "valeu")))  # although there is a query
    with pytest.raises(UserError, match="no low-rank adapters"):
        write_adapter(list(iterate_adapters(translator(0))), None, (), None, tmp_path / "peft")
