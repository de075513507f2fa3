"""Options of the model's stacks that do nothing there, and how large stacks are: for the checks of every task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.task_spec import CheckFinding, impossible, no_effect, remark
from vaak.nn.config import FACTORS_END, ConvolutionalStackConfig, LoraConfig, StackConfig

LINEAR_PAYS_FROM = {"linear": 850, "causal_linear": 2000}
"""Tokens from which linear attention takes less time than softmax: measured in docs/attention.md."""

OF_SCALING = ("rope_scaling_type", "rope_scaling_bounds", "rope_original_length")


def stack_findings(section: str, stack: StackConfig, *, is_encoder: bool, longest: float) -> Iterable[CheckFinding]:
    """Findings about a stack whose options are in ``section``, and which sees at most ``longest`` tokens at once."""
    unread = (*_unread_by_attention(stack), *_unread_by_positions(stack))
    found = [no_effect(f"{section}.{name}", reason) for name, reason in unread]
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


def preset_findings(
    key: str, preset: str | None, presets: Mapping[str, Mapping[str, Any]], model: object
) -> Iterator[CheckFinding]:
    """Whether the ``preset`` at ``key``, one of ``presets``, has a size that the ``model`` doesn't override."""
    sizes = presets.get(preset or "", {})
    if sizes and all(getattr(model, name) != size for name, size in sizes.items()):
        yield no_effect(key, f"all of its sizes are overridden: {', '.join(sizes)}")


def lora_findings(
    experiment: Experiment[Any, Any, Any, Any, Any], lora: LoraConfig | None, is_pretrained: bool
) -> Iterator[CheckFinding]:
    """Whether there is something for low-rank adapters to adapt."""
    if lora is not None and not is_pretrained and experiment.training.checkpoint.init_from is None:
        yield impossible(
            "model.lora", "there is nothing to adapt: weights are drawn; give training.checkpoint.init_from, a run"
        )


def stack_parameters(stack: StackConfig, memory_width: int | None = None) -> int:
    """The parameters of a stack's matrices; with ``memory_width``, its blocks also attend to vectors of that width."""
    width, gated = stack.d_model, stack.feed_forward_type in ("swiglu", "geglu", "geglu_tanh")
    key_width = (stack.num_key_value_heads or stack.num_heads) * stack.head_width
    inner = stack.d_ff or (8 * width // 3 if gated else 4 * width)
    inner = inner * width if stack.d_ff and inner < FACTORS_END else inner
    query_width = stack.num_heads * stack.head_width
    attention = 2 * width * (query_width + key_width)
    crossing = 0 if memory_width is None else 2 * width * query_width + 2 * memory_width * key_width
    kernel = stack.feed_forward_kernel if isinstance(stack, ConvolutionalStackConfig) else 1
    return stack.num_layers * (attention + crossing + ((2 if gated else 1) * kernel + 1) * width * inner)
