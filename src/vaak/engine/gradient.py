"""The gradient of a step on one rank.

    loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
    gradient = d loss / d weights

A batch that does not fit in memory is computed in pieces of its rows. As each term is a sum over rows, and counts are
those of the whole step, the pieces' gradients add up to the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.keys import draw_key
from vaak.data.reader import Microbatch
from vaak.engine.memory import free_memory, is_out_of_memory
from vaak.engine.randomness import seed_everything
from vaak.engine.splits import Cut
from vaak.engine.wishes import Wishes

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer


class Losses:
    """The terms of a step: what each adds to the gradient, and its sum so far."""

    def __init__(self, weights: dict[str, float], counts: dict[str, float]) -> None:
        self.weights = weights
        self.counts = counts
        self.sums: dict[str, torch.Tensor] = {}
        self.units: dict[str, str] = {}
        self.unsplittable: str | None = None
        self._factors: dict[str, torch.Tensor] = {}

    def add(self, terms: dict[str, Term], scale: float = 1.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Take in the terms of a piece; return their sums, and the derivative of the step's loss by each of them.

        The derivative is weight x ``scale`` / count. Sums of 16 bits are taken on in 32.
        """
        roots, factors = [], []
        for name, term in terms.items():
            total = term.total.float() if term.total.dtype.itemsize < 4 else term.total
            if name in self.sums:
                self.sums[name] = self.sums[name] + total.detach()
            else:
                self.sums[name], self.units[name] = total.detach(), term.per
                self.unsplittable = self.unsplittable if term.splittable else name
                factor = self.weights.get(name, 1.0) * scale / self.count(term.per)
                self._factors[name] = torch.full_like(total, factor, requires_grad=False)
            if total.requires_grad:
                roots.append(total)
                factors.append(self._factors[name])
        return roots, factors

    def count(self, unit: str) -> float:
        """What a sum over this unit is divided by; 1 where the step has none of it, and the sum is 0."""
        return self.counts.get(unit) or 1.0

    def means(self) -> dict[str, torch.Tensor]:
        """Each term over the count of its unit, unweighted."""
        return {name: total / self.count(self.units[name]) for name, total in self.sums.items()}


@dataclass(frozen=True)
class Piece:
    """Some rows of a microbatch: piece ``piece`` of ``pieces`` of microbatch ``number``."""

    batch: Batch
    number: int
    piece: int
    pieces: int


def pieces_of(trainer: Trainer, step: int, microbatches: list[Microbatch]) -> list[Piece]:
    """What is computed one after another in a step on this rank."""
    found = []
    for microbatch in microbatches:
        if microbatch.batch is not None:
            number = microbatch.address.number
            batches = microbatch.batch.split(trainer.splits.pieces(step, number))
            found += [Piece(batch, number, piece, len(batches)) for piece, batch in enumerate(batches)]
    return found


def accumulate_gradient(
    trainer: Trainer, step: int, microbatches: list[Microbatch], counts: dict[str, float], rehearsing: bool = False
) -> Losses:
    """Leave the gradient of these microbatches in the parameters and return the terms of their loss.

    Out of memory, all of it is done over in pieces half as large. Raises UserError where one row alone doesn't fit.
    """
    shortages = 0
    while True:
        losses = Losses(trainer.loss_weights, counts)
        shortage = _attempt(trainer, pieces_of(trainer, step, microbatches), step, losses)
        if shortage is None:
            trainer.unsplittable = losses.unsplittable or trainer.unsplittable
            return losses
        # Only here, behind the except block, does nothing hold the graph of the failed attempt any more.
        shortages += 1
        clear_gradients(trainer)
        free_memory(trainer.ranks.device)
        numbers = None if rehearsing else tuple(microbatch.address.number for microbatch in microbatches)
        _answer(trainer, step, shortage, numbers, last_try=shortages > 1)


def terms_of(trainer: Trainer, step: int, piece: Piece) -> dict[str, Term]:
    """The terms of a piece's loss; its draws depend on the step, its microbatch's number and its own alone."""
    key = draw_key("model", trainer.config.random_seed, step, piece.number, piece.piece)
    seed_everything(key, trainer.ranks.device)
    with trainer.precision.autocast():
        return trainer.task.losses(trainer.forward, piece.batch.to(trainer.ranks.device))


def clear_gradients(trainer: Trainer) -> None:
    """Drop every gradient; an optimizer's own way to do it takes longer, in every step."""
    for parameter in trainer.trained_parameters:
        parameter.grad = None


@dataclass(frozen=True)
class _Shortage:
    """Where memory ran out. It holds no tensors."""

    pieces: int
    rows: int
    indices: list[int]
    error: str


def _attempt(trainer: Trainer, pieces: list[Piece], step: int, losses: Losses) -> _Shortage | None:
    """Run every piece forward and backward; return where memory ran out, if it did."""
    piece = None
    try:
        for piece in pieces:
            with trainer.phase("forward"):
                terms = terms_of(trainer, step, piece)
                roots, factors = losses.add(terms, trainer.loss_scale.value)
            if piece.pieces > 1 and losses.unsplittable:
                raise UserError(
                    f"out of memory, and the loss {losses.unsplittable} is no sum over examples, so batches can't be "
                    "cut in pieces: lower training.batch_size (and raise training.gradient_accumulation_steps)"
                )
            with trainer.phase("backward"):
                torch.autograd.backward(roots, factors)
    except Exception as error:
        if piece is None or not is_out_of_memory(error):
            raise
        indices = [index for row in piece.batch.indices for index in row]
        return _Shortage(piece.pieces, piece.batch.num_rows, indices, str(error).partition("\n")[0])
    return None


def _answer(
    trainer: Trainer, step: int, shortage: _Shortage, numbers: tuple[int, ...] | None, *, last_try: bool
) -> None:
    """Cut finer, once for all later steps too; or say what can't be helped."""
    if not trainer.config.memory.recovery:
        raise UserError(
            f"out of memory in step {step} ({shortage.error}); lower training.batch_size, or let "
            "training.memory.recovery do the step in pieces"
        )
    if shortage.rows > 1:
        pieces = 2 * shortage.pieces
        trainer.wishes.add(Wishes(pieces=pieces, shortage=f"out of memory on rank {trainer.ranks.rank}"))
        trainer.splits.add(Cut(step, pieces, numbers), f"out of memory in step {step} ({shortage.error})")
    elif last_try:  # once the caches are empty, it may yet fit
        dataset = trainer.reader.dataset
        examples = ", ".join(f"{index} ({dataset.describe(index)})" for index in shortage.indices[:5])
        raise UserError(
            f"out of memory in step {step}: example {examples} does not fit even alone ({shortage.error}); shorten or "
            "leave it out, or set training.performance.gradient_checkpointing or training.mixed_precision: bf16"
        )
