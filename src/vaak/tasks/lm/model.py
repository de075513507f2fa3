"""The language model: a decoder or an encoder over tokens, as its options describe it.

    input_ids ──embedding──▶ stack of blocks ──norm──▶ hidden ──head (or the embedding again)──▶ logits

The defaults make a model of Llama's kind. Source: Touvron et al. 2023, "LLaMA". Differs: dropout of embeddings, of
attention weights and of what blocks add.
"""

from __future__ import annotations

from torch import nn

from vaak.nn.models import TransformerModel
from vaak.nn.nf4 import num_weights
from vaak.tasks.lm.config import LanguageModelConfig


class LanguageModel(TransformerModel):
    """A decoder predicts the token after each token; an encoder, which sees both sides, the token at each place."""

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, vocab_size: int, max_length: int | None = None) -> None:
        """Weights are drawn from torch's default generator; ``max_length`` is needed by learned positions."""
        causal = config.model_type == "decoder"
        super().__init__(config, vocab_size, causal=causal, tied=config.tie_embeddings, max_length=max_length)


def num_parameters(model: nn.Module) -> int:
    """Return the number of parameters; tied ones count once."""
    return num_weights(model.parameters())
