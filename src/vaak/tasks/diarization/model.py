"""The diarizer: features in, who speaks in each frame out, as its options describe it; and its losses.

    features ──front end──▶ encoder ──▶ hidden ──head or attractors──▶ scores of each output frame
                                          └──▶ an embedding of each speaker, which joins windows

The front end makes fewer frames, each of the encoder's width; padding never affects a real one. Attractors are one
vector for each speaker, found until none is left. Losses are sums over frames, speakers and their orders, in 32 bits
under autocast too.
Sources: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with Self-Attention" (stacked frames, encoder, a
linear head); Kinoshita et al. 2021, "Integrating End-to-End Neural and Clustering-Based Diarization" (embeddings);
Horiguchi et al. 2020, "End-to-End Speaker Diarization for an Unknown Number of Speakers with Encoder-Decoder Based
Attractors". Differs: the convolutional front end, several output frames for one of the encoder; frames enter the
attractors in a random order that depends only on their number, so a row's result doesn't depend on the batch or chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from vaak.core.batch import Term, send_constant
from vaak.nn.initialisation import initialise
from vaak.nn.kernels.device_paths import paths_on
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.norms import MOST_CAST, cast_weights, unit_length
from vaak.nn.own_network import make_stack
from vaak.nn.speech.masks import exact
from vaak.tasks.diarization.config import DiarizationModelConfig
from vaak.tasks.diarization.labels import DiarizationCollator

CLUSTER_WIDTH = 32
"""The width of the vectors of deep clustering."""


@dataclass(frozen=True)
class DiarizationOutputs:
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
        # from features (row, time, bins) to an encoder frame for every ``subsampling`` of theirs, the last maybe not
        # full, and to (row, time, channels), of which these were made
        self.front_end: StackedFrames | Convolutions = (
            StackedFrames(num_bins, width, config.context, config.subsampling)
            if config.front_end == "stacked"
            else Convolutions(num_bins, config)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = make_stack(config, causal=False)
        self.expand = Expansion(config, self.front_end.num_channels) if config.upsampling > 1 else None
        with_attractors = config.head == "attractors"
        self.head = (
            Attractors(width, config.max_speakers) if with_attractors else nn.Linear(width, collator.num_outputs)
        )
        self._add_losses(width)
        initialise(self)

    def _add_losses(self, width: int) -> None:
        """Add what the helping losses read of an output frame, ``width`` numbers."""
        dim = self.config.embedding_dim
        self.clusters = nn.Linear(width, CLUSTER_WIDTH)
        self.embedding = nn.Linear(width, dim) if dim else None
        num_speakers = len(self.collator.options.training_speakers)
        # a vector for each speaker of training, which only the loss reads: embeddings learn to tell people apart by it
        self.speaker_table = nn.Parameter(torch.randn(num_speakers, dim))

    def forward(self, features: Tensor, feature_mask: Tensor, norms: SquaredNorms | None = None) -> DiarizationOutputs:
        """Scores of each output frame; ``features (row, time, bins)``, ``feature_mask (row, time)`` True where real.

        ``norms`` collect the norms of the inputs of feature maps.
        """
        parts = [one for one in (self.front_end, self.encoder, self.expand, self.head) if one is not None]
        with cast_weights(*parts, at_most=MOST_CAST):
            return self._compute(features, feature_mask, norms)

    def _compute(self, features: Tensor, feature_mask: Tensor, norms: SquaredNorms | None) -> DiarizationOutputs:
        with cast_weights(self.front_end):
            x, fine = self.front_end(features.to(self.clusters.bias.dtype), feature_mask)
        hidden = self.encoder(
            self.dropout(x), mask=frame_mask(feature_mask, self.config.subsampling), norms=norms and (norms, norms)
        )
        mask = frame_mask(feature_mask, self.config.output_subsampling)
        # The front end fills up its last group of frames, so there may be frames too many.
        if self.expand is not None:
            with cast_weights(self.expand):
                hidden = self.expand(hidden, fine)[:, : mask.shape[1]]
        if isinstance(self.head, Attractors):
            logits, existence = self.head(hidden, mask.sum(1))
            return DiarizationOutputs(logits, hidden, existence)
        return DiarizationOutputs(self.head(hidden), hidden)

    def cluster_vectors(self, outputs: DiarizationOutputs) -> Tensor:
        """``(row, frames, dim)`` of unit length, for deep clustering."""
        with cast_weights(self.clusters):
            return unit_length(exact(self.clusters(outputs.hidden)))

    def embeddings(self, outputs: DiarizationOutputs, weights: Tensor) -> Tensor | None:
        """Return a vector of unit length of each speaker, by the weights of its frames ``(row, frames, speakers)``."""
        if self.embedding is None:
            return None
        with cast_weights(self.embedding):
            frames = self.embedding(outputs.hidden)
        return speaker_embeddings(frames, weights)

    def infer(self, features: Tensor, feature_mask: Tensor) -> Inferred:
        """Who speaks, and as whom; in padding nobody does."""
        return self.inferred(self(features, feature_mask), feature_mask)

    def inferred(self, outputs: DiarizationOutputs, feature_mask: Tensor) -> Inferred:
        """The meaning of the scores; an embedding is of the frames in which its speaker speaks alone."""
        probabilities = self.collator.probabilities(outputs.logits)
        if outputs.existence is not None:
            # Up to the first that isn't.
            there = (outputs.existence[:, :-1] > 0).cumprod(1)
            probabilities = probabilities * there[:, None, :]
        probabilities = probabilities * frame_mask(feature_mask, self.config.output_subsampling)[..., None]
        embeddings = self.embeddings(outputs, lead_over_others(probabilities)) if self.collator.orders else None
        return Inferred(probabilities, embeddings)


class Expansion(nn.Module):
    """Several output frames for each of the encoder's, using the front end's finer frames.

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


def lead_over_others(probabilities: Tensor) -> Tensor:
    """Return by how much each speaker ``(row, frames, speakers)`` outweighs all others together; at least 0."""
    # p - (sum - p): one who speaks at the same time takes the weight away
    return (2 * probabilities - probabilities.sum(-1, keepdim=True)).clamp(min=0)


def frame_mask(feature_mask: Tensor, subsampling: int) -> Tensor:
    """``(row, frames)``: True where the first frame of a group is real."""
    return feature_mask[:, ::subsampling]


BELOW_ENCODER = -1
"""For rates by layer (``layer_decay``): all of a front end, its own layers too, is below the encoder's."""


def centred(features: Tensor, mask: Tensor) -> Tensor:
    """Features minus their mean over the row's real frames; 0 in padding.

    A channel and a level are constants in the logarithmic spectrum, so this removes them.
    """
    real = mask[..., None].to(features.dtype)
    mean = (features * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    return (features - mean) * real


def padded_to(x: Tensor, multiple: int) -> Tensor:
    """``(row, time, width)`` with zeros appended up to a multiple of frames."""
    missing = -x.shape[1] % multiple
    return F.pad(x, (0, 0, 0, missing)) if missing else x


class StackedFrames(nn.Module):
    """Frames stacked with their neighbours, subsampled and projected.

    Source: Fujita et al. 2019, section 4.2: 7 frames on each side, every tenth. Differs: it is the middle one of ten,
    because labels are those of the middle.
    """

    layer_number = BELOW_ENCODER

    def __init__(self, num_bins: int, width: int, context: int, subsampling: int) -> None:
        super().__init__()
        self.context, self.subsampling, self.num_channels = context, subsampling, num_bins
        self.projection = nn.Linear((2 * context + 1) * num_bins, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.subsampling // 2
        around = (self.context - middle, self.context + middle)
        fine = padded_to(centred(features, mask), self.subsampling)
        stacked = F.pad(fine, (0, 0, *around)).unfold(1, 2 * self.context + 1, self.subsampling)
        # Flattened (row, frames, bins, around).
        return self.norm(self.projection(stacked.flatten(2))), fine


class Convolutions(nn.Module):
    """Convolutions over time at the features' rate, then one that subsamples."""

    layer_number = BELOW_ENCODER

    def __init__(self, num_bins: int, config: DiarizationModelConfig) -> None:
        super().__init__()
        width, kernel = config.d_model, config.kernel_size
        self.subsampling, self.num_channels = config.subsampling, width
        self.first = nn.Conv1d(num_bins, width, kernel, padding=kernel // 2)
        self.residual = nn.ModuleList(ResidualConvolution(width, kernel) for _ in range(config.num_convolutions))
        self.last = nn.Conv1d(width, width, self.subsampling, stride=self.subsampling)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = padded_to(centred(features, mask), self.subsampling).transpose(1, 2)
        real = padded_to(mask[..., None].to(x.dtype), self.subsampling).transpose(1, 2)
        # padding is zero again after each layer: a convolution would carry it into the last real frames
        x = F.gelu(self.first(x)) * real
        for convolution in self.residual:
            x = convolution(x) * real
        return self.norm(self.last(x).transpose(1, 2)), x.transpose(1, 2)


class ResidualConvolution(nn.Module):
    """A convolution of each channel over time, then one over channels, added to the input ``(row, width, time)``.

    Source: Liu et al. 2022, "A ConvNet for the 2020s". Differs: the channels aren't widened.
    """

    def __init__(self, width: int, kernel_size: int) -> None:
        super().__init__()
        self.over_time = nn.Conv1d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.over_channels = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.over_channels(self.norm(self.over_time(x).transpose(1, 2)))
        return x + F.gelu(mixed).transpose(1, 2)


class Attractors(nn.Module):
    """Scores of up to ``max_speakers`` speakers in each frame, and that each of them is there."""

    def __init__(self, width: int, max_speakers: int) -> None:
        super().__init__()
        self.max_speakers = max_speakers
        self.reader = nn.LSTM(width, width, batch_first=True)
        self.writer = nn.LSTM(width, width, batch_first=True)
        self.exists = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of activity ``(row, frames, speakers)`` and of existence ``(row, speakers + 1)``.

        ``hidden`` is ``(row, frames, width)``, of which ``lengths`` ``(row,)`` frames are real.
        """
        rows, time, width = hidden.shape
        orders = []
        # The order in which attractors read the frames is random, as in the paper, but depends only on their number: a
        # recording gives the same in every batch and every run.
        for length in lengths.tolist():
            drawn = torch.randperm(length, generator=torch.Generator().manual_seed(length))
            orders.append(torch.cat([drawn, torch.arange(length, time)]))
        order = torch.stack(orders).to(hidden.device)
        shuffled = hidden.gather(1, order[..., None].expand(-1, -1, width))
        packed = pack_padded_sequence(shuffled, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = self.reader(packed)[1]
        attractors = self.writer(hidden.new_zeros(rows, self.max_speakers + 1, width), state)[0]
        # from zeros, and one more than there may be: the last says that there is nobody else
        # the gradient of existence stays out of the attractors, as in the paper: it would make them similar
        existence = self.exists(attractors.detach())[..., 0]
        return hidden @ attractors[:, :-1].transpose(1, 2), existence


CLUSTERING, SPEAKER, ATTRACTOR = "clustering", "speaker", "attractor"
SCALE = 20.0
"""The factor of the cosines that the speaker loss is a softmax of."""


MOST_TRIED = 5
"""Speakers of whom every order is tried, 120 at most."""


def find_orders(logits: Tensor, labels: Tensor, mask: Tensor, *, among_first: bool = False) -> Tensor:
    """For each output the speaker whose labels it fits best, ``(row, outputs)``, no speaker twice.

    With ``among_first``, the S speakers of a row are given to its first S outputs: attractors are read up to the first
    that isn't there, so a speaker who had a later one would be lost.

    ``logits`` and ``labels`` are ``(row, frames, speakers)``, ``mask (row, frames)`` is True where a frame is real. The
    costs of an output with a speaker add up over frames, so the best order is an assignment. Source: Kuhn 1955, "The
    Hungarian Method for the Assignment Problem".
    """
    with torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        scores = exact(logits) * mask[..., None]
        # the cross-entropy of score x with label y is softplus(x) - x y: only the product depends on the pair
        agreement = torch.einsum("rto,rts->ros", scores, labels.to(scores.dtype))
    if among_first:
        is_there = labels.any(1)
        is_first = torch.arange(labels.shape[-1], device=labels.device) < is_there.sum(-1, keepdim=True)
        worse_than_any = 1 + 2 * agreement.abs().sum((1, 2), keepdim=True)
        # a forbidden pair costs more than all others together could save
        agreement = agreement - worse_than_any * (is_first[:, :, None] != is_there[:, None, :])
    # Any order will do for NaN: the loss is NaN anyway.
    agreement = agreement.nan_to_num()
    if agreement.shape[-1] <= MOST_TRIED:
        # A GPU needn't be waited for.
        tried = send_constant(tuple(permutations(range(agreement.shape[-1]))), torch.long, agreement)
        return tried[agreement[:, torch.arange(tried.shape[1], device=tried.device), tried].sum(-1).argmax(1)]
    pairs = agreement.cpu().double().numpy()
    orders = [linear_sum_assignment(of_row, maximize=True)[1] for of_row in pairs]
    return torch.tensor(np.stack(orders), device=logits.device)


def reorder_speakers(labels: Tensor, orders: Tensor) -> Tensor:
    """Labels ``(row, frames, speakers)`` with the speakers in each row's order ``(row, speakers)``."""
    return labels.gather(2, orders[:, None, :].expand(-1, labels.shape[1], -1))


def clustering_loss(vectors: Tensor, labels: Tensor, mask: Tensor) -> Term:
    """Return how far the frames' affinities are from their labels', a mean over other frames, summed over frames.

    ``vectors (row, frames, dim)`` are of unit length, ``labels (row, frames, classes)`` one-hot. With V and L of a row,
    it is |V Vᵀ - L Lᵀ|² / frames, computed without forming the matrices. Source: Hershey et al. 2016, "Deep
    Clustering", equation 3.
    """
    real = mask[..., None]
    with torch.autocast(vectors.device.type, enabled=False):
        if paths_on(vectors.device).fewer_operators:
            each = _compare_by_one_product(exact(vectors), labels, real)
        else:
            v, classes = exact(vectors) * real, labels.to(exact(vectors).dtype) * real
            # |V Vᵀ - L Lᵀ|² = |Vᵀ V|² + |Lᵀ L|² - 2 |Vᵀ L|²: these are as small as vectors are long, not as windows
            own, theirs, crossed = (
                (first.transpose(1, 2) @ second).square().sum((1, 2))
                for first, second in ((v, v), (classes, classes), (v, classes))
            )
            each = own + theirs - 2 * crossed
    return Term((each / mask.sum(1).clamp(min=1)).sum(), per="frame")


def _compare_by_one_product(vectors: Tensor, labels: Tensor, real: Tensor) -> Tensor:
    """Return |V Vᵀ - L Lᵀ|² of each row, by the product of both side by side, whose crossed parts count below 0."""
    both = torch.cat((vectors, labels.to(vectors.dtype)), -1) * real
    signs = (1.0,) * vectors.shape[-1] + (-1.0,) * labels.shape[-1]
    weights = send_constant(tuple(tuple(one * other for other in signs) for one in signs), both.dtype, both)
    product = both.transpose(1, 2) @ both
    return (product * weights * product).sum((1, 2))


def speaker_embeddings(frames: Tensor, weights: Tensor) -> Tensor:
    """Means of frames ``(row, frames, dim)`` by ``weights (row, frames, speakers)``, of unit length."""
    frames = exact(frames)
    with torch.autocast(frames.device.type, enabled=False):
        summed = torch.einsum("rtd,rts->rsd", frames, weights.to(frames.dtype))
    return unit_length(summed)


def speaker_loss(embeddings: Tensor, numbers: Tensor, table: Tensor) -> Term:
    """The cross-entropy of each speaker of each row among all of training's.

    ``embeddings (row, speakers, dim)``, ``numbers (row, speakers)`` rows of ``table (training speakers, dim)`` or -1.
    Source: Kinoshita et al. 2021, equation 5. Differs: cosines, not distances.
    """
    with torch.autocast(table.device.type, enabled=False):
        scores = SCALE * exact(embeddings).flatten(0, 1) @ unit_length(exact(table)).T
    return Term(F.cross_entropy(scores, numbers.flatten(), ignore_index=-1, reduction="sum"), per="speaker")


def attractor_loss(existence: Tensor, num_speakers: Tensor) -> Term:
    """The cross-entropy of the first attractors being speakers and the next one none, a mean over them, per example.

    ``existence (row, speakers + 1)``, ``num_speakers (row,)``.
    """
    places = torch.arange(existence.shape[1], device=existence.device)
    # Those of the speakers and the first without one; inference never reads what follows.
    asked = places <= num_speakers[:, None]
    existence = exact(existence)
    there = (places < num_speakers[:, None]).to(existence.dtype)
    costs = F.binary_cross_entropy_with_logits(existence, there, reduction="none")
    return Term(((costs * asked).sum(1) / asked.sum(1)).sum(), per="example")
