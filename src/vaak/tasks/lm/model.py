"""The language model: token embedding, a transformer stack of Llama's kind, and scores of every token.

    input_ids ──embedding──▶ stack of blocks ──norm──▶ hidden ──head (or the embedding again)──▶ logits

Sources: Touvron et al. 2023, "LLaMA"; Press and Wolf 2017, "Using the Output Embedding to Improve Language Models"
(tied embeddings). Differs from Llama: dropout of embeddings, of attention weights and of what blocks add.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.cache import KeyValueCache
from vaak.nn.feed_forward import gated_width
from vaak.nn.initialisation import initialise
from vaak.nn.stack import StackShape, TransformerStack
from vaak.tasks.lm.config import LanguageModelConfig


class LanguageModel(nn.Module):
    """A decoder predicts the token after each token; an encoder, which sees both sides, the token at each place."""

    def __init__(self, config: LanguageModelConfig, vocab_size: int) -> None:
        """Weights are drawn from torch's default generator (``vaak.nn.initialisation``)."""
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = TransformerStack(stack_shape(config))
        self.head = None if config.tie_embeddings else nn.Linear(config.d_model, vocab_size, bias=False)
        initialise(self, config.num_layers)

    def forward(
        self,
        input_ids: Tensor,
        *,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Scores of every token at every place, ``(batch, time, vocab)``.

        ``input_ids``, ``documents`` and ``positions`` are ``(batch, time)``. ``documents`` numbers the document of each
        token, −1 where it is padding: tokens see only their own document, and positions restart with each. Without it a
        row is one document; in a decoder it may be padded on the right, for no token sees what comes after it, but an
        encoder needs ``documents`` to ignore padding. ``positions`` replaces the positions computed so. A decoder with
        ``cache`` goes on behind the tokens already read; ``documents`` then holds the new tokens' only.

        ``select`` ``(batch, time)``, True where scores are wanted, gives those alone, ``(selected, vocab)``, and the
        others are never computed.
        """
        hidden = self.hidden(input_ids, documents=documents, positions=positions, cache=cache)
        return self.logits(hidden if select is None else hidden[select])

    def hidden(
        self,
        input_ids: Tensor,
        *,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """What ``logits`` scores, ``(batch, time, width)``: before they grow as wide as the vocabulary."""
        embedded = self.dropout(self.embedding(input_ids))
        return self.stack(embedded, documents=documents, positions=positions, cache=cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token, ``(..., vocab)``, from hidden vectors ``(..., width)``."""
        return F.linear(hidden, self.embedding.weight if self.head is None else self.head.weight)

    def new_cache(self) -> KeyValueCache:
        """An empty cache, for decoding token by token."""
        return KeyValueCache(self.config.num_layers)


def stack_shape(config: LanguageModelConfig) -> StackShape:
    """The stack that the options describe, with their nulls filled in."""
    return StackShape(
        width=config.d_model,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_key_value_heads=config.num_key_value_heads or config.num_heads,
        feed_forward_width=config.d_ff or gated_width(config.d_model),
        dropout=config.dropout,
        attention_dropout=config.dropout if config.attention_dropout is None else config.attention_dropout,
        qk_norm=config.qk_norm,
        rope_theta=config.rope_theta,
        norm_eps=config.norm_eps,
        causal=config.model_type == "decoder",
    )


def num_parameters(model: nn.Module) -> int:
    """How many numbers are learned; what is tied counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
