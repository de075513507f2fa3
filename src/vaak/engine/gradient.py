"""The gradient of one objective of a step, on one rank.

    loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
    gradient = d loss / d weights

A batch that does not fit in memory is computed in pieces of its rows. As each term is a sum over rows, and counts are
those of the whole step, the pieces' gradients add up to the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.reader import Microbatch
from vaak.engine.devices.precision import Precision
from vaak.engine.devices.randomness import seed_everything
from vaak.engine.memory.device import free_memory, is_out_of_memory
from vaak.engine.memory.microbatch_pieces import PieceRule, PieceRules
from vaak.engine.optim.uncompiled import backward
from vaak.engine.timing.phases import Phases
from vaak.engine.training_data import StepData


class DoesNotFitError(UserError):
    """A step is out of memory, and smaller pieces can't help."""


class Losses:
    """The terms of an objective: what each adds to the gradient, and its sum so far."""

    def __init__(self, weights: dict[str, float], counts: dict[str, float]) -> None:
        self.weights = weights
        self.counts = counts
        self.sums: dict[str, torch.Tensor] = {}
        self.units: dict[str, str] = {}
        self.unsplittable: str | None = None
        self._factors: dict[str, torch.Tensor] = {}

    def add(self, terms: dict[str, Term], scale: float = 1.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Take in the terms of a piece; return their sums, and the derivative of the step's loss by each of them.

        The derivative is weight x ``scale`` / count. Sums in 16 bits are added up in 32. Raises UserError for a term
        whose unit no batch of the step counts.
        """
        roots, factors = [], []
        for name, term in terms.items():
            total = term.total.float() if term.total.dtype.itemsize < 4 else term.total
            if name in self.sums:
                self.sums[name] = self.sums[name] + total.detach()
            else:
                self._demand_counted(name, term.per)
                self.sums[name], self.units[name] = total.detach(), term.per
                self.unsplittable = self.unsplittable if term.splittable else name
                factor = self.weights.get(name, 1.0) * scale / self.count(term.per)
                self._factors[name] = torch.full_like(total, factor, requires_grad=False)
            if total.requires_grad:
                roots.append(total)
                factors.append(self._factors[name])
        return roots, factors

    def _demand_counted(self, name: str, unit: str) -> None:
        if unit not in self.counts:
            counted = ", ".join(self.counts) or "nothing"
            raise UserError(
                f"the loss {name} is a sum per {unit}, but the batches count {counted}: give its Term a unit that "
                f"collate counts, or add {unit!r} to the batch's counts"
            )

    def count(self, unit: str) -> float:
        """What a sum over this unit is divided by; 1 where the step has no such unit, and the sum is 0."""
        return self.counts.get(unit) or 1.0

    def means(self) -> dict[str, torch.Tensor]:
        """Each term over the count of its unit, unweighted."""
        return {name: total / self.count(self.units[name]) for name, total in self.sums.items()}


@dataclass(frozen=True)
class MicrobatchPiece:
    """Some rows of a microbatch: piece ``piece`` of ``pieces`` of microbatch ``number``."""

    batch: Batch
    number: int
    piece: int
    pieces: int


@dataclass(frozen=True)
class Forward:
    """How the terms of a piece are computed: by which losses, of which model, in which precision and with which draws.

    ``model`` is the one to call: compiled, if training compiles. ``number`` is that of the objective.
    """

    losses: Callable[[nn.Module, Batch], dict[str, Term]]
    model: nn.Module
    precision: Precision
    seed: int
    number: int = 0

    def terms(self, step: int, piece: MicrobatchPiece) -> dict[str, Term]:
        """The terms of a piece; its draws depend on the step, its microbatch's number and its own alone."""
        objective = (self.number,) if self.number else ()
        seed_everything(
            draw_key(Purpose.MODEL, self.seed, step, piece.number, piece.piece, *objective), self.precision.device
        )
        with self.precision.autocast():
            return self.losses(self.model, piece.batch.to(self.precision.device))


@dataclass(frozen=True)
class GradientPass:
    """Computes the gradient of an objective on this rank, in pieces where memory is short.

    ``recovery`` says whether a step that is out of memory is tried again in smaller pieces. ``cells`` and ``describe``
    know the data: how large a microbatch is, and where an example comes from.
    """

    forward: Forward
    weights: dict[str, float]
    recovery: bool
    phases: Phases
    cells: Callable[[Microbatch], float]
    describe: Callable[[int], str]

    def pieces(self, piece_rules: PieceRules, data: StepData) -> list[MicrobatchPiece]:
        """What is computed one after another in a step on this rank; what only takes part later is rehearsed, too."""
        found = []
        step = None if data.is_rehearsal else data.step
        for microbatch in data.microbatches:
            if microbatch.batch is not None:
                number, batch = microbatch.address.number, replace(microbatch.batch, step=step)
                cells = self.cells(microbatch) if piece_rules.rules else 0.0
                batches = batch.split(piece_rules.pieces(data.step, number, cells, self.forward.number))
                found += [MicrobatchPiece(batch, number, piece, len(batches)) for piece, batch in enumerate(batches)]
        return found

    def accumulate(
        self, piece_rules: PieceRules, data: StepData, clear: Callable[[], None], scale: float = 1.0
    ) -> Losses:
        """Leave the gradient of a step's microbatches in the parameters and return the terms of their loss.

        Out of memory, all of it is cleared and computed again in pieces half as large. ``scale`` is that of an fp16
        loss. Raises UserError where one row alone doesn't fit.
        """
        shortages = 0
        while True:
            losses = Losses(self.weights, data.counts)
            shortage = self._attempt(self.pieces(piece_rules, data), data.step, losses, scale)
            if shortage is None:
                return losses
            # A failure comes back as a value: an exception's traceback holds every tensor of the failed attempt. Only
            # here, outside of the except block, is nothing of its graph alive, so that its memory can be given back.
            shortages += 1
            clear()
            free_memory(self.forward.precision.device)
            self._answer(piece_rules, data, shortage, last_try=shortages > 1)

    def _attempt(self, pieces: list[MicrobatchPiece], step: int, losses: Losses, scale: float) -> _Shortage | None:
        """Run every piece forward and backward; return where memory ran out, if it did."""
        piece = None
        try:
            for piece in pieces:
                with self.phases.measure("forward"):
                    roots, factors = losses.add(self.forward.terms(step, piece), scale)
                if piece.pieces > 1 and losses.unsplittable:
                    raise UserError(
                        f"out of memory, and the loss {losses.unsplittable} is not a sum over examples, so batches "
                        "can't be split: lower training.batch_size (and raise training.gradient_accumulation_steps)"
                    )
                with self.phases.measure("backward"):
                    backward(roots, factors)
        except Exception as error:
            if piece is None or not is_out_of_memory(error):
                raise
            return _Shortage.of(piece, error)
        return None

    def _answer(self, piece_rules: PieceRules, data: StepData, shortage: _Shortage, *, last_try: bool) -> None:
        """Split microbatches as large as the failed one into more pieces, later ones too; raise if impossible."""
        step = data.step
        if not self.recovery:
            raise DoesNotFitError(
                f"out of memory in step {step} ({shortage.error}); lower training.batch_size, or set "
                "training.memory.recovery: true, which computes the step in smaller pieces"
            )
        if shortage.rows > 1:
            failed = next(one for one in data.microbatches if one.address.number == shortage.number)
            own = tuple(microbatch.address.number for microbatch in data.microbatches)
            numbers = None if data.is_rehearsal else own
            rule = PieceRule(
                step, 2 * shortage.pieces, numbers, cells=self.cells(failed), objective=self.forward.number
            )
            piece_rules.divide_training(rule, f"out of memory in step {step} ({shortage.error})")
        elif last_try:  # once the caches are empty, it may yet fit
            examples = ", ".join(f"{index} ({self.describe(index)})" for index in shortage.indices[:5])
            raise UserError(
                f"out of memory in step {step}: example {examples} does not fit even alone ({shortage.error}); shorten "
                "or leave it out, or set training.performance.gradient_checkpointing or training.mixed_precision: bf16"
            )


@dataclass(frozen=True)
class _Shortage:
    """Where memory ran out. It holds no tensors."""

    number: int
    pieces: int
    rows: int
    indices: list[int]
    error: str

    @classmethod
    def of(cls, piece: MicrobatchPiece, error: BaseException) -> _Shortage:
        indices = [index for row in piece.batch.indices for index in row]
        return cls(piece.number, piece.pieces, piece.batch.num_rows, indices, str(error).partition("\n")[0])
