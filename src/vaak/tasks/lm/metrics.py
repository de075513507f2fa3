"""Metrics of a language model: sums over the whole set, divided once.

loss            nats per token                      sum of -ln p / tokens
perplexity      exp(loss)                           comparable with the same tokenizer only
bits_per_byte   sum of -log2 p / UTF-8 bytes        comparable across tokenizers; only where the tokens reproduce every
                                                    text exactly: else they are more probable than the text
accuracy        tokens whose most probable prediction is right / tokens
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Batch
from vaak.core.task import Meters
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.data import IGNORED


class TextMeters(Meters):
    """Loss, perplexity, accuracy and, if every byte is predicted, bits per byte."""

    def __init__(self, protocol: dict[str, str], options: LanguageModelConfig) -> None:
        self.protocol, self.options = protocol, options
        self.totals = dict.fromkeys(("nats", "token", "byte", "right"), 0.0)

    def update(self, model: nn.Module, batch: Batch) -> None:
        scored = batch["targets"] != IGNORED
        logits = model(batch["inputs"], **visibility_of(self.options, batch), select=scored)
        targets = batch["targets"][scored]
        nats = float(_exact_sum(F.cross_entropy(logits.float(), targets, reduction="none")))
        right = float((logits.argmax(-1) == targets).sum())
        self.totals["nats"] += nats
        self.totals["right"] += right
        for unit in ("token", "byte"):
            self.totals[unit] += float(batch.counts[unit].sum())

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["nats"] / sums["token"]
        results = {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": sums["right"] / sums["token"]}
        if sums["byte"] and self.protocol["objective"] == "causal":
            results["bits_per_byte"] = sums["nats"] / math.log(2) / sums["byte"]
        return results


class PairMeters(Meters):
    """Fraction of pairs whose good sentence is more probable: over all pairs, and by phenomenon."""

    def __init__(self, protocol: dict[str, str], options: LanguageModelConfig) -> None:
        self.protocol, self.options = protocol, options
        self.totals: dict[str, float] = {}

    def update(self, model: nn.Module, batch: Batch) -> None:
        inputs, targets = batch["inputs"].flatten(0, 1), batch["targets"].flatten(0, 1)
        logits = model(inputs)  # a decoder's: it needs no mask to ignore padding
        losses = F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none", ignore_index=IGNORED)
        nats = losses.sum(dim=1)
        right = (nats[0::2] < nats[1::2]).tolist()
        for phenomenon, is_right in zip(batch.extra["phenomena"], right, strict=True):
            for name, value in (("right", float(is_right)), ("pairs", 1.0)):
                key = f"{name}/{phenomenon}"
                self.totals[key] = self.totals.get(key, 0.0) + value

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        pairs = {key.removeprefix("pairs/"): value for key, value in sorted(sums.items()) if key.startswith("pairs/")}
        right = {phenomenon: sums[f"right/{phenomenon}"] for phenomenon in pairs}
        by_phenomenon = {f"accuracy/{phenomenon}": right[phenomenon] / pairs[phenomenon] for phenomenon in pairs}
        return {"accuracy": sum(right.values()) / sum(pairs.values()), **by_phenomenon}


def visibility_of(options: LanguageModelConfig, batch: Batch) -> dict[str, Tensor]:
    """What the model needs to know of visibility: the documents of packed rows; for an encoder, the padding."""
    if batch.extra["packed"]:
        return {"documents": batch["documents"]}
    return {"mask": batch["documents"] >= 0} if options.model_type == "encoder" else {}


def _exact_sum(values: Tensor) -> Tensor:
    """The sum in float64 where the device has it."""
    return values.sum() if values.device.type == "mps" else values.sum(dtype=torch.float64)
