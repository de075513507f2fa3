"""The decoders of transformers that ours can be: one table of names and options for each, read both ways.

Llama, Qwen3    RMSNorm, rotary positions, SwiGLU; Qwen3 also normalises queries and keys of each head
GPT-2           LayerNorm, learned positions, GELU; queries, keys and values are one transposed matrix
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaak.core.errors import UserError
from vaak.nn.config import StackConfig
from vaak.nn.feed_forward import inner_width
from vaak.nn.initialisation import DEVIATION
from vaak.nn.positional_encodings import Scaling, ntk_theta, yarn_factor
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.pretrained import (
    KEY,
    Names,
    config_of,
    read_weights,
    save_config,
    save_tokenizer,
    saved_config,
    write_generation,
)
from vaak.text.tokenizer import Tokenizer

OWN = ("name", "pretrained", "lora", "dropout", "attention_dropout")
"""Options that a run has itself; all others are the base's."""


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, ours can't be such a model, or it doesn't read ``max_length`` tokens.
    """
    config = config_of(KEY, source)
    options_of(config.to_dict(), source)
    longest = config.max_position_embeddings
    if config.model_type == GPT2.model_type and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    save_config(config, folder)
    write_generation(source, folder)
    return save_tokenizer(source, folder)


def options_in(folder: Path, own: LanguageModelConfig) -> LanguageModelConfig:
    """The options of the model whose base is in prepared data: the base's, and its ``own``."""
    found = options_of(saved_config(folder), str(own.pretrained))
    return type(own)(**found, **{name: getattr(own, name) for name in OWN})


def init_model(folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """The model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    size = max(vocab_size, saved_config(folder)["vocab_size"])
    return LanguageModel(options_in(folder, own), size, longest_of(folder))


def longest_of(folder: Path) -> int:
    """The number of tokens that the base in prepared data was made for."""
    theirs = saved_config(folder)
    return int(theirs[FAMILIES[theirs["model_type"]].positions])


def load_model(source: str, folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """Return the model with the weights of ``source``; tokens that it lacks are drawn.

    Raises UserError where they can't be loaded, or aren't those of its configuration.
    """
    model = init_model(folder, own, vocab_size)
    family = FAMILIES[saved_config(folder)["model_type"]]
    names = Names(family.imported, lambda name: family.theirs(name)[0], ("embedding.weight", "head.weight"))
    read_weights(model, source, names)
    return model


IGNORED = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")
"""Buffers that older folders hold: masks and wavelengths, which are computed."""


@dataclass(frozen=True)
class Family:
    """``sizes`` and ``parts`` give transformers' names of ours.

    ``fixed`` are options with the only value that it has, ``expected`` the same of transformers. ``activations`` are
    its names of our feed-forward layers. ``parts`` are those of a block, a fused one with the number of the piece, of
    which there are three; ``others`` are not in a block. ``prefix`` is before all of them but the head, ``layers``
    before a block's number.
    """

    model_type: str
    architecture: str
    fixed: dict[str, Any]
    sizes: dict[str, str]
    expected: dict[str, Any]
    activation: str
    activations: dict[str, str]
    parts: dict[str, tuple[str, int | None]]
    others: dict[str, str]
    prefix: str
    layers: str
    is_transposed: bool = False
    positions: str = "max_position_embeddings"
    qk_norm: bool = field(default=False)

    def theirs(self, name: str) -> tuple[str, int | None]:
        """Return their name of one of our tensors, and which piece of it ours is; None if it is all of it.

        ``stack.blocks.3.attention.query.weight`` → ``model.layers.3.self_attn.q_proj.weight``, None.
        """
        part, _, kind = name.rpartition(".")
        if part in self.others:
            return f"{'' if part == 'head' else self.prefix}{self.others[part]}.{kind}", None
        layer, part = part.removeprefix("stack.blocks.").split(".", 1)
        own, piece = self.parts[part]
        return f"{self.prefix}{self.layers}.{layer}.{own}.{kind}", piece

    def exported(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under their names, on the CPU."""
        found: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            theirs, piece = self.theirs(name)
            found[theirs] = tensor if not piece else torch.cat((found[theirs], tensor))
        return {name: self._turned(name, tensor.detach().cpu()).contiguous() for name, tensor in found.items()}

    def imported(self, tensors: Iterator[tuple[str, Tensor]], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Our ``names`` with what their ``tensors`` hold of them. Raises KeyError for a tensor that we don't have."""
        wanted: dict[str, list[tuple[str, int | None]]] = {}
        for name in names:
            theirs, piece = self.theirs(name)
            wanted.setdefault(theirs.removeprefix(self.prefix), []).append((name, piece))
        for theirs, tensor in tensors:
            own = theirs.removeprefix(self.prefix)
            if own.endswith(IGNORED) or (own == "lm_head.weight" and own not in wanted):
                continue
            tensor = self._turned(own, tensor)
            for name, piece in wanted[own]:
                yield name, tensor if piece is None else tensor.chunk(3)[piece]

    def _turned(self, name: str, tensor: Tensor) -> Tensor:
        is_matrix = self.is_transposed and f"{self.layers}." in name and tensor.ndim == 2
        return tensor.T if is_matrix else tensor


_OF_LLAMA: dict[str, Any] = {
    "fixed": {
        "attention_type": "softmax",
        "scale_scores": True,
        "norm_type": "rmsnorm",
        "norm_placement": "pre",
        "position_type": "rotary",
        "bias": False,
    },
    "sizes": {
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "norm_eps": "rms_norm_eps",
        "tie_embeddings": "tie_word_embeddings",
    },
    "activation": "hidden_act",
    "activations": {"silu": "swiglu"},
    "parts": {
        "attention_norm": ("input_layernorm", None),
        "attention.query": ("self_attn.q_proj", None),
        "attention.key": ("self_attn.k_proj", None),
        "attention.value": ("self_attn.v_proj", None),
        "attention.output": ("self_attn.o_proj", None),
        "attention.query_norm": ("self_attn.q_norm", None),
        "attention.key_norm": ("self_attn.k_norm", None),
        "feed_forward_norm": ("post_attention_layernorm", None),
        "feed_forward.gate": ("mlp.gate_proj", None),
        "feed_forward.up": ("mlp.up_proj", None),
        "feed_forward.down": ("mlp.down_proj", None),
    },
    "others": {"embedding": "embed_tokens", "stack.norm": "norm", "head": "lm_head"},
    "prefix": "model.",
    "layers": "layers",
}
LLAMA = Family("llama", "LlamaForCausalLM", expected={"attention_bias": False, "mlp_bias": False}, **_OF_LLAMA)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    expected={"attention_bias": False, "use_sliding_window": False},
    qk_norm=True,
    **_OF_LLAMA,
)
GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    fixed={
        "attention_type": "softmax",
        "scale_scores": True,
        "norm_type": "layernorm",
        "norm_placement": "pre",
        "position_type": "learned",
        "bias": True,
        "num_key_value_heads": None,
        "head_dim": None,
    },
    sizes={
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "norm_eps": "layer_norm_epsilon",
        "tie_embeddings": "tie_word_embeddings",
    },
    expected={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    activation="activation_function",
    activations={"gelu_new": "gelu_tanh", "gelu": "gelu", "relu": "relu"},
    parts={
        "attention_norm": ("ln_1", None),
        "attention.query": ("attn.c_attn", 0),
        "attention.key": ("attn.c_attn", 1),
        "attention.value": ("attn.c_attn", 2),
        "attention.output": ("attn.c_proj", None),
        "feed_forward_norm": ("ln_2", None),
        "feed_forward.up": ("mlp.c_fc", None),
        "feed_forward.down": ("mlp.c_proj", None),
    },
    others={"embedding": "wte", "stack.positions.added.embedding": "wpe", "stack.norm": "ln_f", "head": "lm_head"},
    prefix="transformer.",
    layers="h",
    is_transposed=True,
    positions="n_positions",
)
FAMILIES = {family.model_type: family for family in (LLAMA, QWEN3, GPT2)}


def family_of(config: LanguageModelConfig) -> Family:
    """Return the family in transformers of a model with these options. Raises UserError where it is none of them."""
    if config.model_type != "decoder":
        raise UserError(
            "Only a decoder can be exported: transformers has no encoder of this kind (rotary, pre-norm, SwiGLU)."
        )
    family = GPT2 if config.position_type == "learned" else QWEN3 if config.qk_norm else LLAMA
    kinds = set(family.activations.values())
    for name, value in {**family.fixed, "qk_norm": family.qk_norm}.items():
        if getattr(config, name) != value:
            raise _not_theirs(family, name, getattr(config, name), value)
    if config.feed_forward_type not in kinds:
        raise _not_theirs(family, "feed_forward_type", config.feed_forward_type, " or ".join(sorted(kinds)))
    return family


def _not_theirs(family: Family, name: str, value: object, expected: object) -> UserError:
    known = family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return UserError(f"A model with {name} {value} can't be exported: transformers' {known} has {expected}.")


def exported_config(config: LanguageModelConfig, vocab_size: int, max_length: int, dtype: str) -> dict[str, Any]:
    """The ``config.json`` of a model that reads ``max_length`` tokens, with weights of ``dtype``."""
    family = family_of(config)
    sizes = {theirs: getattr(config, ours) for ours, theirs in family.sizes.items()}
    sizes[family.sizes["d_ff"]] = inner_width(config.d_model, config.d_ff, config.feed_forward_type)
    rope: dict[str, Any] = {}
    if family is not GPT2:
        sizes |= {"num_key_value_heads": config.num_key_value_heads or config.num_heads, "head_dim": config.head_width}
        rope = {"rope_parameters": rope_parameters(config)}
        rope["rope_theta"] = rope["rope_parameters"]["rope_theta"]  # where transformers 4 reads it
    names = {ours: theirs for theirs, ours in family.activations.items()}
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": vocab_size,
        **sizes,
        family.activation: names[config.feed_forward_type],
        family.positions: max_length,
        **rope,
        **family.expected,
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop") if family is GPT2 else ("attention_dropout",), 0.0),
        "initializer_range": DEVIATION,
        "dtype": dtype,
        "use_cache": True,
    }


def rope_parameters(config: StackConfig) -> dict[str, Any]:
    """The rotary positions under transformers' names; ntk scaling changes the base of the wavelengths."""
    factor, kind = config.rope_scaling_factor, config.rope_scaling_type
    plain = {"rope_type": "default", "rope_theta": config.rope_theta}
    if factor == 1:
        return plain
    if kind == "ntk":
        return {**plain, "rope_theta": ntk_theta(config.rope_theta, config.head_width, factor)}
    found = {**plain, "rope_type": kind, "factor": factor}
    if kind == "linear":
        return found
    low, high = Scaling(kind, factor, config.rope_original_length, config.rope_scaling_bounds).turns
    bounds = (low, high) if kind == "llama3" else (high, low)
    found |= dict(zip(_BOUNDS[kind], bounds, strict=True))
    return found | {"original_max_position_embeddings": config.rope_original_length}


_BOUNDS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_fast", "beta_slow")}


def options_of(theirs: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The options of our model that is one of transformers with the configuration ``theirs``.

    Raises UserError, naming ``source`` and what we don't have, where there is none.
    """
    family = FAMILIES.get(theirs["model_type"])
    if family is None:
        raise UserError(
            f"model.pretrained: {source} is a {theirs['model_type']}; expected one of {', '.join(FAMILIES)}"
        )
    for name, value in {**family.expected, "quantization_config": None}.items():
        if theirs.get(name, value) != value:
            raise _unknown(source, name, theirs[name])
    if set(theirs.get("layer_types") or ()) - {"full_attention"}:
        raise _unknown(source, "layer_types", ", ".join(sorted(set(theirs["layer_types"]))))
    activation = theirs[family.activation]
    if activation not in family.activations:
        raise _unknown(source, family.activation, activation)
    found = {ours: theirs[name] for ours, name in family.sizes.items()}
    options = {**family.fixed, **found, "feed_forward_type": family.activations[activation], "qk_norm": family.qk_norm}
    if family is GPT2:
        options["d_ff"] = options["d_ff"] or 4 * options["d_model"]
        return options
    return options | _rope_options(theirs["rope_parameters"], source)


def _rope_options(rope: Mapping[str, Any], source: str) -> dict[str, Any]:
    kind, factor = rope.get("rope_type", "default"), rope.get("factor", 1.0)
    options = {"rope_theta": rope["rope_theta"]}
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise _unknown(source, "rope_type", kind)
    plain: dict[str, Any] = {"partial_rotary_factor": 1.0, "truncate": True}
    if kind == "yarn":
        plain |= {"attention_factor": yarn_factor(factor), "mscale": None, "mscale_all_dim": None}
    for name, value in plain.items():
        if rope.get(name) not in (None, value):
            raise _unknown(source, name, rope[name])
    if kind == "default":
        return options
    options |= {"rope_scaling_type": kind, "rope_scaling_factor": factor}
    if kind in _BOUNDS:
        bounds: list[Any] = [rope.get(name) for name in _BOUNDS[kind]]
        options["rope_original_length"] = rope["original_max_position_embeddings"]
        options["rope_scaling_bounds"] = None if None in bounds else tuple(sorted(map(float, bounds)))
    return options


def _unknown(source: str, name: str, value: object) -> UserError:
    return UserError(f"model.pretrained: {source} has {name} {value}, which vaak's decoder doesn't")
