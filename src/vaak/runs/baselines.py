"""What methods without a network reach on a run's data, kept with the run, so that a model below them is noticed.

RUN/baselines.json      {split: {"data": fingerprint, "figure": …, "higher": …, "figures": {method: {figure: value}}}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vaak.callbacks.console.figures import in_words
from vaak.config.load import Loaded
from vaak.config.tasks import task_class
from vaak.core.storage.files import read_json, write_json
from vaak.core.task import Baselines, Task
from vaak.engine.evaluation import PREFIXES
from vaak.runs.folder.directory import holds_a_run
from vaak.runs.start import prepare

FILE = "baselines.json"


def make_baselines(loaded: Loaded, split: str) -> Baselines:
    """The baselines of a split, written to the run's directory; its data are prepared first where they aren't.

    Raises UserError where the task has none.
    """
    experiment, directory = loaded.experiment, loaded.experiment.run_dir
    if not holds_a_run(directory):
        prepare(loaded)
    task: Task = task_class(experiment.reference)(experiment, directory, loaded.folder)
    found = task.baselines(split)
    about = {"data": task.dataset(split).fingerprint, **asdict(found)}
    write_json(directory / FILE, {**_known(directory), split: about})
    return found


def below_baselines(
    directory: Path, metrics: Mapping[str, float], data: Callable[[str], str] | None = None
) -> list[str]:
    """A line for each split of which a baseline is better than the ``metrics``.

    ``data`` gives the fingerprint of what was evaluated, by split; None: it was the run's own.
    """
    lines = []
    for split, about in _known(directory).items():
        name = f"{PREFIXES.get(split, split + '_')}{about['figure']}"
        if name not in metrics or (data is not None and data(split) != about["data"]):
            continue
        values = {method: figures[about["figure"]] for method, figures in about["figures"].items()}
        best = (max if about["higher"] else min)(values, key=lambda method: values[method])
        if (values[best] > metrics[name]) == about["higher"] and values[best] != metrics[name]:
            reached, of_model = in_words(name, values[best]), in_words(name, metrics[name])
            lines.append(
                f"below its baseline: {name} is {of_model}, and {best} has {reached} (vaak baseline {directory})"
            )
    return lines


def _known(directory: Path) -> dict[str, Any]:
    return dict(read_json(directory / FILE)) if (directory / FILE).exists() else {}
