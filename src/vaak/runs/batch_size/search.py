"""The largest batch that a model can be trained on here, and the quickest; found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vaak.config.load import Loaded
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.runs.batch_size.trials import OUT_OF_MEMORY, Trial, Trials
from vaak.runs.temporary_run import temporary_trainer

PRECISION = 16  # the largest is found to one part in this number
AS_QUICK = 0.97  # of the highest rate; the smallest batch that reaches it is called the quickest


@dataclass(frozen=True)
class Advice:
    """What was tried, and what follows: sizes of ``option``, and the accumulation that keeps the effective batch."""

    option: str
    device: str
    available_bytes: int
    trials: list[Trial]
    largest: int
    quickest: int
    size: int
    accumulation: int

    def as_json(self) -> dict[str, Any]:
        """All of it, with the options to take as ``advice``."""
        values = {name: value for name, value in vars(self).items() if name not in ("size", "accumulation")}
        values["trials"] = [{**vars(trial), "fits": trial.fits} for trial in self.trials]
        return values | {"advice": {self.option: self.size, "training.gradient_accumulation_steps": self.accumulation}}


def find_batch_size(
    loaded: Loaded,
    limit: int | None = None,
    up_to: int | None = None,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Advice:
    """The sizes that fit, of ``training.batch_size`` or of the budget of bucketed batches.

    Nothing is written into the run directory. ``limit`` is in bytes; ``up_to`` the largest size to try; ``tell`` is
    called with each trial.

    Raises UserError where not even one example fits, naming it.
    """
    training = loaded.experiment.training
    option = budget_option(training)
    with temporary_trainer(loaded) as trainer:
        trials = Trials(trainer, option, limit)
        smallest = 1 if option == "batch_size" else math.ceil(float(trainer.data.reader.dataset.lengths.max()))
        most = max(min(up_to or trials.most(), trials.most()), smallest)
        tried: list[Trial] = []
        with progress("trying batch sizes", 1.0) as advance:

            def told(trial: Trial) -> None:
                before = share_done(tried, most) if tried else 0.0
                tried.append(trial)
                advance(share_done(tried, most) - before)
                tell(trial)

            search(trials, smallest, most, told)
        fitting = [trial for trial in tried if trial.fits]
        if not fitting:
            raise UserError(_nothing_fits(trials, tried[0]))
        quickest = min(trial.size for trial in fitting if trial.rate >= AS_QUICK * max(t.rate for t in fitting))
        given = training.batch_size if option == "batch_size" else getattr(training.batching, option)
        size, accumulation = keep_effective(given, training.gradient_accumulation_steps, quickest, option)
        prefix = "training" if option == "batch_size" else "training.batching"
        return Advice(
            option=f"{prefix}.{option}",
            device=trainer.ranks.device.type,
            available_bytes=trials.available(),
            trials=tried,
            largest=max(trial.size for trial in fitting),
            quickest=quickest,
            size=size,
            accumulation=accumulation,
        )


def _nothing_fits(trials: Trials, trial: Trial) -> str:
    what_helps = (
        "shorten the example or leave it out, take a smaller model, or set training.performance.gradient_checkpointing "
        "or training.mixed_precision: bf16"
    )
    if trial.problem == OUT_OF_MEMORY:
        return f"out of memory: example {trials.names(trial.size)} does not fit even alone; {what_helps}"
    sizes = (trial.memory_bytes, trials.at_rest(), trials.available())
    needed, at_rest, available = (size / 2**30 for size in sizes)
    return (
        f"not even one row fits in memory: example {trials.names(trial.size)} needs {needed:.2f} GiB, of which "
        f"{at_rest:.2f} without any data, but {available:.2f} GiB are available; {what_helps}"
    )


def budget_option(training: TrainingConfig) -> str:
    """The option that says how large a batch is."""
    for name in ("max_tokens", "max_duration"):
        if training.batching.type == "bucketed" and getattr(training.batching, name) is not None:
            return name
    return "batch_size"


def search(trials: Trials, smallest: int, up_to: int, tell: Callable[[Trial], None]) -> list[Trial]:
    """Double until a size doesn't fit (or holds all there is), then halve what is between."""
    tried: list[Trial] = []

    def fits(size: int) -> bool:
        tried.append(trials.run(size))
        tell(tried[-1])
        return tried[-1].fits

    fitting, size = 0, smallest
    while fits(size):
        fitting = size
        if tried[-1].holds_all or size >= up_to:
            return tried
        size = min(2 * size, up_to)
    while fitting and size - fitting > max(1, fitting // PRECISION):
        middle = (fitting + size) // 2
        if fits(middle):
            fitting = middle
        else:
            size = middle
    return tried


def share_done(tried: Sequence[Trial], most: float) -> float:
    """The part of the search that is done after some trials, as far as one can know; it may end sooner.

    ``most`` is the size at which it ends if all of them fit.

    >>> [share_done([Trial(size, size, 0, {}) for size in (1, 2, 4, 8)[:number]], 16) for number in (1, 2, 4)]
    [0.2, 0.4, 0.8]
    """
    fitting = max((trial.size for trial in tried if trial.fits), default=0)
    refused = min((trial.size for trial in tried if not trial.fits), default=None)
    if refused is None:
        left = math.log2(max(most / fitting, 1))
    elif fitting:
        left = math.log2(max((refused - fitting) / max(1, fitting // PRECISION), 1))
    else:
        left = 0
    return len(tried) / (len(tried) + math.ceil(left))


def keep_effective(given: float, accumulation: int, most: int, option: str) -> tuple[int, int]:
    """A size of at most ``most``, and the accumulation that makes of it the effective batch of the configuration.

    Rows are divided without remainder; a budget is filled as far as it goes.

    >>> keep_effective(32, 2, 20, "batch_size"), keep_effective(4096, 1, 1500, "max_tokens")
    ((16, 4), (1365, 3))
    """
    effective = int(given * accumulation)
    if option != "batch_size":
        steps = math.ceil(effective / most)
        return effective // steps, steps
    size = next(size for size in range(min(most, effective), 0, -1) if effective % size == 0)
    return size, effective // size
