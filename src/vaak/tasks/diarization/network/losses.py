"""The losses: sums over frames, speakers and their orders.

the label type's cross-entropy     a frame's labels, in the order of speakers with the lowest loss
clustering                         frames of the same speakers are close, others apart
speaker                            a speaker's embedding is its own, in every window
attractor                          there are as many attractors as speakers

Sums over frames are taken in 32 bits, under autocast too.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from vaak.core.batch import Term

CLUSTERING, SPEAKER, ATTRACTOR = "clustering", "speaker", "attractor"
SCALE = 20.0
"""Of the cosines that the speaker loss is a softmax of."""


def exact(x: Tensor) -> Tensor:
    """The numbers in 32 bits at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def best_orders(logits: Tensor, labels: Tensor, mask: Tensor, *, among_first: bool = False) -> Tensor:
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
        agreement = agreement - worse_than_any * (is_first[:, :, None] != is_there[:, None, :])
    pairs = agreement.nan_to_num().cpu().double().numpy()  # of NaN any order will do: the loss is NaN anyway
    orders = [linear_sum_assignment(of_row, maximize=True)[1] for of_row in pairs]
    return torch.tensor(np.stack(orders), device=logits.device)


def reordered(labels: Tensor, orders: Tensor) -> Tensor:
    """Labels ``(row, frames, speakers)`` with the speakers in each row's order ``(row, speakers)``."""
    return labels.gather(2, orders[:, None, :].expand(-1, labels.shape[1], -1))


def clustering_loss(vectors: Tensor, labels: Tensor, mask: Tensor) -> Term:
    """How far the frames' affinities are from their labels', a mean over other frames, summed over frames.

    ``vectors (row, frames, dim)`` are of unit length, ``labels (row, frames, classes)`` one-hot. With V and L of a row,
    it is |V Vᵀ - L Lᵀ|² / frames, computed without forming the matrices. Source: Hershey et al. 2016, "Deep
    Clustering", equation 3.
    """
    v = exact(vectors) * mask[..., None]
    classes = labels.to(v.dtype) * mask[..., None]
    with torch.autocast(v.device.type, enabled=False):
        own, theirs, crossed = (
            (first.transpose(1, 2) @ second).square().sum((1, 2))
            for first, second in ((v, v), (classes, classes), (v, classes))
        )
    return Term(((own + theirs - 2 * crossed) / mask.sum(1).clamp(min=1)).sum(), per="frame")


def one_hot_sets(labels: Tensor) -> Tensor:
    """Who speaks together, as one class of each set that there is, ``(row, frames, sets)``."""
    codes = (labels > 0.5).long() @ (2 ** torch.arange(labels.shape[-1], device=labels.device))
    return F.one_hot(torch.unique(codes, return_inverse=True)[1])


def speaker_embeddings(frames: Tensor, weights: Tensor) -> Tensor:
    """Means of frames ``(row, frames, dim)`` by ``weights (row, frames, speakers)``, of unit length."""
    frames = exact(frames)
    with torch.autocast(frames.device.type, enabled=False):
        summed = torch.einsum("rtd,rts->rsd", frames, weights.to(frames.dtype))
    return F.normalize(summed, dim=-1)


def speaker_loss(embeddings: Tensor, numbers: Tensor, table: Tensor) -> Term:
    """The cross-entropy of each speaker of each row among all of training's.

    ``embeddings (row, speakers, dim)``, ``numbers (row, speakers)`` rows of ``table (training speakers, dim)`` or -1.
    Source: Kinoshita et al. 2021, equation 5. Differs: cosines, not distances.
    """
    known = numbers >= 0
    with torch.autocast(table.device.type, enabled=False):
        scores = SCALE * exact(embeddings)[known] @ F.normalize(exact(table), dim=-1).T
    return Term(F.cross_entropy(scores, numbers[known], reduction="sum"), per="speaker")


def attractor_loss(existence: Tensor, num_speakers: Tensor) -> Term:
    """The cross-entropy of the first attractors being speakers and the next one none, a mean over them, per example.

    ``existence (row, speakers + 1)``, ``num_speakers (row,)``.
    """
    places = torch.arange(existence.shape[1], device=existence.device)
    asked = places <= num_speakers[:, None]
    existence = exact(existence)
    there = (places < num_speakers[:, None]).to(existence.dtype)
    costs = F.binary_cross_entropy_with_logits(existence, there, reduction="none")
    return Term(((costs * asked).sum(1) / asked.sum(1)).sum(), per="example")
