"""A run resumed with other batches sees each example of each epoch once and ends where its epochs do, or is refused."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toy import StopAt, ToyDataset, toy_trainer
from vaak.core.errors import CheckpointError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.checkpoint.place import PlanKind, converted_place
from vaak.engine.optim.schedules import make_schedule
from vaak.engine.state import Position
from vaak.engine.trainer import Trainer

OPTIONS: dict[str, Any] = {"epochs": 3, "memory": {"rehearsal": False}}
"""Ten microbatches of four examples an epoch."""

BUCKETED: dict[str, Any] = {"batching": {"type": "bucketed", "max_tokens": 30, "num_buckets": 3}}
CURRICULUM: dict[str, Any] = {"curriculum": {"difficulty": "length", "initial_difficulty": 0.2, "num_epochs": 2}}


class Seen(Callback):
    """How often each example was trained on, by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, Counter[int]] = {}

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        for microbatch in trainer.last[0].microbatches:
            assert microbatch.address.epoch == report.epoch
            rows = microbatch.address.rows
            self.epochs.setdefault(report.epoch, Counter()).update(index for row in rows for index in row)


def run(folder: Path, seen: Seen, *, stop: int | None = None, **options: Any) -> Trainer:
    callbacks = [seen] if stop is None else [seen, StopAt(stop)]
    trainer = toy_trainer(folder, *callbacks, **(OPTIONS | options))
    trainer.resume("auto")
    trainer.fit()
    return trainer


def assert_each_once(seen: Seen, epochs: int = 3, examples: int = 40) -> None:
    assert seen.epochs == {epoch: Counter(range(examples)) for epoch in range(epochs)}


def ends_whole(trainer: Trainer, epochs: int = 3) -> bool:
    return (trainer.position.epoch, trainer.position.place, trainer.is_finished) == (epochs, 0, True)


def assert_accumulation_may_change(folder: Path, before: int, after: int, **batching: Any) -> None:
    """Stopped after each step, resumed with another number of microbatches a step: the same examples an epoch."""
    whole = Seen()
    steps = run(folder / "whole", whole, gradient_accumulation_steps=before, **batching).total_steps
    if "curriculum" not in batching:
        assert_each_once(whole)
    for stop in range(1, steps + 1):
        seen = Seen()
        run(folder / str(stop), seen, stop=stop, gradient_accumulation_steps=before, **batching)
        resumed = run(folder / str(stop), seen, gradient_accumulation_steps=after, **batching)
        assert ends_whole(resumed), stop
        assert resumed.position.step == resumed.total_steps
        assert seen.epochs == whole.epochs, stop


@pytest.mark.parametrize(
    ("before", "after"),
    [*(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((3, 6), (3, 1), (6, 3))), (4, 20)],
)
def test_accumulation_changed_at_every_step(before: int, after: int, tmp_path: Path):
    assert_accumulation_may_change(tmp_path, before, after)


@pytest.mark.parametrize(
    "batching", [BUCKETED, pytest.param(CURRICULUM, marks=pytest.mark.slow)], ids=["bucketed", "curriculum"]
)
def test_accumulation_changed_at_every_step_of_other_plans(batching: dict[str, Any], tmp_path: Path):
    assert_accumulation_may_change(tmp_path, 5, 3, **batching)


def test_accumulation_changed_again_and_again(tmp_path: Path):
    seen = Seen()
    for stop, size in zip((2, 3, 5, 6, 9), (3, 2, 1, 7, 4), strict=True):
        run(tmp_path, seen, stop=stop, gradient_accumulation_steps=size)
    assert ends_whole(run(tmp_path, seen, gradient_accumulation_steps=5))
    assert_each_once(seen)


def test_the_schedule_ends_where_the_run_does(tmp_path: Path):
    """Ten steps an epoch instead of four, from the third step on: the rate has fallen to nothing at the last."""
    seen = Seen()
    run(tmp_path, seen, stop=3)
    resumed = run(tmp_path, seen, gradient_accumulation_steps=1)
    assert resumed.total_steps == 3 + 1 + 20
    expected = make_schedule(resumed.config.scheduler, 24, resumed.config.optimizer.lr)
    assert [resumed.step.schedule(step) for step in range(1, 25)] == [expected(step) for step in range(1, 25)]
    assert expected(24) < 0.01


def test_max_steps_are_counted_as_they_are(tmp_path: Path):
    seen = Seen()
    run(tmp_path, seen, stop=3, max_steps=8)
    assert run(tmp_path, seen, max_steps=8, gradient_accumulation_steps=1).position.step == 8


@pytest.mark.parametrize("after", [6, 1])
def test_a_finished_run_stays_finished_and_may_be_extended(after: int, tmp_path: Path):
    seen = Seen()
    step = run(tmp_path, seen).position.step
    again = run(tmp_path, seen, gradient_accumulation_steps=after)
    assert (again.position.step, ends_whole(again)) == (step, True)
    assert ends_whole(run(tmp_path, seen, gradient_accumulation_steps=after, epochs=5), epochs=5)
    assert_each_once(seen, epochs=5)


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(4, 8, marks=pytest.mark.slow), (8, 4), (4, 3), pytest.param(7, 40, marks=pytest.mark.slow)],
)
def test_another_batch_size_is_taken_over_exactly_or_refused(before: int, after: int, tmp_path: Path):
    """One line reports that the examples seen so far aren't a whole number of the new batches."""
    steps = run(tmp_path / "whole", Seen(), batch_size=before).total_steps
    taken = 0
    for stop in range(1, steps + 1):
        folder, seen = tmp_path / str(stop), Seen()
        done = run(folder, seen, stop=stop, batch_size=before).position
        if done.place * before % after:
            with pytest.raises(CheckpointError) as raised:
                run(folder, seen, batch_size=after)
            said = str(raised.value)
            assert f"step-{stop:08d} is within epoch {done.epoch + 1}, at batch {done.place} of" in said
            assert f"{done.place * before} examples of the epoch are done" in said
            assert "restore training.batch_size" in said
            assert "\n" not in said
        else:
            assert ends_whole(run(folder, seen, batch_size=after)), stop
            assert_each_once(seen)
            taken += 1
    assert taken >= 3, "at the ends of epochs at least"


def test_other_batches_of_several_parts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They come in another order, so as many examples on, some would be trained on twice, and others not at all."""
    monkeypatch.setattr(ToyDataset, "parts", property(lambda self: np.arange(len(self.lengths)) % 3))
    run(tmp_path, Seen(), stop=2, batch_size=4)
    with pytest.raises(CheckpointError, match="other batches have another order of examples"):
        run(tmp_path, Seen(), batch_size=8)
    assert ends_whole(run(tmp_path, Seen(), batch_size=4))


def test_both_may_change_at_once(tmp_path: Path):
    seen = Seen()
    run(tmp_path, seen, stop=6)  # place 6: 24 examples
    assert ends_whole(run(tmp_path, seen, batch_size=8, gradient_accumulation_steps=2))
    assert_each_once(seen)


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the size of buckets": (BUCKETED, {"batching": BUCKETED["batching"] | {"max_tokens": 40}}),
    "to buckets": ({}, BUCKETED),
    "from buckets": (BUCKETED, {}),
    "to a curriculum": ({}, CURRICULUM),
    "another curriculum": (CURRICULUM, {"curriculum": CURRICULUM["curriculum"] | {"pacing": "root"}}),
    "the curriculum's batches": (CURRICULUM, CURRICULUM | {"batch_size": 8}),
    "another order": ({}, {"random_seed": 43}),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_another_order_of_examples_is_refused_within_an_epoch(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
):
    run(tmp_path, Seen(), stop=2, **before)
    with pytest.raises(CheckpointError, match=r"is within epoch 1.*other batches have another order of examples;") as e:
        run(tmp_path, Seen(), **after)
    assert str(e.value).endswith("or resume from a checkpoint at the end of an epoch")
    run(tmp_path, Seen(), **before)


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_at_the_end_of_an_epoch_any_other_batches_go_on(before: dict[str, Any], after: dict[str, Any], tmp_path: Path):
    first = Seen()
    plain = toy_trainer(tmp_path, **(OPTIONS | before))
    run(tmp_path, first, stop=plain.data.steps_per_epoch, **before)
    assert ends_whole(run(tmp_path, later := Seen(), **after))
    assert sorted(first.epochs) == [0]
    assert sorted(later.epochs) == [1, 2]
    if "curriculum" not in after:
        assert later.epochs == {epoch: Counter(range(40)) for epoch in (1, 2)}


def test_a_checkpoint_of_earlier_versions_resumes_in_the_same_batches_and_is_refused_in_others(tmp_path: Path):
    """They wrote the hashes of data and plan as one text, and not how many batches an epoch has."""
    first = run(tmp_path, Seen(), stop=1)
    snapshot = load_checkpoint(tmp_path / "checkpoints" / "step-00000001")
    snapshot.state["data"] += f" {first.data.plan_fingerprint}"
    del snapshot.state["plan"]
    same = toy_trainer(tmp_path / "same", **OPTIONS)
    same.restore(snapshot, tmp_path)
    assert (same.position.step, same.position.place) == (1, 3)
    with pytest.raises(CheckpointError, match=r"is within epoch 1, at batch 3, and the batches are different now"):
        toy_trainer(tmp_path / "other", **OPTIONS, **BUCKETED).restore(snapshot, tmp_path)


sizes = st.integers(1, 12)


@given(examples=st.integers(1, 60), before=sizes, after=sizes, share=st.floats(0, 0.999))
def test_a_place_that_is_taken_over_is_as_many_examples_on(examples: int, before: int, after: int, share: float):
    def kind(rows: int) -> PlanKind:
        return PlanKind(f"plan of {rows}", rows, math.ceil(examples / rows))

    position = Position(step=9, epoch=1, place=int(share * math.ceil(examples / before)))
    seen = position.place * before
    try:
        place = converted_place(position, kind(before), kind(after), Path("somewhere"))
    except CheckpointError:
        assert seen % after
    else:
        assert place * after == seen
        assert place < max(1, kind(after).epoch_size)
