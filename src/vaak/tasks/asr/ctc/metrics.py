"""Metrics of CTC: ``loss``, nats of a transcript over its tokens; error rates as in vaak.tasks.asr.metrics."""

from __future__ import annotations

from torch import Tensor, nn

from vaak.core.batch import Batch
from vaak.nn.ctc import ctc_log_likelihoods
from vaak.tasks.asr.ctc.model import CtcOutputs
from vaak.tasks.asr.metrics import AsrMeters


def ctc_loss(outputs: CtcOutputs, batch: Batch, blank: int) -> Tensor:
    """Return the sum of the negative log-probabilities of a batch's transcripts."""
    lengths = outputs.lengths, batch["target_lengths"]
    return -ctc_log_likelihoods(outputs.log_probs(), batch["targets"], *lengths, blank).sum()


class CtcMeters(AsrMeters):
    """Loss of true transcripts; error rates of those that a model gives."""

    def __init__(self, *arguments: object, blank: int) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.blank = blank

    def update(self, model: nn.Module, batch: Batch) -> None:
        outputs: CtcOutputs = model(batch["features"], batch["feature_lengths"])
        loss = float(ctc_loss(outputs, batch, self.blank).double())
        self.add([("loss", loss, batch.totals()["token"]), *self.errors(model, batch, outputs)])
