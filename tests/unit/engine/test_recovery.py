"""A step that runs out of memory is redone in chunks, to the same weights; an example too large alone is named."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backwards import out_of_memory
from quick_cases import mostly_slow
from shortage import SmallMachine
from toy import StopAt, ToyTask, same_bits, toy_trainer, weights
from vaak.core.batch import Batch, FirstPass, Term
from vaak.core.errors import UserError
from vaak.engine.callback import Callback
from vaak.engine.checkpoint.files import list_checkpoints
from vaak.engine.distributed.exchange import StepMessage, combine
from vaak.engine.gradient import MicrobatchChunk
from vaak.engine.state import ChunkRule, Position
from vaak.engine.trainer import Trainer

QUIET: dict[str, Any] = {"batch_size": 8, "gradient_accumulation_steps": 2, "epochs": 2}


def trained(folder: Path, task: ToyTask, *callbacks: Callback, **training: Any) -> Trainer:
    trainer = toy_trainer(folder, *callbacks, task=task, **(QUIET | training))
    if isinstance(task, SmallMachine):
        task.trainer = trainer
    trainer.resume("auto")
    trainer.fit()
    return trainer


def journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "splits.jsonl"
    return [json.loads(line)["cut"] for line in path.read_text().splitlines()] if path.exists() else []


def later_chunks(trainer: Trainer) -> list[int]:
    """In how many chunks each microbatch of the second epoch is computed."""
    second = Position(step=3, epoch=1)
    read = itertools.islice(trainer.data.microbatches(second), trainer.data.epoch_size)
    return [trainer.state.chunk_rules.count(4, 0, trainer.data.padded_size(microbatch)) for microbatch in read]


def assert_equal_to_rounding(one: Trainer, other: Trainer) -> None:
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("most_rows", "chunks"), mostly_slow([(4, 2), (3, 4), (1, 8)], 3))
def test_without_dropout_the_weights_are_those_of_a_large_machine(
    where: str, most_rows: int, chunks: int, tmp_path: Path
):
    """In float64, with a buffer that is redrawn, and two microbatches a step."""
    options: dict[str, Any] = {"feature_redraw_interval": 2, "memory": {"rehearsal": False}}
    options["loss"] = {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}
    toy: dict[str, Any] = {"dropout": 0.0, "dtype": torch.float64}
    large = trained(tmp_path / "large", ToyTask(**toy), **options)
    small = trained(tmp_path / "small", SmallMachine(**toy, where=where, most_rows=most_rows, in_step=4), **options)
    assert_equal_to_rounding(small, large)
    cuts = journal(tmp_path / "small")
    sizes = list(dict.fromkeys(cut["cells"] for cut in cuts))
    assert sizes == sorted(sizes, reverse=True), "only a smaller microbatch is a new case"
    halved = [2**n for n in range(1, chunks.bit_length())]
    for size in sizes:
        assert [cut["pieces"] for cut in cuts if cut["cells"] == size] == halved
    first = {"step": 4, "numbers": [0, 1], "split": None, "rank": 0, "cells": sizes[0], "objective": 0}
    assert cuts[: len(halved)] == [first | {"pieces": number} for number in halved]
    assert journal(tmp_path / "large") == []


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_with_dropout_a_resumed_run_repeats_the_cut_one_to_the_bit(stop: int, tmp_path: Path):
    """Stopped before, at and after the step that was cut. The machine is larger from then on: the cut stays."""
    options: dict[str, Any] = {"checkpoint": {"interval": 1, "save_total_limit": None}, "memory": {"rehearsal": False}}
    once = trained(tmp_path / "once", SmallMachine(until_step=3), **options)
    trained(tmp_path / "again", SmallMachine(until_step=3), StopAt(stop), **options)
    again = trained(tmp_path / "again", SmallMachine(until_step=3 if stop < 3 else 0), **options)
    assert again.position.step == once.position.step
    assert later_chunks(once) == later_chunks(again)
    assert 2 in later_chunks(once)
    assert same_bits(weights(again), weights(once))


def test_killed_behind_the_cut_and_before_its_checkpoint_the_journal_repeats_it(tmp_path: Path):
    """The journal is all that is left of the cut: the checkpoint is from before it."""
    options: dict[str, Any] = {"checkpoint": {"interval": 2, "save_total_limit": None}, "memory": {"rehearsal": False}}
    once = trained(tmp_path / "once", SmallMachine(until_step=3), **options)

    class Killed(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            if report.step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "again", SmallMachine(until_step=3), Killed(), **options)
    assert len(journal(tmp_path / "again")) == 1
    again = trained(tmp_path / "again", SmallMachine(until_step=0), **options)
    assert later_chunks(once) == later_chunks(again)
    assert same_bits(weights(again), weights(once))


def test_a_checkpoint_keeps_the_cuts_for_a_run_elsewhere(tmp_path: Path):
    first = trained(tmp_path / "first", SmallMachine(), StopAt(4))
    (tmp_path / "second").mkdir()
    second = toy_trainer(tmp_path / "second", task=SmallMachine(), **QUIET)
    second.resume(str(first.directory / "checkpoints" / "last"))
    assert second.state.chunk_rules.count(5, 0, 1000.0) == 2


def test_one_example_too_large_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"out of memory in step 3: example \d+ \(toy.txt line \d+\) does not fit") as e:
        trained(tmp_path, SmallMachine(most_rows=0), memory={"rehearsal": False})
    assert "\n" not in str(e.value)
    assert journal(tmp_path) == [], "what didn't help isn't kept"


def test_caches_in_the_way_of_a_single_example_are_emptied_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One row, no memory: memory is freed, and then it fits."""
    task, freed = SmallMachine(most_rows=0), []

    def free(device: torch.device) -> None:
        freed.append(device)
        task.most_rows = 1000

    monkeypatch.setattr("vaak.engine.gradient.free_memory", free)
    trained(tmp_path, task, batch_size=1, max_steps=3, memory={"rehearsal": False})
    assert len(freed) == 1
    assert journal(tmp_path) == []


@dataclass
class Writing(SmallMachine):
    """Its losses write into the batch that they are given."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        batch.tensors["inputs"] = (batch["inputs"] + 1) % 7
        return super().losses(model, batch)


def test_what_losses_wrote_into_a_batch_is_gone_when_it_is_computed_again(tmp_path: Path):
    toy: dict[str, Any] = {"dropout": 0.0, "dtype": torch.float64}
    large = trained(tmp_path / "large", Writing(**toy, most_rows=1000), memory={"rehearsal": False})
    small = trained(tmp_path / "small", Writing(**toy, most_rows=4, in_step=2), memory={"rehearsal": False})
    assert journal(tmp_path / "small")
    assert_equal_to_rounding(small, large)


def test_without_recovery_the_run_ends_with_a_line_that_says_so(tmp_path: Path):
    with pytest.raises(UserError, match=r"out of memory in step 3 .*training\.memory\.recovery"):
        trained(tmp_path, SmallMachine(), memory={"rehearsal": False, "recovery": False})


class NotSplittable(SmallMachine):
    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = super().losses(model, batch)
        return terms | {"balance": Term(terms["main"].total * 0.0, "token", splittable=False)}


def test_a_loss_that_is_no_sum_over_examples_is_never_cut(tmp_path: Path):
    with pytest.raises(UserError, match=r"the loss balance is not a sum over examples"):
        trained(tmp_path, NotSplittable(), memory={"rehearsal": False})


SAVED: dict[str, Any] = {"checkpoint": {"interval": 1, "save_total_limit": None}, "memory": {"rehearsal": False}}


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_cut_that_nobody_can_follow_is_not_written_down(where: str, tmp_path: Path):
    """With enough memory, the run resumes as if nothing had been."""
    with pytest.raises(UserError, match=r"the loss balance is not a sum over examples"):
        trained(tmp_path / "small", NotSplittable(where=where), **SAVED)
    assert journal(tmp_path / "small") == []
    again = trained(tmp_path / "small", NotSplittable(in_step=1000), **SAVED)
    large = trained(tmp_path / "large", NotSplittable(in_step=1000), **SAVED)
    assert same_bits(weights(again), weights(large))


def test_an_earlier_cut_that_cannot_be_followed_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The losses have changed since, or an earlier version wrote it down too soon."""
    trained(tmp_path, SmallMachine(), StopAt(4), **SAVED)
    assert journal(tmp_path)
    again = trained(tmp_path, NotSplittable(in_step=1000), **SAVED)
    assert again.is_finished
    assert caplog.text.count("the loss balance is not a sum over examples: they are whole") == 1


def test_an_earlier_cut_that_cannot_be_followed_and_too_little_memory_is_an_error(tmp_path: Path):
    trained(tmp_path, SmallMachine(), StopAt(4), **SAVED)
    with pytest.raises(UserError, match=r"out of memory, and the loss balance is not a sum over examples"):
        trained(tmp_path, NotSplittable(in_step=6), **SAVED)


class Centred(SmallMachine):
    """A loss whose weight is the mean of something over the whole step, which the first pass finds."""

    def first_pass(self, model: nn.Module, batch: Batch) -> FirstPass:
        assert self.trainer is not None
        is_full = self.where == "first pass" and self.trainer.position.step + 1 >= self.in_step
        if is_full and batch.num_rows > self.most_rows:
            raise out_of_memory()
        total = ToyTask.losses(self, model, batch)["main"].total
        return FirstPass({"total": total}, {"row": torch.arange(batch.num_rows)})

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = super().losses(model, batch)
        sums = batch.step_sums or {"total": terms["main"].total.detach()}
        assert batch.step_sums is None or len(batch["row"]) == batch.num_rows
        return terms | {"centred": Term(terms["main"].total * sums["total"], "token", batch.step_sums is not None)}


@pytest.mark.parametrize("where", ["first pass", "forward", "backward"])
def test_what_a_first_pass_finds_is_that_of_the_whole_step_in_chunks_too(where: str, tmp_path: Path):
    toy: dict[str, Any] = {"dropout": 0.0, "dtype": torch.float64}
    large = trained(tmp_path / "large", Centred(**toy, in_step=1000), memory={"rehearsal": False})
    small = trained(tmp_path / "small", Centred(**toy, where=where, most_rows=3), memory={"rehearsal": False})
    assert journal(tmp_path / "small")
    assert_equal_to_rounding(small, large)


def test_a_bug_is_not_taken_for_it(tmp_path: Path):
    class Buggy(ToyTask):
        def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
            raise RuntimeError("shapes can't be multiplied")

    with pytest.raises(RuntimeError, match="shapes can't be multiplied"):
        trained(tmp_path, Buggy())


# Before the first step.


def test_a_rehearsal_finds_it_before_the_first_step(tmp_path: Path):
    started: list[int] = []

    class First(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            started.append(trainer.state.chunk_rules.count(report.step, 0, 1000.0))

    trained(tmp_path, SmallMachine(in_step=1), First())
    rehearsed = journal(tmp_path)
    padded_size = rehearsed[0]["cells"]
    whole = {"step": 1, "pieces": 2, "numbers": None, "split": None, "rank": 0, "cells": padded_size, "objective": 0}
    assert rehearsed[0] == whole
    assert set(started) == {2}
    later = rehearsed[1:]
    assert all(cut["cells"] < padded_size for cut in later), "what is as large as the one rehearsed never fails again"


@pytest.mark.parametrize("rule", ["adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit"])
def test_a_rehearsal_changes_nothing(rule: str, tmp_path: Path):
    """Weights, moments, buffers: all as without, to the bit, also with dropout, redraws and accumulation."""
    options: dict[str, Any] = {"optimizer": {"type": rule, "weight_decay": 0.1}, "feature_redraw_interval": 2}
    plain = trained(tmp_path / "plain", ToyTask(), **options, memory={"rehearsal": False})
    rehearsed = trained(tmp_path / "rehearsed", ToyTask(), **options, memory={"rehearsal": True})
    assert same_bits(weights(rehearsed), weights(plain))
    assert same_bits(rehearsed.saving.snapshot().optimizer, plain.saving.snapshot().optimizer)


@pytest.mark.parametrize("rule", ["adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit"])
def test_no_room_for_the_first_update_is_found_in_the_rehearsal_and_tried_again(rule: str, tmp_path: Path):
    """The optimizer runs out of memory half-way through its first step: its state is dropped, and made once more."""
    options: dict[str, Any] = {"optimizer": {"type": rule}}
    expected = trained(tmp_path / "expected", ToyTask(), **options)
    trainer = toy_trainer(tmp_path / "full", task=ToyTask(), **(QUIET | options))
    first = trainer.state.optimizers[0]
    step, calls = first.step, iter([True])

    def full_once() -> Any:
        result = step()
        if next(calls, False):
            for group in first.param_groups:  # as far as it got
                for parameter in group["params"][1:]:
                    first.state.pop(parameter, None)
            raise out_of_memory()
        return result

    first.step = full_once  # type: ignore[assignment,method-assign]
    trainer.fit()
    assert same_bits(weights(trainer), weights(expected))
    assert same_bits(trainer.saving.snapshot().optimizer, expected.saving.snapshot().optimizer)


def test_no_room_for_the_optimizer_at_all_is_an_error_before_the_first_step(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(), **QUIET)

    def full() -> None:
        raise out_of_memory()

    trainer.state.optimizers[0].step = full  # type: ignore[assignment,method-assign]
    with pytest.raises(UserError, match="the state of the optimizer AdamW does not fit"):
        trainer.fit()
    assert trainer.position.step == 0


def test_an_error_of_shape_shows_before_the_first_step(tmp_path: Path):
    """Only the longest batch, which comes late, is too long for the model."""

    class Short(ToyTask):
        def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
            if batch["inputs"].shape[1] > 8:
                raise ValueError("position 8 is out of range")
            return super().losses(model, batch)

    steps: list[int] = []

    class Count(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            steps.append(report.step)

    with pytest.raises(ValueError, match="position 8"):
        trained(tmp_path, Short(), Count(), batch_size=1)
    assert steps == []


def test_asked_to_cut_finer_all_later_steps_are(tmp_path: Path):
    class Asks(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            if report.step == 2:
                trainer.split_microbatches("memory is at 90 %")

    trainer = trained(tmp_path, ToyTask(), Asks())
    (cut,) = journal(tmp_path)
    padded_size = cut["cells"]
    assert cut == {
        "step": 3, "pieces": 2, "numbers": None, "split": None, "rank": 0, "cells": padded_size, "objective": 0
    }  # fmt: skip
    assert [trainer.state.chunk_rules.count(step, 0, padded_size) for step in (2, 3)] == [1, 2]
    assert trainer.state.chunk_rules.count(3, 0, padded_size - 1) == 1


@pytest.mark.parametrize("task", [NotSplittable(most_rows=1000), ToyTask()], ids=["no sum", "rows already"])
def test_what_can_be_cut_no_finer_is_not(task: ToyTask, tmp_path: Path):
    class Asks(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            trainer.split_microbatches("memory is at 90 %")

    trainer = trained(tmp_path, task, Asks())
    cuts = journal(tmp_path)
    if isinstance(task, NotSplittable):
        assert cuts == []
    else:
        assert max(cut["pieces"] for cut in cuts) == 8, "eight rows"
        for number, cut in enumerate(cuts):
            before = [known["pieces"] for known in cuts[:number] if known["cells"] <= cut["cells"]]
            assert cut["pieces"] == 2 * max(before, default=1)
    assert trainer.position.step == trainer.total_steps


def test_no_room_in_the_midst_of_a_later_update_ends_the_run_without_saving_it(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(), **QUIET, checkpoint={"interval": 1})
    step, calls = trainer.state.optimizers[0].step, iter(range(4))  # the rehearsal's, and two steps

    def full() -> Any:
        if next(calls) == 3:
            raise out_of_memory()
        return step()

    trainer.state.optimizers[0].step = full  # type: ignore[assignment,method-assign]
    with pytest.raises(UserError, match="in the middle of the update of step 3"):
        trainer.fit()
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000001", "step-00000002"]


# Evaluation.


def test_an_evaluation_is_begun_again_in_chunks_to_the_same_metrics(tmp_path: Path):
    options: dict[str, Any] = {"validation": {"interval": 2, "batch_size": 8}}
    large = trained(tmp_path / "large", ToyTask(dropout=0.0, dtype=torch.float64), **options)
    task = SmallMachine(dropout=0.0, dtype=torch.float64, most_rows=1000, meters_rows=3)
    small = trained(tmp_path / "small", task, **options)
    assert small.metrics == pytest.approx(large.metrics, rel=1e-10)
    assert_equal_to_rounding(small, large)
    cuts = journal(tmp_path / "small")
    assert [(cut["step"], cut["split"], cut["pieces"]) for cut in cuts] == [(2, "valid", 2), (2, "valid", 4)]


def test_an_example_too_large_to_be_evaluated_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"while valid was evaluated: example \d+ \(toy.txt line \d+\) does not fit"):
        trained(tmp_path, SmallMachine(most_rows=1000, meters_rows=0), validation={"interval": 2})


# Several ranks, each of which knows only its own shortage.


def test_ranks_take_over_what_another_had_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = toy_trainer(tmp_path, task=ToyTask(), **QUIET)
    rule = ChunkRule(step=1, num_chunks=4, numbers=(1,), padded_size=9.0).to_json()
    others = StepMessage(chunk_rules=[[rule, "rank 1 ran out"]])
    monkeypatch.setattr(trainer.ranks, "exchange", lambda mine: combine([mine, others]))
    trainer.exchange([])
    assert [trainer.state.chunk_rules.count(1, 0, padded_size) for padded_size in (8.0, 9.0)] == [1, 4]
    trainer.exchange([])
    assert len(journal(tmp_path)) == 1


def test_two_chunks_of_a_microbatch_draw_otherwise_and_each_as_before(tmp_path: Path):
    """Two with the same rows, as after a split: dropout has other masks in each, and the same ones again."""
    trainer = toy_trainer(tmp_path, task=ToyTask(dropout=0.5), **QUIET)
    trainer.model.train()
    with closing(trainer.data.steps(trainer.position)) as steps:
        data = next(steps)
    forward = trainer.step.objectives[0].gradient.forward
    batch = data.microbatches[0].batch
    assert batch is not None

    def loss(step: int, number: int, chunk: int) -> float:
        with torch.no_grad():
            terms = forward.terms(step, MicrobatchChunk(batch, number, chunk, 2))
        return float(sum(term.total for term in terms.values()))

    one = loss(1, 0, 0)
    assert loss(1, 0, 0) == one
    others = {loss(1, 0, 1), loss(1, 1, 0), loss(2, 0, 0)}
    assert len({one, *others}) == 4
