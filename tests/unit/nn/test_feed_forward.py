"""Each feed-forward layer is its formula, and as wide as the option says."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vaak.nn.config import (
    FACTORS_END,
    EncoderDecoderConfig,
    MoeConfig,
    SingleStackConfig,
    TokenStackConfig,
    stack_parameters,
)
from vaak.nn.feed_forward import (
    FEED_FORWARDS,
    MixtureOfExperts,
    compute_load_metrics,
    counted_loads,
    gated_width,
    inner_width,
    list_mixtures,
    load_names,
    make_feed_forward,
)
from vaak.nn.models import EncoderDecoderModel, TransformerModel

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x * torch.sigmoid(x),
    "swiglu": lambda x: x * torch.sigmoid(x),
    "geglu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "geglu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("feed_forward_type", ["gelu", "relu", "silu"])
def test_plain_layers_equal_the_formula(feed_forward_type, bias):
    layer = make_feed_forward(feed_forward_type, 8, 24, bias).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    inner = ACTIVATIONS[feed_forward_type](_linear(layer, "up", x))
    expected = _linear(layer, "down", inner)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("feed_forward_type", ["swiglu", "geglu", "geglu_tanh"])
def test_gated_layers_equal_the_formula(feed_forward_type, bias):
    layer = make_feed_forward(feed_forward_type, 8, 24, bias).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    gate = ACTIVATIONS[feed_forward_type](_linear(layer, "gate", x))
    inner = gate * (_linear(layer, "up", x))
    expected = _linear(layer, "down", inner)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_gradients(feed_forward_type):
    layer = make_feed_forward(feed_forward_type, 4, 8, True).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,), fast_mode=True)


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_biases_only_where_asked_for(feed_forward_type):
    with_bias = {name for name, _ in make_feed_forward(feed_forward_type, 4, 8, True).named_parameters()}
    without = {name for name, _ in make_feed_forward(feed_forward_type, 4, 8, False).named_parameters()}
    assert without == {name for name in with_bias if name.endswith("weight")}
    assert with_bias == without | {name.replace("weight", "bias") for name in without}


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_a_kernel_sees_as_many_neighbours_and_no_padding(feed_forward_type):
    layer = make_feed_forward(feed_forward_type, 4, 8, True, kernel_size=5).double()
    x, mask = torch.randn(1, 12, 4, dtype=torch.float64), torch.ones(1, 12, dtype=torch.bool)
    changed = x.clone()
    changed[0, 6] += 1
    different = (layer(x, mask) != layer(changed, mask)).any(-1)[0]
    assert different.nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8]
    mask[0, 9:] = False
    changed = x.clone()
    changed[0, 9:] = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x, mask)[:, :9], layer(changed, mask)[:, :9], rtol=0, atol=0)
    torch.testing.assert_close(layer(x, mask)[:, :9], layer(x[:, :9])[:, :9], rtol=0, atol=1e-12)


def test_a_kernel_of_one_is_the_layer_without_neighbours():
    layer, x = make_feed_forward("swiglu", 4, 8, True, kernel_size=3), torch.randn(1, 6, 4)
    alone = make_feed_forward("swiglu", 4, 8, True)
    kernels = {name: value.clone() for name, value in alone.state_dict().items()}
    for name in ("up.weight", "gate.weight"):
        kernels[name] = F.pad(kernels[name][..., None], (1, 1))  # neighbours count for nothing
    layer.load_state_dict(kernels)
    torch.testing.assert_close(layer(x), alone(x), rtol=0, atol=1e-6)


def test_swiglu_is_the_language_models():
    layer = make_feed_forward("swiglu", 8, 24, False)
    up, gate, down = (layer.get_submodule(name) for name in ("up", "gate", "down"))
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x), down(F.silu(gate(x)) * up(x)))


def test_three_matrices_weigh_what_two_of_four_times_the_width_do():
    for width in (64, 256, 512, 768, 1024):
        inner = gated_width(width)
        assert inner % 32 == 0
        assert 0 <= 3 * inner - 8 * width < 3 * 32


def test_inner_width():
    factors, widths = (1, 4, FACTORS_END - 1), (FACTORS_END, 100)
    assert [inner_width(96, factor, "gelu") for factor in factors] == [96 * factor for factor in factors]
    assert [inner_width(96, width, "swiglu") for width in widths] == [*widths]
    assert [inner_width(96, None, kind) for kind in ("gelu", "relu", "swiglu", "geglu")] == [384, 384, 256, 256]


def _linear(layer: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    """Compute the linear sublayer of this name by hand."""
    part = layer.get_submodule(name)
    assert isinstance(part, nn.Linear)
    return x @ part.weight.T + (0.0 if part.bias is None else part.bias)


def mixture(**options) -> Any:
    torch.manual_seed(0)
    made: Any = MixtureOfExperts(MoeConfig(**options), 8, 12, lambda size: make_feed_forward("swiglu", 8, size, False))
    if made.bias is not None:
        made.bias.copy_(torch.randn(len(made.bias)) / 4)
    return made.double()


@pytest.mark.parametrize("options", [{"num_shared": 2, "scale": 2.5}, {"scores": "softmax", "normalise": False}])
def test_a_mixture_is_the_loop_over_tokens_and_all_experts(options):
    layer = mixture(num_experts=5, top_k=2, **options)
    x = torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 7) < 0.7
    with counted_loads(layer) as loads:
        found = layer(x, mask)

    rows, counts = [], [0.0] * 5
    for token, is_real in zip(x.flatten(0, 1), mask.flatten().tolist(), strict=True):
        logits = layer.router.weight @ token
        scores = logits.softmax(0) if "scores" in options else 1 / (1 + (-logits).exp())
        chosen = (scores.detach() + layer.bias).argsort(descending=True)[:2].tolist()
        total = sum(scores[e] for e in chosen) if layer.config.normalise else 1.0
        row = sum(layer.config.scale * scores[e] / total * layer.experts[e](token) for e in chosen)
        rows.append(row if layer.shared is None else row + layer.shared(token))
        for e in chosen:
            counts[e] += is_real
    expected = torch.stack(rows).view_as(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert list(map(float, loads.values())) == counts
    assert layer.tally is None

    gradient = torch.randn_like(found)
    weights = [x, *layer.parameters()]
    ours, theirs = (torch.autograd.grad(y, weights, gradient, allow_unused=True) for y in (found, expected))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)  # None where no token chose an expert


def test_a_mixture_is_that_of_deepseek():
    deepseek = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    sizes = {"num_local_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 2, "n_group": 1, "topk_group": 1}
    config = deepseek.DeepseekV3Config(hidden_size=8, moe_intermediate_size=12, routed_scaling_factor=2.5, **sizes)
    layer = mixture(num_experts=6, top_k=3, num_shared=2, scale=2.5).float()
    theirs = deepseek.DeepseekV3MoE(config)
    with torch.no_grad():
        theirs.gate.weight.copy_(layer.router.weight)
        theirs.gate.e_score_correction_bias.copy_(layer.bias)
        theirs.experts.gate_up_proj.copy_(torch.stack([torch.cat([e.gate.weight, e.up.weight]) for e in layer.experts]))
        theirs.experts.down_proj.copy_(torch.stack([e.down.weight for e in layer.experts]))
        for name in ("gate", "up", "down"):
            getattr(theirs.shared_experts, f"{name}_proj").weight.copy_(getattr(layer.shared, name).weight)
        x = torch.randn(2, 9, 8)
        torch.testing.assert_close(layer(x), theirs(x), rtol=1e-5, atol=1e-6)


def test_a_step_moves_the_bias_towards_equal_loads():
    layer = mixture(num_experts=4, top_k=1, balancing_bias=0.25)
    layer.layer = "decoder.1"
    before = layer.bias.clone()
    sums = dict(zip(load_names(["decoder.1"], 4), torch.tensor([6.0, 1.0, 2.0, 3.0]), strict=True))
    layer.follow_step({**sums, "cross_entropy": torch.tensor(1.0)})
    torch.testing.assert_close(layer.bias, before + torch.tensor([-0.25, 0.25, 0.25, 0.0]).double())
    assert mixture(num_experts=2, top_k=1, balancing_bias=0.0).bias is None


def test_a_bias_evens_out_what_a_router_prefers():
    layer = mixture(num_experts=4, top_k=1, balancing_bias=0.01)
    x = torch.randn(1, 400, 8, dtype=torch.float64) + 2.0  # of which the router makes much the same choices
    layer.bias.zero_()
    layer.layer = "0"
    violations = []
    with torch.no_grad():
        for _ in range(300):
            with counted_loads(layer) as sums:
                layer(x)
            violations.append(
                compute_load_metrics({name: float(total) for name, total in sums.items()})["max_violation"]
            )
            layer.follow_step(sums)
    assert violations[0] > 1.0
    assert violations[-1] < 0.2


def test_experts_of_a_model_have_names_and_are_counted():
    options = {"d_model": 96, "num_heads": 2, "num_layers": 3, "d_ff": 64, "norm_type": "scalenorm"}
    stack = TokenStackConfig(**options, moe=MoeConfig(num_experts=4, num_shared=1, d_ff=32, first_layer=1))
    config = EncoderDecoderConfig(encoder=stack, decoder={**options, "moe": {"num_experts": 3, "first_layer": 2}})
    model = EncoderDecoderModel(config, 11, 11)
    assert [one.layer for one in list_mixtures(model)] == ["encoder.1", "encoder.2", "decoder.2"]
    ids = torch.ones(1, 2, dtype=torch.long)
    with counted_loads(model) as loads:
        model(ids, ids > 0, ids)
    assert len(loads) == 4 + 4 + 3

    single = SingleStackConfig(**stack.model_dump())
    decoder = TransformerModel(single, 11, causal=True)
    matrices = sum(one.numel() for one in decoder.stack.parameters() if one.ndim == 2)
    assert matrices == stack_parameters(single)
    deviation = (2 * 3) ** -0.5 * 0.02  # attention and feed-forward of three blocks, however many experts
    experts: Any = list_mixtures(decoder)[1].experts
    measured = float(experts[0].down.weight.detach().std())
    assert measured == pytest.approx(deviation, rel=0.05)


def test_documents_of_a_row_and_padding_are_told_apart():
    options = {"d_model": 16, "num_heads": 2, "num_layers": 2, "dropout": 0.0, "moe": {"num_experts": 4}}
    model = TransformerModel(SingleStackConfig(**options), 11, causal=True).double()
    ids = torch.randint(11, (1, 9))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, -1, -1]])
    with counted_loads(model) as loads:
        packed = model(ids, documents=documents)
    assert sum(map(float, loads.values())) == 2 * 2 * 7  # layers, experts of a token, real tokens
    torch.testing.assert_close(packed[:, 3:7], model(ids[:, 3:7]), rtol=0, atol=1e-12)
