"""Stage ``clusters``: the embeddings in clusters, each of which becomes an expert (vaak.tasks.asr.clustering)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from vaak.core.errors import UserError
from vaak.pipeline.rows import RowStore
from vaak.pipeline.stage import Work
from vaak.tasks.asr.clustering.files import make_clusters
from vaak.tasks.asr.stages.embeddings import ROWS, groups_in
from vaak.tasks.asr.stages.options import MoeOptions

log = logging.getLogger("vaak")


FEW_UTTERANCES = 50
"""On fewer, an expert learns its utterances by heart: minutes of speech."""


def expected_sizes(options: MoeOptions, sizes: Sequence[int]) -> list[int]:
    """About how many utterances each expert will be trained on, by the ``sizes`` of the clusters."""
    ratio = options.part_of("experts").percent / options.part_of("embeddings").percent
    expected = [ratio * size for size in sizes]
    most = options.part_of("experts").most or sum(expected)
    return [round(size * min(1.0, most / sum(expected))) for size in expected]


def few_utterances(sizes: Sequence[int]) -> str:
    """What is to be said of experts that are trained on few utterances; nothing where all have enough."""
    few = [size for size in sizes if size < FEW_UTTERANCES]
    if not few:
        return ""
    return (
        f"{len(few)} of {len(sizes)} experts have fewer than {FEW_UTTERANCES} utterances to train on (the fewest "
        f"{min(few)}): they will learn these by heart; give a lower --num-experts, or a higher --expert-percent"
    )


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
    if options.mode == "full" and (too_few := few_utterances(expected_sizes(options, quality.sizes))):
        log.warning("%s", too_few)
    figures = {"clusters": len(quality.sizes), "noise": quality.noise_share, "silhouette": quality.silhouette}
    figures |= {"smallest": min(quality.sizes), "largest": max(quality.sizes)}
    return {**figures, "stability": quality.stability, "agreement with groups": quality.agreement}
