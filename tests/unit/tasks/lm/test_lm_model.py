"""The language model: packing and padding change nothing, it equals transformers' models, and it runs everywhere."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from networks import draw_weights
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import hf_config, hf_weights
from vaak.tasks.lm.model import LanguageModel, num_parameters
from vaak.text.config import TokenizerConfig

VOCAB_SIZE = 50
SHAPES: list[dict[str, Any]] = [
    {},
    {"qk_norm": True, "num_key_value_heads": 2},
    {"tie_embeddings": False, "num_key_value_heads": 1, "rope_theta": 500.0, "norm_eps": 1e-3},
]


def small_model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 48, "dropout": 0.0}
    model = LanguageModel(LanguageModelConfig(**(sizes | options)), VOCAB_SIZE)
    draw_weights(model)
    return model


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: LanguageModel, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def norms_in_full_precision(peer: torch.nn.Module) -> None:
    """Put torch's RMSNorm in place of transformers', which computes in float32 even in a float64 model."""
    for module in list(peer.modules()):
        child: Any
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon))


@pytest.mark.parametrize("options", [*SHAPES, {"model_type": "encoder"}])
@given(lengths=st.lists(st.integers(1, 7), min_size=2, max_size=4), padding=st.integers(0, 3))
@settings(max_examples=5)
def test_packed_and_padded_equals_each_document_alone(options: dict[str, Any], lengths: list[int], padding: int):
    model = small_model(**options).double()
    documents = [tokens(1, length, seed=number) for number, length in enumerate(lengths)]
    numbers = [torch.full_like(document, number) for number, document in enumerate(documents)]
    padded = torch.full((1, padding), -1)
    packed = model(torch.cat([*documents, padded.abs()], 1), documents=torch.cat([*numbers, padded], 1))
    assert packed.isfinite().all()
    packed = packed[:, : sum(lengths)]
    alone = torch.cat([model(document) for document in documents], 1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-10)
    for together, apart in zip(
        gradients(model, packed.square().mean()), gradients(model, alone.square().mean()), strict=True
    ):
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-10)


def test_right_padding_reaches_no_real_token_of_a_decoder_without_documents():
    model = small_model().double()
    ids = tokens(1, 9)
    torch.testing.assert_close(model(ids)[:, :5], model(ids[:, :5]), rtol=0, atol=1e-12)


def test_a_row_of_padding_alone_is_finite_forward_and_backward():
    model = small_model(dropout=0.1)
    documents = torch.stack([torch.zeros(6, dtype=torch.long), torch.full((6,), -1)])
    logits = model(tokens(2, 6), documents=documents)
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(model, logits[0].square().sum()))


def test_given_positions_replace_the_computed_ones():
    model = small_model().double()
    ids, default = tokens(2, 5), torch.arange(5).expand(2, 5)
    torch.testing.assert_close(model(ids, positions=default), model(ids), rtol=0, atol=0)
    assert not torch.allclose(model(ids, positions=default * 3), model(ids))


def test_logits_of_chosen_places_are_those_of_all_places():
    model = small_model()
    ids = tokens(2, 6)
    chosen = torch.tensor([[True, False, True, True, False, False]] * 2)
    torch.testing.assert_close(model(ids, select=chosen), model(ids)[chosen])
    torch.testing.assert_close(model.logits(model.hidden(ids)), model(ids))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("options", SHAPES)
def test_equals_transformers_with_the_same_weights(options: dict[str, Any], dtype: torch.dtype, tolerance: float):
    transformers = pytest.importorskip("transformers")
    model = small_model(**options).to(dtype)
    values = hf_config(model, max_length=64)
    config = transformers.AutoConfig.for_model(**values)
    peer = getattr(transformers, values["architectures"][0])(config)
    norms_in_full_precision(peer)
    missing, unexpected = peer.to(dtype).eval().load_state_dict(hf_weights(model), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if model.config.tie_embeddings else [])
    ids = tokens(3, 40)
    scores, peer_scores = model(ids), peer(ids).logits
    scale = scores.abs().max().item()
    torch.testing.assert_close(scores, peer_scores, rtol=0, atol=tolerance * scale)
    peer_loss = F.cross_entropy(peer_scores.flatten(0, 1), ids.flatten())
    peer_loss.backward()
    ours = gradients(model, F.cross_entropy(scores.flatten(0, 1), ids.flatten()))
    peers = [parameter.grad for parameter in peer.parameters() if parameter.grad is not None]
    assert sum(gradient.square().sum().item() for gradient in ours) == pytest.approx(
        sum(gradient.square().sum().item() for gradient in peers), rel=1e-4
    )


@pytest.mark.parametrize("with_documents", [False, True])
def test_bfloat16_autocast_is_close_to_float32(with_documents: bool):
    model = small_model(qk_norm=True, num_key_value_heads=2)
    ids = tokens(2, 12)
    documents = (torch.arange(12) // 5).expand(2, 12) if with_documents else None
    exact = model(ids, documents=documents)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(ids, documents=documents)
    assert rough.dtype is torch.bfloat16
    assert (rough - exact).abs().mean() < 0.02 * exact.abs().mean()


@pytest.mark.slow
def test_compiles_as_one_graph():
    model = small_model(qk_norm=True, num_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids, documents = tokens(2, 8), (torch.arange(8) // 3).expand(2, 8)
    for given_documents in (None, documents):
        logits, expected = compiled(ids, documents=given_documents), model(ids, documents=given_documents)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(
            gradients(model, logits.square().mean()), gradients(model, expected.square().mean()), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's compiler calls its own old parts
def test_generated_code_gives_the_same_numbers():
    model = small_model(num_layers=1)
    ids = tokens(2, 8)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-4)


def test_dropout_acts_in_training_only():
    model = small_model(dropout=0.5)
    ids = tokens(1, 6)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_weights_are_a_function_of_the_seed():
    config = LanguageModelConfig(preset="tiny")
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(LanguageModel(config, VOCAB_SIZE).state_dict())
    first, again, other = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_parameters_are_counted_once_and_named_by_layer():
    tied, untied = small_model(), small_model(tie_embeddings=False)
    block = 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    assert num_parameters(tied) == VOCAB_SIZE * 32 + 2 * block + 32
    assert num_parameters(untied) == num_parameters(tied) + VOCAB_SIZE * 32
    assert "stack.blocks.1.attention.query.weight" in tied.state_dict()


@pytest.mark.parametrize(("preset", "millions"), [("40m", 40), ("110m", 110), ("220m", 220)])
def test_presets_have_the_sizes_they_are_named_by(preset: Any, millions: int):
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig(preset=preset), 32000)
    assert 0.85 < num_parameters(model) / (millions * 1e6) < 1.15


def test_learns_to_copy_one_batch():
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(preset="tiny", dropout=0.0), VOCAB_SIZE)
    ids = tokens(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


@pytest.mark.parametrize(("preset", "millions"), [("40m", 40), ("110m", 110), ("220m", 220)])
def test_presets_have_the_size_of_their_name(preset: Any, millions: int):
    vocab_size = TokenizerConfig().vocab_size
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig(preset=preset), vocab_size)
    assert num_parameters(model) / 1e6 == pytest.approx(millions, rel=0.05)
