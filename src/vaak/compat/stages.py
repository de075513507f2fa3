"""State handed on where a model is trained several times: the optimizer's moments, and a rate that was set."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

from vaak.core.errors import UserError
from vaak.engine.callback import Callback, Run
from vaak.engine.trainer import Trainer


class Stages(Callback):
    """Hands the optimizer's moments from one training to the next, and notices a learning rate that was set."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.rates: list[float] = []
        self.peak = 0.0
        self.configured: Any = None
        self.chosen: float | None = None

    def remember(self, optimizer: Optimizer, peak: float) -> None:
        """Note the rates that nobody has set; ``peak`` is the one that they follow."""
        self.rates, self.peak = [group["lr"] for group in optimizer.param_groups], peak

    def rate(self, optimizer: Optimizer | None, configured: Any) -> float | None:
        """The peak learning rate that was set in ``param_groups``, now or before an earlier training.

        None if none was, or where what is ``configured`` has changed since. Raises UserError for groups that are to
        have other rates than one option can say.
        """
        newly = None if optimizer is None else self._newly_set(optimizer)
        if newly is not None or configured != self.configured:
            self.chosen = newly
        self.configured = configured
        return self.chosen

    def _newly_set(self, optimizer: Optimizer) -> float | None:
        groups = list(zip(optimizer.param_groups, self.rates, strict=False))
        changed = [group for group, rate in groups if group["lr"] != rate]
        if not changed:
            return None
        scales = [group["lr"] / group["base_lr"] for group in changed]
        # The first stands for all.
        whole = len(changed) == len(groups) or changed[0] is optimizer.param_groups[0]
        if not whole or not all(math.isclose(scale, scales[0], rel_tol=1e-6) for scale in scales):
            raise UserError(
                "the groups of optimizer.param_groups were given different rates, but a training has one rate; "
                "rates by name or depth are options: training.optimizer.groups and layer_decay"
            )
        first = changed[0]
        return float(first["lr"] if first["base_lr"] == self.peak else self.peak * scales[0])

    def take_over(self, engine: Trainer | None) -> None:
        """Have the next training begin with the moments of this one."""
        self.optimizers = [] if engine is None else engine.state.optimizers

    def on_fit_start(self, trainer: Run) -> None:
        assert isinstance(trainer, Trainer)
        self.peak = trainer.config.optimizer.lr
        if not trainer.position.step:
            # One that is resumed has its moments.
            known = {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}
            for optimizer in trainer.state.optimizers:
                for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                    if parameter in known:
                        optimizer.state[parameter] = known[parameter]
        self.take_over(trainer)
