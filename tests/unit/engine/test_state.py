"""A state restored from its snapshot is the state it was taken of: every field, whatever it holds, in any process."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from toy import IGNORED, StopAt, ToyTask, same_bits, toy_trainer, weights
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.training import TrainingConfig, ValidationConfig
from vaak.core.batch import Batch, Term
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.files import load_checkpoint, save_checkpoint
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.state import ChunkRule, State
from vaak.engine.trained import make_trained
from vaak.engine.trainer import Trainer
from vaak.testing.case import same
from vaak.testing.state import contents

RULES = ("adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit")
OPTIONS: dict[str, Any] = {
    "ema": {"decay": 0.9, "start_step": 2},
    "scheduler": {"type": "plateau", "patience": 0, "factor": 0.5},
    "validation": {"interval": 2},
    "optimizer": {"type": "muon", "lr": 0.01, "weight_decay": 0.1},
    "feature_redraw_interval": 2,
}


class Sharpened(nn.Module):
    """Cross entropy of sharpened scores: it learns how sharp, and keeps the mean of what it saw."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(logits.mean(), 0.5)
        return nn.functional.cross_entropy(
            self.sharpness * logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )


@dataclass
class SharpTask(ToyTask):
    """A toy whose loss function has a parameter and a buffer."""

    sharpened: Sharpened = field(default_factory=Sharpened)

    def loss_modules(self) -> dict[str, nn.Module]:
        return {"main": self.sharpened}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return {"main": Term(self.sharpened(model(batch["inputs"]), batch["targets"]), "token")}


def sharp_trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    return toy_trainer(folder, *callbacks, task=SharpTask(), **(OPTIONS | options))


def sharpness_of(trainer: Trainer) -> nn.Parameter:
    assert isinstance(trainer.task, SharpTask)
    return trainer.task.sharpened.sharpness


def begun(folder: Path, *, steps: int = 3, **options: Any) -> Trainer:
    """A trainer with something in every field of its state."""
    all_callbacks = [EarlyStoppingCallback(patience=99), StepLogCallback(3), EarlyStoppingCallback(patience=99)]
    trainer = sharp_trainer(folder, *all_callbacks, **options)
    trainer.state.loss_scale.enabled, trainer.state.loss_scale.value = True, 8.0  # as on a device that has fp16
    go_on(trainer, steps)
    return trainer


def go_on(trainer: Trainer, steps: int) -> None:
    """Take steps, evaluate, and cut a batch in chunks, which changes every field of a state."""
    trainer.config = trainer.config.model_copy(update={"validation": ValidationConfig()})
    with closing(trainer.data.steps(trainer.position)) as upcoming:
        for data in itertools.islice(upcoming, steps):
            trainer.notify("on_step_end", trainer.take_step(data))
    trainer.state.metrics.metrics = {"val_loss": -float(trainer.position.step)}
    trainer.state.metrics.scheduled = True
    trainer.state.best.observe(trainer.metrics, trainer.position.step)
    assert trainer.state.plateau is not None
    trainer.state.plateau.observe(trainer.metrics)
    trainer.notify("on_evaluate_end", trainer.metrics)
    trainer.state.position.non_finite_steps += 1
    trainer.state.loss_scale.update("overflow")
    trainer.state.precision.count_failure(trainer.position.step)
    trainer.state.chunk_rules.add(ChunkRule(trainer.position.step + 1, 2, padded_size=1e9), "out of memory")


def field_of(way: str) -> str:
    return way.split(".")[0]


def differing(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    """Return the fields in which two states differ, but for a log's clock, which restarts in each process."""
    ways = {way for way in first.keys() | second.keys() if not re.search(r"\.callbacks\.1\.(seconds|counts)\b", way)}
    return {field_of(way) for way in ways if way not in first or way not in second or not same(first[way], second[way])}


def restored_elsewhere(trainer: Trainer, folder: Path, **options: Any) -> Trainer:
    """Another trainer, with another past, that got the state by way of a checkpoint's files."""
    saved = load_checkpoint(save_checkpoint(folder / "saved", trainer.saving.snapshot()))
    other = begun(folder / "elsewhere", steps=1, **options)
    other.state.chunk_rules.rules = []  # what a folder's journal says holds besides
    other.restore(saved, folder)
    return other


@pytest.mark.parametrize("rule", RULES)
def test_every_field_is_what_it_was(rule: str, tmp_path: Path):
    """At once, after more steps, and elsewhere. Cuts are journalled and outlive a restore in their own folder."""
    options: dict[str, Any] = {"optimizer": {"type": rule, "lr": 0.01, "weight_decay": 0.1}}
    trainer = begun(tmp_path / "run", **options)
    every = {one.name for one in fields(State) if one.init}
    snapshot, before = trainer.state.snapshot(), contents(trainer.state)
    assert {field_of(way) for way in before} - {"is_whole"} == every, "each field holds something"
    trainer.state.restore(snapshot, tmp_path)
    assert differing(contents(trainer.state), before) == set()

    go_on(trainer, 2)
    assert differing(contents(trainer.state), before) == every, "each field has changed"
    trainer.state.restore(snapshot, tmp_path)
    assert differing(contents(trainer.state), before) == {"chunk_rules"}
    trainer.state.chunk_rules.rules.pop()
    assert "splits" in snapshot.state, "the key that checkpoints have had from the start"
    assert differing(contents(trainer.state), before) == set()

    other = restored_elsewhere(trainer, tmp_path, **options)
    assert differing(contents(other.state), before) == set()


def test_the_state_that_was_restored_takes_the_same_steps(tmp_path: Path):
    first = begun(tmp_path / "run")
    second = restored_elsewhere(first, tmp_path)
    for trainer in (first, second):
        go_on(trainer, 3)
    assert differing(contents(first.state), contents(second.state)) == set()


def test_a_snapshot_does_not_change_with_the_state(tmp_path: Path):
    trainer = begun(tmp_path)
    snapshot = trainer.state.snapshot()
    kept = {name: tensor.clone() for name, tensor in iterate_tensors(snapshot).items()}
    values = json.dumps(snapshot.state)
    go_on(trainer, 2)
    assert same_bits(iterate_tensors(snapshot), kept)
    assert json.dumps(snapshot.state) == values


def iterate_tensors(snapshot: Any) -> dict[str, Tensor]:
    parts = ("model", "loss", "optimizer", "average")
    return {f"{part}.{name}": tensor for part in parts for name, tensor in getattr(snapshot, part).items()}


def test_optional_fields_may_be_missing_on_either_side(tmp_path: Path):
    """A run that is resumed with an average or a plateau, and was begun without, begins them; and the other way."""
    plain = sharp_trainer(tmp_path / "plain", ema=None, scheduler={"type": "cosine"})
    full = begun(tmp_path / "full")
    plain.state.restore(full.state.snapshot(), tmp_path)
    assert same_bits(weights(plain), weights(full))
    assert plain.state.average is None
    assert plain.state.plateau is None
    fresh = sharp_trainer(tmp_path / "fresh")
    fresh.state.restore(plain.state.snapshot(), tmp_path)
    assert fresh.state.average is not None
    assert fresh.state.average.state_dict() == {}
    assert fresh.state.rate_factor == 1.0
    assert full.state.plateau is not None
    full.state.plateau.observe({"val_loss": 1e9})
    assert full.state.rate_factor == 0.5


def test_a_state_in_the_middle_of_an_update_is_not_saved_until_it_is_restored(tmp_path: Path):
    trainer = begun(tmp_path)
    snapshot, before = trainer.state.snapshot(), contents(trainer.state)

    def break_down() -> None:
        with trainer.state.changing(), torch.no_grad():
            trainer.model.get_parameter("head.weight").zero_()
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        break_down()
    with pytest.raises(AssertionError, match="in the middle of an update"):
        trainer.state.snapshot()
    trainer.state.restore(snapshot, tmp_path)
    assert differing(contents(trainer.state), before) == set()
    assert same_bits(iterate_tensors(trainer.state.snapshot()), iterate_tensors(snapshot))


def without_head(tensors: dict[str, Tensor]) -> None:
    tensors.pop("head.weight", None)
    tensors.pop("main.sharpness", None)


def wider(tensors: dict[str, Tensor]) -> None:
    for name in tensors:
        tensors[name] = tensors[name].new_zeros(5, 5)


@pytest.mark.parametrize("change", [without_head, wider])
@pytest.mark.parametrize("part", ["model", "loss"])
def test_a_snapshot_of_other_weights_is_refused_by_name(
    part: str, change: Callable[[dict[str, Tensor]], None], tmp_path: Path
):
    trainer = begun(tmp_path)
    snapshot, own = trainer.state.snapshot(), weights(trainer)
    change(getattr(snapshot, part))
    named = "head.weight" if part == "model" else "main.sharpness"
    with pytest.raises(CheckpointError, match=rf"somewhere: .*from another model: .*{named}"):
        trainer.state.restore(snapshot, Path("somewhere"))
    assert same_bits(weights(trainer), own)


# Loss functions that have parameters and buffers.


def test_a_loss_function_is_trained_saved_and_resumed_to_the_bit(tmp_path: Path):
    options: dict[str, Any] = {"checkpoint": {"interval": 1}, "scheduler": {"type": "cosine"}}
    once = sharp_trainer(tmp_path / "once", **options)
    start = iterate_tensors(once.saving.snapshot())["loss.main.sharpness"]
    once.fit()
    assert not iterate_tensors(once.saving.snapshot())["loss.main.sharpness"].equal(start)
    for step in range(1, 10):
        again = sharp_trainer(tmp_path / "again", StopAt(step), **options)
        again.resume("auto")
        again.fit()
    assert again.position == once.position
    assert same_bits(*(iterate_tensors(one.saving.snapshot()) for one in (once, again)))
    saved = load_checkpoint(again.checkpoints / "step-00000008")
    assert set(saved.loss) == {"main.sharpness", "main.mean"}
    assert saved.loss["main.sharpness"].equal(sharpness_of(again))


def test_a_loss_functions_gradient_is_clipped_and_counted_with_the_others(tmp_path: Path):
    """The norm that is reported is that of all that is trained."""
    trainer = sharp_trainer(tmp_path, gradient_clipping={"norm": None}, optimizer={"type": "sgd", "lr": 0.1})
    norms: list[Tensor] = []

    def remember(*_: Any) -> None:
        parameters = [*trainer.model.parameters(), sharpness_of(trainer)]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        assert len(gradients) == len(parameters)
        norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm())

    trainer.state.optimizers[0].register_step_pre_hook(remember)
    with closing(trainer.data.steps(trainer.position)) as steps:
        report = trainer.take_step(next(steps))
    assert float(report.gradient_norm) == pytest.approx(float(norms[0]), rel=1e-6)


def test_a_loss_function_is_moved_to_the_device_of_the_model(tmp_path: Path):
    task = SharpTask()
    trained = make_trained(task, TrainingConfig(device="cpu"), Ranks(torch.device("meta")), "no")
    assert trained.losses["main"] is task.sharpened
    tensors = [*trained.module.parameters(), *task.sharpened.parameters(), *task.sharpened.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_a_rehearsal_leaves_a_loss_functions_buffers_as_they_were(tmp_path: Path):
    ends = []
    for rehearsal in (False, True):
        trainer = sharp_trainer(tmp_path / str(rehearsal), memory={"rehearsal": rehearsal})
        trainer.fit()
        ends.append(iterate_tensors(trainer.saving.snapshot()))
    assert same_bits(*ends)


def test_looking_into_a_step_that_is_not_finite_leaves_a_loss_function_as_it_was(tmp_path: Path):
    trainer = begun(tmp_path)
    (objective,) = trainer.step.objectives
    before = contents(trainer.state)
    with closing(trainer.data.steps(trainer.position)) as steps:
        trainer.step.diagnosis.of(objective, trainer.state, next(steps), trainer.model)
    assert differing(contents(trainer.state), before) == set()
    assert sharpness_of(trainer).grad is None


def test_counting_operations_leaves_a_loss_function_as_it_was(tmp_path: Path):
    trainer = begun(tmp_path)
    before = contents(trainer.state)
    assert trainer.count_work(peak_tflops=1.0) is not None
    assert differing(contents(trainer.state), before) == set()
