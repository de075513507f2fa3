"""One batch of 32, 4 of 8, and ranks that share them are one gradient: through the trainer's own step, in float64.

Two real processes are in tests/process/test_accumulation_ranks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from toy import ToyTask, next_data, next_microbatches, one_step, toy_trainer
from vaak.engine.distributed.exchange import OwnGradients, StepMessage
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import count_units

LOSSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "label smoothing": {"label_smoothing": 0.1},
    "auxiliary": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}},
    "a mean": {"main": {"type": "focal"}},
}


class OneRankOfMany(Ranks):
    """A rank that meets nobody: it keeps what it would have sent, its gradients and then its terms' sums."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(torch.device("cpu"), rank, world_size)
        self.sent: list[Tensor] = []

    def exchange(self, message: StepMessage) -> StepMessage:
        return message

    def gradients(self, parameters: Iterable[nn.Parameter], reduction: str = "float") -> OwnGradients:
        return SentGradients(parameters, self)


class SentGradients(OwnGradients):
    def __init__(self, parameters: Iterable[nn.Parameter], ranks: OneRankOfMany) -> None:
        super().__init__(parameters)
        self.ranks = ranks

    def reduce(self, sums: dict[str, Tensor], units: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        self.ranks.sent = [tensor.clone() for tensor in (*self.gradients, torch.stack(list(sums.values())))]
        return sums, units


def trainer_in_float64(
    folder: Path, loss: dict[str, Any], size: int, chunks: int, ranks: Ranks | None = None
) -> Trainer:
    return toy_trainer(
        folder,
        task=ToyTask(num_examples=96, dropout=0.0, dtype=torch.float64),
        ranks=ranks,
        loss=loss,
        batch_size=size,
        gradient_accumulation_steps=chunks,
        gradient_clipping={"norm": None},
    )


def assert_close(gradients: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float64
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_accumulation_gives_the_gradient_and_losses_of_one_batch(loss: dict[str, Any], tmp_path: Path):
    report, expected = one_step(trainer_in_float64(tmp_path, loss, 32, 1))
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    for size, chunks in ((8, 4), (4, 8), (1, 32)):
        other, gradients = one_step(trainer_in_float64(tmp_path, loss, size, chunks))
        assert_close(gradients, expected)
        assert other.counts == report.counts
        for name, total in report.losses.items():
            torch.testing.assert_close(other.losses[name], total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_gradients_add_up_to_that_of_one_process(world_size: int, tmp_path: Path):
    """With 3 ranks for 4 microbatches, one rank has two of them."""
    loss = LOSSES["auxiliary"]
    alone = trainer_in_float64(tmp_path, loss, 8, 4)
    counts = count_units(next_microbatches(alone))
    report, expected = one_step(alone)
    sent = []
    for rank in range(world_size):
        ranks = OneRankOfMany(rank, world_size)
        trainer = trainer_in_float64(tmp_path, loss, 8, 4, ranks)
        trainer.take_step(replace(next_data(trainer), counts=counts))
        sent.append(ranks.sent)
    sums = [torch.stack(parts).sum(0) for parts in zip(*sent, strict=True)]
    trained = [name for name, _ in alone.model.named_parameters()]
    assert_close(dict(zip(trained, sums[:-1], strict=True)), expected)
    totals = counts["token"] * torch.stack(list(report.losses.values()))
    torch.testing.assert_close(sums[-1], totals, rtol=1e-10, atol=1e-10)


def test_the_gradient_is_that_of_the_mean_over_tokens(tmp_path: Path):
    """Against a direct computation: all rows in one tensor, the mean over its tokens, plus the weighted z-loss."""
    trainer = trainer_in_float64(tmp_path, LOSSES["auxiliary"], 4, 8)
    tensors = [microbatch.batch for microbatch in next_microbatches(trainer)]
    rows = [
        (row[: int(count)], target[: int(count)])
        for batch in tensors
        if batch is not None
        for row, target, count in zip(batch["inputs"], batch["targets"], batch.counts["token"], strict=True)
    ]
    inputs, targets = (torch.cat(parts) for parts in zip(*rows, strict=True))
    logits = trainer.model(inputs)
    loss = (
        torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
        + 0.01 * logits.logsumexp(-1).square().mean()
    )
    names, parameters = zip(*trainer.model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    _, gradients = one_step(trainer)
    assert_close(gradients, expected)


def test_an_epochs_last_short_step_is_normalised_by_its_own_counts(tmp_path: Path):
    """Twelve microbatches in steps of five: the third step has two, and the gradient of one batch of both."""
    short = trainer_in_float64(tmp_path, {}, 8, 5)
    whole = trainer_in_float64(tmp_path, {}, 16, 1)
    short.position.step, short.position.place = 2, 10
    whole.position.step, whole.position.place = 5, 5
    report, gradients = one_step(short)
    assert report.ends_epoch
    assert (short.position.step, short.position.epoch, short.position.place) == (3, 1, 0)
    assert_close(gradients, one_step(whole)[1])
