"""Labels for new texts, with their probabilities."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
from torch import nn

from vaak.core.batch import Batch
from vaak.nn.decoding.sampling import without_dropout
from vaak.tasks.batches import Batches, Embedded
from vaak.tasks.classification.data import Classes, RowFormat, TextExample, collate
from vaak.tasks.classification.metrics import by_column
from vaak.tasks.classification.model import TextClassifier
from vaak.text.tokenizer import normalise

log = logging.getLogger("vaak")
Result = TypeVar("Result")
TEXTS_TOGETHER = 64


@dataclass(frozen=True)
class Prediction:
    """A text's labels by label column, and the probabilities of all its labels, the most probable first."""

    text: str
    labels: dict[str, tuple[str, ...]]
    probabilities: dict[str, dict[str, float]]

    def __str__(self) -> str:
        return "\t".join("|".join(labels) for labels in self.labels.values())


@dataclass(frozen=True)
class Labeller:
    """A model with the rows that it reads and its classes."""

    model: nn.Module
    rows: RowFormat
    classes: Classes
    multi_label: bool

    def label(self, texts: Iterable[str], batch_size: int | None = None) -> Iterator[Prediction]:
        """The prediction for each text, in their order; a blank text has no label. A line counts those that are cut.

        There are ``batch_size`` texts in a batch; with None, as many as memory allows.
        """
        batches = Batches(next(self.model.parameters()).device, batch_size, TEXTS_TOGETHER)
        return self._tell_cut(batches.results(texts, len, self._predictions))

    def embed(self, texts: Iterable[str], batch_size: int | None = None) -> Iterator[tuple[str, list[float]]]:
        """Each text with what its classes are computed from, in their order: pooled, and of no fixed length.

        A line counts the texts that are cut.
        """
        batches = Batches(next(self.model.parameters()).device, batch_size, TEXTS_TOGETHER)
        return self._tell_cut(batches.results(texts, len, self._embeddings))

    def embed_batch(self, texts: list[str]) -> list[Embedded]:
        """Return the embedding of each text, all computed at once."""
        sizes = [len(ids) for ids in self._encode(texts)]
        vectors = [vector for (_, vector), _ in self._embeddings(texts)]
        most = self.rows.num_kept
        return [Embedded(vector, min(size, most), size > most) for vector, size in zip(vectors, sizes, strict=True)]

    def _tell_cut(self, found: Iterable[tuple[Result, bool]]) -> Iterator[Result]:
        """Yield results, each of which comes with whether its text was cut; then log how many were."""
        cut = 0
        for one, is_cut in found:
            cut += is_cut
            yield one
        if cut:
            log.warning(
                "%s longer than the %d tokens that are read (data.max_length): only their beginning counts",
                "1 text is" if cut == 1 else f"{cut:,} texts are",
                self.rows.num_kept,
            )

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.rows.tokenizer.encode_batch([normalise(text).strip() for text in texts])

    def _read(self, texts: list[str]) -> tuple[Batch, list[bool]]:
        """Return the batch of the texts, and which of them are cut."""
        ids = self._encode(texts)
        batch = collate([TextExample(self.rows.row(one), np.zeros(1)) for one in ids], self.rows.tokenizer.pad_id)
        return batch.to(next(self.model.parameters()).device), [len(one) > self.rows.num_kept for one in ids]

    def _embeddings(self, texts: list[str]) -> list[tuple[tuple[str, list[float]], bool]]:
        """Return each text with its embedding, all computed at once; and whether it is cut."""
        (batch, are_cut), model = self._read(texts), cast("TextClassifier", self.model)
        with without_dropout(self.model), torch.inference_mode():
            vectors = model.represent(batch["inputs"], batch["mask"]).float().cpu().tolist()
        return list(zip(zip(texts, vectors, strict=True), are_cut, strict=True))

    def _predictions(self, texts: list[str]) -> list[tuple[Prediction, bool]]:
        """Return the prediction for each text, all computed at once; and whether it is cut."""
        batch, are_cut = self._read(texts)
        with without_dropout(self.model), torch.inference_mode():
            scores = by_column(self.model(batch["inputs"], batch["mask"]).double().cpu(), self.classes)
        found = {
            name: (one.sigmoid() if self.multi_label else one.softmax(-1)).tolist() for name, one in scores.items()
        }
        probabilities = [{name: rows[number] for name, rows in found.items()} for number in range(len(texts))]
        return [
            (self._prediction(text, row if text.strip() else {}), is_cut)
            for text, row, is_cut in zip(texts, probabilities, are_cut, strict=True)
        ]

    def _prediction(self, text: str, found: dict[str, list[float]]) -> Prediction:
        ranked = {
            column: dict(sorted(zip(self.classes[column], values, strict=True), key=lambda pair: -pair[1]))
            for column, values in found.items()
        }
        chosen = {
            column: tuple(label for label, probability in one.items() if probability > 0.5)
            if self.multi_label
            else (next(iter(one)),)
            for column, one in ranked.items()
        }
        return Prediction(text, chosen, ranked)
