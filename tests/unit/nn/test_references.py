"""With the same weights, our stacks are torch's own transformers, in outputs and in gradients, in float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from vaak.nn.config import DecoderConfig, EncoderDecoderConfig, StackConfig, TokenStackConfig
from vaak.nn.models import EncoderDecoderModel
from vaak.nn.stack import TransformerStack

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 48, "dropout": 0.0}
LIKE_TORCH: dict[str, Any] = {"norm_type": "layernorm", "position_type": "none", "bias": True}
PARTS_OF_AN_ENCODER = {
    "attention.query": "self_attn.in_proj_",
    "attention.output": "self_attn.out_proj.",
    "attention_norm": "norm1.",
    "feed_forward.up": "linear1.",
    "feed_forward.down": "linear2.",
    "feed_forward_norm": "norm2.",
}
PARTS_OF_A_DECODER = PARTS_OF_AN_ENCODER | {
    "cross_attention.query": "multihead_attn.in_proj_",
    "cross_attention.output": "multihead_attn.out_proj.",
    "cross_attention_norm": "norm2.",
    "feed_forward_norm": "norm3.",
}
SOURCE_MASK = torch.arange(7) < torch.tensor([[7], [4], [1]])
TARGET_MASK = torch.arange(6) < torch.tensor([[3], [6], [5]])
FUTURE = ~torch.ones(6, 6, dtype=torch.bool).tril()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_encoder_decoder_is_torchs_transformer(activation: str, tied: bool):
    ours = encoder_decoder(activation, tied).double()
    draw(ours)
    peer = nn.Transformer(
        16, 4, 2, 3, 48, dropout=0.0, activation=activation, batch_first=True, norm_first=True, dtype=torch.float64
    )

    source, target = torch.randint(0, 20, SOURCE_MASK.shape), torch.randint(0, 30, TARGET_MASK.shape)
    logits = ours(source, SOURCE_MASK, target)
    embedded = ours.source_embedding(source), ours.target_embedding(target)
    masks = {
        "tgt_mask": FUTURE,
        "src_key_padding_mask": ~SOURCE_MASK,
        "memory_key_padding_mask": ~SOURCE_MASK,
        "tgt_key_padding_mask": ~TARGET_MASK,
    }
    hidden = functional_call(peer, peer_weights(ours), embedded, masks, strict=True)
    head = ours.target_embedding.weight if ours.head is None else ours.head.weight
    expected = F.linear(hidden, head)
    assert_same_with_gradients(ours, logits[TARGET_MASK], expected[TARGET_MASK])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_post_norm_encoder_is_torchs(activation: Any):
    config = StackConfig(num_layers=3, norm_placement="post", feed_forward_type=activation, **SIZES, **LIKE_TORCH)
    ours = TransformerStack(config, causal=False).double()
    draw(ours)
    layer = nn.TransformerEncoderLayer(16, 4, 48, 0.0, activation, batch_first=True, dtype=torch.float64)
    peer = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    x = torch.randn(*SOURCE_MASK.shape, 16, dtype=torch.float64)
    output = ours(x, documents=SOURCE_MASK.long() - 1)
    masks = {"src_key_padding_mask": ~SOURCE_MASK}
    expected = functional_call(peer, peer_weights(ours), (x,), masks, strict=True)
    assert_same_with_gradients(ours, output[SOURCE_MASK], expected[SOURCE_MASK])


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_post_norm_decoder_is_torchs(activation: Any):
    config = DecoderConfig(num_layers=3, norm_placement="post", feed_forward_type=activation, **SIZES, **LIKE_TORCH)
    ours = TransformerStack(config, causal=True, memory_width=16).double()
    draw(ours)
    layer = nn.TransformerDecoderLayer(16, 4, 48, 0.0, activation, batch_first=True, dtype=torch.float64)
    peer = nn.TransformerDecoder(layer, 3)

    x = torch.randn(*TARGET_MASK.shape, 16, dtype=torch.float64)
    memory = torch.randn(*SOURCE_MASK.shape, 16, dtype=torch.float64)
    output = ours(x, memory=memory, memory_mask=SOURCE_MASK)
    masks = {"tgt_mask": FUTURE, "memory_key_padding_mask": ~SOURCE_MASK}
    expected = functional_call(peer, peer_weights(ours), (x, memory), masks, strict=True)
    assert_same_with_gradients(ours, output, expected)


def encoder_decoder(activation: str, tied: bool) -> EncoderDecoderModel:
    options = {**SIZES, **LIKE_TORCH, "feed_forward_type": activation}
    config = EncoderDecoderConfig(
        encoder=TokenStackConfig(num_layers=2, **options),
        decoder=DecoderConfig(num_layers=3, **options),
        tie_embeddings=tied,
        share_embeddings=False,
    )
    return EncoderDecoderModel(config, 20, 30)


def draw(module: nn.Module) -> None:
    """Leaves no weight zero or one, which could hide a mistake."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def peer_weights(ours: nn.Module) -> dict[str, Tensor]:
    """The weights of our stacks under torch's names; query, key and value are one matrix there."""
    weights: dict[str, Tensor] = dict(ours.named_parameters())
    peers: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if re.match(r"head|\w+_embedding", name) or re.search(r"attention\.(key|value)\.", name):
            continue
        found = re.fullmatch(r"(.*)blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if found is None:
            peers[name] = weight
            continue
        stack, layer, part, kind = found.groups()
        looks_across = f"{stack}blocks.0.cross_attention.query.weight" in weights
        peer = (PARTS_OF_A_DECODER if looks_across else PARTS_OF_AN_ENCODER)[part]
        thirds = [weights[name.replace("query", third)] for third in ("query", "key", "value")]
        peers[f"{stack}layers.{layer}.{peer}{kind}"] = torch.cat(thirds) if part.endswith("query") else weight
    return peers


def assert_same_with_gradients(ours: nn.Module, output: Tensor, expected: Tensor) -> None:
    """Both are made of our weights, so the gradients of our weights tell the two apart."""
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
    names, weights = zip(*ours.named_parameters(), strict=True)
    towards = torch.randn_like(expected)
    own, peers = (torch.autograd.grad(result, weights, towards) for result in (output, expected))
    for name, gradient, peer in zip(names, own, peers, strict=True):
        torch.testing.assert_close(gradient, peer, rtol=0, atol=1e-8, msg=f"{name} differs")
