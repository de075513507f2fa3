"""The trainer as a whole: saving memory and compiling change no number; requests of ranks and of the clock are met."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contract_cases import CASES
from toy import ToyTask, one_step, same_bits, toy_trainer, weights
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import list_checkpoints
from vaak.engine.distributed.exchange import StepMessage, combine
from vaak.engine.state import ChunkRule
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import count_units
from vaak.tasks.lm.task import LanguageModelTask


def language_model_trainer(folder: Path, **performance: Any) -> Trainer:
    """A small language model with dropout."""
    training = {"device": "cpu", "batch_size": 4, "max_steps": 3, "performance": performance}
    options = CASES["lm decoder, documents"].options
    (folder / "lm.yml").write_text(yaml_text({"task": "lm", **options, "training": training}))
    experiment = load([folder / "lm.yml"], [f"data.cache_dir={folder}"]).experiment
    task = LanguageModelTask(experiment, folder, folder)
    task.prepare()
    return Trainer(task, experiment.training, folder)


def test_gradient_checkpointing_changes_no_bit_and_computes_again(tmp_path: Path):
    """The recomputed forward repeats its random draws, so this holds with dropout."""
    trained, passes = [], []
    for enabled in (False, True):
        trainer = language_model_trainer(tmp_path, gradient_checkpointing=enabled)
        count: list[int] = []
        trainer.model.get_submodule("stack.blocks.0.feed_forward").register_forward_hook(
            lambda *_, count=count: count.append(1)
        )
        reports = [one_step(trainer)[0] for _ in range(3)]
        trained.append(weights(trainer))
        passes.append(len(count))
        assert all(torch.isfinite(report.losses["cross_entropy"]) for report in reports)
    assert same_bits(*trained)
    assert passes == [3, 6]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch has deprecated
def test_compiled_it_trains_to_the_same_loss_and_saves_the_same_names(tmp_path: Path):
    losses, names = [], []
    for mode in (False, True):
        trainer = toy_trainer(tmp_path / str(mode), task=ToyTask(dropout=0.0), performance={"compile": mode})
        losses.append([float(one_step(trainer)[0].losses["main"]) for _ in range(4)])
        names.append(list(trainer.saving.snapshot().model))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert names[0] == names[1]


def test_one_seed_initialises_one_model(tmp_path: Path):
    first, second, other = (toy_trainer(tmp_path, random_seed=seed) for seed in (1, 1, 2))
    torch.rand(3)
    assert same_bits(weights(first), weights(second))
    assert not same_bits(weights(first), weights(other))


def test_frozen_parameters_are_neither_trained_nor_summed(tmp_path: Path):
    class Frozen(ToyTask):
        def model(self) -> Any:
            model = super().model()
            model.embedding.requires_grad_(False)
            return model

    trainer = toy_trainer(tmp_path, task=Frozen())
    before = weights(trainer)
    trainer.fit()
    after = weights(trainer)
    assert before["embedding.weight"].equal(after["embedding.weight"])
    assert not before["head.weight"].equal(after["head.weight"])


def test_max_steps_replaces_epochs(tmp_path: Path):
    trainer = toy_trainer(tmp_path, max_steps=5)
    trainer.fit()
    assert (trainer.position.step, trainer.position.epoch, trainer.position.place) == (5, 1, 3)


def test_a_step_has_the_whole_runs_learning_rate(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    for step in range(1, 9):
        assert one_step(trainer)[0].learning_rate == 0.01 * trainer.step.schedule(step)


def test_the_best_is_saved_though_nothing_else_is_due(tmp_path: Path):
    """Evaluated at 2, 4, 6 and 8; the third is the best."""
    task = ToyTask(scripted=iter([3.0, 4.0, 1.0, 2.0]))
    toy_trainer(tmp_path, task=task, validation={"interval": 2}).fit()
    saved = [path.name for path in list_checkpoints(tmp_path / "checkpoints")]
    assert saved == ["step-00000002", "step-00000006", "step-00000008"]
    assert (tmp_path / "checkpoints" / "best").read_text() == "step-00000006\n"


def test_minutes_since_the_last_save_ask_for_one(tmp_path: Path):
    trainer = toy_trainer(tmp_path, checkpoint={"interval_epochs": None, "interval_minutes": 30.0})
    trainer.exchange([])
    assert not trainer.save_due()
    trainer.saving.last_save -= 31 * 60
    trainer.position.step = 1
    trainer.exchange([])
    assert trainer.save_due()
    trainer.saving.save()
    trainer.exchange([])
    assert not trainer.save_due()
    trainer.saving.writer.finish()


def test_what_any_rank_asks_for_is_asked_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = toy_trainer(tmp_path)
    rule = ChunkRule(step=1, num_chunks=2).to_json()
    others = StepMessage(stop="SIGTERM", save=True, evaluate=True, chunk_rules=[[rule, "memory is short there"]])
    monkeypatch.setattr(trainer.ranks, "exchange", lambda mine: combine([mine, others]))
    trainer.exchange([])
    assert trainer.stop_reason == "SIGTERM"
    assert trainer.agreed == others
    assert trainer.state.chunk_rules.count(1, 0, 0.0) == 2
    assert trainer.requests == StepMessage(), "what was asked is asked once"


def test_counts_are_in_the_order_of_the_task_on_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first is what speed is told in; messages of several ranks are in the order of the alphabet."""
    trainer = language_model_trainer(tmp_path)
    others = StepMessage(counts={"a_unit_of_another_rank": 1.0})

    def exchange(mine: StepMessage) -> StepMessage:
        both = combine([mine, others])
        return replace(both, counts=dict(sorted(both.counts.items())))

    with closing(trainer.data.microbatches(trainer.position)) as microbatches:
        fetched = trainer.data.fetch(microbatches, trainer.position)
    own = count_units(fetched)
    assert list(own) != sorted(own)
    monkeypatch.setattr(trainer.ranks, "exchange", exchange)
    assert trainer.exchange(fetched) == own | others.counts
    assert list(trainer.exchange(fetched)) == [*own, "a_unit_of_another_rank"]


def test_the_first_reason_to_stop_stays(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    trainer.request_stop("patience is over")
    trainer.request_stop("SIGTERM")
    trainer.exchange([])
    assert trainer.stop_reason == "patience is over"


def test_a_metric_that_evaluations_do_not_give_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match=r"training.checkpoint.metric is val_wer, but evaluations give val_loss"):
        toy_trainer(tmp_path, checkpoint={"metric": "val_wer"}).fit()


def test_the_batch_of_a_rank_without_one_is_the_smallest_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = toy_trainer(tmp_path).data
    plan, lengths = data.planner.plan(0), data.dataset.lengths
    batch = data.dummy_batch()
    padded_size = len(batch.indices) * max(sum(lengths[index] for index in row) for row in batch.indices)
    assert padded_size == min(plan.padded_sizes(lengths))
    monkeypatch.setattr(data, "reader", None)
    assert data.dummy_batch() is batch
