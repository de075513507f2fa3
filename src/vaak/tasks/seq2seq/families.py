"""The encoder–decoders of transformers that ours can be: what each is of ours, and the names of its weights.

T5        RMSNorm before each layer, T5's relative positions, scores not scaled, ReLU or gated; the first one ties and
          scales what is scored, v1.1 (and Flan) has a separate head
Marian    LayerNorm after each layer, sinusoidal positions in halves, biases, one for the score of each token, too
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from vaak.core.errors import UserError
from vaak.tasks.pretrained import KEY

Theirs = Mapping[str, Any]
Parts = dict[str, str]
BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)")
SIDES = ("encoder", "decoder")
REPEATED = re.compile(
    r".*(embed_tokens|embed_positions|lm_head)\.weight|.*EncDecAttention\.relative_attention_bias\.weight"
)
"""What folders hold besides: embeddings under other names, what is computed, and a table that isn't read."""


class Family(NamedTuple):
    """A model of transformers as ours: the options of both sides, and of the ``whole``.

    ``parts`` are transformers' names of a block's layers, which follow ``block``; ``others`` those of all else.
    """

    sides: dict[str, dict[str, Any]]
    whole: dict[str, Any]
    block: str
    parts: dict[str, Parts]
    others: Parts

    def theirs(self, name: str) -> str:
        """Their name of one of our tensors.

        ``decoder.blocks.3.cross_attention.query.weight`` → ``decoder.block.3.layer.1.EncDecAttention.q.weight``.
        """
        part, _, kind = name.rpartition(".")
        found = BLOCK.fullmatch(part)
        if found is None:
            return self.others[name]
        side, layer, own = found.groups()
        return f"{self.block.format(side=side, layer=layer)}.{self.parts[side][own]}.{kind}"

    def exported(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under their names, on the CPU."""
        tensors = {self.theirs(name): tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        return {name: tensor[None] if name.endswith("logits_bias") else tensor for name, tensor in tensors.items()}

    def imported(self, tensors: Iterator[tuple[str, Tensor]], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Our ``names`` with their ``tensors``. Raises KeyError for a tensor that we don't have."""
        wanted = {self.theirs(name): name for name in names}
        for name, tensor in tensors:
            if name in wanted or not REPEATED.fullmatch(name):
                yield wanted[name], tensor[0] if name.endswith("logits_bias") else tensor


def family_of(theirs: Theirs, source: str) -> Family:
    """What a model of transformers with the configuration ``theirs`` is.

    Raises UserError, naming ``source`` and what we don't have, where it is none of ours.
    """
    kind = theirs["model_type"]
    if kind not in FAMILIES:
        raise UserError(f"{KEY}: {source} is a {kind}; expected one of {', '.join(FAMILIES)}")
    if theirs.get("quantization_config") is not None:
        raise _unknown(source, "quantization_config", theirs["quantization_config"])
    return FAMILIES[kind](theirs, source)


def _t5(theirs: Theirs, source: str) -> Family:
    _demand(theirs, source, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    kinds = {"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}
    stack = {
        **_sizes(theirs, d_model="d_model", d_ff="d_ff", num_heads="num_heads", head_dim="d_kv"),
        "norm_type": "rmsnorm",
        "norm_placement": "pre",
        "norm_eps": theirs["layer_norm_epsilon"],
        "position_type": "t5",
        "scale_scores": False,
        "feed_forward_type": _kind(theirs, source, "feed_forward_proj", kinds),
        "bias": False,
    }
    gated = theirs["feed_forward_proj"].startswith("gated")
    return Family(
        {
            "encoder": {**stack, "num_layers": theirs["num_layers"]},
            "decoder": {**stack, "num_layers": theirs["num_decoder_layers"]},
        },
        {"scale_outputs": theirs["scale_decoder_outputs"], "tie_embeddings": theirs["tie_word_embeddings"]},
        "{side}.block.{layer}",
        {
            "encoder": {**_t5_attention("attention", 0, "SelfAttention"), **_t5_feed_forward(1, gated)},
            "decoder": {
                **_t5_attention("attention", 0, "SelfAttention"),
                **_t5_attention("cross_attention", 1, "EncDecAttention"),
                **_t5_feed_forward(2, gated),
            },
        },
        {
            "target_embedding.weight": "shared.weight",
            "head.weight": "lm_head.weight",
            **{f"{side}.norm.weight": f"{side}.final_layer_norm.weight" for side in SIDES},
            **{
                f"{side}.positions.bias.embedding.weight": (
                    f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
                )
                for side in SIDES
            },
        },
    )


def _t5_attention(ours: str, layer: int, name: str) -> Parts:
    letters = {"query": "q", "key": "k", "value": "v", "output": "o"}
    found = {f"{ours}.{part}": f"layer.{layer}.{name}.{letter}" for part, letter in letters.items()}
    return {**found, f"{ours}_norm": f"layer.{layer}.layer_norm"}


def _t5_feed_forward(layer: int, gated: bool) -> Parts:
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    found = {f"feed_forward.{part}": f"layer.{layer}.DenseReluDense.{name}" for part, name in names.items()}
    return {**found, "feed_forward_norm": f"layer.{layer}.layer_norm"}


def _marian(theirs: Theirs, source: str) -> Family:
    _demand(theirs, source, scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    kinds = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
    stack = {
        "d_model": theirs["d_model"],
        "norm_type": "layernorm",
        "norm_placement": "post",
        "norm_eps": 1e-5,
        "position_type": "sinusoidal_halves",
        "feed_forward_type": _kind(theirs, source, "activation_function", kinds),
        "bias": True,
    }
    sizes = {
        side: _sizes(theirs, d_ff=f"{side}_ffn_dim", num_layers=f"{side}_layers", num_heads=f"{side}_attention_heads")
        for side in SIDES
    }
    own = {**_marian_attention("attention", "self_attn"), "feed_forward.up": "fc1", "feed_forward.down": "fc2"}
    own["feed_forward_norm"] = "final_layer_norm"
    return Family(
        {side: {**stack, **sizes[side]} for side in SIDES},
        {"output_bias": True},
        "model.{side}.layers.{layer}",
        {"encoder": own, "decoder": {**own, **_marian_attention("cross_attention", "encoder_attn")}},
        {"target_embedding.weight": "model.shared.weight", "output_bias": "final_logits_bias"},
    )


def _marian_attention(ours: str, name: str) -> Parts:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    found = {f"{ours}.{part}": f"{name}.{theirs}" for part, theirs in names.items()}
    return {**found, f"{ours}_norm": f"{name}_layer_norm"}


FAMILIES: dict[str, Callable[[Theirs, str], Family]] = {"t5": _t5, "marian": _marian}


def _sizes(theirs: Theirs, **names: str) -> dict[str, Any]:
    return {ours: theirs[name] for ours, name in names.items()}


def _kind(theirs: Theirs, source: str, name: str, kinds: Mapping[str, str]) -> str:
    """Our feed-forward layer for the one that their option names."""
    if theirs[name] not in kinds:
        raise _unknown(source, name, theirs[name])
    return kinds[theirs[name]]


def _demand(theirs: Theirs, source: str, **expected: object) -> None:
    for name, value in expected.items():
        if theirs.get(name, value) != value:
            raise _unknown(source, name, theirs[name])


def _unknown(source: str, name: str, value: object) -> UserError:
    return UserError(f"{KEY}: {source} has {name} {value}, which vaak's model doesn't")
