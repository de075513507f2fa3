"""Options of the model's stacks that do nothing there, or that can't be had: as ``limits``, of which this is a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.experiment import Experiment

Remark = tuple[str, str]


def stacks_of(model: Any) -> Iterator[tuple[str, Any]]:
    """The options of each stack of a model, with the key of their section."""
    if hasattr(model, "attention_type"):
        yield "model", model
    for side in ("encoder", "decoder"):
        if hasattr(model, side):
            yield f"model.{side}", getattr(model, side)


def options_unread(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Options that a stack's types of attention and of positions leave unread, each with the reason."""
    for section, stack in stacks_of(experiment.model):
        for name, reason in (*_unread_by_attention(stack), *_unread_by_positions(stack)):
            yield f"{section}.{name}", reason


def _unread_by_attention(stack: Any) -> Iterator[Remark]:
    if stack.attention_type != "local":
        yield "window", f"attention_type is {stack.attention_type}; only local has a window"
    if not stack.draws_features:
        for name in ("num_features", "kernel_type", "orthogonal_features"):
            yield name, f"attention_type is {stack.attention_type}; only linear and causal_linear have features"
    crossing = getattr(stack, "cross_type", "linear")
    if "linear" in stack.attention_type and crossing == "linear":
        yield "attention_dropout", f"{stack.attention_type} attention forms no weights that could be dropped"


def _unread_by_positions(stack: Any) -> Iterator[Remark]:
    if stack.position_type != "rotary":
        for name in ("rope_theta", "rope_scaling_type", "rope_scaling_factor"):
            yield name, f"position_type is {stack.position_type}; only rotary positions turn"
    elif stack.rope_scaling_factor == 1:
        yield "rope_scaling_type", "rope_scaling_factor is 1, which changes nothing"


def one_sided_encoders(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Encoders that see one side of each token only."""
    for section, stack in stacks_of(experiment.model):
        is_encoder = section == "model.encoder" or getattr(stack, "model_type", None) == "encoder"
        if is_encoder and stack.attention_type == "causal_linear":
            yield f"{section}.attention_type", "the encoder then sees no later token; linear sees both sides"


def copying_denied(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Why no token of the source can be copied: the target's would have other numbers."""
    if getattr(experiment.model, "copy_source", False) and getattr(experiment.data, "target_tokenizer", None):
        yield (
            "model.copy_source",
            "the target has a tokenizer of its own (data.target_tokenizer), so the source has no token of it",
        )


def sharing_denied(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Why source and target can't have one embedding; asked for, it is a mistake, and by default they then have two."""
    model = experiment.model
    if not getattr(model, "share_embeddings", False):
        return
    if getattr(experiment.data, "target_tokenizer", None) is not None:
        yield "model.share_embeddings", "the target has a tokenizer of its own (data.target_tokenizer); leave one out"
    elif model.encoder.d_model != model.decoder.d_model:
        widths = f"{model.encoder.d_model} and {model.decoder.d_model}"
        yield (
            "model.share_embeddings",
            f"the widths differ (d_model {widths}); make them equal, or leave it out",
        )
