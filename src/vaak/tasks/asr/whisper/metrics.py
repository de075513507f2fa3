"""Metrics of a Whisper: the loss and accuracy of true transcripts, and the error rates (vaak.tasks.asr.metrics)."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, cast

from torch import Tensor, nn

from vaak.core.batch import Batch, read_together
from vaak.nn.cross_entropy import target_losses, unless_many
from vaak.tasks.asr.metrics import AsrMeters
from vaak.tasks.asr.whisper.model import AsrModel


class WhisperMeters(AsrMeters):
    """Loss and accuracy of true transcripts, and error rates of the model's."""

    def __init__(
        self, *arguments: Any, compute_features: Callable[[Batch], Tensor] = itemgetter("features"), **more: Any
    ) -> None:
        """``compute_features`` gives the input of a model."""
        super().__init__(*arguments, **more)
        self._compute_features, self._is_rehearsal = compute_features, False

    def expect_rehearsal(self) -> None:
        self._is_rehearsal = True

    def transcripts(self, model: nn.Module, encoded: Any, batch: Batch) -> list[str]:
        rehearsed = (batch["targets"],) if self._is_rehearsal else ()
        return self._transcribe(model, encoded, *rehearsed)

    def update(self, model: nn.Module, batch: Batch) -> None:
        # torch.compile gives something of another type that has all it has.
        model = cast("AsrModel", model)
        encoded, targets = model.encode(self._compute_features(batch)), batch["targets"]
        scored = model.head_inputs if unless_many(model, targets) else model.decode
        tokens = batch.totals()["token"]
        predicted = target_losses(scored(batch["inputs"], encoded), targets, tokens)
        chosen = [] if encoded.gate is None or encoded.weights is None else [encoded.gate, encoded.weights]
        nats, right, *routed = read_together(*predicted, *chosen)
        found = [("loss", float(nats.double().sum()), tokens), ("accuracy", float(right.sum()), tokens)]
        self.add([*found, *self.errors(model, batch, encoded, *routed)])
