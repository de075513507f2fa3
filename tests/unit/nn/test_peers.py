"""With the same weights, our stacks are models of transformers, in outputs and in gradients, to 1e-5.

Each peer proves other parts: Llama rotary positions, RMSNorm, gated layers and grouped heads; Qwen3 normalised queries
and keys; Mistral the window; Gemma 2 norms on both sides of a layer; MPT ALiBi; GPT-2 learned positions, biases and
plain GELU; T5 relative positions, ReLU and cross-attention. Some work partly in float32, hence no tighter than 1e-5.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from vaak.nn.config import DecoderConfig, StackConfig
from vaak.nn.stack import TransformerStack

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, LAYERS, VOCAB = 32, 4, 3, 50
SIZES: dict[str, Any] = {"d_model": WIDTH, "num_heads": HEADS, "num_layers": LAYERS, "d_ff": 4, "dropout": 0.0}
OF_LLAMAS_KIND: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 4 * WIDTH,
    "num_key_value_heads": 2,
    "head_dim": WIDTH // HEADS,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMAS_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}
GEMMAS_NAMES = LLAMAS_NAMES | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
GPT2S_NAMES = {
    "attention.query": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "attention_norm": "ln_1",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "feed_forward_norm": "ln_2",
}
MPTS_NAMES = {
    "attention.query": "attn.Wqkv",
    "attention.output": "attn.out_proj",
    "attention_norm": "norm_1",
    "feed_forward.up": "ffn.up_proj",
    "feed_forward.down": "ffn.down_proj",
    "feed_forward_norm": "norm_2",
}
T5S_NAMES = {
    "attention.query": "layer.0.SelfAttention.q",
    "attention.key": "layer.0.SelfAttention.k",
    "attention.value": "layer.0.SelfAttention.v",
    "attention.output": "layer.0.SelfAttention.o",
    "attention_norm": "layer.0.layer_norm",
    "cross_attention.query": "layer.1.EncDecAttention.q",
    "cross_attention.key": "layer.1.EncDecAttention.k",
    "cross_attention.value": "layer.1.EncDecAttention.v",
    "cross_attention.output": "layer.1.EncDecAttention.o",
    "cross_attention_norm": "layer.1.layer_norm",
    "feed_forward.up": "layer.{last}.DenseReluDense.wi",
    "feed_forward.down": "layer.{last}.DenseReluDense.wo",
    "feed_forward_norm": "layer.{last}.layer_norm",
}


@pytest.mark.parametrize(("hidden_act", "feed_forward_type"), [("silu", "swiglu"), ("gelu", "geglu")])
def test_a_decoder_is_llama(hidden_act: str, feed_forward_type: str):
    ours = decoder(num_key_value_heads=2, feed_forward_type=feed_forward_type, rope_theta=500.0)
    options = OF_LLAMAS_KIND | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    peer = transformers.LlamaModel(transformers.LlamaConfig(**options, hidden_act=hidden_act))
    assert_same(ours, peer, renamed(ours, "layers", LLAMAS_NAMES))


def test_a_decoder_is_qwen3():
    ours = decoder(num_key_value_heads=2, qk_norm=True)
    peer = transformers.Qwen3Model(transformers.Qwen3Config(**OF_LLAMAS_KIND))
    assert_same(ours, peer, renamed(ours, "layers", LLAMAS_NAMES))


def test_a_decoder_with_a_window_is_mistral():
    ours = decoder(num_key_value_heads=2, attention_type="local", window=3)
    peer = transformers.MistralModel(transformers.MistralConfig(**OF_LLAMAS_KIND, sliding_window=4))
    assert_same(ours, peer, renamed(ours, "layers", LLAMAS_NAMES))


def test_a_decoder_with_norms_on_both_sides_is_gemma2():
    ours = decoder(num_key_value_heads=2, norm_placement="sandwich", feed_forward_type="geglu")
    options = OF_LLAMAS_KIND | {"hidden_activation": "gelu", "query_pre_attn_scalar": WIDTH // HEADS}
    peer = transformers.Gemma2Model(
        transformers.Gemma2Config(**options, attn_logit_softcapping=None, layer_types=["full_attention"] * LAYERS)
    )
    weights = renamed(ours, "layers", GEMMAS_NAMES)
    assert_same(ours, peer, {name: weight - 1 if "norm" in name else weight for name, weight in weights.items()})


@pytest.mark.parametrize("num_heads", [4, 6])
def test_a_decoder_with_alibi_is_mpt(num_heads: int):
    sizes = {"d_model": 8 * num_heads, "num_heads": num_heads}
    ours = decoder(norm_type="layernorm", position_type="alibi", feed_forward_type="gelu", **sizes)
    for name, weight in ours.named_parameters():
        if name.endswith("bias"):  # MPT has none, not even in its norms
            nn.init.zeros_(weight).requires_grad_(False)
    peer = transformers.MptModel(
        transformers.MptConfig(
            d_model=8 * num_heads, n_heads=num_heads, n_layers=LAYERS, max_seq_len=64, vocab_size=VOCAB
        )
    )
    weights = renamed(ours, "blocks", MPTS_NAMES, last_norm="norm_f")
    assert_same(ours, peer, {name: weight for name, weight in weights.items() if not name.endswith("bias")})


def test_a_decoder_with_learned_positions_is_gpt2():
    ours = decoder(norm_type="layernorm", position_type="learned", feed_forward_type="gelu", bias=True)
    peer = transformers.GPT2Model(
        transformers.GPT2Config(
            n_embd=WIDTH,
            n_head=HEADS,
            n_layer=LAYERS,
            n_positions=64,
            vocab_size=VOCAB,
            activation_function="gelu",
            attn_implementation="eager",
        )
    )
    weights = renamed(ours, "h", GPT2S_NAMES, last_norm="ln_f")
    weights = {name: weight.T if "c_" in name and weight.ndim == 2 else weight for name, weight in weights.items()}
    assert_same(ours, peer, weights | {"wpe.weight": ours.get_parameter("positions.added.embedding.weight")})


def test_an_encoder_and_a_decoder_with_relative_positions_are_t5():
    options = SIZES | {"position_type": "t5", "feed_forward_type": "relu"}
    encoder = drawn(TransformerStack(StackConfig(**options), causal=False))
    decoder = drawn(TransformerStack(DecoderConfig(**options), causal=True, memory_width=WIDTH))
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        layer_norm_epsilon=1e-5,
    )
    peer = transformers.T5Model(config).double().eval()
    weights = {f"encoder.{name}": weight for name, weight in t5_weights(encoder, 1).items()}
    weights |= {f"decoder.{name}": weight for name, weight in t5_weights(decoder, 2).items()}

    mask = torch.arange(150) < torch.tensor([[150], [97]])  # farther than the last bucket begins
    source = torch.randn(2, 150, WIDTH, dtype=torch.float64)
    target = torch.randn(2, 140, WIDTH, dtype=torch.float64)
    memory = encoder(source, documents=mask.long() - 1)
    output = decoder(target, memory=memory, memory_mask=mask)
    inputs = {"inputs_embeds": source, "attention_mask": mask, "decoder_inputs_embeds": target}
    result = functional_call(peer, complete(peer, weights), (), inputs)
    both = nn.ModuleList([encoder, decoder])
    torch.testing.assert_close(memory[mask], result.encoder_last_hidden_state[mask], rtol=0, atol=1e-5)
    assert_same_with_gradients(both, output, result.last_hidden_state)


def decoder(**options: Any) -> TransformerStack:
    return drawn(TransformerStack(DecoderConfig(**SIZES | options), causal=True, max_length=64))


def drawn(stack: TransformerStack) -> TransformerStack:
    """The stack in float64, with no weight zero or one, which could hide a mistake."""
    torch.manual_seed(0)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack.double()


def renamed(ours: nn.Module, layers: str, names: dict[str, str], last_norm: str = "norm") -> dict[str, Tensor]:
    """The weights of the blocks and of the last norm under the peer's names.

    A peer that has no name for the keys' and the values' matrices has them in one with the queries'.
    """
    weights: dict[str, Tensor] = dict(ours.named_parameters())
    peers: dict[str, Tensor] = {}
    for name, weight in weights.items():
        found = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if name.startswith("norm."):
            peers[name.replace("norm", last_norm, 1)] = weight
        elif found is not None and found[2] in names:
            if found[2] == "attention.query" and "attention.key" not in names:
                weight = torch.cat([weights[name.replace("query", third)] for third in ("query", "key", "value")])
            peers[f"{layers}.{found[1]}.{names[found[2]]}.{found[3]}"] = weight
    return peers


def t5_weights(ours: TransformerStack, last: int) -> dict[str, Tensor]:
    """T5 doesn't divide scores by sqrt(head_width), so its query matrix does."""
    names = {name: peer.format(last=last) for name, peer in T5S_NAMES.items()}
    weights = renamed(ours, "block", names, last_norm="final_layer_norm")
    name = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    numbers = {name: ours.get_parameter("positions.bias.embedding.weight")}
    scale = (WIDTH // HEADS) ** -0.5
    return {name: weight * scale if ".q." in name else weight for name, weight in weights.items()} | numbers


def assert_same(ours: TransformerStack, peer: nn.Module, weights: dict[str, Tensor]) -> None:
    x = torch.randn(2, 20, ours.config.d_model, dtype=torch.float64)
    result = functional_call(
        peer.double().eval(), complete(peer, weights), (), {"inputs_embeds": x, "use_cache": False}
    )
    assert_same_with_gradients(ours, ours(x), result.last_hidden_state)


def complete(peer: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, which are all of the peer's but for embeddings of tokens; those are not used."""
    own = dict(peer.state_dict())
    assert weights.keys() <= own.keys()
    assert all(re.search(r"embed_tokens|shared|wte", name) for name in own.keys() - weights.keys())
    assert all(weights[name].shape == own[name].shape for name in weights)
    return weights


def assert_same_with_gradients(ours: nn.Module, output: Tensor, expected: Tensor) -> None:
    """Both are made of our weights, so the gradients of our weights tell the two apart."""
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    learned = [(name, weight) for name, weight in ours.named_parameters() if weight.requires_grad]
    names, weights = zip(*learned, strict=True)
    towards = torch.randn_like(expected)
    own, peers = (torch.autograd.grad(result, weights, towards, retain_graph=True) for result in (output, expected))
    for name, gradient, peer in zip(names, own, peers, strict=True):
        close = 1e-5 * max(1.0, peer.abs().max().item())
        torch.testing.assert_close(gradient, peer, rtol=0, atol=close, msg=f"{name} differs")
