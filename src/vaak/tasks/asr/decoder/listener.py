"""A language model that listens: audio and the tokens before in its prompt, the logits of the next token out.

    frames ──encoder──projector──▶ positions ──┐
    tokens of the request ──embedding──────────┴─▶ prompt ──┐
                                 tokens before ──embedding──┴─▶ language model ──▶ logits

The network is transformers' own. Prompts of a batch end at one place, so that transcripts begin at one; what is before
a shorter one is never attended to.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vaak.nn.lora import add_lora, linear_layers, require_layers
from vaak.nn.lora_targets import is_target
from vaak.nn.speech.masks import length_mask
from vaak.tasks.asr.bases import ListenerBase
from vaak.tasks.asr.config import AsrModelConfig, WhisperLoraConfig
from vaak.tasks.asr.decoder.model import Encoded, PretrainedDecoder
from vaak.tasks.asr.decoder.request import NO_POSITION, find_listener
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.fetching import import_transformers, quiet_transformers

MOST_TOKENS = 512
"""The longest transcript, as the makers of Qwen3-ASR set it; half a minute of speech seldom has 200 tokens."""


class PretrainedListener(PretrainedDecoder):
    """A base whose language model reads audio, whole, or with low-rank adapters."""

    kind: ListenerBase

    def __init__(self, base: Any, options: AsrModelConfig) -> None:
        super(PretrainedDecoder, self).__init__()
        kind = find_listener(base.config)
        self.base, self.kind = base, kind
        self.window = kind.find_window(base.config)
        self.lora = None if options.lora is None else name_layers(base, kind, options.lora)
        add_lora(base, self.lora)

    @property
    def max_target_length(self) -> int:
        return min(MOST_TOKENS, int(self.base.config.text_config.max_position_embeddings))

    @property
    def vocab_size(self) -> int:
        return int(self.base.config.text_config.vocab_size)

    def encode(self, features: Tensor, lengths: Tensor, prompts: Tensor | None = None) -> Encoded:
        """Return the prompts' vectors, those of the audio in their places.

        ``features`` are ``(row, bin, frame)``, their last bin 1 where a frame is real; ``prompts`` ``(row, position)``.
        """
        assert prompts is not None
        real = prompts != NO_POSITION
        is_audio = prompts == self._audio_token
        # The placeholder may be beyond the embedding's rows.
        vectors = self._embed(prompts.masked_fill(is_audio | ~real, 0))
        heard = self._hear(features, lengths).to(vectors.dtype)
        if int(is_audio.sum()) != len(heard):
            raise RuntimeError(f"{int(is_audio.sum())} places for audio, of which there are {len(heard)} positions")
        return Encoded(vectors.masked_scatter(is_audio[..., None], heard), real.sum(1))

    @property
    def _audio_token(self) -> int:
        return int(self.base.config.audio_token_id)

    def _embed(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.base.get_input_embeddings()(tokens)
        return found

    def _hear(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Return ``(position, width)`` of all real audio, one row's after another's."""
        features = pad(features, (0, -features.shape[2] % self.window))
        frames, real = features[:, :-1], features[:, -1] > 0
        if self.kind.silence != "masked":
            rows, bins, number = frames.shape
            there = length_mask(lengths, number)[:, :: self.window].flatten()
            frames = frames.reshape(rows, bins, -1, self.window).transpose(1, 2).flatten(0, 1)[there]
            real = real.reshape(-1, self.window)[there]
        options = {} if self.kind.silence == "kept" else {"input_features_mask": real.long()}
        found: Tensor = self.base.get_audio_features(frames, return_dict=True, **options).pooler_output
        return found.flatten(0, -2)

    def _join(self, encoded: Encoded, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of prompts and ``tokens`` after them, and where they are real, all ending alike."""
        lengths, longest = encoded.lengths, encoded.states.shape[1]
        places = torch.arange(longest, device=lengths.device) - (longest - lengths)[:, None]
        index = places.clamp(min=0)[..., None].expand_as(encoded.states)
        vectors = torch.cat([encoded.states.gather(1, index), self._embed(tokens).to(encoded.states.dtype)], 1)
        return vectors, torch.cat([(places >= 0).long(), torch.ones_like(tokens)], 1)

    def _read(self, tokens: Tensor, encoded: Encoded) -> Tensor:
        vectors, real = self._join(encoded, tokens)
        hidden: Tensor = self.base.model.language_model(
            inputs_embeds=vectors,
            attention_mask=real,
            position_ids=(real.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state
        return hidden[:, -tokens.shape[1] :]

    def write(self, encoded: Encoded, prompt: Sequence[int], **options: Any) -> list[list[int]]:
        begin = torch.tensor([prompt], device=encoded.states.device).expand(len(encoded.states), -1)
        vectors, real = self._join(encoded, begin)
        settings = copy.deepcopy(self.base.generation_config)
        settings.update(**{**options, "max_length": None})
        with quiet_transformers(import_transformers(PURPOSE, "asr")):
            found = self.base.generate(inputs_embeds=vectors, attention_mask=real, generation_config=settings)
        rows: list[list[int]] = found.tolist()
        return rows


def name_layers(base: Any, kind: ListenerBase, options: WhisperLoraConfig) -> WhisperLoraConfig:
    """Return adapters' options with the whole names of their layers.

    A target without the encoder's name in it is none of the encoder's, which has layers of the same names. Raises
    UserError for one that is that of no layer.
    """
    layers = linear_layers(base)
    require_layers("model.lora", layers, options)
    inside = f"model.{kind.encoder}."
    named = tuple(
        name
        for name in layers
        for target in options.targets
        if is_target(name, [target]) and (kind.encoder in target or not name.startswith(inside))
    )
    return options.model_copy(update={"targets": tuple(dict.fromkeys(named))})
