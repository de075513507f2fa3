"""The translator: an encoder reads the source, a decoder writes the target, as their options describe them.

    source ──embedding──▶ encoder ──▶ memory ─┐
    [bos] target ──embedding──▶ decoder ◀─────┘──▶ hidden ──▶ logits of the next target token

Source: Vaswani et al. 2017, "Attention Is All You Need". Differs: the defaults are like Llama's on both sides
(pre-norm, RMSNorm, rotary positions, SwiGLU).
"""

from __future__ import annotations

from vaak.nn.models import EncoderDecoderModel
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig


class Seq2SeqModel(EncoderDecoderModel):
    """Scores each target token from the source and the target tokens before it."""

    config: Seq2SeqConfig

    def __init__(
        self, config: Seq2SeqConfig, data: Seq2SeqDataConfig, source_vocab_size: int, target_vocab_size: int
    ) -> None:
        """Weights are drawn from torch's default generator; maximum lengths are options of data."""
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
