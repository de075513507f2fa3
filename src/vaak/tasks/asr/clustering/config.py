"""The options of clustering."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import model_validator

from vaak.config.base import Section, option

Reduction = Literal["none", "pca", "umap"]
Metric = Literal[
    "euclidean", "l2", "manhattan", "l1", "cityblock", "chebyshev", "canberra", "braycurtis", "cosine", "correlation"
]
Backend = Literal["best", "generic", "prims_kdtree", "prims_balltree", "boruvka_kdtree", "boruvka_balltree"]

KD_TREE_METRICS = ("euclidean", "l2", "manhattan", "l1", "cityblock", "chebyshev")
BALL_TREE_METRICS = (*KD_TREE_METRICS, "canberra", "braycurtis")
METRICS_OF: dict[str, tuple[str, ...]] = {
    "best": get_args(Metric),
    "generic": get_args(Metric),
    "prims_kdtree": KD_TREE_METRICS,
    "boruvka_kdtree": KD_TREE_METRICS,
    "prims_balltree": BALL_TREE_METRICS,
    "boruvka_balltree": BALL_TREE_METRICS,
}
"""The metrics that each way to compute HDBSCAN can use: a tree needs the triangle inequality, a k-d tree axes too."""


class ClusteringConfig(Section):
    """How embeddings are clustered."""

    algorithm: Literal["hdbscan", "spectral", "random"] = option(
        "hdbscan: as many clusters as the data are dense in; spectral: num_experts clusters; random: as many, by "
        "chance, as a control.",
        "hdbscan",
    )
    num_experts: int = option(
        "Number of clusters of spectral and random; those of HDBSCAN are merged down to it.", 8, ge=1
    )
    balanced: bool = option(
        "spectral: clusters of equal size, give or take a row, however many each would have.", False
    )
    reduce: Reduction = option("How dimensions are reduced before clustering.", "pca")
    reduce_dim: int = option("To how many dimensions.", 50, ge=1)
    metric: Metric = option("Distance of HDBSCAN.", "euclidean")
    hdbscan_algorithm: Backend = option("How HDBSCAN is computed; each knows some metrics.", "best")
    min_cluster_size: int = option("The smallest cluster of HDBSCAN; lower gives more clusters.", 5, ge=2)
    min_clusters: int = option(
        "The fewest clusters that HDBSCAN is to find, at most num_experts, or it tries again.", 8, ge=1
    )
    min_samples: int | None = option(
        "Neighbours that make a point dense to HDBSCAN; null: min_cluster_size.", None, ge=1
    )
    allow_single_cluster: bool = option("Whether HDBSCAN may find one cluster only.", False)
    max_retries: int = option("How often HDBSCAN tries again, each time with a lower min_cluster_size.", 5, ge=0)
    reduce_experts: bool = option(
        "Accept fewer clusters, down to min_experts, and merge more; else another number than num_experts is an error.",
        True,
    )
    min_experts: int = option("The fewest clusters that are accepted then.", 2, ge=1)
    bootstraps: int = option("Resamples by which the stability of the clusters is measured; 0: none.", 10, ge=0)
    seed: int = option("Random seed.", 42, ge=0, lt=1 << 32)

    @model_validator(mode="after")
    def _only_spectral_is_balanced(self) -> ClusteringConfig:
        if self.balanced and self.algorithm != "spectral":
            raise ValueError(
                f"balanced requires algorithm spectral, not {self.algorithm} (random ones are of equal size)"
            )
        return self

    @model_validator(mode="after")
    def _metric_fits(self) -> ClusteringConfig:
        known = METRICS_OF[self.hdbscan_algorithm]
        if self.algorithm == "hdbscan" and self.metric not in known:
            raise ValueError(
                f"hdbscan_algorithm {self.hdbscan_algorithm} can't use metric {self.metric}: use best or generic, or "
                f"one of {', '.join(known)}"
            )
        return self
