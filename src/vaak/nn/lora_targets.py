"""Which layers low-rank adapters change by default, by the names that families of networks have for them. No torch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TypeVar

from vaak.nn.config import LoraConfig

log = logging.getLogger("vaak")
AnyLora = TypeVar("AnyLora", bound=LoraConfig)

USUAL_TARGETS: tuple[tuple[str, ...], ...] = (
    ("query", "value"),  # Vaak's networks, BERT, RoBERTa, ELECTRA, ALBERT
    ("q_proj", "v_proj"),  # Whisper, wav2vec 2.0, Parakeet, Llama
    ("linear_q", "linear_v"),  # w2v-BERT
    ("query_proj", "value_proj"),  # DeBERTa
    ("q_lin", "v_lin"),  # DistilBERT, XLM
    ("q", "v"),  # MPNet, T5
    ("Wqkv",),  # ModernBERT: queries, keys and values in one
    ("query_key_value",),  # GPT-NeoX, BLOOM, Falcon
    ("qkv_proj",),  # Phi-3, NomicBERT
    ("in_proj", "x_proj"),  # Mamba, which has no attention
)
"""The layers of queries and of values, as LoRA's authors chose (Hu et al. 2021, section 4.2); the first that exist."""

OWN_NETWORK = ("attention.query", "attention.output")
"""Layers by which a network of Vaak's is known."""
OWN_NAMES = {
    **dict.fromkeys(("q_proj", "q"), ("query",)),
    **dict.fromkeys(("k_proj", "k"), ("key",)),
    **dict.fromkeys(("v_proj", "v"), ("value",)),
    **dict.fromkeys(("o_proj", "out_proj", "o"), ("output",)),
    **dict.fromkeys(("gate_proj", "wi_0"), ("gate",)),
    **dict.fromkeys(("up_proj", "wi_1", "wi", "fc1", "c_fc"), ("up",)),
    **dict.fromkeys(("down_proj", "wo", "fc2"), ("down",)),
    "c_attn": ("query", "key", "value"),
    "c_proj": ("output", "down"),
    "lm_head": ("head",),
}
"""Names in Vaak's networks of the layers of the families that they read: Llama, Qwen, GPT-2, T5, Marian."""


def is_target(name: str, targets: Iterable[str]) -> bool:
    """Return whether a layer's name is one of the ``targets``, or ends in one, as peft reads them.

    >>> is_target("decoder.0.query", ["query"]), is_target("decoder.0.query", ["0.query"]), is_target("query", ["ery"])
    (True, True, False)
    """
    return f".{name}".endswith(tuple(f".{target}" for target in targets))


def adapts_head(options: LoraConfig) -> bool:
    """Return whether the output layer of a language model or a translator is among the targets."""
    return any(is_target(name, options.targets) for name in ("head", "lm_head"))


def choose_targets(options: LoraConfig, layers: Sequence[str]) -> tuple[str, ...]:
    """Return the targets of ``options`` by the names that ``layers`` have for them.

    Those are other names of the default ones, and in a network of Vaak's those of the family that it reads.

    >>> choose_targets(LoraConfig(), ["layers.0.attn.Wqkv", "layers.0.attn.Wo"])
    ('Wqkv',)
    >>> choose_targets(LoraConfig(targets=("q_proj", "query")), ["0.attention.query", "0.attention.output"])
    ('query',)
    """

    def has_all(targets: Iterable[str]) -> bool:
        return all(any(is_target(name, [target]) for name in layers) for target in targets)

    default = type(options).model_fields["targets"].default
    if options.targets != default or has_all(default):
        if not has_all(OWN_NETWORK):
            return options.targets
        named = [
            OWN_NAMES[target] if not has_all([target]) and has_all(OWN_NAMES.get(target, [target])) else (target,)
            for target in options.targets
        ]
        return tuple(dict.fromkeys(name for names in named for name in names))
    return next((targets for targets in USUAL_TARGETS if has_all(targets)), options.targets)


def fit_targets(options: AnyLora, layers: Sequence[str]) -> AnyLora:
    """Return the options with the targets that are chosen for ``layers``; a line names them where they are others."""
    chosen = choose_targets(options, layers)
    if chosen == options.targets:
        return options
    lacking = [target for target in options.targets if target not in chosen]
    log.info("%s of this base are adapted; it has no %s", ", ".join(chosen), ", ".join(lacking))
    return options.model_copy(update={"targets": chosen})
