"""The task of training a gate: from the mean state of an encoder to the cluster that an utterance is in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from vaak.core.batch import Batch, Term
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Dataset, Meters, Padding
from vaak.data.plan import stratified_sample
from vaak.nn.lora_experts import Gate
from vaak.pipeline.rows import PipelineRowStore
from vaak.tasks.asr.stages.clusters import Clusters
from vaak.tasks.asr.stages.embeddings import ROWS, means
from vaak.tasks.base import LossMeters, Task, WithMetrics

HELD_OUT = 0.2
"""The part of each cluster that validates: at least one row of three."""


class GateRows(Dataset):
    """Mean states ``(row, width)`` with their clusters ``(row,)``."""

    draws_globally = False

    def __init__(self, names: list[str], vectors: np.ndarray, clusters: np.ndarray) -> None:
        self.names, self.vectors, self.clusters = names, vectors, clusters
        self.lengths, self.strata = np.ones(len(names)), clusters
        self.fingerprint = compute_fingerprint(
            [names, clusters.tolist(), vectors.sum(axis=0, dtype=np.float64).tolist()]
        )

    def example(self, index: int, rng: np.random.Generator) -> int:
        return index

    def collate(self, rows: list[list[int]]) -> Batch:
        chosen = [row[0] for row in rows]
        tensors = {
            "vectors": torch.from_numpy(self.vectors[chosen]),
            "clusters": torch.from_numpy(self.clusters[chosen]),
        }
        return Batch(tensors, {"example": torch.ones(len(chosen))})

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        """Return no padding, as examples are vectors of one width."""
        return {}

    def describe(self, index: int) -> str:
        return self.names[index]

    def part(self, chosen: np.ndarray) -> GateRows:
        """Some of the rows."""
        return GateRows([self.names[place] for place in chosen], self.vectors[chosen], self.clusters[chosen])


class GateTask(Task):
    """Trains a gate.

    ``data`` has the folders ``embeddings`` and ``clusters``, and ``seed``; ``model`` has ``width`` and ``hidden``.
    """

    @cached_property
    def clusters(self) -> Clusters:
        return Clusters.read(Path(self.experiment.data.clusters))

    @cached_property
    def splits(self) -> dict[str, GateRows]:
        """Rows that are trained on and rows that validate; the same where clusters are too small to be divided."""
        folder, options = Path(self.experiment.data.embeddings), self.experiment.model
        store = PipelineRowStore(folder / ROWS)
        vectors = means(store.row, store.keys, options.width)
        everything = GateRows(store.keys, vectors, np.array([self.clusters.labels[key] for key in store.keys]))
        held = held_out(store.keys, everything.clusters, self.experiment.data.seed)
        if not len(held):
            return {"train": everything, "valid": everything}
        return {"train": everything.part(np.setdiff1d(np.arange(len(vectors)), held)), "valid": everything.part(held)}

    def dataset(self, split: str) -> GateRows:
        return self.splits[split]

    def model(self) -> Gate:
        options = self.experiment.model
        return Gate(options.width, self.clusters.num_clusters, options.hidden)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        nats = F.cross_entropy(model(batch["vectors"]).float(), batch["clusters"], reduction="sum")
        return {"loss": Term(nats, per="example")}

    def meters(self, split: str) -> Meters:
        def accuracy(model: nn.Module, batch: Batch) -> Any:
            return (model(batch["vectors"]).argmax(-1) == batch["clusters"]).sum(), "example"

        return WithMetrics(LossMeters(self.losses, split), {"accuracy": accuracy})


def held_out(names: list[str], clusters: np.ndarray, seed: int) -> np.ndarray:
    """The indices of the rows that validate, a fifth of each cluster; none of a cluster of one or two."""
    found = [np.zeros(0, np.int64)]
    for cluster in np.unique(clusters):
        own = np.flatnonzero(clusters == cluster)
        size = max(1, round(HELD_OUT * len(own))) if len(own) > 2 else 0
        found.append(own[stratified_sample([names[place] for place in own], np.zeros(len(own)), size, seed)])
    return np.sort(np.concatenate(found))
