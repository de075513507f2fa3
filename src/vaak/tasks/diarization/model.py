"""The diarizer: features in, who speaks in each frame out, as its options describe it.

    features ──front end──▶ encoder ──▶ hidden ──head──▶ scores of each output frame
                                          └──▶ an embedding of each speaker, which joins windows

Sources: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with Self-Attention" (stacked frames, encoder, a
linear head); Kinoshita et al. 2021, "Integrating End-to-End Neural and Clustering-Based Diarization" (embeddings).
Differs: the convolutional front end, and several output frames for one of the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.initialisation import initialise
from vaak.nn.kernels.squared_norms import SquaredNorms
from vaak.nn.stack import TransformerStack
from vaak.tasks.diarization.config import DiarizationModelConfig
from vaak.tasks.diarization.examples.labels import DiarizationCollator
from vaak.tasks.diarization.network.attractors import Attractors
from vaak.tasks.diarization.network.front_end import make_front_end
from vaak.tasks.diarization.network.losses import exact, speaker_embeddings

CLUSTER_WIDTH = 32
"""Of the vectors of deep clustering."""


@dataclass(frozen=True)
class Outputs:
    """The model's outputs on a batch of windows."""

    logits: Tensor
    """``(row, frames, outputs)``."""
    hidden: Tensor
    """``(row, frames, width)``: the encoder's output for each output frame."""
    existence: Tensor | None = None
    """``(row, speakers + 1)``: scores that there is such a speaker, of attractors."""


@dataclass(frozen=True)
class Inferred:
    """Who speaks in each row, and as whom."""

    probabilities: Tensor
    """``(row, frames, speakers)``."""
    embeddings: Tensor | None
    """``(row, speakers, dim)``, of unit length, 0 of one who is never alone; None where speakers have names."""


class DiarizationModel(nn.Module):
    """Predicts who speaks in each output frame."""

    def __init__(self, config: DiarizationModelConfig, num_bins: int, collator: DiarizationCollator) -> None:
        """Weights are drawn from torch's default generator; the collator defines the meaning of the scores."""
        super().__init__()
        self.config, self.collator = config, collator
        width = config.d_model
        self.front_end = make_front_end(config, num_bins)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = TransformerStack(config, causal=False)
        self.expand = Expansion(config, self.front_end.num_channels) if config.upsampling > 1 else None
        with_attractors = config.head == "attractors"
        self.head = (
            Attractors(width, config.max_speakers) if with_attractors else nn.Linear(width, collator.num_outputs)
        )
        self.clusters = nn.Linear(width, CLUSTER_WIDTH)
        self.embedding = nn.Linear(width, config.embedding_dim) if config.embedding_dim else None
        num_speakers = len(collator.options.training_speakers)
        self.speaker_table = nn.Parameter(torch.randn(num_speakers, config.embedding_dim))
        initialise(self)

    def forward(self, features: Tensor, feature_mask: Tensor, norms: SquaredNorms | None = None) -> Outputs:
        """Scores of each output frame; ``features (row, time, bins)``, ``feature_mask (row, time)`` True where real.

        ``norms`` collect the norms of the inputs of feature maps.
        """
        x, fine = self.front_end(features.to(self.clusters.weight.dtype), feature_mask)
        hidden = self.encoder(
            self.dropout(x), mask=frame_mask(feature_mask, self.config.subsampling), norms=norms and (norms, norms)
        )
        mask = frame_mask(feature_mask, self.config.output_subsampling)
        if self.expand is not None:
            hidden = self.expand(hidden, fine)[:, : mask.shape[1]]
        if isinstance(self.head, Attractors):
            logits, existence = self.head(hidden, mask.sum(1))
            return Outputs(logits, hidden, existence)
        return Outputs(self.head(hidden), hidden)

    def cluster_vectors(self, outputs: Outputs) -> Tensor:
        """``(row, frames, dim)`` of unit length, for deep clustering."""
        return F.normalize(exact(self.clusters(outputs.hidden)), dim=-1)

    def embeddings(self, outputs: Outputs, weights: Tensor) -> Tensor | None:
        """Of each speaker of each row, by the weights of its frames ``(row, frames, speakers)``; of unit length."""
        return None if self.embedding is None else speaker_embeddings(self.embedding(outputs.hidden), weights)

    def infer(self, features: Tensor, feature_mask: Tensor) -> Inferred:
        """Who speaks, and as whom; in padding nobody does."""
        return self.inferred(self(features, feature_mask), feature_mask)

    def inferred(self, outputs: Outputs, feature_mask: Tensor) -> Inferred:
        """The meaning of the scores; an embedding is of the frames in which its speaker speaks alone."""
        probabilities = self.collator.probabilities(outputs.logits)
        if outputs.existence is not None:
            there = (outputs.existence[:, :-1] > 0).cumprod(1)  # up to the first that isn't
            probabilities = probabilities * there[:, None, :]
        probabilities = probabilities * frame_mask(feature_mask, self.config.output_subsampling)[..., None]
        embeddings = self.embeddings(outputs, alone(probabilities)) if self.collator.orders else None
        return Inferred(probabilities, embeddings)


class Expansion(nn.Module):
    """Several output frames for each of the encoder's, by what the front end saw in each of them.

    The encoder knows who speaks; when exactly somebody begins and ends is in the finer frames.
    """

    def __init__(self, config: DiarizationModelConfig, num_channels: int) -> None:
        super().__init__()
        self.upsampling, self.subsampling = config.upsampling, config.output_subsampling
        self.of_encoder = nn.Linear(config.d_model, config.upsampling * config.d_model)
        self.of_front_end = nn.Linear(num_channels, config.d_model, bias=False)

    def forward(self, encoded: Tensor, fine: Tensor) -> Tensor:
        """``(row, output frames, width)`` of ``encoded (row, frames, width)`` and ``fine (row, time, channels)``."""
        coarse = self.of_encoder(encoded).unflatten(-1, (self.upsampling, -1)).flatten(1, 2)
        local = fine.unflatten(1, (-1, self.subsampling)).mean(2)
        return F.gelu(coarse + self.of_front_end(local))


def alone(probabilities: Tensor) -> Tensor:
    """By how much each speaker ``(row, frames, speakers)`` outweighs all others together; at least 0."""
    return (2 * probabilities - probabilities.sum(-1, keepdim=True)).clamp(min=0)


def frame_mask(feature_mask: Tensor, subsampling: int) -> Tensor:
    """``(row, frames)``: True where the first frame of a group is real."""
    return feature_mask[:, ::subsampling]
