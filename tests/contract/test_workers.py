"""What workers read that were sent a task's dataset is what this process reads, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from itertools import islice

import pytest

from contract_cases import CASES, TOYS
from task_case import TaskCase, ToyCase
from vaak.config.training import PerformanceConfig
from vaak.core.random_keys import EVALUATION_SEED, Purpose
from vaak.data.batching import evaluation_plan
from vaak.data.loader import Microbatch, MicrobatchReader, evaluation_addresses, load
from vaak.data.workers import Sent
from vaak.engine.distributed.ranks import start_ranks
from vaak.engine.state import Position
from vaak.engine.training_data import TrainingData
from vaak.testing import Case
from vaak.testing.case import same

ALL: dict[str, TaskCase | ToyCase] = {**CASES, **TOYS}
QUICK = ("lm decoder, documents", "diarization, attractors, stored features")
"""Tokens and features that are mapped from files."""
SENT = PerformanceConfig(num_workers=2, multiprocessing_context="forkserver")
MOST_BYTES = 100_000
"""Of each tiny case; a store that went by its content would be larger, as would audio."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Gives a case by its name; its data are prepared once."""
    return functools.cache(lambda name: ALL[name].prepared(tmp_path_factory.mktemp("prepared")))


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in ALL])
def test_workers_read_the_bits_that_this_process_reads(
    name: str, prepared: Callable[[str], Case], tmp_path_factory: pytest.TempPathFactory
):
    case = prepared(name)
    task, config = case.make_task(), case.config()

    def training(performance: PerformanceConfig) -> list[Microbatch]:
        options = config.model_copy(update={"performance": performance})
        folder = tmp_path_factory.mktemp("run")
        data = TrainingData(task.dataset("train"), options, start_ranks(options), folder)
        assert len(Sent(data.reader).content) < MOST_BYTES
        with closing(data.microbatches(Position())) as microbatches:
            return list(islice(microbatches, 6))

    assert same(training(SENT), training(PerformanceConfig(num_workers=0)))
    for split in task.evaluation_splits:
        dataset = task.dataset(split)
        reader = MicrobatchReader(dataset, (Purpose.EVALUATION, split), EVALUATION_SEED)
        plan = evaluation_plan(dataset.lengths, 4, dataset.evaluation_budget, dataset.parts)
        addresses = list(evaluation_addresses(plan, 0, 1))[:2]
        assert same(list(load(reader, addresses, SENT, pin_memory=False)), [reader[one] for one in addresses])
