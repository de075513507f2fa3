"""Optimizers update as their formulas say, group parameters as configured, and resume to the bit after a restart."""

from __future__ import annotations

import json
import math
import unittest.mock
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from all_parameters import build_optimizers
from toy import names_of
from vaak.config.optimization import UPDATE_RULES, OptimizerConfig, ParameterGroupConfig, UpdateCondition
from vaak.config.training import TrainingConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.engine import precision
from vaak.engine.checkpoint.conditions import conditions
from vaak.engine.optim import muon
from vaak.engine.optim.muon import muon_precision
from vaak.engine.optim.optimizer_state import load_optimizer_tensors, optimizer_tensors
from vaak.engine.optim.optimizers import Lion, check_groups, trained_parameters
from vaak.engine.step import set_learning_rates

ALL = ("adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


class TinyModel(nn.Module):
    """Embedding, two blocks, a norm, and a head that is tied to the embedding or not."""

    def __init__(self, tied: bool = True, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.final_norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 11, bias=False)
        self.sometimes = nn.Linear(width, width)
        if tied:
            self.lm_head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.lm_head(self.final_norm(hidden))


def tiny_model(tied: bool = True, dtype: torch.dtype = torch.float32) -> TinyModel:
    torch.manual_seed(0)
    return TinyModel(tied).to(dtype)


def train(model, optimizers, steps) -> None:
    for step in steps:
        tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        set_learning_rates(optimizers, 1 / step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def group_of(optimizers, name):
    return next(group for optimizer in optimizers for group in optimizer.param_groups if name in group["names"])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ALL)
def test_every_parameter_is_in_one_group_and_knows_its_name(kind, tied):
    model = tiny_model(tied)
    model.layers[0].norm.requires_grad_(False)
    optimizers = build_optimizers(model, OptimizerConfig(type=kind))
    grouped = [
        pair
        for optimizer in optimizers
        for group in optimizer.param_groups
        for pair in zip(group["names"], group["params"], strict=True)
    ]
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(grouped) == len(trained)
    assert all(trained[name] is parameter for name, parameter in grouped)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, True)])
def test_sgd_is_torchs_with_nesterov_where_there_is_momentum(momentum: float, nesterov: bool):
    model, plain = tiny_model(), tiny_model()
    ours = build_optimizers(
        model, OptimizerConfig(type="sgd", lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.0)
    )
    theirs = torch.optim.SGD(plain.parameters(), 0.1, momentum, nesterov=nesterov and momentum > 0)
    for group in theirs.param_groups:
        group["base_lr"] = 0.1
    train(model, ours, range(1, 4))
    train(plain, [theirs], range(1, 4))
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, msg=name)


def test_norms_and_biases_do_not_decay():
    optimizers = build_optimizers(tiny_model(), OptimizerConfig(weight_decay=0.1))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                assert group["weight_decay"] == (0.1 if parameter.ndim == 2 else 0.0), name


def test_muon_gets_the_hidden_matrices_and_adamw_the_rest():
    for tied in (True, False):
        muon, adamw = build_optimizers(tiny_model(tied), OptimizerConfig(type="muon", lr=0.03))
        assert isinstance(muon, torch.optim.Muon)
        names = {name for group in muon.param_groups for name in group["names"]}
        hidden = {f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in ("up", "down")}
        assert names == hidden | {"sometimes.weight"}
        assert {group["base_lr"] for group in muon.param_groups} == {0.03}
        assert {group["base_lr"] for group in adamw.param_groups} == {0.01}
    _, adamw = build_optimizers(tiny_model(), OptimizerConfig(type="muon", lr=0.03, adamw_lr=0.002))
    assert {group["base_lr"] for group in adamw.param_groups} == {0.002}


def test_a_module_may_say_that_it_is_a_head():
    model = tiny_model()
    head: Any = model.sometimes
    head.is_output_head = True
    muon, _ = build_optimizers(model, OptimizerConfig(type="muon"))
    assert "sometimes.weight" not in {name for group in muon.param_groups for name in group["names"]}


def test_rates_by_layers_of_a_model_without_any_are_said_to_do_nothing(caplog: pytest.LogCaptureFixture):
    for model in (tiny_model(), nn.ModuleDict({"body": nn.Linear(2, 2)})):
        check_groups(trained_parameters(model), OptimizerConfig(layer_decay=0.5))
    (said,) = caplog.messages
    assert said.startswith("training.optimizer.layer_decay has no effect")


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_rates_fall_from_layer_to_layer(kind):
    config = (
        OptimizerConfig(type=kind, lr=1.0, adamw_lr=1.0, layer_decay=0.5)
        if kind == "muon"
        else OptimizerConfig(lr=1.0, layer_decay=0.5)
    )
    optimizers = build_optimizers(tiny_model(tied=False), config)
    expected = {
        "lm_head.weight": 1.0,
        "final_norm.weight": 1.0,
        "layers.1.up.weight": 0.5,
        "layers.1.norm.bias": 0.5,
        "layers.0.down.weight": 0.25,
        "embedding.weight": 0.125,
    }
    assert {name: group_of(optimizers, name)["base_lr"] for name in expected} == expected


def test_groups_scale_rates_and_replace_decay_by_name_and_the_first_wins():
    groups = [{"match": r"layers\.0\.", "lr_scale": 0.1, "weight_decay": 0.5}, {"match": "up", "lr_scale": 0.0}]
    optimizers = build_optimizers(tiny_model(), OptimizerConfig.model_validate({"lr": 1.0, "groups": groups}))
    assert group_of(optimizers, "layers.0.up.bias")["base_lr"] == 0.1
    assert group_of(optimizers, "layers.0.up.bias")["weight_decay"] == 0.5
    assert group_of(optimizers, "layers.1.up.weight")["base_lr"] == 0.0
    assert group_of(optimizers, "layers.1.down.weight")["base_lr"] == 1.0
    set_learning_rates(optimizers, 0.5)
    assert group_of(optimizers, "layers.0.up.bias")["lr"] == 0.05


def test_mistakes_in_the_configuration_are_said():
    with pytest.raises(UserError, match=r"'encoder' matches no trained parameter; some are embedding.weight"):
        build_optimizers(tiny_model(), OptimizerConfig(groups=(ParameterGroupConfig(match="encoder"),)))
    with pytest.raises(UserError, match="not a valid regular expression"):
        build_optimizers(tiny_model(), OptimizerConfig(groups=(ParameterGroupConfig(match="("),)))
    with pytest.raises(UserError, match="all are frozen"):
        build_optimizers(tiny_model().requires_grad_(False), OptimizerConfig())


def test_fused_kernels_are_used_where_they_are():
    assert build_optimizers(tiny_model(), OptimizerConfig())[0].defaults["fused"] is True
    assert build_optimizers(tiny_model(), OptimizerConfig(fused=False))[0].defaults["fused"] is False
    with torch.device("meta"):
        elsewhere = TinyModel()
    assert build_optimizers(elsewhere, OptimizerConfig())[0].defaults["fused"] is False
    with pytest.raises(UserError, match=r"no fused kernels for torch.float32 on meta"):
        build_optimizers(elsewhere, OptimizerConfig(fused=True))


def test_lion_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 4), (5,))]
    expected = [parameter.clone() for parameter in parameters]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    optimizer = Lion(parameters, lr=0.1, betas=(0.9, 0.98), weight_decay=0.3)
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        for theta, m, parameter in zip(expected, momenta, parameters, strict=True):
            g = parameter.grad
            assert g is not None
            theta -= 0.1 * (torch.sign(0.9 * m + 0.1 * g) + 0.3 * theta)
            m.mul_(0.98).add_(0.02 * g)
        optimizer.step()
    for parameter, theta in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter, theta, rtol=0, atol=1e-14)


def test_muon_scales_by_the_matrix_shape():
    """An orthogonal update of a matrix of r rows and c columns has a root mean square of 1/√max(r, c)."""
    model = nn.Sequential(nn.Linear(16, 64, bias=False))
    (muon,) = build_optimizers(model, OptimizerConfig(type="muon", lr=0.1, weight_decay=0.0))
    weight = model.get_parameter("0.weight")
    before = weight.detach().clone()
    weight.grad = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    muon.step()
    root_mean_square = (weight - before).square().mean().sqrt().item()
    assert root_mean_square == pytest.approx(0.1 * math.sqrt(64 / 16) / math.sqrt(64), rel=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ALL)
def test_a_restart_changes_no_bit(kind, dtype, tmp_path):
    config = OptimizerConfig(type=kind, lr=1e-2, weight_decay=0.1, layer_decay=0.9)
    whole = tiny_model(dtype=dtype)
    train(whole, build_optimizers(whole, config), range(1, 8))

    stopped = tiny_model(dtype=dtype)
    optimizers = build_optimizers(stopped, config)
    train(stopped, optimizers, range(1, 4))
    tensors, values = optimizer_tensors(names_of(stopped), optimizers)
    assert "0.sometimes.weight" in values["without_state"]
    save_file(tensors, tmp_path / "optimizer.safetensors")
    weights = {name: tensor.clone() for name, tensor in stopped.state_dict().items()}

    resumed = tiny_model(dtype=dtype)
    resumed.load_state_dict(weights)
    optimizers = build_optimizers(resumed, config)
    saved = load_file(tmp_path / "optimizer.safetensors") | json.loads(json.dumps(values))
    load_optimizer_tensors(names_of(resumed), optimizers, saved)
    train(resumed, optimizers, range(4, 8))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_state_is_copied_and_not_shared():
    model = tiny_model()
    optimizers = build_optimizers(model, OptimizerConfig())
    train(model, optimizers, range(1, 3))
    tensors, values = optimizer_tensors(names_of(model), optimizers)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    other = tiny_model()
    restored = build_optimizers(other, OptimizerConfig())
    load_optimizer_tensors(names_of(other), restored, kept | values)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    train(other, restored, range(3, 5))
    assert all(torch.equal(kept[name], before[name]) for name in kept)


def test_a_state_of_another_model_or_optimizer_is_refused_and_changes_nothing():
    model = tiny_model()
    optimizers = build_optimizers(model, OptimizerConfig())
    train(model, optimizers, range(1, 3))
    tensors, values = optimizer_tensors(names_of(model), optimizers)
    fresh, names = build_optimizers(model, OptimizerConfig()), names_of(model)
    lacking = {name: tensor for name, tensor in tensors.items() if name != "0.exp_avg.layers.0.up.bias"}
    with pytest.raises(CheckpointError, match=r"lacks 1 \(such as 0.exp_avg.layers.0.up.bias\)"):
        load_optimizer_tensors(names, fresh, lacking | values)
    with pytest.raises(CheckpointError, match=r"has foreign 1 \(such as 0.exp_avg.decoder.weight\)"):
        load_optimizer_tensors(names, fresh, tensors | {"0.exp_avg.decoder.weight": torch.zeros(1)} | values)
    assert not fresh[0].state
    with pytest.raises(CheckpointError, match=r"lacks .*0.momentum_buffer.*has foreign .*0.exp_avg"):
        load_optimizer_tensors(names, build_optimizers(model, OptimizerConfig(type="sgd")), tensors | values)


SHAPES = [(8, 8), (16, 8), (8, 24), (16, 8), (8, 8), (64, 33), (8, 8), (64, 33)]


def updated_by_muon(make: Callable[[nn.Module], torch.optim.Optimizer]) -> list[nn.Parameter]:
    """Matrices of these shapes after four updates, in each of which one or two have no gradient."""
    torch.manual_seed(0)
    model = nn.ModuleDict({f"m{index}": nn.Linear(*shape[::-1], bias=False) for index, shape in enumerate(SHAPES)})
    rule, generator = make(model), torch.Generator().manual_seed(0)
    for step in range(4):
        for index, one in enumerate(model.parameters()):
            one.grad = None if (step + index) % 5 == 0 else torch.randn(one.shape, generator=generator)
        rule.step()
    return list(model.parameters())


NESTEROV_OR_NOT = [OptimizerConfig(type="muon", lr=0.03, weight_decay=0.1, nesterov=one) for one in (True, False)]


def torchs_muon(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    return torch.optim.Muon(
        model.parameters(),
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        adjust_lr_fn="original",
    )


@pytest.mark.parametrize("config", NESTEROV_OR_NOT)
@pytest.mark.parametrize("most", [2**27, 256, 1])
def test_muon_of_stacks_gives_the_bits_of_torchs_one_at_a_time(config, most, monkeypatch):
    """On a CPU with bf16; also where a matrix gets no gradient in a step, and where stacks are cut."""
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: True)
    monkeypatch.setattr("vaak.engine.optim.muon.MOST_STACKED", most)
    found = updated_by_muon(lambda model: build_optimizers(model, config)[0])
    expected = updated_by_muon(lambda model: torchs_muon(model, config))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("pads", "most_added", "groups"), [(True, 2**32, 1), (True, 0, 3), (False, 2**32, 3)])
def test_matrices_padded_to_one_shape_are_orthogonalised_as_alone(pads, most_added, groups, monkeypatch):
    """In float64; those of one shape are together whatever padding may cost."""
    monkeypatch.setattr(muon, "muon_dtype", lambda _: torch.float64)
    monkeypatch.setattr(muon, "MOST_ADDED", most_added)
    shapes = [[(24, 8), (24, 8), (8, 24)], [(8, 8)], [(33, 64), (33, 64)]]
    stacks = [[torch.randn(shape, dtype=torch.float64) for shape in stack] for stack in shapes]
    options = {"eps": 1e-7, "ns_steps": 5, "ns_coefficients": (3.4445, -4.775, 2.0315)}
    with unittest.mock.patch.object(muon, "_orthogonalise", wraps=muon._orthogonalise) as products:
        found = muon._orthogonalise_joined(stacks, stacks, options, pads=pads)
        assert products.call_count == groups
    matrices = [one for stack in stacks for one in stack]
    for one, change in zip(matrices, found, strict=True):
        (expected,) = muon._orthogonalise_apart([[one]], [[one]], options)
        torch.testing.assert_close(change, expected, rtol=1e-10, atol=1e-12)
        assert change.is_contiguous()


@pytest.mark.parametrize("fast_bf16", [False, None])
@pytest.mark.parametrize("config", NESTEROV_OR_NOT)
def test_muon_is_exact_to_fp32_where_the_processor_has_no_bf16(config, fast_bf16, monkeypatch):
    """Of torch's Muon in float64; the bits are the same however stacks are cut, as ranks cut them in their own way."""
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: fast_bf16)
    found = []
    for most in (2**27, 512, 1):
        monkeypatch.setattr("vaak.engine.optim.muon.MOST_STACKED", most)
        found.append(updated_by_muon(lambda model: build_optimizers(model, config)[0]))
    convert = torch.Tensor.to

    def to_float64(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return convert(tensor, *given, **named | ({"dtype": torch.float64} if "dtype" in named else {}))

    # torch's Muon converts by the one method, from 2.15 on by the other
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "to", to_float64)
    expected = updated_by_muon(lambda model: torchs_muon(model, config))
    for whole, cut, alone, exact in zip(*found, expected, strict=True):
        assert torch.equal(whole, cut)
        assert torch.equal(whole, alone)
        torch.testing.assert_close(whole, exact, rtol=0, atol=1e-6)


def test_what_the_bits_of_any_rule_depend_on_is_stored_by_what_its_rule_says(monkeypatch):
    condition = UpdateCondition("lion", "vaak.engine.optim.muon:muon_precision", "it rounds otherwise", "use others")
    monkeypatch.setitem(UPDATE_RULES, "lion", replace(UPDATE_RULES["lion"], condition=condition))
    config = TrainingConfig(optimizer=OptimizerConfig(type="lion"))
    found = conditions(config, precision.Precision("no", torch.device("cpu")), 1)
    assert (found["lion"], found["muon"]) == (muon_precision(torch.device("cpu")), None)


@pytest.mark.parametrize("fast_bf16", [True, False, None])
def test_muon_computes_in_fp32_on_a_cpu_without_bf16_alone_and_a_checkpoint_says_so(fast_bf16, monkeypatch):
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: fast_bf16)
    assert {precision.muon_dtype(torch.device(kind)) for kind in ("cuda", "mps", "meta")} == {torch.bfloat16}
    assert precision.muon_dtype(torch.device("cpu")) == (torch.bfloat16 if fast_bf16 else torch.float32)

    def recorded(rule: str) -> Any:
        config = TrainingConfig(optimizer=OptimizerConfig(type=rule))
        return conditions(config, precision.Precision("no", torch.device("cpu")), 1)["muon"]

    assert recorded("muon") == ("bfloat16" if fast_bf16 else "float32")
    assert recorded("adamw") is None
