"""What is handed on where a model is trained several times: the optimizer's moments, and a rate that was set."""

from __future__ import annotations

from torch.optim import Optimizer

from vaak.core.callback import Callback, Run
from vaak.engine.trainer import Trainer


class Stages(Callback):
    """Hands the optimizer's moments from one training to the next, and notices a learning rate that was set."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.rates: list[float] = []

    def remember(self, optimizer: Optimizer) -> None:
        """Note the rates that nobody has set."""
        self.rates = [group["lr"] for group in optimizer.param_groups]

    def rate_set(self, optimizer: Optimizer | None) -> float | None:
        """The learning rate that was set since; None where none was."""
        groups = [] if optimizer is None else optimizer.param_groups
        changed = [float(group["lr"]) for group, rate in zip(groups, self.rates, strict=False) if group["lr"] != rate]
        return changed[0] if changed else None

    def take_over(self, engine: Trainer | None) -> None:
        """Have the next training begin with the moments of this one."""
        self.optimizers = [] if engine is None else engine.state.optimizers

    def on_fit_start(self, trainer: Run) -> None:
        assert isinstance(trainer, Trainer)
        if not trainer.position.step:  # one that is resumed has its moments
            self._hand_over(trainer.state.optimizers)
        self.take_over(trainer)

    def _hand_over(self, optimizers: list[Optimizer]) -> None:
        known = {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}
        for optimizer in optimizers:
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                if parameter in known:
                    optimizer.state[parameter] = known[parameter]
