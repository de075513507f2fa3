"""Clusters of rows: HDBSCAN, tried again where it finds too few, merged where too many; spectral; or random ones.

Rows get fewer dimensions before: by PCA, which reads them from disk a block at a time, or by UMAP.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from vaak.core.errors import UserError
from vaak.core.machine import host_memory
from vaak.core.random_keys import Purpose, draw_key
from vaak.tasks.asr.stages.options import BALL_TREE_METRICS, ClusteringConfig, Reduction

NEIGHBOURS = 10
"""Neighbours of a row in the graph of spectral clustering: a full graph of 10,000 rows would take 800 MB."""
SHRINKING = 0.6
"""The factor of ``min_cluster_size`` for the next attempt: 5, 3, 2; or 50, 30, 18, 11, 7, 4."""
SCIKIT_LEARN_NAMES = {
    "best": "auto",
    "generic": "brute",
    "prims_kdtree": "kd_tree",
    "prims_balltree": "ball_tree",
    "boruvka_kdtree": "kd_tree",
    "boruvka_balltree": "ball_tree",
}
"""The names of the option, those of the package hdbscan, in scikit-learn.

There every tree is a minimal one, by Prim's algorithm. The package's Borůvka trees, of its ``best``, are others of the
same edges' lengths where lengths are equal, as many are, or only nearly minimal: noise at a cluster's edge may differ.
"""
GENERIC_COPIES = 3
"""Square matrices of distances that HDBSCAN holds at once without a tree."""
LIBRARY_BYTES = 256 << 20
"""The memory that Python and the libraries take."""
BYTES_PER_KEY = 160
"""The memory that the index of a store of rows takes for a key, measured with a million keys."""
BALANCED_ROUNDS = 20
"""The most rounds of assigning rows and moving centres."""
MOST_COMPARED = 5_000
"""Rows of which every distance is computed for the silhouette."""
BYTES_PER_NUMBER = {"hdbscan": 30, "spectral": 135, "random": 0}
"""The memory that clustering takes for each number of its points: measured at 10,000 rows of 50 numbers."""


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
    """The algorithm for HDBSCAN: cosine and correlation have no tree."""
    no_tree = config.hdbscan_algorithm == "best" and config.metric not in BALL_TREE_METRICS
    return "generic" if no_tree else config.hdbscan_algorithm


def cluster_points(points: np.ndarray, config: ClusteringConfig) -> Clustering:
    """Cluster points ``(row, dim)``, whose dimensions are not rescaled."""
    remarks: list[str] = []
    if config.algorithm == "hdbscan" and (found := _cluster_by_density(points, config, remarks)) is not None:
        return found
    number = _num_clusters(len(points), config, remarks)
    if config.algorithm == "random":
        # of equal size, and saying nothing about the points: what a mixture is compared with
        rng = np.random.default_rng(draw_key(Purpose.CHECK, config.seed, "random clusters"))
        labels = np.asarray(rng.permutation(len(points)) % number, np.int64)
    else:
        labels = spectral(points, number, config.seed, config.balanced is not False)
    return _settled(points, labels, config, None, remarks)


def _cluster_by_density(points: np.ndarray, config: ClusteringConfig, remarks: list[str]) -> Clustering | None:
    """Return the clusters of HDBSCAN, at most ``num_experts``; None where spectral clustering is to do it.

    It is tried again with smaller clusters as long as it finds too few; the attempt with the highest silhouette is
    kept, each merged down to ``num_experts`` before. (DBCV and HDBSCAN's relative validity would prefer fragments of
    what is one cluster: these are denser than the noise that is left between them.)
    """
    enough = min(config.min_clusters, config.num_experts)
    counts, made = dict[int, int](), list[Clustering]()
    size = config.min_cluster_size
    for _ in range(config.max_retries + 1):
        labels = density(points, size, config)
        counts[size] = int(labels.max()) + 1
        if counts[size] == config.num_experts or (config.reduce_experts and counts[size] >= config.min_experts):
            said = list[str]()
            made.append(_settled(points, _merge_clusters(points, labels, config, said), config, size, said))
        # HDBSCAN has no clusters of fewer than two rows.
        if counts[size] >= enough or size == 2:
            break
        size = max(2, min(size - 1, round(size * SHRINKING)))
    attempts = ", ".join(f"{number} with min_cluster_size {size}" for size, number in counts.items())
    if not made and not config.reduce_experts:
        raise UserError(
            f"HDBSCAN found {attempts} clusters; num_experts is {config.num_experts}: allow others (--reduce-experts), "
            "give --num-experts that number, or cluster by --algorithm spectral"
        )
    if len(counts) > 1 or max(counts.values()) < enough or not made:
        short = f"; min_clusters is {config.min_clusters}" if max(counts.values()) < enough else ""
        remarks.append(f"HDBSCAN found {attempts} clusters{short}")
    if not made:
        remarks.append(f"fewer than {config.min_experts} experts are not accepted: spectral clustering instead")
        return None
    best = made[0]
    if len(made) > 1:
        measured = [silhouette(points, one.labels, config) for one in made]
        values = [-1.0 if one is None else one for one in measured]
        # The first of equal ones.
        best = made[values.index(max(values))]
        shown = ", ".join(f"{value:.3f}" for value in values)
        remarks.append(f"min_cluster_size {best.min_cluster_size} is kept, by the silhouette: {shown}")
    return replace(best, remarks=(*remarks, *best.remarks))


def silhouette(points: np.ndarray, labels: np.ndarray, config: ClusteringConfig) -> float | None:
    """The mean silhouette of a limited number of rows; None where all or none are in one cluster.

    Source: Rousseeuw, 1987. ``points`` is ``(row, dim)``, ``labels`` ``(row,)``.
    """
    from sklearn.metrics import silhouette_score

    chosen = np.arange(len(labels))
    if len(labels) > MOST_COMPARED:
        rng = np.random.default_rng(draw_key(Purpose.CHECK, config.seed, "silhouette"))
        chosen = np.sort(rng.choice(len(labels), MOST_COMPARED, replace=False))
    if not 1 < len(np.unique(labels[chosen])) < len(chosen):
        return None
    return float(silhouette_score(points[chosen], labels[chosen], metric=config.metric))


def _merge_clusters(points: np.ndarray, labels: np.ndarray, config: ClusteringConfig, remarks: list[str]) -> np.ndarray:
    """Labels of at most ``num_experts`` clusters, made by joining those whose union is least spread.

    A union's spread grows by size · size / (size + size) times the squared distance of the two centres, so that small
    clusters are joined first, and none is left with a few rows. ``labels`` have -1 for noise, which stays.

    Source: Ward, 1963, "Hierarchical grouping to optimize an objective function".
    """
    number = int(labels.max()) + 1
    if number <= config.num_experts:
        return labels
    remarks.append(f"{number} clusters of HDBSCAN are merged into {config.num_experts}, the nearest first (Ward)")
    points = points.astype(np.float64)
    if config.metric == "correlation":
        points = points - points.mean(axis=1, keepdims=True)
    if config.metric in ("cosine", "correlation"):
        # Directions: lengths mean nothing.
        points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    sizes = np.bincount(labels[labels >= 0], minlength=number).astype(np.float64)
    centres = np.stack([points[labels == one].mean(axis=0) for one in range(number)])
    parent, there = np.arange(number), np.ones(number, bool)

    def nearest(one: int) -> tuple[float, int]:
        growth = sizes * sizes[one] / (sizes + sizes[one]) * ((centres - centres[one]) ** 2).sum(axis=1)
        growth[~there] = np.inf
        growth[one] = np.inf
        return float(growth.min()), int(growth.argmin())

    near = [nearest(one) for one in range(number)]
    for _ in range(number - config.num_experts):
        one = min(np.flatnonzero(there), key=lambda place: near[place])
        other = near[one][1]
        centres[one] = (sizes[one] * centres[one] + sizes[other] * centres[other]) / (sizes[one] + sizes[other])
        sizes[one] += sizes[other]
        parent[parent == other], there[other] = one, False
        # By Ward's measure, a union is never nearer to a third cluster than the nearer of its parts was. So only those
        # lose their nearest whose nearest was one of the two.
        for place in np.flatnonzero(there):
            if place == one or near[place][1] in (one, other):
                near[place] = nearest(int(place))
    return np.where(labels < 0, -1, parent[labels])


def _num_clusters(number: int, config: ClusteringConfig, remarks: list[str]) -> int:
    """The number of clusters for a number of rows, if not found by density. Raises UserError for too few rows."""
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
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise UserError("clustering requires scikit-learn: pip install 'vaak[asr]'") from error
    # Neighbours are the option's; scikit-learn counts the point itself as one of them.
    neighbours = (min_cluster_size if config.min_samples is None else config.min_samples) + 1
    model: Any = HDBSCAN(
        min_cluster_size=min_cluster_size,
        min_samples=min(neighbours, len(points)),
        metric=config.metric,
        algorithm=SCIKIT_LEARN_NAMES[backend],
        allow_single_cluster=config.allow_single_cluster,
        n_jobs=1,
        copy=True,
    )
    return np.asarray(model.fit_predict(points.astype(np.float64)), np.int64)


def spectral(points: np.ndarray, num_clusters: int, seed: int, is_balanced: bool = False) -> np.ndarray:
    """The labels of spectral clustering of the graph of nearest neighbours, ``(row,)``; the same for the same seed.

    With ``is_balanced``, clusters have equal sizes: k-means in the graph's eigenvectors, each of whose assignments is
    ``balanced``. Source: Ng, Jordan and Weiss, 2001; von Luxburg, 2007. Raises UserError where scikit-learn is missing.
    """
    try:
        from sklearn.cluster import SpectralClustering
        from sklearn.manifold import spectral_embedding
    except ImportError as error:
        raise UserError("clustering requires scikit-learn: pip install 'vaak[asr]'") from error
    with warnings.catch_warnings():
        # A graph in several parts is what clusters should be.
        warnings.simplefilter("ignore")
        model: Any = SpectralClustering(
            num_clusters,
            affinity="nearest_neighbors",
            n_neighbors=min(NEIGHBOURS, len(points) - 1),
            random_state=seed,
        )
        labels = np.asarray(model.fit_predict(points), np.int64)
        if not is_balanced:
            return labels
        affinity = model.affinity_matrix_
        vectors = spectral_embedding(affinity, n_components=num_clusters, drop_first=False, random_state=seed)
    for _ in range(BALANCED_ROUNDS):
        centres = np.stack([vectors[labels == one].mean(axis=0) for one in range(num_clusters)])
        before, labels = labels, balanced(((vectors[:, None] - centres) ** 2).sum(axis=2))
        if (before == labels).all():
            break
    return labels


def balanced(costs: np.ndarray) -> np.ndarray:
    """The assignment of rows to clusters of equal size that costs least, ``(row,)``, for ``costs`` ``(row, cluster)``.

    Sizes differ by one at most. Every row begins in its nearest cluster; one after another is moved from a cluster that
    is too large to one that is too small, along the cheapest chain of clusters, each of which passes a row on: a
    minimum-cost flow by successive shortest paths. Source: Ahuja, Magnanti and Orlin, 1993, "Network Flows", 9.7.
    """
    number, num_clusters = costs.shape
    labels: np.ndarray = costs.argmin(axis=1)
    sizes = np.bincount(labels, minlength=num_clusters)
    capacity = np.full(num_clusters, number // num_clusters)
    # The rows left over by the division go to the largest clusters, which need to give away the most.
    capacity[np.argsort(-sizes, kind="stable")[: number % num_clusters]] += 1
    # What moving a row would add.
    extra = costs - costs[np.arange(number), labels][:, None]
    while (sizes > capacity).any():
        step, mover = np.full((num_clusters, num_clusters), np.inf), np.zeros((num_clusters, num_clusters), int)
        for one in np.flatnonzero(sizes):
            own = np.flatnonzero(labels == one)
            # Of each pair of clusters only the row whose move costs least matters: step is the graph of clusters, not
            # of rows.
            mover[one] = own[extra[own].argmin(axis=0)]
            step[one] = extra[mover[one], np.arange(num_clusters)]
        reached = np.where(sizes > capacity, 0.0, np.inf)
        came_from = np.full(num_clusters, -1)
        for _ in range(num_clusters):
            # This is Bellman and Ford's algorithm.
            through = reached[:, None] + step
            best = through.min(axis=0)
            # Without a margin, rounding makes a cycle of cost 0 look shorter in every round: came_from would be a loop,
            # and the walk below endless.
            nearer = best < reached - 1e-12
            came_from[nearer], reached[nearer] = through.argmin(axis=0)[nearer], best[nearer]
        place = int(np.where(sizes < capacity, reached, np.inf).argmin())
        sizes[place] += 1
        while came_from[place] >= 0:
            row, before = mover[came_from[place], place], int(came_from[place])
            labels[row] = place
            extra[row] = costs[row] - costs[row, place]
            place = before
        sizes[place] -= 1
    return labels


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
    # The centres are those of the dense rows alone: noise is assigned to them and doesn't move them.
    centres = np.stack([points[labels == name].mean(axis=0) for name in order])
    settled = np.zeros(len(points), np.int64)
    for index, name in enumerate(order):
        settled[labels == name] = index
    if is_noise.any():
        from sklearn.metrics import pairwise_distances_argmin

        # By the metric of the clustering, or a row could go to a centre that is far from it in that metric.
        settled[is_noise] = pairwise_distances_argmin(points[is_noise], centres, metric=config.metric)
        remarks.append(
            f"{int(is_noise.sum())} of {len(points)} rows are noise to HDBSCAN; each is in the cluster whose centre is "
            "nearest"
        )
    algorithm = "hdbscan" if size is not None else "random" if config.algorithm == "random" else "spectral"
    return Clustering(settled, is_noise, points, centres, algorithm, size, tuple(remarks))


COLUMNS_AT_ONCE = 1 << 14
LARGEST_MATRIX_BYTES = 512 << 20
"""Larger input of UMAP is reduced by PCA first, so that it needn't be in memory."""
DIMS_BEFORE_UMAP = 100
LARGEST_SQUARE = 20_000
"""The most rows or columns, whichever are fewer, of what PCA can decompose in memory."""


class Matrix(Protocol):
    """Rows that need not be in memory, such as ``vaak.pipeline.rows.RowStore``."""

    @property
    def num_columns(self) -> int: ...
    def __len__(self) -> int: ...
    def blocks(self) -> Iterator[np.ndarray]: ...
    def columns(self, first: int, last: int) -> np.ndarray: ...


class ArrayMatrix:
    """An array ``(row, column)`` as a matrix."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.num_columns: int = array.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def blocks(self) -> Iterator[np.ndarray]:
        """The rows, some at a time."""
        for first in range(0, len(self.array), 1000):
            yield self.array[first : first + 1000].astype(np.float32)

    def columns(self, first: int, last: int) -> np.ndarray:
        """Some columns of all rows."""
        return self.array[:, first:last].astype(np.float32)


def reduced(rows: Matrix | np.ndarray, how: Reduction, dims: int, seed: int) -> np.ndarray:
    """The rows in fewer dimensions: ``(row, dims)`` float32, or as many as there are. Raises what the two below do."""
    matrix = ArrayMatrix(rows) if isinstance(rows, np.ndarray) else rows
    if how == "none":
        return matrix.columns(0, matrix.num_columns)
    return pca(matrix, dims) if how == "pca" else umap(matrix, dims, seed)


def pca(matrix: Matrix, dims: int) -> np.ndarray:
    """The principal components of the rows: ``(row, dims)`` float32, those that vary most first.

    The covariance of columns is decomposed, or the products of rows where those are fewer; each is summed up a part at
    a time, so memory holds the smaller square and the result.

    Raises UserError where both are too many.
    """
    number, width = len(matrix), matrix.num_columns
    if min(number, width) > LARGEST_SQUARE:
        raise UserError(
            f"{number} rows of {width} columns can't be reduced by PCA: pool the embeddings (--pooling mean), or take "
            "fewer"
        )
    dims = min(dims, number, width)
    if width <= number:
        # Near the mean, so that little cancels when the mean's square is subtracted from the sums.
        shift = next(matrix.blocks()).mean(axis=0, dtype=np.float64)
        total, square = np.zeros(width), np.zeros((width, width))
        for block in matrix.blocks():
            centred = block - shift
            total += centred.sum(axis=0)
            square += centred.T @ centred
        mean = total / number
        directions = _largest(square - number * np.outer(mean, mean), dims)[1]
        offset = (shift + mean) @ directions
        points = np.concatenate([block.astype(np.float64) @ directions - offset for block in matrix.blocks()])
    else:
        square = np.zeros((number, number))
        for first in range(0, width, COLUMNS_AT_ONCE):
            part = matrix.columns(first, first + COLUMNS_AT_ONCE).astype(np.float64)
            part -= part.mean(axis=0)
            square += part @ part.T
        variances, directions = _largest(square, dims)
        points = directions * np.sqrt(np.maximum(variances, 0))
    # A direction is as good as its reverse. The largest coordinate is made positive, so that points don't depend on the
    # solver.
    signs = np.sign(points[np.argmax(np.abs(points), axis=0), np.arange(dims)])
    return (points * np.where(signs == 0, 1, signs)).astype(np.float32)


def _largest(square: np.ndarray, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of a symmetric matrix, and their vectors as columns."""
    values, vectors = np.linalg.eigh(square)
    return values[::-1][:dims], vectors[:, ::-1][:, :dims]


def umap(matrix: Matrix, dims: int, seed: int) -> np.ndarray:
    """The rows as UMAP places them: ``(row, dims)`` float32; the same for the same seed.

    Source: McInnes, Healy and Melville, 2018, "UMAP: Uniform Manifold Approximation and Projection". Raises UserError
    where its package is missing, or there are fewer than four rows.
    """
    from vaak.engine.precision import keeping_kernels

    number = len(matrix)
    if number < 4:
        raise UserError(f"UMAP requires at least 4 rows, not {number}; use --reduce pca or none")
    with warnings.catch_warnings():
        # umap warns of its imports, and that one seed means one process.
        warnings.simplefilter("ignore")
        try:
            from umap import UMAP
        except ImportError as error:
            raise UserError("reduce: umap requires the package umap-learn: pip install 'vaak[umap]'") from error
        if number * matrix.num_columns * 4 > LARGEST_MATRIX_BYTES:
            points = pca(matrix, DIMS_BEFORE_UMAP)
        else:
            points = matrix.columns(0, matrix.num_columns)
        dims = min(dims, points.shape[1], number - 2)
        model: Any = UMAP(n_components=dims, n_neighbors=min(15, number - 1), random_state=seed, n_jobs=1)
        # numba, when it starts its own threads, gives the process's OpenMP, which is torch's too, as many as cores:
        # what this process trains afterwards would have other bits than a run that is resumed after this stage
        with keeping_kernels():
            return np.asarray(model.fit_transform(points), np.float32)
