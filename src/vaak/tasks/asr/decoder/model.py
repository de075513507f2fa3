"""A pretrained network with a decoder: samples and the tokens before, the logits of the next token out.

    samples ──convolutions──▶ encoder ──▶ states ──▶ decoder ──▶ logits
                                     tokens before ────┘

The network is transformers' own. Differs from it: a row's samples are normalised over that row alone, and positions in
its padding are never attended to, so that padding changes nothing; transformers attends to up to two of them.

Source: Jeffries et al. 2024, "Moonshine: Speech Recognition for Live Transcription and Voice Commands".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vaak.nn.cross_entropy import HeadInputs
from vaak.nn.lora import add_lora, is_product
from vaak.nn.speech.masks import length_mask, masked
from vaak.tasks.asr.bases import DECODER_BASES, DecoderBase, count_steps
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.fetching import import_transformers, quiet_transformers
from vaak.tasks.transformers_internals import without_reading


class Encoded(NamedTuple):
    """Audio as the encoder's ``states`` ``(row, position, width)``, of which ``lengths`` ``(row,)`` are real."""

    states: Tensor
    lengths: Tensor

    def rows(self, rows: Tensor) -> Encoded:
        """These rows, in this order."""
        return Encoded(self.states[rows], self.lengths[rows])

    @property
    def mask(self) -> Tensor:
        """``(row, position)``, True where a position is real."""
        return length_mask(self.lengths, self.states.shape[1])


class RealGroupNorm(nn.GroupNorm):
    """Group normalisation, in one group, over the real frames of a row alone; ``lengths`` ``(row,)`` is set before."""

    lengths: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Return ``(row, channel, frame)`` of ``(row, channel, frame)``."""
        real = length_mask(self.lengths, input.shape[2])
        number = self.lengths[:, None, None] * input.shape[1]
        x = masked(input.transpose(1, 2), real).transpose(1, 2)
        mean = x.sum((1, 2), keepdim=True) / number
        centred = masked((input - mean).transpose(1, 2), real).transpose(1, 2)
        variance = centred.square().sum((1, 2), keepdim=True) / number
        return centred * (variance + self.eps).rsqrt() * self.weight[:, None] + self.bias[:, None]


class PretrainedDecoder(nn.Module):
    """A base with its decoder, whole, or with low-rank adapters."""

    def __init__(self, base: Any, options: AsrModelConfig) -> None:
        """Adapters that ``options.lora`` adds are drawn from torch's default generator."""
        super().__init__()
        self.base, self.kind = base, DECODER_BASES[base.config.model_type]
        for module in base.modules():
            if type(module) is nn.GroupNorm:
                module.__class__ = RealGroupNorm
        self.lora = options.lora
        add_lora(base, self.lora)

    @property
    def max_target_length(self) -> int:
        """Tokens that the decoder reads at most, the one that it begins with among them."""
        return int(self.base.config.max_position_embeddings)

    @property
    def vocab_size(self) -> int:
        """Classes that logits are of."""
        return int(self.base.config.vocab_size)

    def forward(
        self, features: Tensor, lengths: Tensor, tokens: Tensor, project: bool = True, prompts: Tensor | None = None
    ) -> Tensor | HeadInputs:
        """Return logits ``(row, token, vocabulary)`` after each of ``tokens`` ``(row, token)``.

        ``features``, ``lengths`` and ``prompts`` are as for ``encode``. Without ``project``, their factors.
        """
        encoded = self.encode(features, lengths, prompts)
        return self.decode(tokens, encoded) if project else self.head_inputs(tokens, encoded)

    def encode(self, features: Tensor, lengths: Tensor, prompts: Tensor | None = None) -> Encoded:
        """Return the encoder's states of samples ``(row, 1, time)``, of which ``lengths`` ``(row,)`` are real.

        ``prompts`` are for those that read audio in one.
        """
        assert isinstance(self.kind, DecoderBase)
        encoder, strides = self.base.model.encoder, self.kind.strides
        frames = count_steps(lengths, strides)
        encoder.groupnorm.lengths = count_steps(lengths, strides[:1])
        # transformers takes each 384th value of the mask of samples for that of a position.
        step = 1
        for _, stride, _ in strides:
            step *= stride
        mask = length_mask((frames - 1) * step + 1, features.shape[2])
        dtype = encoder.conv1.weight.dtype
        with without_reading(features):
            found = encoder(features[:, 0].to(dtype), attention_mask=mask)
        return Encoded(found.last_hidden_state, frames)

    def decode(self, tokens: Tensor, encoded: Encoded) -> Tensor:
        """Return the logits ``(row, token, vocab)`` of what follows each of ``tokens`` ``(row, token)``."""
        logits: Tensor = self.base.get_output_embeddings()(self._read(tokens, encoded))
        return logits

    def head_inputs(self, tokens: Tensor, encoded: Encoded) -> Tensor | HeadInputs:
        """Return the factors of these logits; the logits themselves where the head has adapters."""
        head, hidden = self.base.get_output_embeddings(), self._read(tokens, encoded)
        # Not a class derived from it, which may add to the product, as an adapter does.
        if is_product(head):
            return HeadInputs(hidden, head.weight, head.bias)
        logits: Tensor = head(hidden)
        return logits

    def _read(self, tokens: Tensor, encoded: Encoded) -> Tensor:
        with without_reading(tokens, is_packed=False):
            hidden: Tensor = self.base.model.decoder(
                input_ids=tokens,
                encoder_hidden_states=encoded.states,
                encoder_attention_mask=encoded.mask,
                use_cache=False,
            ).last_hidden_state
        return hidden

    def list_ends(self, end: int) -> int | list[int]:
        """Return the tokens that end a text: the ``end`` that is taught, or a list, where the base has others, too."""
        known = self.base.generation_config.eos_token_id
        ends = {end, *(known if isinstance(known, list) else () if known is None else (known,))}
        return end if len(ends) == 1 else sorted(ends)

    def write(self, encoded: Encoded, prompt: Sequence[int], **options: Any) -> list[list[int]]:
        """Return the tokens that transformers' ``generate`` writes for each row after the ``prompt``."""
        outputs = import_transformers(PURPOSE, "asr").modeling_outputs.BaseModelOutput(encoded.states)
        outputs["attention_mask"] = encoded.mask
        begin = torch.tensor([prompt], device=encoded.states.device).expand(len(encoded.states), -1)
        settings = copy.deepcopy(self.base.generation_config)
        settings.update(**{**options, "max_length": None})
        # transformers warns that max_new_tokens overrides max_length, though that is None here.
        with quiet_transformers(import_transformers(PURPOSE, "asr")):
            found = self.base.generate(
                encoder_outputs=outputs,
                decoder_input_ids=begin,
                decoder_attention_mask=torch.ones_like(begin),
                generation_config=settings,
            )
        return [row[len(prompt) :] for row in found.tolist()]
