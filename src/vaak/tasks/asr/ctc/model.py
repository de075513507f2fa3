"""A CTC model: audio in, the logits of a token or of the blank at each of the encoder's frames out.

features ──mean and deviation of each bin──▶ Conformer ──linear──▶ logits (row, frame, vocab)

With experts, a network encodes twice: without them, for the gate, which reads the mean of the real frames; and with the
experts that the gate has chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from vaak.nn.config import ConformerConfig, LoraConfig
from vaak.nn.conformer import Conformer
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.initialisation import initialise
from vaak.nn.lora import add_lora
from vaak.nn.speech.masks import exact, length_mask
from vaak.tasks.asr.config import ExpertsConfig
from vaak.tasks.asr.experts import WithExperts, mean_state

LEAST_DEVIATION = 1e-3
"""The lowest standard deviation of a bin, in nats: digital silence has none."""


class CtcOutputs(NamedTuple):
    """Logits ``(row, frame, vocab)`` and the numbers of real frames ``(row,)``.

    With experts, also the ``gate``'s logits and the ``weights`` that follow from them, ``(row, expert)``.
    """

    logits: Tensor
    lengths: Tensor
    gate: Tensor | None = None
    weights: Tensor | None = None

    def rows(self, rows: Tensor) -> CtcOutputs:
        """These rows, in this order."""
        return CtcOutputs(*(None if one is None else one[rows] for one in self))  # type: ignore[arg-type]

    def log_probs(self) -> Tensor:
        """Log-probabilities ``(row, frame, vocab)``, in 32 bits at least."""
        return exact(self.logits).log_softmax(-1)


class CtcNetwork(WithExperts):
    """An encoder with a linear layer to the tokens of a vocabulary; it may have experts."""

    def encode(self, features: Tensor, lengths: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """Return the encoder's states ``(row, frame, width)`` and the numbers of real ones ``(row,)``.

        ``features`` are ``(row, bin, frame)``, of which ``lengths`` ``(row,)`` frames are real. Masks are those of a
        pretrained network, ``chunk`` is the size of chunks of one that streams.
        """
        raise NotImplementedError

    def project(self, states: Tensor) -> Tensor:
        """Return the logits ``(row, frame, vocab)`` of states ``(row, frame, width)``."""
        raise NotImplementedError

    @torch.no_grad()
    def read_for_gate(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Return the gate's input ``(row, width)``: the mean of the base's states, nothing hidden or dropped."""
        with without_dropout(self):
            return mean_state(*self.encode(features, lengths))

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        time_mask: Tensor | None = None,
        channel_mask: Tensor | None = None,
        gate_input: Tensor | None = None,
        chunk: int | None = None,
    ) -> CtcOutputs:
        """Return the logits of features ``(row, bin, frame)``, of which ``lengths`` ``(row,)`` frames are real.

        The masks and ``chunk`` are those of ``encode``; ``gate_input`` ``(row, width)`` is what the gate reads, where
        it is known.
        """
        given = {"time_mask": time_mask, "channel_mask": channel_mask, "chunk": chunk}
        masks = {name: mask for name, mask in given.items() if mask is not None}
        if self.gate is None:
            states, lengths = self.encode(features, lengths, **masks)
            return CtcOutputs(self.project(states), lengths)
        routed = self.route(self.read_for_gate(features, lengths) if gate_input is None else gate_input)
        with self.routing.of(routed.choices):
            states, lengths = self.encode(features, lengths, **masks)
            return CtcOutputs(self.project(states), lengths, routed.gate, routed.weights)


class CtcModel(CtcNetwork):
    """A Conformer, with a linear layer to the tokens of a vocabulary."""

    def __init__(self, config: ConformerConfig, num_bins: int, vocab_size: int) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.config = config
        self.encoder = Conformer(config, num_bins)
        if config.streaming:
            # Fixed, because an utterance's own numbers are only known at its end.
            self.register_buffer("mean", torch.zeros(num_bins))
            self.register_buffer("deviation", torch.ones(num_bins))
        self.head = nn.Linear(config.d_model, vocab_size)
        initialise(self)

    def adapted(self, lora: LoraConfig | None, experts: ExpertsConfig | None) -> Self:
        """Return the model, with adapters that ``lora`` or ``experts`` add, drawn from torch's default generator."""
        add_lora(self, lora, ("head",))
        self.add_experts(self, experts, self.head.in_features, ("head",))
        return self

    def encode(self, features: Tensor, lengths: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        chunk: int | None = how.get("chunk")
        if self.config.streaming and self.training:
            chunk = draw_chunk(self.config.largest_chunk)
        encoded: tuple[Tensor, Tensor] = self.encoder(self.normalise(features.mT, lengths), lengths, chunk)
        return encoded

    def normalise(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Return features ``(row, frame, bin)`` as the encoder reads them; where it streams, by fixed numbers."""
        if not self.config.streaming:
            return normalised(features, lengths).to(self.head.bias.dtype)
        with torch.autocast(features.device.type, enabled=False):
            mean, deviation = exact(self.get_buffer("mean")), exact(self.get_buffer("deviation"))
            return ((exact(features) - mean) / deviation).to(self.head.bias.dtype)

    def fix_normalisation(self, features: Iterable[np.ndarray]) -> None:
        """Take the mean and the deviation of each bin from these features ``(bin, frame)``."""
        total, squares, number = np.zeros(()), np.zeros(()), 0
        for one in features:
            found = one.astype(np.float64)
            total, squares, number = total + found.sum(1), squares + np.square(found).sum(1), number + found.shape[1]
        mean = total / number
        deviation = np.sqrt(np.maximum(squares / number - np.square(mean), LEAST_DEVIATION**2))
        self.get_buffer("mean").copy_(torch.from_numpy(mean))
        self.get_buffer("deviation").copy_(torch.from_numpy(deviation))

    def project(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(states)
        return logits


def draw_chunk(largest: int) -> int | None:
    """Draw the size of a batch's chunks from torch's default generator; None, in half of the batches: all is seen."""
    is_whole, size = bool(torch.rand(()) < 0.5), int(torch.randint(1, largest + 1, ()))
    return None if is_whole else size


def normalised(features: Tensor, lengths: Tensor) -> Tensor:
    """Features ``(row, frame, bin)`` with mean 0 and deviation 1 of each bin over a row's real frames; 0 in padding.

    A channel and a level are constants in the logarithmic spectrum, so this removes them.
    """
    with torch.autocast(features.device.type, enabled=False):
        real = length_mask(lengths, features.shape[1])[..., None]
        features = exact(features).masked_fill(~real, 0.0)
        number = lengths[:, None, None]
        # padding is zeroed again: minus the mean, it wouldn't be
        centred = (features - features.sum(1, keepdim=True) / number).masked_fill(~real, 0.0)
        deviation = (centred.square().sum(1, keepdim=True) / number).sqrt()
        return centred / deviation.clamp(min=LEAST_DEVIATION)
