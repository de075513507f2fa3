"""Telling a mean from the sum that a term has to be: a mean of whole batches trains, at a rate that nobody chose."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch

from vaak.core.batch import Batch, Term
from vaak.core.random_keys import Purpose, draw_key
from vaak.engine.devices.randomness import keeping_generators, seed_everything
from vaak.engine.objective.descent import Descent
from vaak.engine.state import State

log = logging.getLogger("vaak")

ROW = "row"
TOLERANCE = 0.02
"""Relative to a term: sums in 16 bits differ by less, and a mean's halves add up to about twice the whole."""
CLOSE = 1e-3
"""Within this, the mean over a unit is told from that over another one."""


def averaged_over(
    whole: float, parts: Sequence[float], sizes: Sequence[Mapping[str, float]], tolerance: float
) -> str | None:
    """The unit over which a batch's term is the mean of its pieces' terms; None where it is not one.

    ``whole`` is the term of the batch and ``parts`` are those of its pieces, whose counts by unit are ``sizes``.
    Numbers are equal that differ by ``tolerance`` relative to the whole, or to 1 where it is smaller.

    >>> averaged_over(3.0, [2.0, 6.0], [{"token": 6, "row": 1}, {"token": 2, "row": 1}], 1e-9)
    'token'
    >>> averaged_over(8.0, [2.0, 6.0], [{"token": 6, "row": 1}, {"token": 2, "row": 1}], 1e-9)
    """
    if adds_up(whole, parts, tolerance):
        return None
    means = {}
    for unit in sizes[0]:
        counts = [size[unit] for size in sizes]
        if sum(counts):
            means[unit] = sum(count * part for count, part in zip(counts, parts, strict=True)) / sum(counts)
    closest = min(means, key=lambda unit: abs(means[unit] - whole), default=None)
    return closest if closest is not None and adds_up(whole, [means[closest]], tolerance) else None


def adds_up(whole: float, parts: Sequence[float], tolerance: float) -> bool:
    """Whether the sum of ``parts`` is ``whole``, up to ``tolerance``; NaN never is."""
    return abs(sum(parts) - whole) <= tolerance * max(1.0, abs(whole))


def sizes_of(pieces: Sequence[Batch]) -> list[dict[str, float]]:
    """How many of each unit that is counted, and of rows, each piece has."""
    return [{**piece.totals(), ROW: float(piece.num_rows)} for piece in pieces]


def warn_of_means(objectives: Sequence[Descent], state: State, batch: Batch, seed: int) -> None:
    """Warn of each term of ``batch`` that looks like a mean: that of the whole against those of its two halves.

    They are computed in evaluation mode and without gradients, with draws that depend on ``seed``; generators, modes
    and buffers are then as before. Terms that aren't splittable are passed over, and so is what can't be computed like
    this: a loss of gradients, a model that has no losses in evaluation, a batch that can't be split.
    """
    for objective in objectives:
        with contextlib.suppress(Exception), _undisturbed(objective, state):
            halves = batch.split(2) if batch.num_rows > 1 else []
            if not halves:
                return
            whole = _terms(objective, state, batch, seed)
            parts = [_terms(objective, state, half, seed) for half in halves]
            splittable = {name: term for name, term in whole.items() if term.splittable}
            found = {name: _why(term, [part[name] for part in parts], halves) for name, term in splittable.items()}
            if any(found.values()):  # unless the loss is random
                others = _terms(objective, state, batch, seed + 1)
                found = {name: why for name, why in found.items() if _alike(whole[name], others[name])}
            for name, why in found.items():
                if why:
                    _warn(name, whole[name].per, why)


def _why(whole: Term, parts: Sequence[Term], halves: Sequence[Batch]) -> str:
    """What speaks for a mean; empty where nothing does."""
    total = _value(whole)
    if not total:
        return ""
    relative = [_value(part) / total for part in parts]
    if adds_up(1.0, relative, TOLERANCE):
        return ""
    unit, ratio = averaged_over(1.0, relative, sizes_of(halves), CLOSE), sum(relative)
    if unit is not None:
        return f"it is the mean over each {unit} of its batch"
    return f"those of a batch's two halves add up to {ratio:.2f} times that of the batch" if 1.8 < ratio < 2.2 else ""


def _warn(name: str, per: str, why: str) -> None:
    log.warning(
        "the loss %s looks like a mean, not a sum (%s): a Term's total is a sum, which is divided by the count of %s "
        "in the whole step, so a mean is divided twice. Multiply it by what it was divided by, or give its Term "
        "splittable=False if it is not a sum over examples",
        name,
        why,
        per,
    )


def _terms(objective: Descent, state: State, batch: Batch, seed: int) -> dict[str, Term]:
    forward = objective.gradient.forward
    seed_everything(draw_key(Purpose.CHECK, seed, "mean"), forward.precision.device)
    with forward.precision.autocast():
        return forward.losses(state.model.module, batch.to(forward.precision.device))


def _value(term: Term) -> float:
    return float(term.total)


def _alike(term: Term, other: Term) -> bool:
    return abs(_value(term) - _value(other)) <= TOLERANCE * abs(_value(term))


@contextlib.contextmanager
def _undisturbed(objective: Descent, state: State) -> Iterator[None]:
    """Evaluation mode without gradients; on exit, modes, buffers and generators are as before."""
    both = (state.model.module, state.loss.module)
    modes = [(module, module.training) for one in both for module in one.modules()]
    buffers = [(buffer, buffer.clone()) for one in both for buffer in one.buffers()]
    try:
        with torch.no_grad(), keeping_generators(objective.gradient.forward.precision.device):
            for one in both:
                one.eval()
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, mode in modes:
            module.training = mode
