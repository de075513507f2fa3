"""What every task keeps, whatever it trains. A new task adds one entry to tests/support/contract_cases.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract_cases import CASES, Case
from toy import next_microbatches, one_step, same_bits, weights
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.catalog import TASKS, task_class
from vaak.config.load import load
from vaak.config.yaml_writer import yaml_text
from vaak.core.batch import Batch, Term
from vaak.core.callback import Callback
from vaak.core.report import StepReport
from vaak.data.reader import Microbatch
from vaak.engine.checkpoint import load_checkpoint, load_weights
from vaak.engine.optimizer_state import optimizer_tensors
from vaak.engine.randomness import seed_everything
from vaak.engine.records import read_records
from vaak.engine.step import take_step
from vaak.engine.trainer import Trainer

CPU = torch.device("cpu")


def test_every_task_is_under_contract():
    assert {case.task for case in CASES.values()} == set(TASKS)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="module")
def prepared(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the case's data are prepared, once."""
    folder = tmp_path_factory.mktemp("prepared")
    trainer_of(case, folder, folder / "first")
    return folder


def trainer_of(case: Case, prepared: Path, directory: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """A trainer of the case; ``options`` go over the model's and the training's by their dotted names."""
    training = {
        "device": "cpu",
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "optimizer": {"lr": case.learning_rate},
        "validation": {"interval": 4, "interval_epochs": None},
        "checkpoint": {"interval": 4, "interval_epochs": None},
        **case.training,
    }
    file = prepared / "case.yml"
    file.write_text(yaml_text({"task": case.task, **case.options, "training": training}))
    overrides = [f"data.cache_dir={prepared}", *(f"{key.replace('__', '.')}={value}" for key, value in options.items())]
    experiment = load([file], overrides).experiment
    directory.mkdir(parents=True, exist_ok=True)
    task = task_class(case.task)(experiment, directory, prepared)
    task.prepare()
    return Trainer(task, experiment.training, directory, callbacks)


def batches(trainer: Trainer) -> list[Batch]:
    """The batches of the first step."""
    return [microbatch.batch for microbatch in next_microbatches(trainer) if microbatch.batch is not None]


def in_float64(batch: Batch) -> Batch:
    tensors = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.tensors.items()
    }
    return Batch(tensors, batch.counts, batch.indices, batch.extra)


def terms_and_gradients(trainer: Trainer, pieces: list[Batch]) -> tuple[dict[str, Term], dict[str, Tensor]]:
    """The terms of the pieces added up, and the gradients of their sum, in float64 and without dropout."""
    model = trainer.model.double().eval()
    model.zero_grad()
    sums: dict[str, Term] = {}
    for piece in pieces:
        terms = trainer.task.losses(model, in_float64(piece))
        torch.stack([term.total for term in terms.values()]).sum().backward()
        for name, term in terms.items():
            before = sums[name].total if name in sums else 0.0
            sums[name] = Term(before + term.total.detach(), term.per, term.splittable)
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return sums, gradients


def assert_equal_sums(trainer: Trainer, whole: Batch, pieces: list[Batch]) -> None:
    expected, expected_gradients = terms_and_gradients(trainer, [whole])
    sums, gradients = terms_and_gradients(trainer, pieces)
    assert sums.keys() == expected.keys()
    for name, term in expected.items():
        assert sums[name].per == term.per
        torch.testing.assert_close(sums[name].total, term.total, rtol=1e-9, atol=1e-9)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-9, atol=1e-9, msg=name)
    for unit, total in whole.totals().items():
        assert sum(piece.totals()[unit] for piece in pieces) == total


def test_padding_changes_no_loss(case: Case, prepared: Path, tmp_path: Path):
    """Each row collated alone, with no padding, against all rows together."""
    trainer = trainer_of(case, prepared, tmp_path)
    dataset, reader = trainer.reader.dataset, trainer.reader
    for microbatch in next_microbatches(trainer):
        assert microbatch.batch is not None
        rows = [[reader._example(0, index, []) for index in row] for row in microbatch.address.rows]
        alone = [dataset.collate([row]) for row in rows]
        assert_equal_sums(trainer, microbatch.batch, alone)


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_a_split_sums_to_the_whole(case: Case, pieces: int, prepared: Path, tmp_path: Path):
    trainer = trainer_of(case, prepared, tmp_path)
    for whole in batches(trainer):
        terms, _ = terms_and_gradients(trainer, [whole])
        if all(term.splittable for term in terms.values()):
            assert_equal_sums(trainer, whole, whole.split(pieces))


def test_accumulation_changes_no_gradient(case: Case, prepared: Path, tmp_path: Path):
    """One microbatch of 8 rows, 2 of 4 and 8 of 1 in a step, in float64, clipped alike."""
    results = []
    for size, pieces in ((8, 1), (4, 2), (1, 8)):
        shape = {"training__batch_size": size, "training__gradient_accumulation_steps": pieces}
        trainer = trainer_of(case, prepared, tmp_path, model__dropout=0.0, **shape)
        trainer.model.double()
        results.append(one_step(trainer))
    (whole, expected), *others = results
    for report, gradients in others:
        assert report.counts == whole.counts
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_counts_are_right_and_have_every_terms_unit(case: Case, prepared: Path, tmp_path: Path):
    trainer = trainer_of(case, prepared, tmp_path)
    for batch in batches(trainer):
        counted = case.counted(batch)
        assert {unit: batch.totals()[unit] for unit in counted} == counted
        terms = trainer.task.losses(trainer.model, batch)
        assert {term.per for term in terms.values()} <= batch.counts.keys()
        assert all(len(counts) == batch.num_rows for counts in batch.counts.values())


def test_lengths_are_upper_bounds(case: Case, prepared: Path, tmp_path: Path):
    """No batch is longer than its plan said."""
    trainer = trainer_of(case, prepared, tmp_path)
    lengths = trainer.reader.dataset.lengths
    for microbatch in next_microbatches(trainer):
        assert microbatch.batch is not None
        longest = max(sum(int(lengths[index]) for index in row) for row in microbatch.address.rows)
        assert max(tensor.shape[1] for tensor in microbatch.batch.tensors.values() if tensor.ndim > 1) <= longest


def test_the_same_seed_gives_the_same_losses(case: Case, prepared: Path, tmp_path: Path):
    losses = []
    for seed in (1, 1, 2):
        trainer = trainer_of(case, prepared, tmp_path, training__random_seed=seed)
        reports = [one_step(trainer)[0] for _ in range(3)]
        losses.append([[float(loss) for loss in report.losses.values()] for report in reports])
    assert losses[0] == losses[1] != losses[2]


def test_one_batch_is_learned_by_heart(case: Case, prepared: Path, tmp_path: Path):
    quiet = {"model__dropout": 0.0, "training__max_steps": 80, "training__gradient_accumulation_steps": 1}
    trainer = trainer_of(case, prepared, tmp_path, **quiet)
    one = next_microbatches(trainer)
    reports = [take_step(trainer, [Microbatch(one[0].address, one[0].batch)]) for _ in range(80)]
    first, last = (next(iter(report.losses.values())) for report in (reports[0], reports[-1]))
    assert float(last) < 0.35 * float(first)


class Stop(Callback):
    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == 3:
            trainer.request_stop("enough")


def test_resumed_is_uninterrupted_to_the_bit(case: Case, prepared: Path, tmp_path: Path):
    whole = trainer_of(case, prepared, tmp_path / "whole", StepLogCallback(2))
    whole.fit()
    trainer_of(case, prepared, tmp_path / "cut", StepLogCallback(2), Stop()).fit()
    resumed = trainer_of(case, prepared, tmp_path / "cut", StepLogCallback(2))
    assert resumed.resume("auto")
    resumed.fit()
    assert same_bits(weights(resumed), weights(whole))
    assert same_bits(*(optimizer_tensors(one.model, one.optimizers)[0] for one in (resumed, whole)))
    records = [read_records(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut")]
    for record in (record for one in records for record in one):
        record.pop("clock", None)
    assert records[0] == records[1]


def test_saved_and_loaded_it_predicts_the_same(case: Case, prepared: Path, tmp_path: Path):
    trained = trainer_of(case, prepared, tmp_path)
    trained.fit()
    other = trainer_of(case, prepared, tmp_path, training__random_seed=7)
    path = tmp_path / "checkpoints" / "step-00000008"
    load_weights(other.model, load_checkpoint(path, weights_only=True).model, path)
    assert [*predictions(case, other)] == [*predictions(case, trained)]
    batch = batches(trained)[0]
    with torch.no_grad():
        first, second = (one.task.losses(one.model.eval(), batch) for one in (trained, other))
    assert first.keys() == second.keys()
    assert all(first[name].total.equal(second[name].total) for name in first)


def predictions(case: Case, trainer: Trainer) -> Iterator[Any]:
    seed_everything(0, CPU)
    if case.inputs:
        yield from trainer.task.predict(trainer.model.eval(), case.inputs)


def test_figures_do_not_depend_on_the_batch_size(case: Case, prepared: Path, tmp_path: Path):
    """Sums over the whole set, divided once, with the conditions they were made under."""
    figures = []
    for size in (1, 5, 64):
        trainer = trainer_of(case, prepared, tmp_path, training__validation__batch_size=size)
        trainer.evaluate(scheduled=False)
        figures.append(trainer.metrics)
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], rel=1e-5)
    for split in trainer.task.evaluation_splits:
        assert trainer.task.meters(split).protocol["split"] == split
