"""Clusters on disk: what the stage of clusters leaves for those after it.

clusters.json      the cluster of every key, which keys were noise, how they were found, their quality
clusters.png       a picture, if one is wanted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vaak.core.errors import DataError
from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.rows import RowStore
from vaak.tasks.asr.clustering.cluster import cluster
from vaak.tasks.asr.clustering.config import ClusteringConfig
from vaak.tasks.asr.clustering.picture import draw_clusters
from vaak.tasks.asr.clustering.quality import Quality, quality_of

FILE, PICTURE = "clusters.json", "clusters.png"


@dataclass(frozen=True)
class Clusters:
    """The cluster of every key, ``num_clusters`` in all; read from a folder."""

    labels: dict[str, int]
    num_clusters: int
    noise: tuple[str, ...]
    quality: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Clusters:
        """Those in a folder. Raises DataError where there are none."""
        path = folder / FILE
        try:
            about = read_json(path)
            return cls(about["labels"], about["num_clusters"], tuple(about["noise"]), about["quality"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no clusters can be read here ({error}); run the stage that makes them") from error


def make_clusters(
    store: RowStore,
    groups: Sequence[str] | None,
    config: ClusteringConfig,
    folder: Path,
    plot: Literal["pca", "umap"] | None = None,
) -> tuple[Quality, tuple[str, ...]]:
    """Cluster the rows of a ``store`` by ``config``, and write them to ``folder``; their quality, and remarks.

    ``groups`` are the values of a stratification column in the order of the store's keys; ``plot`` is how the picture
    gets its two dimensions, None for no picture. Raises what ``cluster`` does.
    """
    found = cluster(store, config)
    quality = quality_of(found, config, groups)
    if plot is not None:
        draw_clusters(found, groups, plot, folder / PICTURE, config.seed)
    about = {
        "num_clusters": found.num_clusters,
        "algorithm": found.algorithm,
        "min_cluster_size": found.min_cluster_size,
        "remarks": found.remarks,
        "quality": quality.as_json(),
        "noise": [key for key, is_noise in zip(store.keys, found.is_noise, strict=True) if is_noise],
        "labels": dict(zip(store.keys, found.labels.tolist(), strict=True)),
    }
    write_json(folder / FILE, about)
    return quality, found.remarks
