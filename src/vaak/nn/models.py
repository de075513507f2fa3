"""Whole networks over tokens: embeddings, one stack or two, and scores of every token.

    tokens ──embedding──▶ stack ──▶ hidden ──head (or the embedding again)──▶ logits          one stack
    source ──embedding──▶ encoder ──▶ memory ─┐
    target ──embedding──▶ decoder ◀──looks at─┘──▶ hidden ──▶ logits                          encoder and decoder

    p(token) = p_generate · softmax(logits)[token] + (1 − p_generate) · attention on the places of token     copying

Sources: Vaswani et al. 2017, "Attention Is All You Need"; Press and Wolf 2017, "Using the Output Embedding to Improve
Language Models" (tied embeddings); See, Liu and Manning 2017, "Get To The Point: Summarization with Pointer-Generator
Networks", equations 8 and 9 (copying). Differs: embeddings are multiplied by sqrt(d_model) only where sinusoidal
positions are added, which would otherwise drown them. Copying uses a separate attention with a single head, and the
decision to generate depends on the decoder's state alone.
"""

from __future__ import annotations

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from vaak.nn.config import EncoderDecoderConfig, StackConfig
from vaak.nn.cross_entropy import HeadInputs
from vaak.nn.decoding.cache import StackCache
from vaak.nn.feed_forward import list_mixtures
from vaak.nn.initialisation import initialise
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.lora import is_product
from vaak.nn.own_network import InputCache, StateCache, make_stack
from vaak.nn.positional_encodings import SINUSOIDAL


class TransformerModel(nn.Module):
    """A decoder scores the token after each token; an encoder, which sees both sides, the token at each place."""

    def __init__(
        self, config: StackConfig, vocab_size: int, *, causal: bool, tied: bool = True, max_length: int | None = None
    ) -> None:
        """Weights are drawn from torch's default generator (``vaak.nn.initialisation``).

        ``config`` describes the layers and ``vocab_size`` the tokens; ``causal`` makes a decoder. ``tied`` scores with
        the embeddings, else with separate weights. ``max_length`` is what learned positions need to know.
        """
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = make_stack(config, causal=causal, max_length=max_length)
        self.head = None if tied else nn.Linear(config.d_model, vocab_size, bias=False)
        initialise(self)

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        *,
        documents: Int[Tensor, "batch time"] | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        positions: Int[Tensor, "#batch time"] | None = None,
        cache: StackCache | InputCache | StateCache | None = None,
        select: Bool[Tensor, "batch time"] | Int[Tensor, "selected"] | None = None,
        norms: SquaredNorms | None = None,
        project: bool = True,
        num_documents: int | None = None,
    ) -> Float[Tensor, "batch time vocab"] | HeadInputs:
        """Return the scores of every token at every position.

        ``documents``, ``num_documents``, ``mask``, ``positions`` and ``cache`` are those of ``TransformerStack``: an
        encoder needs documents or a mask to ignore padding. ``norms`` tally what enters feature maps.

        ``select``, True where scores are wanted, gives those alone, ``(selected, vocab)``, and the others are never
        computed. It may be their places instead, rows one after the other: a GPU needn't be waited for to count them.
        Without ``project``, none are computed: the inputs of the output layer are returned, unless it has adapters.
        """
        hidden = self.hidden(
            input_ids,
            documents=documents,
            mask=mask,
            positions=positions,
            cache=cache,
            norms=norms,
            num_documents=num_documents,
        )
        if select is not None:
            hidden = hidden[select] if select.dtype == torch.bool else hidden.flatten(0, 1)[select]
        return self.logits(hidden) if project or _adapted(self.head) else HeadInputs(hidden, self._head_weight)

    def hidden(
        self,
        input_ids: Int[Tensor, "batch time"],
        *,
        documents: Int[Tensor, "batch time"] | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        positions: Int[Tensor, "#batch time"] | None = None,
        cache: StackCache | InputCache | StateCache | None = None,
        norms: SquaredNorms | None = None,
        num_documents: int | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return the input of ``logits``, before it grows as wide as the vocabulary. Arguments are ``forward``'s."""
        embedded = self.dropout(embed(self.embedding, input_ids, self.config))
        tallies = None if norms is None else (norms, norms)
        hidden: Tensor = self.stack(
            embedded,
            documents=documents,
            mask=mask,
            positions=positions,
            cache=cache,
            norms=tallies,
            num_documents=num_documents,
        )
        return hidden

    def logits(self, hidden: Float[Tensor, "*shape d_model"]) -> Float[Tensor, "*shape vocab"]:
        """Return the scores of every token."""
        adapted = _adapted(self.head)
        # One with rows of new tokens has no adapter, and its frozen weight may be in bf16.
        if adapted is None or is_parametrized(adapted, "weight"):
            return HeadInputs(hidden, self._head_weight).logits()
        scores: Tensor = adapted(hidden)
        return scores

    @property
    def _head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def add_tied_head(self) -> None:
        """Make the tied output layer one that can be adapted: its frozen weight is the embedding's."""
        width, size = self.embedding.embedding_dim, self.embedding.num_embeddings
        self.head = nn.Linear(width, size, bias=False, device="meta")
        self.head.weight = self.embedding.weight

    def new_cache(self) -> StackCache | InputCache | StateCache:
        """Return an empty cache, for decoding token by token."""
        return self.stack.new_cache()


class EncoderDecoderModel(nn.Module):
    """An encoder reads the source, a decoder writes the target and looks at what the encoder made of the source."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
    ) -> None:
        """Weights are drawn from torch's default generator. The lengths are needed by learned positions.

        Where embeddings are shared, both vocabularies must be one, and both stacks of one width.

        ``config`` describes both stacks; ``source_vocab_size`` and ``target_vocab_size`` are the numbers of tokens,
        ``max_source_length`` and ``max_target_length`` those lengths, in tokens.
        """
        super().__init__()
        self.config = config
        self.vocab_size = target_vocab_size
        encoder, decoder = config.encoder, config.decoder
        shared = config.share_embeddings
        assert not shared or (source_vocab_size, encoder.d_model) == (target_vocab_size, decoder.d_model)
        self.target_embedding = nn.Embedding(target_vocab_size, decoder.d_model)
        self.source_embedding = self.target_embedding if shared else nn.Embedding(source_vocab_size, encoder.d_model)
        self.source_dropout, self.target_dropout = nn.Dropout(encoder.dropout), nn.Dropout(decoder.dropout)
        self.encoder = make_stack(encoder, causal=False, max_length=max_source_length, section="model.encoder")
        self.decoder = make_stack(
            decoder,
            causal=True,
            memory_width=encoder.d_model,
            max_length=max_target_length,
            section="model.decoder",
        )
        for side, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            for mixture in list_mixtures(stack):
                # both sides number their layers from 0, and loads are counted by these names
                mixture.layer = f"{side}.{mixture.layer}"
        self.head = None if config.tie_embeddings else nn.Linear(decoder.d_model, target_vocab_size, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(target_vocab_size)) if config.output_bias else None
        self.copying = Copying(decoder.d_model, encoder.d_model) if config.copy_source else None
        assert self.copying is None or source_vocab_size == target_vocab_size
        initialise(self)

    def forward(
        self,
        source: Int[Tensor, "batch source_time"],
        source_mask: Bool[Tensor, "batch source_time"],
        target: Int[Tensor, "batch target_time"],
        *,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
        project: bool = True,
        target_mask: Bool[Tensor, "batch target_time"] | None = None,
    ) -> Float[Tensor, "batch target_time vocab"] | HeadInputs:
        """Return the scores of the token after each target token.

        ``source`` is real where ``source_mask`` is True; ``target`` may be padded on the right. ``norms`` tally what
        enters feature maps, of the source's tokens and of the target's. Without ``project``, what scores are the
        product of is returned, except where tokens may be copied or the output layer has adapters: then they aren't a
        product. Experts count tokens
        where ``target_mask`` is True.
        """
        source_norms, target_norms = norms or (None, None)
        memory = self.encode(source, source_mask, norms=source_norms)
        tallies = None if source_norms is None or target_norms is None else (target_norms, source_norms)
        embedded = self.target_dropout(embed(self.target_embedding, target, self.config.decoder))
        hidden = self.decoder(embedded, mask=target_mask, memory=memory, memory_mask=source_mask, norms=tallies)
        if project or self.copying is not None or _adapted(self.head):
            return self.logits(hidden, source, memory, source_mask)
        return self._head_inputs(hidden)

    def encode(
        self,
        source: Int[Tensor, "batch source_time"],
        source_mask: Bool[Tensor, "batch source_time"],
        *,
        norms: SquaredNorms | None = None,
    ) -> Float[Tensor, "batch source_time encoder_width"]:
        """Return the encoder's output, to which the decoder attends."""
        embedded = self.source_dropout(embed(self.source_embedding, source, self.config.encoder))
        tallies = None if norms is None else (norms, norms)
        memory: Tensor = self.encoder(embedded, mask=source_mask, norms=tallies)
        return memory

    def decode(
        self,
        target: Int[Tensor, "batch target_time"],
        memory: Float[Tensor, "batch source_time encoder_width"],
        source_mask: Bool[Tensor, "batch source_time"],
        *,
        cache: StackCache | InputCache | StateCache | None = None,
    ) -> Float[Tensor, "batch target_time decoder_width"]:
        """Return the input of ``logits``; with a ``cache``, ``target`` has the new tokens only."""
        embedded = self.target_dropout(embed(self.target_embedding, target, self.config.decoder))
        hidden: Tensor = self.decoder(embedded, cache=cache, memory=memory, memory_mask=source_mask)
        return hidden

    def logits(
        self,
        hidden: Float[Tensor, "batch target_time decoder_width"],
        source: Int[Tensor, "batch source_time"],
        memory: Float[Tensor, "batch source_time encoder_width"],
        source_mask: Bool[Tensor, "batch source_time"],
    ) -> Float[Tensor, "batch target_time vocab"]:
        """Return the scores of every token of the target.

        Where tokens may be copied, they come from ``source`` by way of its ``memory``.
        """
        inputs = self._head_inputs(hidden)
        adapted = _adapted(self.head)
        scores: Tensor = inputs.logits() if adapted is None else adapted(inputs.hidden)
        if adapted is not None and inputs.bias is not None:
            scores = scores + inputs.bias
        return scores if self.copying is None else self.copying(scores, inputs.hidden, memory, source, source_mask)

    def _head_inputs(self, hidden: Tensor) -> HeadInputs:
        if self.config.scale_outputs:
            hidden = hidden * hidden.shape[-1] ** -0.5
        weight = self.target_embedding.weight if self.head is None else self.head.weight
        return HeadInputs(hidden, weight, self.output_bias)

    def new_cache(self) -> StackCache | InputCache | StateCache:
        """Return an empty cache, for decoding token by token."""
        return self.decoder.new_cache()


def _adapted(head: nn.Linear | None) -> nn.Module | None:
    """Return an output layer that adds to the product with its weight, so that it has to be called; None for others."""
    return None if head is None or is_product(head) else head


def embed(
    embedding: nn.Embedding, tokens: Int[Tensor, "batch time"], config: StackConfig
) -> Float[Tensor, "batch time d_model"]:
    """Return the vectors of tokens as they enter a stack."""
    vectors: Tensor = embedding(tokens)
    return vectors * config.d_model**0.5 if config.position_type in SINUSOIDAL else vectors


LEAST_PROBABILITY = 1e-20
"""Added under the logarithm of what nothing points to."""


class Copying(nn.Module):
    """Mixes scores of tokens with attention on the source, which has the same vocabulary."""

    def __init__(self, width: int, memory_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(memory_width, width, bias=False)
        self.generates = nn.Linear(width, 1)

    def forward(
        self,
        logits: Float[Tensor, "batch time vocab"],
        hidden: Float[Tensor, "batch time width"],
        memory: Float[Tensor, "batch source_time memory_width"],
        source: Int[Tensor, "batch source_time"],
        mask: Bool[Tensor, "batch source_time"],
    ) -> Float[Tensor, "batch time vocab"]:
        """Return log-probabilities; ``memory`` is what the encoder made of ``source``, real where ``mask`` is True."""
        query = self.query(hidden)
        scores = (query @ self.key(memory).transpose(1, 2)) * query.shape[-1] ** -0.5
        exact = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.to(exact).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        # the weights of the source's positions, added up by token; in one dimension: there CUDA has a sum that repeats
        # to the bit
        batch, time, vocab_size = logits.shape
        rows = torch.arange(batch * time, device=weights.device).view(batch, time, 1) * vocab_size
        places = (rows + source[:, None]).flatten()
        summed = weights.new_zeros(batch * time * vocab_size).index_add(0, places, weights.flatten())
        copied = summed.view(batch, time, vocab_size)
        decision = self.generates(hidden).to(exact)
        written = F.logsigmoid(decision) + logits.log_softmax(-1, dtype=exact)
        return torch.logaddexp(written, F.logsigmoid(-decision) + (copied + LEAST_PROBABILITY).log())
