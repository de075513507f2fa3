"""Warns where the gate of a mixture of experts collapses: experts that are no longer chosen, and worse metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal

from vaak.core.metrics import improves
from vaak.engine.callback import Callback, Run

log = logging.getLogger("vaak")

UNUSED_SHARE = 0.1
"""An expert that gets less than this part of an equal share is nearly unused."""
FALLEN = 0.8
"""A share of the entropy of choices, relative to the first evaluation's: below this it has fallen."""
WORSE = 0.02
"""The share of the best metric by which validation is worse by more than chance."""
COLLAPSE_REMEDY = (
    "lower the gate's learning rate (training.optimizer.groups: [{match: ^gate, lr_scale: 0.02}]), or raise "
    "training.loss.auxiliary.load_balancing or model.experts.balancing_bias (such as 0.001); in a pipeline: "
    "--gate-lr-scale, --load-balancing, --balancing-bias"
)


class RoutingCallback(Callback):
    """Watches how a gate chooses, in scheduled evaluations; each finding is reported when it comes up or gets worse.

    ``metric`` is the metric that the best checkpoint is chosen by, better where it is ``min`` or ``max`` (``mode``).
    """

    main_process_only = True

    def __init__(self, metric: str = "val_loss", mode: Literal["min", "max"] = "min") -> None:
        self.metric, self.mode = metric, mode
        self.unused: list[int] = []
        self.entropy: float | None = None
        """The entropy of choices in the first evaluation, or when it was last said to have fallen."""
        self.best: float | None = None
        self.was_worse = False

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        prefix = "val_expert_use/"
        uses = [metrics[f"{prefix}{expert}"] for expert in range(sum(name.startswith(prefix) for name in metrics))]
        if not trainer.scheduled_evaluation or not sum(uses):
            return
        shares = [use / sum(uses) for use in uses]
        findings = [*self._unused(shares), *self._fallen_entropy(shares, metrics), *self._worse(metrics)]
        if findings:
            log.warning("%s. Remedy: %s", "; ".join(findings), COLLAPSE_REMEDY)

    def _unused(self, shares: Sequence[float]) -> list[str]:
        """Experts that (almost) no validation utterance chooses, if there are more of them than before."""
        unused = [expert for expert, share in enumerate(shares) if share < UNUSED_SHARE / len(shares)]
        new, self.unused = set(unused) - set(self.unused), unused
        if not new:
            return []
        said = ", ".join(f"{expert} ({100 * shares[expert]:.1f} %)" for expert in unused)
        equal = 100 / len(shares)
        return [f"experts that the gate hardly chooses, of {len(shares)}: {said}; an equal share is {equal:.1f} %"]

    def _fallen_entropy(self, shares: Sequence[float], metrics: dict[str, float]) -> list[str]:
        """Return the entropy of choices, if it has fallen: ever more utterances go to ever fewer experts."""
        entropy = -sum(share * math.log(share) for share in shares if share)
        if self.entropy is None or entropy >= FALLEN * self.entropy:
            self.entropy = entropy if self.entropy is None else self.entropy
            return []
        before, self.entropy = self.entropy, entropy
        own = metrics.get("val_routing_entropy", math.nan)
        return [
            f"the choices of experts are less varied (entropy {entropy:.2f} nats, was {before:.2f}; that of the gate "
            f"itself is {own:.2f})"
        ]

    def _worse(self, metrics: dict[str, float]) -> list[str]:
        """Return the metric, if it has become worse than it was at its best."""
        value = metrics.get(self.metric)
        if value is None or improves(value, self.best, self.mode, 0.0) or self.best is None:
            self.best, self.was_worse = value if value is not None else self.best, False
            return []
        is_worse = not abs(value - self.best) <= WORSE * abs(self.best)
        is_new, self.was_worse = is_worse and not self.was_worse, is_worse
        return [f"{self.metric} is {value:.4g}, was {self.best:.4g} at its best"] if is_new else []

    def state_dict(self) -> dict[str, Any]:
        return {"idle": self.unused, "entropy": self.entropy, "best": self.best, "was_worse": self.was_worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.unused, self.entropy = state["idle"], state["entropy"]
        self.best, self.was_worse = state["best"], state["was_worse"]
