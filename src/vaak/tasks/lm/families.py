"""Families of transformers' decoders that Vaak's network can be: a table of names and options each, read both ways.

Llama, Mistral, Qwen2, Qwen3   RMSNorm, rotary positions, SwiGLU; Qwen2 has biases of queries, keys and values; Qwen3
                               normalises queries and keys of each head
Qwen3-MoE                      Qwen3 with a mixture of experts in every block, without biases of the router
GLM-4-MoE                      experts that are chosen by scores and a bias, as DeepSeek-V3's, after blocks without any;
                               the bias of a base stays unchanged
GPT-2                          LayerNorm, learned positions, GELU; queries, keys and values are one transposed matrix
any other                      transformers' own module (``vaak.tasks.lm.model:TransformersDecoder``)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vaak.config.components import without_folder
from vaak.core.errors import UserError
from vaak.nn.config import StackConfig
from vaak.nn.feed_forward import inner_width
from vaak.nn.initialisation import DEVIATION
from vaak.nn.positional_encodings import Scaling, ntk_theta, yarn_factor
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.older_names import older_rope

IGNORED_TENSORS = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")
"""Buffers that older folders hold: masks and wavelengths, which are computed."""
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class DecoderFamily:
    """How transformers names the options and tensors of ours, and what a family has no choice of.

    fixed, expected   our options, and theirs, that have a single value in this family
    sizes             their names of our options
    activations       their names of our feed-forward types
    parts             their names of a block's tensors (``*``: the number of an expert); a number is the place of ours
                      among the three in a fused one
    others            their names of tensors outside of blocks
    prefix, layers    come before all names except the head's, and before the number of a block
    moe, fixed_moe    their names of the options of experts; ours that have a single value
    choice_bias       their name of the router's bias; a family that has one also has a shared expert
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
    moe: Mapping[str, str] = field(default_factory=dict)
    fixed_moe: Mapping[str, Any] = field(default_factory=dict)
    choice_bias: str | None = None

    def theirs(self, name: str) -> tuple[str, int | None]:
        """Return their name of one of our tensors, and which piece of it ours is; None if it is all of it.

        ``stack.blocks.3.attention.query.weight`` → ``model.layers.3.self_attn.q_proj.weight``, None.
        """
        part, _, kind = name.rpartition(".")
        if part in self.others:
            return f"{'' if part == 'head' else self.prefix}{self.others[part]}.{kind}", None
        layer, part = part.removeprefix("stack.blocks.").split(".", 1)
        if (part, kind) == CHOICE_BIAS:
            part, kind = "feed_forward.router", self.choice_bias or kind
        number = _NUMBER.search(part)
        own, piece = self.parts[_NUMBER.sub(".*.", part)]
        own = own.replace("*", number[1]) if number else own
        return f"{self.prefix}{self.layers}.{layer}.{own}.{kind}", piece

    def exported(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors under their names, on the CPU."""
        found: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            theirs, piece = self.theirs(name)
            found[theirs] = tensor if not piece else torch.cat((found[theirs], tensor))
        # Every mixture of theirs has this bias and a shared expert; where ours has none, zeros do the same.
        if self.choice_bias is not None:
            for name in [name for name in found if name.endswith(".mlp.gate.weight")]:
                mixture = name.removesuffix("gate.weight")
                found.setdefault(f"{mixture}gate.{self.choice_bias}", torch.zeros(len(found[name])))
                for part in ("gate_proj.weight", "up_proj.weight", "down_proj.weight"):
                    like = found[f"{mixture}experts.0.{part}"]
                    found.setdefault(f"{mixture}shared_experts.{part}", torch.zeros_like(like))
        return {name: self._turned(name, tensor.detach().cpu()).contiguous() for name, tensor in found.items()}

    def imported(self, tensors: Iterator[tuple[str, Tensor]], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Our ``names`` with what their ``tensors`` hold of them. Raises KeyError for a tensor that we don't have."""
        wanted: dict[str, list[tuple[str, int | None]]] = {}
        for name in names:
            theirs, piece = self.theirs(name)
            wanted.setdefault(theirs.removeprefix(self.prefix), []).append((name, piece))
        for theirs, tensor in tensors:
            own = theirs.removeprefix(self.prefix)
            # Files of tied embeddings may hold the head as well; ours is the embedding.
            if own.endswith(IGNORED_TENSORS) or (own == "lm_head.weight" and own not in wanted):
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
        "qkv_bias": False,
        "qk_norm": False,
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

_EXPERTS = {
    "feed_forward.router": ("mlp.gate", None),
    "feed_forward.experts.*.gate": ("mlp.experts.*.gate_proj", None),
    "feed_forward.experts.*.up": ("mlp.experts.*.up_proj", None),
    "feed_forward.experts.*.down": ("mlp.experts.*.down_proj", None),
}


def _like_llama(kind: str, architecture: str, expected: dict[str, Any], **fixed: Any) -> DecoderFamily:
    return DecoderFamily(
        kind, architecture, expected=expected, **{**_OF_LLAMA, "fixed": {**_OF_LLAMA["fixed"], **fixed}}
    )


LLAMA = _like_llama("llama", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False})

MISTRAL = _like_llama("mistral", "MistralForCausalLM", {"sliding_window": None})

QWEN2 = _like_llama("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": False}, qkv_bias=True)

QWEN3 = _like_llama("qwen3", "Qwen3ForCausalLM", {"attention_bias": False, "use_sliding_window": False}, qk_norm=True)

QWEN3_MOE = replace(
    QWEN3,
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    expected={**QWEN3.expected, "decoder_sparse_step": 1, "mlp_only_layers": []},
    parts={name: part for name, part in QWEN3.parts.items() if not name.startswith("feed_forward.")} | _EXPERTS,
    moe={
        "num_experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
        "d_ff": "moe_intermediate_size",
        "normalise": "norm_topk_prob",
    },
    fixed_moe={"num_shared": 0, "first_layer": 0, "scores": "softmax", "scale": 1.0, "balancing_bias": 0.0},
)

CHOICE_BIAS = ("feed_forward", "bias")
"""Where ours has the bias by which experts are chosen."""

GLM4_MOE = replace(
    QWEN3,
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    fixed={name: value for name, value in QWEN3.fixed.items() if name not in ("qk_norm", "qkv_bias")},
    expected={"n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
    sizes={**QWEN3.sizes, "qk_norm": "use_qk_norm", "qkv_bias": "attention_bias"},
    parts={
        **QWEN3.parts,
        **_EXPERTS,
        **{f"feed_forward.shared.{name}": (f"mlp.shared_experts.{name}_proj", None) for name in ("gate", "up", "down")},
    },
    moe={
        "num_experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "d_ff": "moe_intermediate_size",
        "normalise": "norm_topk_prob",
        "num_shared": "n_shared_experts",
        "first_layer": "first_k_dense_replace",
        "scale": "routed_scaling_factor",
    },
    fixed_moe={"scores": "sigmoid"},
    choice_bias="e_score_correction_bias",
)

GPT2 = DecoderFamily(
    "gpt2",
    "GPT2LMHeadModel",
    fixed={
        "attention_type": "softmax",
        "scale_scores": True,
        "norm_type": "layernorm",
        "norm_placement": "pre",
        "position_type": "learned",
        "bias": True,
        "qkv_bias": False,
        "qk_norm": False,
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

FAMILIES = {family.model_type: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, GLM4_MOE, GPT2)}


def find_family(config: LanguageModelConfig) -> DecoderFamily:
    """Return the family in transformers of a model with these options. Raises UserError where it isn't one of them.

    Of families that have the same options (Mistral), it is Llama.
    """
    if config.model_type != "decoder":
        raise UserError(
            "Only a decoder can be exported: transformers has no encoder of this kind (rotary, pre-norm, SwiGLU)."
        )
    if config.is_own:
        raise UserError(f"model.type is {without_folder(config.type)}, a network that transformers doesn't have")
    is_gpt2 = config.position_type == "learned"
    family = GPT2 if is_gpt2 else QWEN3 if config.qk_norm else QWEN2 if config.qkv_bias else LLAMA
    if config.moe is not None:
        family = GLM4_MOE if config.moe.scores == "sigmoid" else QWEN3_MOE
        for name, value in family.fixed_moe.items():
            if getattr(config.moe, name) != value:
                raise _not_theirs(family, f"moe.{name}", getattr(config.moe, name), value)
    kinds = set(family.activations.values())
    for name, value in family.fixed.items():
        if getattr(config, name) != value:
            raise _not_theirs(family, name, getattr(config, name), value)
    if config.feed_forward_type not in kinds:
        raise _not_theirs(family, "feed_forward_type", config.feed_forward_type, " or ".join(sorted(kinds)))
    return family


def _not_theirs(family: DecoderFamily, name: str, value: object, expected: object) -> UserError:
    known = family.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return UserError(f"A model with {name} {value} can't be exported: transformers' {known} has {expected}.")


def exported_config(
    config: LanguageModelConfig, family: DecoderFamily, vocab_size: int, max_length: int, dtype: str
) -> dict[str, Any]:
    """The ``config.json`` of a model of ``family`` that reads ``max_length`` tokens, with weights of ``dtype``."""
    sizes = {theirs: getattr(config, ours) for ours, theirs in family.sizes.items()}
    sizes[family.sizes["d_ff"]] = inner_width(config.d_model, config.d_ff, config.feed_forward_type)
    rope: dict[str, Any] = {}
    if family is not GPT2:
        sizes |= {"num_key_value_heads": config.num_key_value_heads or config.num_heads, "head_dim": config.head_width}
        rope = {"rope_parameters": rope_parameters(config)}
        if family is QWEN2 and config.head_width * config.num_heads == config.d_model:
            # Its configuration has none.
            del sizes["head_dim"]
    if config.moe is not None:
        sizes |= {theirs: getattr(config.moe, ours) for ours, theirs in family.moe.items()}
        sizes[family.moe["d_ff"]] = config.moe.d_ff or sizes[family.sizes["d_ff"]]
        if family is GLM4_MOE:
            # One that gives zeros, if there is none.
            sizes[family.moe["num_shared"]] = max(1, config.moe.num_shared)
            # Unless it is told, this family rotates half of a head.
            rope["rope_parameters"]["partial_rotary_factor"] = 1.0
        if family is QWEN3_MOE:
            # Other tools read the number here.
            sizes["num_experts"] = config.moe.num_experts
    names = {ours: theirs for theirs, ours in family.activations.items()}
    return {
        **older_rope(rope.get("rope_parameters", {})),
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


_BOUNDS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_fast", "beta_slow")}


def rope_parameters(config: StackConfig) -> dict[str, Any]:
    """Return the rotary positions under transformers' names; ntk scaling changes the base of the wavelengths."""
    factor, kind = config.rope_scaling_factor, config.rope_scaling_type
    plain = {"rope_type": "default", "rope_theta": config.rope_theta}
    if factor == 1:
        return plain
    if kind == "ntk":
        return {**plain, "rope_theta": ntk_theta(config.rope_theta, config.head_width, factor)}
    found = {**plain, "rope_type": kind, "factor": factor}
    if kind == "linear":
        return found
    # llama3 names the bound of few turns first, yarn that of many (beta_fast).
    low, high = Scaling(kind, factor, config.rope_original_length, config.rope_scaling_bounds).turns
    bounds = (low, high) if kind == "llama3" else (high, low)
    found |= dict(zip(_BOUNDS[kind], bounds, strict=True))
    return found | {"original_max_position_embeddings": config.rope_original_length}


def convert_options(theirs: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the options of our model that is one of transformers with the configuration ``theirs``.

    Where there is none, a string says what ours doesn't have.
    """
    family = FAMILIES.get(theirs["model_type"])
    if family is None:
        return f"vaak's own decoder isn't a {theirs['model_type']}"
    for name, value in family.expected.items():
        if theirs.get(name, value) != value:
            return _lacking(name, theirs[name])
    if set(theirs.get("layer_types") or ()) - {"full_attention"}:
        return _lacking("layer_types", ", ".join(sorted(set(theirs["layer_types"]))))
    activation = theirs[family.activation]
    if activation not in family.activations:
        return _lacking(family.activation, activation)
    # get, because some families have no such option: Qwen2 has no head_dim.
    found = {ours: theirs.get(name) for ours, name in family.sizes.items()}
    options = {**family.fixed, **found, "feed_forward_type": family.activations[activation]}
    if family.moe:
        options["moe"] = {**family.fixed_moe, **{ours: theirs.get(name) for ours, name in family.moe.items()}}
    if family is GPT2:
        options["d_ff"] = options["d_ff"] or 4 * options["d_model"]
        return options
    rope = _rope_options(theirs["rope_parameters"])
    return rope if isinstance(rope, str) else options | rope


def _rope_options(rope: Mapping[str, Any]) -> dict[str, Any] | str:
    kind, factor = rope.get("rope_type", "default"), rope.get("factor", 1.0)
    options = {"rope_theta": rope["rope_theta"]}
    if kind not in ("default", "linear", "llama3", "yarn"):
        return _lacking("rope_type", kind)
    plain: dict[str, Any] = {"partial_rotary_factor": 1.0, "truncate": True}
    if kind == "yarn":
        plain |= {"attention_factor": yarn_factor(factor), "mscale": None, "mscale_all_dim": None}
    for name, value in plain.items():
        if rope.get(name) not in (None, value):
            return _lacking(name, rope[name])
    if kind == "default":
        return options
    options |= {"rope_scaling_type": kind, "rope_scaling_factor": factor}
    if kind in _BOUNDS:
        bounds: list[Any] = [rope.get(name) for name in _BOUNDS[kind]]
        options["rope_original_length"] = rope["original_max_position_embeddings"]
        options["rope_scaling_bounds"] = None if None in bounds else tuple(sorted(map(float, bounds)))
    return options


def _lacking(name: str, value: object) -> str:
    return f"vaak's own decoder has no {name} {value}"
