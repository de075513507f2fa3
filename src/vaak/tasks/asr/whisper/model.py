"""Whisper as a model to train: audio features and the tokens before, the logits of the next token out.

    features ──encoder──▶ states ──┬──────────────▶ decoder ──▶ logits
                     mean │        │ tokens before ──┘ ▲
                          ▼        │                   │
                        gate ──▶ experts of each row: low-rank adapters of encoder and decoder

The network is transformers' own, so its logits are. With ``model.lora`` its weights are frozen, and low-rank adapters
of some layers are trained (peft). With ``model.experts`` there are several, chosen for each utterance by what the
base's encoder makes of it; where the encoder has experts, it reads the audio again with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from vaak.nn.cross_entropy import HeadInputs
from vaak.nn.lora import add_lora, is_product
from vaak.nn.lora_experts import Choice, choices_by
from vaak.nn.new_tokens import train_new_rows
from vaak.tasks.asr.config import ExpertsConfig, WhisperLoraConfig
from vaak.tasks.asr.experts import WithExperts

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration


ATTENTION = "vaak"
"""The name of ``_attend`` in transformers."""


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Attend by transformers' own function, ``(row, head, token, width)``; later tokens are never seen."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    given, known = query.shape[2], key.shape[2]
    if given == 1 < len(key) and not module.is_causal and key.stride(0) == value.stride(0) == 0:
        # Hypotheses of one recording, which share its keys: as tokens of one row, they read them once.
        together, _ = sdpa_attention_forward(module, query.transpose(0, 2), key[:1], value[:1], None, **more)
        return together.transpose(0, 1), None
    # Several tokens after those of a cache: torch's own causal mask would be aligned with the first key.
    if attention_mask is None and module.is_causal and 1 < given < known:
        attention_mask = torch.ones(given, known, dtype=torch.bool, device=query.device).tril(known - given)[None, None]
    found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    return found


class Encoded(NamedTuple):
    """Audio as the encoder's ``states`` ``(row, position, width)``.

    With experts, also the ``gate``'s logits, the ``weights`` that follow from them, ``(row, expert)``, and by these the
    ``choices``.
    """

    states: Tensor
    gate: Tensor | None = None
    weights: Tensor | None = None
    choices: tuple[Choice, ...] = ()

    def rows(self, rows: Tensor | slice) -> Encoded:
        """These rows, in this order."""
        gate, weights = (None if part is None else part[rows] for part in (self.gate, self.weights))
        return Encoded(self.states[rows], gate, weights, () if weights is None else choices_by(weights))


class AsrOutputs(NamedTuple):
    """Logits ``(row, token, vocab)``, or what they are the product of, and what the encoder made of the audio."""

    logits: Tensor | HeadInputs
    encoded: Encoded


class AsrModel(WithExperts):
    """A Whisper, whole, or with low-rank adapters."""

    def __init__(
        self,
        whisper: WhisperForConditionalGeneration,
        lora: WhisperLoraConfig | None = None,
        experts: ExpertsConfig | None = None,
        new_tokens: range = range(0),
    ) -> None:
        """Adapters that ``lora`` or ``experts`` add are drawn from torch's default generator.

        Next to these, the rows of ``new_tokens``, which the base lacked, are trained.
        """
        super().__init__()
        # Features are masked with the data (data.augmentation); transformers would mask them a second time.
        whisper.config.apply_spec_augment = False
        if whisper.config._attn_implementation == "sdpa":
            from transformers import AttentionInterface

            # torch's kernels, as before, but no masks, for no rows are packed: to make one, transformers would wait for
            # the GPU in every step, and ask whether rows are
            AttentionInterface.register(ATTENTION, _attend)
            whisper.set_attn_implementation(ATTENTION)
        self.whisper = whisper
        add_lora(whisper, lora)
        layers = self.add_experts(whisper, experts, whisper.config.d_model)
        if lora is not None or experts is not None:
            train_new_rows([whisper.get_input_embeddings(), whisper.get_output_embeddings()], new_tokens)
        self.encodes_twice = any(name.startswith("model.encoder.") for name in layers)

    @property
    def max_target_length(self) -> int:
        """Tokens that the decoder reads at most, those of the prompt among them."""
        return int(self.whisper.config.max_target_positions)

    @property
    def vocab_size(self) -> int:
        """Classes that logits are of."""
        return int(self.whisper.config.vocab_size)

    def forward(
        self, features: Tensor, tokens: Tensor, gate_input: Tensor | None = None, project: bool = True
    ) -> AsrOutputs:
        """Return logits ``(row, token, vocabulary)`` after each of ``tokens`` ``(row, token)``.

        ``features`` are ``(row, bin, frame)``; ``gate_input`` as in ``encode``. Without ``project``, ``head_inputs``.
        """
        encoded = self.encode(features, gate_input)
        return AsrOutputs((self.decode if project else self.head_inputs)(tokens, encoded), encoded)

    def encode(self, features: Tensor, gate_input: Tensor | None = None) -> Encoded:
        """Return the encoder's states of features ``(row, bin, frame)``, with the weights of experts.

        ``gate_input`` ``(row, width)`` is what the gate reads (``read_for_gate``), where it is known.
        """
        if self.gate is None:
            return Encoded(self._states(features))
        if gate_input is None or not self.encodes_twice:
            with torch.no_grad():
                # The base is frozen.
                states = self._states(features)
            gate_input = states.mean(1) if gate_input is None else gate_input
        # what the gate reads doesn't depend on the experts, so that it can choose among them
        routed = self.route(gate_input)
        if self.encodes_twice:
            # Otherwise the experts are in the decoder alone, and the base's states are the states.
            with self.routing.of(routed.choices):
                states = self._states(features)
        return Encoded(states, *routed)

    @torch.no_grad()
    def read_for_gate(self, features: Tensor) -> Tensor:
        """Return the gate's input ``(row, width)``: the mean of the base's states of features ``(row, bin, frame)``."""
        return self._states(features).mean(1)

    def _states(self, features: Tensor) -> Tensor:
        states: Tensor = self.whisper.model.encoder(features).last_hidden_state
        return states

    def decode(self, tokens: Tensor, encoded: Encoded, cache: Any = None) -> Tensor:
        """Logits ``(row, token, vocab)`` of what follows tokens; with a ``cache``, of tokens that follow its own."""
        return cast("Tensor", self._score(tokens, encoded, cache, project=True))

    def read_along(self, tokens: Tensor, encoded: Encoded, heads: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Return attention weights and logits while the decoder reads tokens ``(row, token)``.

        These are the weights ``(row, head, token, position)`` with which ``heads`` of layers read the audio, each a
        layer and its head, and the logits ``(row, token, vocab)``.
        """
        seen, hooks = dict[int, Tensor](), []

        def watch(layer: int) -> Any:
            def hook(attention: Any, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
                shape = (len(tokens), -1, attention.num_heads, attention.head_dim)
                # Fused attention doesn't return its weights: they are computed a second time, from what goes into the
                # layer.
                queries = (attention.q_proj(args[0]) * attention.scaling).view(shape).transpose(1, 2)
                keys = attention.k_proj(options["key_value_states"]).view(shape).permute(0, 2, 3, 1)
                seen[layer] = (queries @ keys).float().softmax(-1)

            return hook

        for layer in sorted({layer for layer, _ in heads}):
            attention = self.whisper.model.decoder.layers[layer].encoder_attn
            hooks.append(attention.register_forward_pre_hook(watch(layer), with_kwargs=True))
        try:
            logits = self.decode(tokens, encoded)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([seen[layer][:, head] for layer, head in heads], 1), logits

    def head_inputs(self, tokens: Tensor, encoded: Encoded) -> Tensor | HeadInputs:
        """Return the factors of these logits; the logits themselves where the head has adapters."""
        return self._score(tokens, encoded, None, project=False)

    def _score(self, tokens: Tensor, encoded: Encoded, cache: Any, *, project: bool) -> Tensor | HeadInputs:
        with contextlib.nullcontext() if self.gate is None else self.routing.of(encoded.choices):
            hidden = self.whisper.model.decoder(
                input_ids=tokens,
                encoder_hidden_states=encoded.states,
                past_key_values=cache,
                use_cache=cache is not None,
            ).last_hidden_state
            head = self.whisper.proj_out
            # Not a class derived from it, which may add to the product, as an adapter does.
            inputs = HeadInputs(hidden, head.weight, head.bias) if is_product(head) else None
            if inputs is not None and not project:
                return inputs
            # Where somebody watches the head, it is called.
            in_parts = inputs is not None and inputs.are_few and not head._forward_hooks
            logits: Tensor = inputs.logits() if inputs is not None and in_parts else head(hidden)
        return logits
