"""A loss is a sum with its unit: however the examples are put together, the sums and the gradients are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vaak.core.batch import Batch, Term
from vaak.core.task import Dataset
from vaak.data.loader import Microbatch, pad_to_multiple, training_addresses
from vaak.engine.gradient import MicrobatchChunk
from vaak.engine.rehearsal import averaged_over, measure_sizes
from vaak.engine.trainer import Trainer
from vaak.testing.case import (
    UNREHEARSED,
    Case,
    Witness,
    batches,
    compute_terms,
    exact,
    folder,
    microbatches,
    open_trainer,
    require,
    require_close,
)
from vaak.testing.learning import keep_one_part

SUM_TOLERANCE = 1e-9
MULTIPLE = 11
"""Rows are padded further to lengths that are multiples of this number of positions."""
NUM_CHUNKS = (2, 3, 4)
RANKS = (2, 3)


def check_padding(case: Case) -> None:
    """Padding changes no loss, no count and no gradient.

    Each row collated alone is compared with all rows together, and these with rows that are padded further, where the
    dataset says how they are.
    """
    with open_trainer(case, exact(case.make_task())) as trainer:
        dataset = trainer.data.dataset
        for microbatch in microbatches(trainer):
            alone = [
                read.batch
                for row in microbatch.address.rows
                if (read := trainer.data.reader[replace(microbatch.address, rows=[row])]).batch is not None
            ]
            batch = _batch(microbatch)
            others = {"rows alone against rows padded together": alone}
            if type(dataset).padding is not Dataset.padding:
                longer = replace(batch, tensors=dict(batch.tensors))
                pad_to_multiple(longer, dataset.padding(batch), MULTIPLE)
                others["rows padded further against rows padded together"] = [longer]
            _require_equal_sums(trainer, batch, others)


def check_split(case: Case) -> None:
    """A batch split in chunks has the losses, the counts and the gradients of the whole."""
    with open_trainer(case, exact(case.make_task())) as trainer:
        for whole in batches(trainer):
            if not all(term.splittable for term in compute_terms(trainer, whole).values()):
                continue
            cut = {f"{number} chunks against the whole batch": whole.split(number) for number in NUM_CHUNKS}
            _require_equal_sums(trainer, whole, cut)


def check_accumulation(case: Case) -> None:
    """One microbatch of 8 rows, 2 of 4 and 8 of 1 make steps with the same counts and the same gradients.

    Of data with parts, the first is taken: how microbatches of several are mixed depends on their number.
    """
    expected: dict[str, Tensor] | None = None
    for size, number in ((8, 1), (4, 2), (1, 8)):
        witness = Witness(stop_at=1)
        options = {"batch_size": size, "gradient_accumulation_steps": number, **UNREHEARSED}
        with folder() as directory:
            trainer = case.trainer(directory, witness, task=exact(keep_one_part(case.make_task())), **options)
            witness.watch_gradients(trainer)
            trainer.fit()
        found = {f"count of {unit}": torch.tensor(count) for unit, count in witness.counts[1].items()}
        found |= {f"gradient of {name}": gradient for name, gradient in witness.gradients[1].items()}
        if expected is None:
            expected = found
        require_close(found, expected, f"{number} microbatches of {size} against 1 of 8", SUM_TOLERANCE)


def check_counts(case: Case) -> None:
    """Every term's unit is counted, for every row; ``case.counted`` counts the same."""
    with open_trainer(case) as trainer:
        for batch in batches(trainer):
            for unit, counts in batch.counts.items():
                require(bool((counts >= 0).all()), f"counts of {unit}: {counts.tolist()} has a negative one")
            for name, term in compute_terms(trainer, batch).items():
                _require_counted(name, term, batch)
            if case.counted is not None:
                counted = dict(case.counted(batch))
                totals = {unit: batch.totals().get(unit, 0.0) for unit in counted}
                require_close(totals, counted, "the batch's counts against case.counted", 0.0)


def _require_counted(name: str, term: Term, batch: Batch) -> None:
    """Demand that what a term is divided by is counted: otherwise it would not be normalised."""
    require(
        term.per in batch.counts,
        f"the loss {name} is a sum per {term.per}, but the batch counts {', '.join(batch.counts) or 'nothing'}: give "
        f"its Term a unit that collate counts, or add {term.per!r} to the batch's counts",
    )
    total = float(term.total.detach())
    require(
        batch.totals()[term.per] > 0 or total == 0,
        f"the loss {name} is {total:.4g} on a batch that has no {term.per}: it is summed over something that isn't "
        "counted",
    )


def check_lengths(case: Case) -> None:
    """No row is longer than the lengths of its examples together: by these upper bounds batches are planned."""
    with open_trainer(case) as trainer:
        lengths = trainer.data.reader.dataset.lengths
        for microbatch in microbatches(trainer):
            planned = max(sum(float(lengths[index]) for index in row) for row in microbatch.address.rows)
            found = (case.row_length or _second_dimension)(_batch(microbatch))
            require(
                found <= planned,
                f"a batch's rows have a length of {found:g}, but the lengths of the longest row's examples add up to "
                f"{planned:g}: lengths must be upper bounds",
            )


def _second_dimension(batch: Batch) -> float:
    shape = next(iter(batch.tensors.values())).shape
    return shape[1] if len(shape) > 1 else 0


def check_ranks(case: Case) -> None:
    """The gradients of all ranks' shares of a step add up to the step's, dropout on, and no microbatch is lost.

    So what a microbatch gives must not depend on what was computed before it in the same process.
    """
    whole, expected = _step_of_rank(case, 0, 1)
    for world_size in RANKS:
        numbers: list[int] = []
        found: dict[str, Tensor] = {}
        for rank in range(world_size):
            share, gradients = _step_of_rank(case, rank, world_size)
            numbers += share
            for name, gradient in gradients.items():
                found[name] = found[name] + gradient if name in found else gradient
        require(sorted(numbers) == whole, f"{world_size} ranks took the microbatches {sorted(numbers)} of {whole}")
        require_close(found, expected, f"gradients of {world_size} ranks added up against those of one", SUM_TOLERANCE)


def _step_of_rank(case: Case, rank: int, world_size: int) -> tuple[list[int], dict[str, Tensor]]:
    """Return the numbers of one rank's microbatches of the first step, of 4, and the gradients of their summed loss."""
    with open_trainer(case, exact(case.make_task(), dropout=True), gradient_accumulation_steps=4) as trainer:
        place = {"step": 0, "epoch": 0, "place": 0, "rank": rank, "world_size": world_size}
        addresses = training_addresses(trainer.data.planner, 4, **place)
        share = [next(addresses) for _ in range(rank, trainer.data.step_size(trainer.position), world_size)]
        for address in share:
            batch = trainer.data.reader[address].batch
            if batch is None:
                continue
            for objective in trainer.step.objectives:
                with objective.alone():
                    _total(
                        objective.gradient.forward.terms(1, MicrobatchChunk(batch, address.number, 0, 1)).values()
                    ).backward()
        return [address.number for address in share], _gradients(trainer)


def _require_equal_sums(trainer: Trainer, whole: Batch, cut: Mapping[str, Sequence[Batch]]) -> None:
    """Demand of each way of cutting a batch, by what it is called, that its chunks add up to the whole."""
    (expected,), expected_gradients = _terms_and_gradients(trainer, [whole])
    for what, chunks in cut.items():
        parts, gradients = _terms_and_gradients(trainer, chunks)
        terms: dict[str, Term] = {}
        for part in parts:
            for name, term in part.items():
                terms[name] = replace(term, total=terms[name].total + term.total) if name in terms else term
        units = {name: (term.per, term.splittable) for name, term in terms.items()}
        require(
            units == {name: (term.per, term.splittable) for name, term in expected.items()},
            f"{what}: the losses and their units are {units}",
        )
        for name, term in expected.items():
            _require_sum(
                name, term, [(part[name], chunk) for part, chunk in zip(parts, chunks, strict=True) if name in part]
            )
        totals = {f"loss {name}": term.total for name, term in terms.items()}
        require_close(totals, {f"loss {name}": term.total for name, term in expected.items()}, what, SUM_TOLERANCE)
        counts: dict[str, float] = {}
        for chunk in chunks:
            for unit, count in chunk.totals().items():
                counts[f"count of {unit}"] = counts.get(f"count of {unit}", 0.0) + count
        require_close(counts, {f"count of {unit}": count for unit, count in whole.totals().items()}, what, 0.0)
        require_close(
            {f"gradient of {name}": gradient for name, gradient in gradients.items()},
            {f"gradient of {name}": gradient for name, gradient in expected_gradients.items()},
            what,
            SUM_TOLERANCE,
        )


def _require_sum(name: str, whole: Term, parts: Sequence[tuple[Term, Batch]]) -> None:
    """Demand that a term isn't the mean over its batch, which the engine would divide by its count once more."""
    totals = [float(term.total) for term, _ in parts]
    unit = averaged_over(float(whole.total), totals, measure_sizes([chunk for _, chunk in parts]), SUM_TOLERANCE)
    require(
        unit is None,
        f"the loss {name} is the mean over each {unit} of its batch; a Term's total is a sum, not a mean: the "
        f"engine divides it by the count of {whole.per} in the whole step",
    )


def _terms_and_gradients(trainer: Trainer, chunks: Iterable[Batch]) -> tuple[list[dict[str, Term]], dict[str, Tensor]]:
    """Return the terms of each chunk, and the gradients of the sum of all."""
    trainer.model.zero_grad()
    parts = []
    for chunk in chunks:
        part: dict[str, Term] = {}
        for objective in trainer.step.objectives:
            with objective.alone():
                terms = objective.gradient.forward.losses(trainer.model, chunk)
                _total(terms.values()).backward()
            part |= {name: replace(term, total=term.total.detach()) for name, term in terms.items()}
        parts.append(part)
    return parts, _gradients(trainer)


def _total(terms: Iterable[Term]) -> Tensor:
    return torch.stack([term.total for term in terms]).sum()


def _gradients(trainer: Trainer) -> dict[str, Tensor]:
    named = trainer.model.named_parameters()
    return {name: value.grad.clone() for name, value in named if value.grad is not None}


def _batch(microbatch: Microbatch) -> Batch:
    assert microbatch.batch is not None
    return microbatch.batch
