"""Callbacks, which watch a run and may ask it to stop, evaluate or save; and what each step reports to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vaak.core.batch import get_divisor

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vaak.config.training import TrainingConfig
    from vaak.engine.distributed.ranks import Ranks
    from vaak.engine.evaluation import Pictures
    from vaak.engine.metrics_file import Records
    from vaak.engine.phases import Phases
    from vaak.engine.state import Best, Position


@dataclass(frozen=True)
class ForwardWork:
    """The seconds that a run's devices need at their peak to train on one ``unit`` (token, frame, ...)."""

    unit: str
    seconds: float


class Run(Protocol):
    """The run, as far as a callback may use it: it reads, and requests changes by the methods below."""

    # What never changes.
    directory: Path
    config: TrainingConfig
    loss_weights: dict[str, float]
    ranks: Ranks
    records: Records
    pictures: Pictures
    best: Best
    """The best metric so far, by training.checkpoint.metric."""
    phases: Phases

    @property
    def total_steps(self) -> int:
        """The step at which the run ends."""
        ...

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        ...

    @property
    def padding_waste(self) -> float:
        """The fraction of the batches that is padding."""
        ...

    @property
    def num_workers(self) -> int:
        """The processes that load this process's training data; 0: it does so itself."""
        ...

    # The present state.
    @property
    def position(self) -> Position: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        ...

    @property
    def scheduled_evaluation(self) -> bool:
        """Whether the last evaluation was a scheduled one; only these may change what training depends on."""
        ...

    def learning_rates(self) -> list[float]:
        """Return the present rate of each group of parameters."""
        ...

    def count_chunks(self) -> int:
        """Return the number of chunks in which a microbatch as large as this step's will be computed."""
        ...

    def count_work(self, peak_tflops: float | None) -> ForwardWork | None:
        """Return the operations that a unit of this run's data takes, where that is known."""
        ...

    # Requests.
    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Log values under the present step: to ``metrics.jsonl`` and to every tracker."""
        ...

    def request_stop(self, reason: str) -> None:
        """Ask that the run saves and ends after this step."""
        ...

    def request_evaluate(self) -> None:
        """Ask for an evaluation after this step; it is logged and changes nothing."""
        ...

    def request_save(self) -> None:
        """Ask for a checkpoint after this step."""
        ...

    def split_microbatches(self, reason: str) -> None:
        """Ask that microbatches as large as this step's are computed in chunks half as large, where they can be."""
        ...


class Callback:
    """Override any of these methods; return values are ignored, and the order of callbacks does not matter.

    ::

        on_fit_start
        for each optimizer step:
            on_step_end(report)
            if a checkpoint has been written:       on_checkpoint(path)
            if an evaluation is due or asked for:   on_evaluate_end(metrics)
            if the epoch ends here:                 on_epoch_end(epoch, metrics)
        if a checkpoint was still being written:    on_checkpoint(path)
        on_fit_end(reason)                          always, also after on_exception(error)

    What it may use and ask for is ``Run``. Checkpoints are written while training continues: ``on_checkpoint`` comes
    once the folder is there, after a later step or at the end. Every rank calls a callback, unless
    ``main_process_only`` is True. An exception in one names the callback and stops the run. What must survive a resume
    goes through ``state_dict`` and ``load_state_dict``, and must be JSON.

    ``on_evaluate_end`` gets the metrics of the evaluation. ``on_epoch_end`` gets the means of the epoch's losses
    (``train_loss`` and its parts), the metrics of the last evaluation (``val_loss``, …), and ``evaluation_step``, the
    step after which that was; before the first evaluation, the means alone.

    What a callback changes about the steps themselves it changes before there are any: ``configure`` gets the training
    section and returns the one to train with.
    """

    main_process_only = False

    def configure(self, config: TrainingConfig) -> TrainingConfig:
        return config

    def on_fit_start(self, trainer: Run) -> None: ...

    def on_step_end(self, trainer: Run, report: StepReport) -> None: ...

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None: ...

    def on_epoch_end(self, trainer: Run, epoch: int, metrics: dict[str, float]) -> None: ...

    def epoch_figures(self, trainer: Run) -> dict[str, float]:
        """Values of the epoch that ends here, which every callback's ``on_epoch_end`` gets."""
        return {}

    def on_checkpoint(self, trainer: Run, path: Path) -> None: ...

    def on_fit_end(self, trainer: Run, reason: str) -> None: ...

    def on_exception(self, trainer: Run, error: BaseException) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def rate_name(unit: str) -> str:
    """Return the name of a rate: units per second.

    >>> rate_name("token"), rate_name("targets")
    ('tokens_per_second', 'targets_per_second')
    """
    return f"{unit.removesuffix('s')}s_per_second"


@dataclass(frozen=True)
class StepReport:
    """One optimizer step, over all its microbatches and ranks.

    ``sums`` holds each named term, and ``units`` the unit whose count in ``counts`` it is divided by. Sums and the
    gradient norm stay tensors on the device: reading one (``float``) waits for the device, so only logging does it.
    ``skipped`` says why the weights didn't change: ``overflow`` of fp16, ``non_finite``, or None if they did. For a
    step with several objectives, ``gradient_norms`` has each one's norm by its name. ``splittable`` is False where this
    rank saw a loss that isn't a sum over examples. ``seconds`` is the time since the report before, of which
    ``excluded_seconds`` passed in what was due between the steps: evaluations, and the making of checkpoints; in
    ``seconds_of_gap`` of them the process waited for the step's data.
    """

    step: int
    epoch: int
    sums: dict[str, torch.Tensor]
    units: dict[str, str]
    counts: dict[str, float]
    learning_rate: float
    gradient_norm: torch.Tensor
    loss_scale: float | None
    skipped: str | None
    seconds: float
    ends_epoch: bool
    gradient_norms: dict[str, torch.Tensor] = field(default_factory=dict)
    splittable: bool = True
    excluded_seconds: float = 0.0
    seconds_of_gap: float = 0.0

    @property
    def seconds_aside(self) -> float:
        """The former name of ``excluded_seconds``."""
        return self.excluded_seconds

    @property
    def losses(self) -> dict[str, torch.Tensor]:
        """Each term over the count of its unit, unweighted."""
        return {name: total / get_divisor(self.counts, self.units[name]) for name, total in self.sums.items()}
