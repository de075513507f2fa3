"""How good clusters are: sizes, noise, silhouette, stability under resampling, agreement with groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.progress import followed
from vaak.core.random_keys import Purpose, draw_key
from vaak.tasks.asr.clustering.cluster import Clustering, cluster_points, silhouette
from vaak.tasks.asr.clustering.config import ClusteringConfig

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
        figures = {
            "silhouette": self.silhouette,
            "stability (adjusted Rand)": self.stability,
            "agreement with groups (adjusted Rand)": self.agreement,
            "homogeneity of clusters": self.homogeneity,
        }
        said = [f"{len(self.sizes)} clusters of {', '.join(map(str, self.sizes))} rows; noise {self.noise_share:.1%}"]
        said += [f"{name} {'not measured' if value is None else f'{value:.3f}'}" for name, value in figures.items()]
        return said + [f"degenerate: {problem}" for problem in self.problems]


def quality_of(clustering: Clustering, config: ClusteringConfig, groups: Sequence[str] | None = None) -> Quality:
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
    for resample in followed(range(config.bootstraps), "stability", config.bootstraps):
        rng = np.random.default_rng(draw_key(Purpose.CHECK, config.seed, "stability", resample))
        chosen = np.unique(rng.integers(0, number, min(number, 2 * MOST_RESAMPLED)))
        chosen = np.sort(rng.permutation(chosen)[:MOST_RESAMPLED])
        try:
            again = cluster_points(clustering.points[chosen], same)
        except UserError:  # too few rows are left
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
