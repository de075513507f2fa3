"""Experts are computed on their own rows only, and give what the sum over all of them gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vaak.nn.lora_experts import (
    Gate,
    LoraExperts,
    Routing,
    add_experts,
    choices_by,
    count_uses,
    load_balancing,
    top_k_weights,
)

NUM_EXPERTS, RANK, ALPHA = 5, 3, 6.0


def layer_of(routing: Routing) -> LoraExperts:
    torch.manual_seed(0)
    layer = LoraExperts(nn.Linear(7, 4).double(), NUM_EXPERTS, RANK, ALPHA / RANK, 0.0, routing)
    with torch.no_grad():
        layer.lora_b.normal_()
    return layer


def dense(layer: LoraExperts, inputs: Tensor, weights: Tensor) -> Tensor:
    """The formula, with every expert on every row."""
    changes = torch.einsum("eor,eri,nti->nteo", layer.lora_b, layer.lora_a, inputs)
    outputs: Tensor = layer.base(inputs) + ALPHA / RANK * torch.einsum("ne,nteo->nto", weights, changes)
    return outputs


@pytest.mark.parametrize("top_k", [1, 2, NUM_EXPERTS])
def test_outputs_and_gradients_are_those_of_the_dense_formula(top_k: int):
    routing = Routing()
    layer = layer_of(routing)
    gate = Gate(7, NUM_EXPERTS, 8).double()
    inputs = torch.randn(6, 9, 7, dtype=torch.float64)

    def gradients(routed: bool) -> list[Tensor]:
        trained = [layer.lora_a, layer.lora_b, *gate.parameters()]
        weights = top_k_weights(gate(inputs.mean(1)), top_k)
        if routed:
            with routing.of(choices_by(weights)):
                outputs = layer(inputs)
        else:
            outputs = dense(layer, inputs, weights)
        return [outputs.detach(), *torch.autograd.grad(outputs.square().sum(), trained)]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_an_expert_runs_on_its_own_rows_only(monkeypatch: pytest.MonkeyPatch):
    routing = Routing()
    layer = layer_of(routing)
    seen: list[int] = []
    monkeypatch.setattr(layer.dropout, "forward", lambda inputs: seen.append(len(inputs)) or inputs)
    weights = torch.zeros(6, NUM_EXPERTS, dtype=torch.float64)
    weights[:4, 1] = weights[4:, 3] = 1.0
    with routing.of(choices_by(weights)):
        layer(torch.randn(6, 2, 7, dtype=torch.float64))
    assert seen == [4, 2]
    inputs = torch.randn(2, 2, 7, dtype=torch.float64)
    torch.testing.assert_close(layer(inputs), layer.base(inputs))  # and none without a routing


def test_a_model_is_changed_where_its_layers_are_called_so():
    model = nn.Sequential()
    model.add_module("q_proj", nn.Linear(4, 4))
    model.add_module("inner", nn.ModuleDict({"v_proj": nn.Linear(4, 4), "fc": nn.Linear(4, 4)}))
    add_experts(model, ("q_proj", "v_proj"), 2, 1, 1.0, 0.0)
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {
        *("q_proj.lora_a", "q_proj.lora_b", "inner.v_proj.lora_a", "inner.v_proj.lora_b")
    }


def test_a_target_may_say_which_of_several_layers_it_means():
    model = nn.ModuleDict({side: nn.ModuleDict({"q_proj": nn.Linear(4, 4)}) for side in ("encoder", "decoder")})
    add_experts(model, ("decoder.q_proj",), 2, 1, 1.0, 0.0)
    assert {name for name, one in model.named_modules() if isinstance(one, LoraExperts)} == {"decoder.q_proj"}


def balance_of(logits: Tensor) -> Tensor:
    """Of one batch, which is the whole step."""
    return load_balancing(logits, count_uses(top_k_weights(logits, 1))) / len(logits)


@pytest.mark.parametrize("top_k", [1, 2])
def test_balance_of_parts_is_that_of_the_whole(top_k: int):
    """The published formula on the whole batch, by hand; value and gradient of any parts add up to it."""
    torch.manual_seed(1)
    logits = torch.randn(16, 5, dtype=torch.float64, requires_grad=True)
    chosen = logits.topk(top_k).indices
    shares = torch.bincount(chosen.flatten(), minlength=5) / chosen.numel()
    expected = 5 * (shares.double() * logits.softmax(-1).mean(0)).sum()
    uses = count_uses(top_k_weights(logits, top_k))
    found = torch.stack([load_balancing(part, uses) for part in logits.split([1, 4, 2, 9])]).sum() / 16
    torch.testing.assert_close(found, expected)
    one, two = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (found, expected))
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
    assert one.abs().max() > 1e-3


def test_balance_is_one_where_all_are_used_alike_and_more_where_one_is():
    logits = 20.0 * torch.eye(4)
    assert float(balance_of(logits)) == pytest.approx(1.0, abs=1e-6)
    alike = torch.tensor([[20.0, 0, 0, 0]]).repeat(4, 1)
    assert float(balance_of(alike)) == pytest.approx(4.0, abs=1e-6)


def test_the_bias_is_the_published_rule_and_changes_the_choice_alone():
    gate = Gate(4, 3, 8, bias_rate=0.25)
    gate.follow_step({f"expert_use/{expert}": torch.tensor(number) for expert, number in enumerate((9.0, 3.0, 6.0))})
    assert gate.bias is not None
    assert gate.bias.tolist() == [-0.25, 0.25, 0.0]  # b += u * sign(mean load - load)
    weights = top_k_weights(torch.tensor([[0.6, 0.3, 0.1]]).log(), 1, gate.bias)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.3, 0.0]]))
    assert "bias" not in Gate(4, 3, 8).state_dict()


def test_the_bias_evens_out_what_the_gate_prefers():
    torch.manual_seed(0)
    gate = Gate(4, 4, 8, bias_rate=0.001)
    logits = torch.randn(400, 4) + torch.tensor([3.0, 1.0, 0.0, -1.0])
    assert float(count_uses(top_k_weights(logits, 1))["expert_use/0"]) > 300
    for _ in range(800):
        uses = count_uses(top_k_weights(logits, 1, gate.bias))
        gate.follow_step(uses)
    assert all(90 < float(times) < 110 for times in uses.values())


def test_an_expert_is_what_peft_computes():
    """The same weights, the same outputs and gradients, in float64."""
    peft = pytest.importorskip("peft")
    routing = Routing()
    layer, chosen = layer_of(routing), 3
    other = nn.ModuleDict({"own": nn.Linear(7, 4).double()})
    other["own"].load_state_dict(layer.base.state_dict())
    peft.inject_adapter_in_model(peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["own"]), other)
    found: Any = other["own"]
    matrices = [found.lora_A["default"].double().weight, found.lora_B["default"].double().weight]
    with torch.no_grad():
        for own, experts in zip(matrices, (layer.lora_a, layer.lora_b), strict=True):
            own.copy_(experts[chosen])
    inputs = torch.randn(6, 9, 7, dtype=torch.float64)
    weights = nn.functional.one_hot(torch.full((6,), chosen), NUM_EXPERTS).double()
    with routing.of(choices_by(weights)):
        outputs: Tensor = layer(inputs)
    expected = found(inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(outputs.square().sum(), [layer.lora_a, layer.lora_b])
    for one, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), matrices), strict=True):
        torch.testing.assert_close(one[chosen], theirs, rtol=1e-12, atol=1e-12)
        assert one.abs().sum() == one[chosen].abs().sum(), "the others have none"
