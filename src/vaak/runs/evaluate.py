"""A trained run's figures on any split, of its data or others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.task import Meters
from vaak.engine.devices.randomness import make_deterministic
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Evaluator
from vaak.runs.baselines import below_baselines
from vaak.runs.open_run import OpenedRun, open_run


def evaluate_run(
    path: Path,
    files: Sequence[Path],
    overrides: Sequence[str],
    splits: Sequence[str],
    device: str = "auto",
    weights: str = "auto",
    trust_code: bool = False,
    watched: Callable[[OpenedRun, str, Meters], Meters] | None = None,
) -> dict[str, Any]:
    """``metrics`` of the splits, in fp32 unless overridden, their ``protocol``, and the ``checkpoint`` evaluated.

    ``below_baselines`` has a line for each split of which a known baseline is better (``vaak.runs.baselines``).

    ``files`` and ``overrides`` may name other data: they are prepared with what the run learned from its own, in a
    temporary folder.

    ``path`` is a run or a checkpoint; ``device``, ``weights`` and ``trust_code`` are those of ``open_run``. ``watched``
    makes meters of the run's meters of a split, which pass on what they are shown.
    """
    with tempfile.TemporaryDirectory(prefix="vaak-eval-") as temporary_folder:
        overrides = ["training.mixed_precision=no", *overrides]
        how: dict[str, Any] = {"weights": weights, "temporary_folder": Path(temporary_folder), "splits": tuple(splits)}
        opened = open_run(path, files, overrides, device, **how, trust_code=trust_code)
        training = opened.experiment.training
        ranks = Ranks(pick_device(device))
        make_deterministic(training, ranks.device)
        watching = partial(watched, opened) if watched is not None else None
        evaluator = Evaluator(opened.task, training, ranks, opened.experiment.skips_bad_examples, watched=watching)
        metrics: dict[str, float] = {}
        for split in splits:
            metrics |= evaluator.evaluate(opened.model, split)
        if not metrics:
            raise UserError("nothing to evaluate: give --split")
        precision = {"no": "fp32"}.get(training.mixed_precision, training.mixed_precision)
        conditions = {"precision": precision, "weights": opened.weights}
        protocol = {split: {**opened.task.meters(split).protocol, **conditions} for split in splits}
        below = below_baselines(opened.directory, metrics, lambda split: opened.task.dataset(split).fingerprint)
    report = {"checkpoint": str(opened.checkpoint), "metrics": metrics, "protocol": protocol}
    return {**report, "below_baselines": below}
