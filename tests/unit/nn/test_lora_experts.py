"""Experts are computed on their own rows only, and give what the sum over all of them gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vaak.nn.lora_experts import Gate, LoraExperts, Routing, add_experts, load_balancing, top_k_weights

NUM_EXPERTS, RANK, ALPHA = 5, 3, 6.0


def layer_of(routing: Routing) -> LoraExperts:
    torch.manual_seed(0)
    layer = LoraExperts(nn.Linear(7, 4).double(), NUM_EXPERTS, RANK, ALPHA, 0.0, routing)
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
            with routing.of(weights):
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
    with routing.of(weights):
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


def test_balance_is_one_where_all_are_used_alike_and_more_where_one_is():
    logits = 20.0 * torch.eye(4)
    assert float(load_balancing(logits, top_k_weights(logits, 1))) == pytest.approx(1.0, abs=1e-6)
    alike = torch.tensor([[20.0, 0, 0, 0]]).repeat(4, 1)
    assert float(load_balancing(alike, top_k_weights(alike, 1))) == pytest.approx(4.0, abs=1e-6)
