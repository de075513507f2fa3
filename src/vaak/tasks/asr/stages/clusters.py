"""Stage ``clusters``: the embeddings in clusters, each of which becomes an expert; how good they are.

clusters.json      the cluster of every key, which keys were noise, how they were found, their quality
clusters.png       a picture, if one is wanted

Quality is sizes, noise, silhouette, stability under resampling, agreement with groups.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.core.progress import track
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.rows import PipelineRowStore
from vaak.pipeline.stage import StageWork
from vaak.tasks.asr.stages.clustering import Clustering, cluster, cluster_points, reduced, silhouette
from vaak.tasks.asr.stages.drawings import draw_clusters
from vaak.tasks.asr.stages.embeddings import ROWS, groups_in
from vaak.tasks.asr.stages.options import ClusteringConfig, MoeOptions

log = logging.getLogger("vaak")

FEW_UTTERANCES = 50
"""On fewer, an expert learns its utterances by heart: minutes of speech."""


def expected_sizes(options: MoeOptions, sizes: Sequence[int]) -> list[int]:
    """About how many utterances each expert will be trained on, by the ``sizes`` of the clusters."""
    ratio = options.get_data_share("experts").percent / options.get_data_share("embeddings").percent
    expected = [ratio * size for size in sizes]
    most = options.get_data_share("experts").most or sum(expected)
    return [round(size * min(1.0, most / sum(expected))) for size in expected]


def few_utterances(sizes: Sequence[int]) -> str:
    """Return a warning on experts that are trained on few utterances; empty where all have enough."""
    few = [size for size in sizes if size < FEW_UTTERANCES]
    if not few:
        return ""
    return (
        f"{len(few)} of {len(sizes)} experts have fewer than {FEW_UTTERANCES} utterances to train on (the fewest "
        f"{min(few)}): they will learn these by heart; give a lower --num-experts, or a higher --expert-percent"
    )


def clusters(work: StageWork) -> dict[str, Any]:
    """Write the clusters of embeddings, one for each expert. Raises UserError for a single cluster."""
    options: MoeOptions = work.options
    folder = work.inputs["embeddings"]
    store = PipelineRowStore(folder / ROWS)
    plot = options.plot_method if options.draw and (options.plot_method == "pca" or len(store) > 3) else None
    quality, remarks = make_clusters(store, groups_in(folder, store.keys), options.clustering, work.folder, plot)
    for line in (*remarks, *quality.lines()):
        log.info("%s", line)
    if len(quality.sizes) < 2:
        raise UserError("all utterances are in one cluster, and a mixture needs two experts: use --algorithm spectral")
    if options.mode == "full" and (too_few := few_utterances(expected_sizes(options, quality.sizes))):
        log.warning("%s", too_few)
    metrics = {"clusters": len(quality.sizes), "noise": quality.noise_share, "silhouette": quality.silhouette}
    metrics |= {"smallest": min(quality.sizes), "largest": max(quality.sizes)}
    return {**metrics, "stability": quality.stability, "agreement with groups": quality.agreement}


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
        """Return the clusters in a folder. Raises DataError where there are none."""
        path = folder / FILE
        try:
            about = read_json(path)
            return cls(about["labels"], about["num_clusters"], tuple(about["noise"]), about["quality"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no clusters can be read here ({error}); run the stage that makes them") from error


def make_clusters(
    store: PipelineRowStore,
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
    quality = measure_quality(found, config, groups)
    if plot is not None:
        draw_clustering(found, groups, plot, folder / PICTURE, config.seed)
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


MOST_POINTS = 20_000
"""Points of a picture."""


def draw_clustering(
    clustering: Clustering, groups: Sequence[str] | None, method: Literal["pca", "umap"], path: Path, seed: int = 42
) -> None:
    """Write the picture of a ``clustering`` to ``path``; the kind of file follows from its ending.

    ``method`` gives the two dimensions, with ``seed``; where UMAP isn't installed, PCA does. ``groups`` are the rows'
    values of a stratification column. Raises UserError where matplotlib is missing or the file can't be written.
    """
    if method == "umap" and importlib.util.find_spec("umap") is None:
        log.warning("the picture of the clusters is drawn by PCA; by UMAP, it requires: pip install 'vaak[umap]'")
        method = "pca"
    chosen = np.sort(np.random.default_rng(seed).permutation(len(clustering.labels))[:MOST_POINTS])
    points = reduced(clustering.points[chosen], method, 2, seed)
    if points.shape[1] == 1:
        # One dimension is all there is.
        points = np.column_stack([points, np.zeros(len(points), np.float32)])
    panels = {"cluster": [f"cluster {label}" for label in clustering.labels[chosen]]}
    if groups is not None:
        panels["group"] = [str(groups[row]) for row in chosen]
    draw_clusters(points, panels, clustering.is_noise[chosen], method, path)


MOST_RESAMPLED = 2_000
"""Rows of a resample."""
DOMINANT = 0.9
"""The share of rows from which on one cluster is as good as all."""
MOSTLY_NOISE = 0.5
UNSTABLE = 0.5
"""The adjusted Rand index below which resamples give other clusters (1: the same, 0: as by chance)."""
SAME_AS_GROUPS = 0.95


@dataclass(frozen=True)
class Quality:
    """Figures of a clustering.

    ``silhouette`` is between -1 and 1: how much nearer rows are to their own cluster than to the next. ``stability`` is
    the mean adjusted Rand index (1: the same) between the clusters and those of resamples, ``stability_low`` the
    lowest. ``agreement`` is that between clusters and groups, ``homogeneity`` (0 to 1) how much a cluster tells about
    the group, ``groups`` the number of rows of each group in each cluster. None for what can't be measured.
    ``problems`` are reasons to doubt the clusters.
    """

    sizes: list[int]
    noise_share: float
    silhouette: float | None
    stability: float | None
    stability_low: float | None
    agreement: float | None
    homogeneity: float | None
    groups: dict[str, list[int]]
    problems: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The figures for a reader."""
        metrics = {
            "silhouette": self.silhouette,
            "stability (adjusted Rand)": self.stability,
            "agreement with groups (adjusted Rand)": self.agreement,
            "homogeneity of clusters": self.homogeneity,
        }
        said = [f"{len(self.sizes)} clusters of {', '.join(map(str, self.sizes))} rows; noise {self.noise_share:.1%}"]
        said += [f"{name} {'not measured' if value is None else f'{value:.3f}'}" for name, value in metrics.items()]
        return said + [f"degenerate: {problem}" for problem in self.problems]


def measure_quality(clustering: Clustering, config: ClusteringConfig, groups: Sequence[str] | None = None) -> Quality:
    """The figures of a clustering; ``groups`` are the rows' values of a stratification column, if there is one.

    Source: Rousseeuw, 1987 (silhouette); Hubert and Arabie, 1985 (adjusted Rand index); Hennig, 2007, "Cluster-wise
    assessment of cluster stability" (resampling); Rosenberg and Hirschberg, 2007 (homogeneity).
    """
    sizes = np.bincount(clustering.labels, minlength=clustering.num_clusters)
    scores = list(_stability(clustering, config)) if clustering.num_clusters > 1 else []
    agreement, homogeneity, table = _agreement(clustering, groups)
    noise = float(clustering.is_noise.mean())
    own = silhouette(clustering.points, clustering.labels, config)
    stability = float(np.mean(scores)) if scores else None
    problems = []
    if clustering.num_clusters == 1:
        problems.append("there is one cluster: nothing is told apart")
    elif sizes.max() > DOMINANT * sizes.sum():
        problems.append(
            f"one cluster holds {sizes.max() / sizes.sum():.0%} of the rows; spectral makes them more equal"
        )
    if (sizes < 2).any():
        problems.append(f"{int((sizes < 2).sum())} cluster(s) hold a single row: an expert can't be trained on it")
    if noise > MOSTLY_NOISE:
        problems.append(f"{noise:.0%} of the rows were noise, in no dense cluster")
    if own is not None and own <= 0:
        problems.append("rows are as near to another cluster as to their own (silhouette not above 0)")
    if stability is not None and stability < UNSTABLE:
        problems.append(f"resamples give other clusters (adjusted Rand {stability:.2f})")
    if agreement is not None and agreement > SAME_AS_GROUPS:
        problems.append("the clusters are the groups under other names; experts by group need no clustering")
    low = float(min(scores)) if scores else None
    return Quality(sizes.tolist(), noise, own, stability, low, agreement, homogeneity, table, problems)


def _stability(clustering: Clustering, config: ClusteringConfig) -> Any:
    """For each resample, how much its clusters agree with those of all rows, on the rows that it holds.

    A bootstrap draws rows with replacement; each row that was drawn counts once, since equal rows would be dense
    clusters to HDBSCAN. It is clustered as the whole was, without further attempts.
    """
    from sklearn.metrics import adjusted_rand_score

    number = len(clustering.labels)
    fixed = {
        "algorithm": clustering.algorithm,
        "num_experts": clustering.num_clusters,
        "min_cluster_size": clustering.min_cluster_size or config.min_cluster_size,
        "max_retries": 0,
        "reduce_experts": True,
        "min_experts": 1,
        "min_clusters": 1,
    }
    same = config.model_copy(update=fixed)
    for resample in track(range(config.bootstraps), "stability", config.bootstraps):
        rng = np.random.default_rng(draw_key(Purpose.CHECK, config.seed, "stability", resample))
        # A bootstrap holds about 63 % of its rows once or more, so drawing twice the limit leaves more than the limit
        # of many rows, which the next line thins out.
        chosen = np.unique(rng.integers(0, number, min(number, 2 * MOST_RESAMPLED)))
        chosen = np.sort(rng.permutation(chosen)[:MOST_RESAMPLED])
        try:
            again = cluster_points(clustering.points[chosen], same)
        except UserError:
            # Too few rows are left.
            continue
        yield adjusted_rand_score(clustering.labels[chosen], again.labels)


def _agreement(
    clustering: Clustering, groups: Sequence[str] | None
) -> tuple[float | None, float | None, dict[str, list[int]]]:
    """Adjusted Rand index and homogeneity of clusters and groups, and the rows of each group by cluster."""
    if groups is None:
        return None, None, {}
    from sklearn.metrics import adjusted_rand_score, homogeneity_score

    names = np.asarray(groups, dtype=str)
    table = {
        str(name): np.bincount(clustering.labels[names == name], minlength=clustering.num_clusters).tolist()
        for name in np.unique(names)
    }
    if len(table) < 2:
        return None, None, table
    labels = clustering.labels
    return float(adjusted_rand_score(names, labels)), float(homogeneity_score(names, labels)), table
