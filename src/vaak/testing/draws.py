"""Every random draw comes from the key it is given: nothing is remembered, nothing else is drawn from."""

from __future__ import annotations

import copy
from typing import Any

from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset
from vaak.data.reader import generator_of, seed_generators
from vaak.testing.case import Case, folder, microbatches, open_trainer
from vaak.testing.equality import demand, demand_same, same
from vaak.testing.witness import Witness

NUM_EXAMPLES = 32


def check_examples(case: Case) -> None:
    """``example(index, rng)`` depends on the index and on ``rng`` alone; nor does collating draw or change anything."""
    with open_trainer(case) as trainer:
        dataset = trainer.data.reader.dataset
        for index in range(min(NUM_EXAMPLES, len(dataset.lengths))):
            first = _read(dataset, index, key=index, elsewhere=1)
            _read(dataset, index, key=index + NUM_EXAMPLES, elsewhere=2)
            demand(
                same(_read(dataset, index, key=index, elsewhere=3), first),
                f"example {index} ({dataset.describe(index)}) was different when it was read again with the same "
                "rng: example() must draw from its rng alone and remember nothing",
            )
        rows = next(microbatch.address.rows for microbatch in microbatches(trainer))
        examples = [[_read(dataset, index, key=index, elsewhere=1) for index in row] for row in rows]
        before, collated = copy.deepcopy(examples), []
        for elsewhere in (1, 2):
            seed_generators(elsewhere)
            collated.append(dataset.collate(examples))
        demand(same(examples, before), "collate() changed the examples that it was given")
        parts = [{"tensors": batch.tensors, "counts": batch.counts, "extra": batch.extra} for batch in collated]
        demand_same(parts[1], parts[0], "the same rows collated twice")


def _read(dataset: Dataset, index: int, *, key: int, elsewhere: int) -> Any:
    """A copy of an example read with an rng of this key, generators that it doesn't use standing ``elsewhere``."""
    seed_generators(draw_key(Purpose.CHECK, elsewhere, index))
    generator = seed_generators if dataset.draws_globally else generator_of
    return copy.deepcopy(dataset.example(index, generator(key)))


def check_seeds(case: Case) -> None:
    """The same seed gives the same losses to the bit; another seed gives others."""
    runs = []
    for seed, elsewhere in ((1, 3), (1, 4), (2, 3)):
        witness = Witness(stop_at=3)
        seed_generators(elsewhere)  # where the process happens to stand must not matter
        with folder() as directory:
            case.trainer(directory, witness, random_seed=seed).fit()
        runs.append(witness.losses)
    demand_same(runs[1], runs[0], "losses by step of two runs with the same seed")
    demand(not same(runs[2], runs[0]), f"another seed gave the very same losses: {runs[0]}")
