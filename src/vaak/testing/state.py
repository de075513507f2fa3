"""The state is all that a step depends on, and every draw comes from its key: nothing else is remembered."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset
from vaak.data.loader import make_generator, seed_generators
from vaak.engine.callback import StepReport
from vaak.engine.checkpoint.files import load_checkpoint, save_checkpoint
from vaak.engine.journal import Journal
from vaak.engine.state import State
from vaak.engine.trainer import Trainer
from vaak.testing.case import (
    UNREHEARSED,
    Case,
    Witness,
    folder,
    microbatches,
    open_trainer,
    require,
    require_same,
    same,
)

EVERY_PART: dict[str, Any] = {"scheduler": {"type": "plateau", "patience": 0}, "ema": {"decay": 0.9}}
"""Options with which no part of the state is missing."""


def check_state(case: Case) -> None:
    """A state restored from its snapshot is what it was, field by field; in another process, too.

    What a field holds is found by reflection, not by what it says of itself.
    """
    with folder() as runs:
        trainer = _begun(case, runs / "run", 2)
        trainer.evaluate(due=True)
        snapshot, before = trainer.state.snapshot(), contents(trainer.state)
        trainer.state.restore(snapshot, runs)
        require_same(contents(trainer.state), before, "the state, restored at once, against what it was")
        _take_steps(trainer, 2)
        trainer.evaluate(due=True)
        trainer.state.restore(snapshot, runs)
        require_same(contents(trainer.state), before, "the state, restored after 2 more steps, against what it was")
        saved = load_checkpoint(save_checkpoint(runs, trainer.state.snapshot()))
        other = _begun(case, runs / "other", 1, random_seed=7)
        other.state.restore(saved, runs)
        require_same(
            contents(other.state), before, "the state, restored elsewhere from a checkpoint, against what it was"
        )


def check_step(case: Case) -> None:
    """A step depends on nothing but the state and its number.

    Two trainers that were made separately, one of them with generators, modes, rates and gradients in disorder and
    other steps before it, take the same step to the bit.
    """
    with folder() as runs:
        first = _begun(case, runs / "first", 2)
        snapshot = first.state.snapshot()
        expected = _step_and_state(first)
        # The state that the process happens to have must not matter.
        seed_generators(5)
        second = _begun(case, runs / "second", 1)
        second.state.restore(snapshot, runs)
        _disturb(second)
        require_same(_step_and_state(second), expected, "step 3 of a separate trainer, from the same state")
        first.state.restore(snapshot, runs)
        _disturb(first)
        require_same(_step_and_state(first), expected, "step 3, taken once more from the same state")


def _begun(case: Case, directory: Path, steps: int, **options: Any) -> Trainer:
    """Return a trainer with every part of the state, after some steps."""
    trainer = case.trainer(directory, EarlyStoppingCallback(patience=99), **EVERY_PART, **options)
    _take_steps(trainer, steps)
    return trainer


def _take_steps(trainer: Trainer, number: int) -> StepReport:
    """Take steps; return the report of the last."""
    with closing(trainer.data.steps(trainer.position)) as steps:
        reports = [trainer.take_step(data) for data in itertools.islice(steps, number)]
    return reports[-1]


def _disturb(trainer: Trainer) -> None:
    """Leave in disorder what a step has to put in order."""
    seed_generators(7)
    trainer.model.eval()
    for parameter in trainer.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in trainer.state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 7.0


def _step_and_state(trainer: Trainer) -> dict[str, Any]:
    """Take a step; return its report, without the time it took, and the state after it."""
    report = _take_steps(trainer, 1)
    said = {one.name: getattr(report, one.name) for one in fields(report) if one.name != "seconds"}
    return {f"the report's {name}": value for name, value in said.items()} | contents(trainer.state)


def contents(state: State) -> dict[str, Any]:
    """Copies of all that the fields of a state hold, by the way that leads to it.

    Of a module these are its parameters, its buffers and every attribute except its mode and those with a leading
    underscore. Rates are what the step makes of its number, and journals belong to the run's folder: neither is state.
    """
    found: dict[str, Any] = {}
    for one in fields(state):
        found |= dict(_leaves(one.name, getattr(state, one.name), {}))
    return found


def _leaves(way: str, value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each leaf within ``value`` with its path; an object that was ``seen`` is not visited again.

    ``seen`` has the objects by their ids, and so keeps them: the id of one that is freed may be given to the next.
    """
    if isinstance(value, Tensor):
        yield way, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield way, value.copy()
    elif isinstance(value, Journal | Path) or (callable(value) and not isinstance(value, nn.Module)):
        return
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield way, value
    elif id(value) not in seen:
        seen[id(value)] = value
        for name, part in _parts(value):
            yield from _leaves(f"{way}.{name}", part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object, by name."""
    if isinstance(value, nn.Module):
        yield from _list_module_parts(value)
    elif isinstance(value, Optimizer):
        yield from _list_optimizer_parts(value)
    elif isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items() if not isinstance(name, Tensor))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(number), part) for number, part in enumerate(value))
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()


def _list_module_parts(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from itertools.chain(module.named_parameters(), module.named_buffers())
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if not attribute.startswith("_") and attribute != "training":
                yield f"{name}.{attribute}".lstrip("."), value


def _list_optimizer_parts(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    for number, group in enumerate(optimizer.param_groups):
        options = {name: option for name, option in group.items() if name not in ("params", "lr")}
        yield f"group {number}", options
        for index, parameter in enumerate(group["params"]):
            yield f"{number}.{index}", optimizer.state.get(parameter)


NUM_EXAMPLES = 32


def check_examples(case: Case) -> None:
    """``example(index, rng)`` depends on the index and on ``rng`` alone; nor does collating draw or change anything."""
    with open_trainer(case) as trainer:
        dataset = trainer.data.reader.dataset
        for index in range(min(NUM_EXAMPLES, len(dataset.lengths))):
            first = _read(dataset, index, key=index, elsewhere=1)
            _read(dataset, index, key=index + NUM_EXAMPLES, elsewhere=2)
            require(
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
        require(same(examples, before), "collate() changed the examples that it was given")
        parts = [{"tensors": batch.tensors, "counts": batch.counts, "extra": batch.extra} for batch in collated]
        require_same(parts[1], parts[0], "the same rows collated twice")


def _read(dataset: Dataset, index: int, *, key: int, elsewhere: int) -> Any:
    """A copy of an example read with an rng of this key, generators that it doesn't use standing ``elsewhere``."""
    seed_generators(draw_key(Purpose.CHECK, elsewhere, index))
    generator = seed_generators if dataset.draws_globally else make_generator
    return copy.deepcopy(dataset.example(index, generator(key)))


def check_seeds(case: Case) -> None:
    """Check that a seed gives the same losses to the bit, and another seed others."""
    runs = []
    for seed, elsewhere in ((1, 3), (1, 4), (2, 3)):
        witness = Witness(stop_at=3)
        # The state that the process happens to have must not matter.
        seed_generators(elsewhere)
        with folder() as directory:
            case.trainer(directory, witness, random_seed=seed, **UNREHEARSED).fit()
        runs.append(witness.losses)
    require_same(runs[1], runs[0], "losses by step of two runs with the same seed")
    require(not same(runs[2], runs[0]), f"another seed gave the very same losses: {runs[0]}")
