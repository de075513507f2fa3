"""Stage ``clusters``: the embeddings in clusters, each of which becomes an expert (vaak.tasks.asr.clustering)."""

from __future__ import annotations

import logging
from typing import Any

from vaak.core.errors import UserError
from vaak.pipeline.rows import RowStore
from vaak.pipeline.stage import Work
from vaak.tasks.asr.clustering.files import make_clusters
from vaak.tasks.asr.stages.embeddings import ROWS, groups_in
from vaak.tasks.asr.stages.options import MoeOptions

log = logging.getLogger("vaak")


def clusters(work: Work) -> dict[str, Any]:
    """The stage's body. Raises UserError for a single cluster."""
    options: MoeOptions = work.options
    folder = work.inputs["embeddings"]
    store = RowStore(folder / ROWS)
    plot = options.plot_method if options.draw and (options.plot_method == "pca" or len(store) > 3) else None
    quality, remarks = make_clusters(store, groups_in(folder, store.keys), options.clustering, work.folder, plot)
    for line in (*remarks, *quality.lines()):
        log.info("%s", line)
    if len(quality.sizes) < 2:
        raise UserError("all utterances are in one cluster, and a mixture needs two experts: use --algorithm spectral")
    figures = {"clusters": len(quality.sizes), "noise": quality.noise_share, "silhouette": quality.silhouette}
    return {**figures, "stability": quality.stability, "agreement with groups": quality.agreement}
