"""Options of the model's stacks that do nothing there: for the checks of every task that has a stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vaak.config.task_spec import CheckFinding, no_effect, remark
from vaak.nn.config import StackConfig


def stack_findings(section: str, stack: StackConfig, *, is_encoder: bool) -> Iterable[CheckFinding]:
    """Findings about a stack whose options are in ``section``."""
    unread = (*_unread_by_attention(stack), *_unread_by_positions(stack))
    found = [no_effect(f"{section}.{name}", reason) for name, reason in unread]
    if is_encoder and stack.attention_type == "causal_linear":
        found.append(
            remark(f"{section}.attention_type", "the encoder then sees no later token; linear sees both sides")
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
        for name in ("rope_theta", "rope_scaling_type", "rope_scaling_factor"):
            yield name, f"position_type is {stack.position_type}; only rotary positions turn"
    elif stack.rope_scaling_factor == 1:
        yield "rope_scaling_type", "rope_scaling_factor is 1, which changes nothing"
