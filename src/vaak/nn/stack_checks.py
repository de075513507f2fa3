"""Checks of the options of stacks: those without effect, and those that a size or a user's own network rules out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vaak.config.components import without_folder
from vaak.config.tasks import CheckFinding, impossible, no_effect, remark
from vaak.nn.config import StackConfig

OF_SCALING = ("rope_scaling_type", "rope_scaling_bounds", "rope_original_length")
LINEAR_PAYS_FROM = {"linear": 850, "causal_linear": 2000}
"""Tokens from which linear attention takes less time than softmax: measured in docs/attention.md."""


def check_stack(section: str, stack: StackConfig, *, is_encoder: bool, longest: float) -> Iterable[CheckFinding]:
    """Return findings about the stack whose options are in ``section``; it sees at most ``longest`` tokens at once."""
    if stack.is_own:
        return []
    unread = (*_unread_by_attention(stack), *_unread_by_positions(stack))
    found = [no_effect(f"{section}.{name}", reason) for name, reason in unread]
    if stack.bias and stack.qkv_bias:
        found.append(no_effect(f"{section}.qkv_bias", "with bias, all layers have one"))
    if is_encoder and stack.attention_type == "causal_linear":
        found.append(
            remark(f"{section}.attention_type", "the encoder then sees no later token; linear sees both sides")
        )
    pays_from = LINEAR_PAYS_FROM.get(stack.attention_type, 0)
    if longest < pays_from:
        found.append(
            remark(
                f"{section}.attention_type",
                f"{stack.attention_type} takes less time than softmax from about {pays_from:,} tokens on, but here are "
                f"at most {longest:,.0f}; softmax is faster, and exact",
            )
        )
    return found


def _unread_by_attention(stack: StackConfig) -> Iterator[tuple[str, str]]:
    if stack.attention_type != "local":
        yield "window", f"attention_type is {stack.attention_type}; only local has a window"
    if not stack.draws_features:
        for name in ("num_features", "kernel_type", "orthogonal_features"):
            yield name, f"attention_type is {stack.attention_type}; only linear and causal_linear have features"
    crossing = getattr(stack, "cross_type", "linear")
    if "linear" in stack.attention_type and crossing == "linear":
        yield "attention_dropout", f"{stack.attention_type} attention forms no weights that could be dropped"


def _unread_by_positions(stack: StackConfig) -> Iterator[tuple[str, str]]:
    if stack.position_type != "rotary":
        for name in ("rope_theta", "rope_scaling_factor", *OF_SCALING):
            yield name, f"position_type is {stack.position_type}; only rotary positions turn"
    elif stack.rope_scaling_factor == 1:
        for name in OF_SCALING:
            yield name, "rope_scaling_factor is 1, which changes nothing"
    elif stack.rope_scaling_type in ("linear", "ntk"):
        for name in OF_SCALING[1:]:
            yield name, f"rope_scaling_type is {stack.rope_scaling_type}; only llama3 and yarn have bounds"


def check_presets(
    preset: str | None, presets: Mapping[str, Mapping[str, Any]], model: object
) -> Iterator[CheckFinding]:
    """Yield a finding if the ``model`` overrides every size of its ``preset``, one of ``presets``."""
    sizes = presets.get(preset or "", {})
    if isinstance(model, StackConfig) and model.is_own:
        sizes = {name: size for name, size in sizes.items() if model.reads(name)}
    if sizes and all(getattr(model, name) != size for name, size in sizes.items()):
        yield no_effect("model.preset", f"all of its sizes are overridden: {', '.join(sizes)}")


def check_own_networks(section: str, stack: StackConfig, reason: str) -> Iterator[CheckFinding]:
    """Yield a finding if the stack is a user's own network, which the task can't use for the ``reason`` given."""
    if stack.is_own:
        yield impossible(f"{section}.type", f"is {without_folder(stack.type)}, but {reason}; leave one of them out")


def find_own_networks(model: Any) -> list[StackConfig]:
    """Return the user's own networks in a ``model`` section, which may be one itself."""
    sections = [model, *(getattr(model, name) for name in getattr(type(model), "model_fields", ()))]
    return [one for one in sections if isinstance(one, StackConfig) and one.is_own]
