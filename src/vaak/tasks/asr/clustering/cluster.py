"""Clusters of rows: HDBSCAN, tried again with smaller clusters where it finds too few; spectral; or random ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.engine.memory.host import host_memory
from vaak.tasks.asr.clustering.config import BALL_TREE_METRICS, ClusteringConfig
from vaak.tasks.asr.clustering.reduction import Matrix, reduced

NEIGHBOURS = 10
"""Neighbours of a row in the graph of spectral clustering: a full graph of 10,000 rows would take 800 MB."""
SHRINKING = 0.6
"""What ``min_cluster_size`` is multiplied by for the next attempt: 5, 3, 2; or 50, 30, 18, 11, 7, 4."""
GENERIC_COPIES = 3
"""Square matrices of distances that HDBSCAN holds at once without a tree."""
LIBRARY_BYTES = 256 << 20
"""What Python and the libraries take."""
BYTES_PER_KEY = 160
"""What the index of a store of rows takes, measured with a million keys."""
BYTES_PER_NUMBER = {"hdbscan": 30, "spectral": 135, "random": 0}
"""What clustering holds for each number of its points: measured at 10,000 rows of 50 numbers."""


@dataclass(frozen=True)
class Clustering:
    """The cluster of every row.

    ``labels`` is ``(row,)`` int64, the largest cluster first; ``is_noise`` those that HDBSCAN left out, which have the
    label of the nearest centre. ``points`` is ``(row, dim)``, what was clustered; ``centres`` ``(cluster, dim)``.
    ``algorithm`` and ``min_cluster_size`` are those that succeeded; ``remarks`` say what else was tried.
    """

    labels: np.ndarray
    is_noise: np.ndarray
    points: np.ndarray
    centres: np.ndarray
    algorithm: str
    min_cluster_size: int | None
    remarks: tuple[str, ...]

    @property
    def num_clusters(self) -> int:
        return len(self.centres)


def cluster(rows: Matrix | np.ndarray, config: ClusteringConfig) -> Clustering:
    """The clusters of rows, in the dimensions that the options ask for; the same for the same seed.

    Raises UserError where there are fewer rows than clusters, fewer clusters than the options accept, or too little
    memory.
    """
    if len(rows) < max(2, config.min_experts):
        raise UserError(f"{len(rows)} rows can't be clustered: at least {max(2, config.min_experts)} are needed")
    points = reduced(rows, config.reduce, config.reduce_dim, config.seed)
    return cluster_points(points, config)


def memory_needed(num_rows: int, num_columns: int, config: ClusteringConfig) -> int:
    """About how many bytes ``cluster`` holds at its peak for rows that are read from disk."""
    dims = num_columns if config.reduce == "none" else min(config.reduce_dim, num_columns)
    square = 0 if config.reduce == "none" else 4 * 8 * min(num_rows, num_columns) ** 2
    work = num_rows * dims * (4 + BYTES_PER_NUMBER[config.algorithm])
    if config.algorithm == "hdbscan" and _backend(config) == "generic":
        work = GENERIC_COPIES * 8 * num_rows**2
    return LIBRARY_BYTES + BYTES_PER_KEY * num_rows + max(square, work)


def _backend(config: ClusteringConfig) -> str:
    """How HDBSCAN is computed; its package's own choice fails for cosine and correlation."""
    no_tree = config.hdbscan_algorithm == "best" and config.metric not in BALL_TREE_METRICS
    return "generic" if no_tree else config.hdbscan_algorithm


def cluster_points(points: np.ndarray, config: ClusteringConfig) -> Clustering:
    """The same of points ``(row, dim)`` whose dimensions stay as they are."""
    remarks: list[str] = []
    if config.algorithm == "hdbscan":
        labels, size = _by_density(points, config, remarks)
        if labels is not None:
            return _settled(points, labels, config, size, remarks)
    find = random_labels if config.algorithm == "random" else spectral
    labels = find(points, _num_clusters(len(points), config, remarks), config.seed)
    return _settled(points, labels, config, None, remarks)


def _by_density(
    points: np.ndarray, config: ClusteringConfig, remarks: list[str]
) -> tuple[np.ndarray | None, int | None]:
    """The labels of the first attempt with enough clusters, or of that with most; None for spectral clustering."""
    tried: list[tuple[int, int, np.ndarray]] = []
    size = config.min_cluster_size
    for _ in range(config.max_retries + 1):
        labels = density(points, size, config)
        tried.append((int(labels.max()) + 1, size, labels))
        if tried[-1][0] >= config.min_clusters or size == 2:
            break
        size = max(2, min(size - 1, round(size * SHRINKING)))
    found, size, labels = max(tried, key=lambda attempt: attempt[0])
    attempts = ", ".join(f"{number} with min_cluster_size {size}" for number, size, _ in tried)
    if found < config.min_clusters:
        said = f"HDBSCAN found {attempts} clusters; min_clusters is {config.min_clusters}"
        if not config.reduce_experts:
            raise UserError(f"{said}: allow fewer (--reduce-experts), lower --min-clusters, or cluster by spectral")
        remarks.append(said)
    elif len(tried) > 1:
        remarks.append(f"HDBSCAN found {attempts} clusters")
    if found < config.min_experts:
        remarks.append(f"fewer than {config.min_experts} experts are not accepted: spectral clustering instead")
        return None, None
    return labels, size


def _num_clusters(number: int, config: ClusteringConfig, remarks: list[str]) -> int:
    """How many clusters are made of a number of rows, if not by density. Raises UserError where those are too few."""
    if number > config.num_experts:
        return config.num_experts
    fewer = max(config.min_experts, number // 2)
    if not config.reduce_experts or fewer >= number:
        raise UserError(
            f"{number} rows can't make {config.num_experts} clusters: use more data or a lower --num-experts"
        )
    remarks.append(f"{number} rows can't make {config.num_experts} clusters: {fewer} are made")
    return fewer


def density(points: np.ndarray, min_cluster_size: int, config: ClusteringConfig) -> np.ndarray:
    """The labels of HDBSCAN, ``(row,)``; -1 is noise. Raises UserError where it is missing, or memory would run out.

    Source: Campello, Moulavi and Sander, 2013; McInnes, Healy and Astels, 2017, "hdbscan".
    """
    backend = _backend(config)
    needed, memory = GENERIC_COPIES * 8 * len(points) ** 2, host_memory()
    used, limit, _ = memory.read()
    if backend == "generic" and needed > limit - used:
        raise UserError(
            f"HDBSCAN with metric {config.metric} needs {needed / 2**30:.1f} GiB for the distances of {len(points)} "
            f"rows, and {(limit - used) / 2**30:.1f} GiB are free: use --metric euclidean with --hdbscan-algorithm best"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecations between hdbscan, scikit-learn and numpy
        try:
            from hdbscan import HDBSCAN
        except ImportError as error:
            raise UserError("algorithm: hdbscan requires the package hdbscan: pip install 'vaak[asr]'") from error
        model: Any = HDBSCAN(
            min_cluster_size=min_cluster_size,
            min_samples=config.min_samples,
            metric=config.metric,
            algorithm=backend,
            allow_single_cluster=config.allow_single_cluster,
            core_dist_n_jobs=1,
        )
        return np.asarray(model.fit_predict(points.astype(np.float64)), np.int64)


def spectral(points: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """The labels of spectral clustering of the graph of nearest neighbours, ``(row,)``; the same for the same seed.

    Source: Ng, Jordan and Weiss, 2001; von Luxburg, 2007. Raises UserError where scikit-learn is missing.
    """
    try:
        from sklearn.cluster import SpectralClustering
    except ImportError as error:
        raise UserError("clustering requires scikit-learn: pip install 'vaak[asr]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a graph in several parts is what clusters should be
        model: Any = SpectralClustering(
            num_clusters,
            affinity="nearest_neighbors",
            n_neighbors=min(NEIGHBOURS, len(points) - 1),
            random_state=seed,
        )
        return np.asarray(model.fit_predict(points), np.int64)


def random_labels(points: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Labels that say nothing about the points, ``(row,)``, in clusters of equal size; the same for the same seed."""
    rng = np.random.default_rng(draw_key(Purpose.CHECK, seed, "random clusters"))
    return np.asarray(rng.permutation(len(points)) % num_clusters, np.int64)


def _settled(
    points: np.ndarray, labels: np.ndarray, config: ClusteringConfig, size: int | None, remarks: list[str]
) -> Clustering:
    """A clustering whose noise has the label of the nearest centre, the largest cluster first.

    ``labels`` of ``points`` have -1 for noise; ``size`` is the min_cluster_size of HDBSCAN, None of another algorithm;
    ``remarks`` and ``config`` are those of the clustering.
    """
    is_noise = labels < 0
    names, sizes = np.unique(labels[~is_noise], return_counts=True)
    order = names[np.argsort(-sizes, kind="stable")]
    centres = np.stack([points[labels == name].mean(axis=0) for name in order])
    settled = np.zeros(len(points), np.int64)
    for place, name in enumerate(order):
        settled[labels == name] = place
    if is_noise.any():
        from sklearn.metrics import pairwise_distances_argmin

        settled[is_noise] = pairwise_distances_argmin(points[is_noise], centres, metric=config.metric)
        remarks.append(
            f"{int(is_noise.sum())} of {len(points)} rows are noise to HDBSCAN; each is in the cluster whose centre is "
            "nearest"
        )
    algorithm = "hdbscan" if size is not None else "random" if config.algorithm == "random" else "spectral"
    return Clustering(settled, is_noise, points, centres, algorithm, size, tuple(remarks))
