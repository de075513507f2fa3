"""The translator: an encoder reads the source, a decoder writes the target, as their options describe them.

    source ──embedding──▶ encoder ──▶ memory ─┐
    [bos] target ──embedding──▶ decoder ◀─────┘──▶ hidden ──▶ logits of the next target token

Source: Vaswani et al. 2017, "Attention Is All You Need". Differs: the defaults are like Llama's on both sides
(pre-norm, RMSNorm, rotary positions, SwiGLU).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.models import EncoderDecoderModel
from vaak.nn.own_network import OwnNetwork
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig


class Seq2SeqModel(EncoderDecoderModel):
    """Scores each target token from the source and the target tokens before it."""

    config: Seq2SeqConfig

    def __init__(
        self, config: Seq2SeqConfig, data: Seq2SeqDataConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        """Weights are drawn from torch's default generator; maximum lengths are options of data."""
        # one matrix can't have the tokens of two vocabularies, nor two widths
        own_tokenizers = data.target_tokenizer is not None
        if own_tokenizers or config.encoder.d_model != config.decoder.d_model:
            config = config.model_copy(update={"share_embeddings": False})
        super().__init__(
            config,
            source_vocab_size,
            target_vocab_size,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
        )


def cross_attention(model: EncoderDecoderModel, source_ids: Sequence[int], target_ids: Sequence[int]) -> Tensor:
    """Return each head's weight of each source token at each target token, ``(layer, head, target, source)``.

    ``target_ids`` are what the decoder reads, ``[bos] t1 … tn``; each row is of what it writes after one of them.

    Raises UserError for a network of the user's.
    """
    if isinstance(model.decoder, OwnNetwork):
        raise UserError(f"{model.decoder.key} is {model.decoder.name}, whose attention isn't known")
    seen: list[Tensor] = []

    # Fused kernels give no weights, so each layer's are computed again from its inputs.
    def look(attention: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        x, visibility = arguments
        seen.append(attention.weights(x, named["memory"], visibility)[0].float().cpu())

    layers: list[nn.Module] = [block.cross_attention for block in model.decoder.blocks]  # type: ignore[misc]
    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    device = model.target_embedding.weight.device
    source, target = (torch.tensor([ids], device=device) for ids in (list(source_ids), list(target_ids)))
    try:
        with without_dropout(model), torch.inference_mode():
            model(source, torch.ones_like(source, dtype=torch.bool), target)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(seen)
