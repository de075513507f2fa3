"""A trained run's metrics on any split, of its data or others, next to what methods without a network reach.

RUN/baselines.json      {split: {"data": fingerprint, "figure": …, "higher": …, "figures": {method: {figure: value}}}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vaak.config.load import Loaded, load
from vaak.config.metrics import describe_counts, in_words
from vaak.config.tasks import load_name, spec_by_name
from vaak.config.yaml.text import flow_text
from vaak.core.errors import UserError
from vaak.core.left_out import files_to_json, noting_files
from vaak.core.machine import GIB
from vaak.core.splits import SPLITS
from vaak.core.storage.files import read_json, scratch_folder, write_json
from vaak.core.task import Baselines, Meters
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import PREFIXES, Evaluator
from vaak.engine.precision import keeping_kernels, make_deterministic, precision_on
from vaak.runs.base import Base, is_base
from vaak.runs.folder.directory import holds_a_run
from vaak.runs.open_run import OpenedRun, list_layers, open_run, resolve_run
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import survey_folder
from vaak.runs.start import prepare
from vaak.runs.starter import Choice, add_up_amounts, select_corpora, select_usable


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

    ``counts`` are lines on how often something was found, such as words in recordings without speech.
    ``data`` has what was read of each split and what was left out, ``files`` what wasn't read of files that were looked
    through. ``below_baselines`` has a line for each split of which a known baseline is better (``vaak.runs.evaluate``).

    ``files`` and ``overrides`` may name other data: they are prepared with what the run learned from its own, in a
    temporary folder.

    ``path`` is a run or a checkpoint; ``device``, ``weights`` and ``trust_code`` are those of ``open_run``. ``watched``
    makes meters of the run's meters of a split, which pass on what they are shown.
    """
    with scratch_folder("eval") as temporary_folder, keeping_kernels(), noting_files() as noted:
        # Before the user's, so that one of theirs wins.
        overrides = ["training.mixed_precision=no", *overrides]
        how: dict[str, Any] = {"weights": weights, "temporary_folder": temporary_folder, "splits": tuple(splits)}
        opened = open_run(path, files, overrides, device, **how, trust_code=trust_code)
        # An unknown split ends this before any is evaluated.
        for split in splits:
            opened.task.dataset(split)
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
        name = precision_on(training.mixed_precision, ranks.device)
        precision = {"no": "fp32"}.get(name, name)
        conditions = {"precision": precision, "weights": opened.weights}
        protocol = {split: {**opened.task.meters(split).protocol, **conditions} for split in splits}
        below = below_baselines(opened.directory, metrics, lambda split: opened.task.dataset(split).fingerprint)
        contents = contents_of_splits(opened.task, splits)
    report: dict[str, Any] = {"checkpoint": str(opened.checkpoint), "metrics": metrics, "protocol": protocol}
    report["counts"] = describe_counts(metrics)
    return {**report, "data": contents, "files": files_to_json(noted), "below_baselines": below}


def contents_of_splits(task: Any, splits: Iterable[str]) -> dict[str, Any]:
    """How much a task read of each split and what it left out, where that is known (``vaak.core.left_out``)."""
    found = {split: task.split_contents(split) for split in splits}
    return {split: one.to_json() for split, one in found.items() if one is not None}


def options_of_data(path: Path, data: Path, split: str) -> list[str]:
    """Return the options by which the run or the pretrained model at ``path`` is evaluated on all of a file or folder.

    What the data are is recognised as ``vaak init`` does. They are ``split``, unless they name one that is called so.
    Raises UserError for data that aren't recognised, or that the task can't be evaluated on.
    """
    task = Base.find(path).task if is_base(path) else load([*list_layers(resolve_run(path))]).experiment.task
    fill = spec_by_name(task).starter
    if fill is None:
        raise UserError(f"--data: what a run of task {task} reads isn't recognised; give a YAML of data")
    corpora = select_corpora(select_usable(survey_folder(data)), task)
    processor = Device("cpu", "cpu", GIB, GIB)
    sections = _plain(load_name(fill)(corpora, add_up_amounts(corpora), processor))
    if "datasets" in sections:
        return [f"datasets={flow_text([_as_split(one, split) for one in sections['datasets']])}"]
    # Files of other splits that the run's own corpus names would be read in place of what is asked for.
    corpus: dict[str, Any] = {name: [] for name in SPLITS} | _as_split(sections["data"]["corpus"], split)
    return [f"data.corpus.{key}={flow_text(value)}" for key, value in corpus.items()]


def _plain(value: Any) -> Any:
    """Sections without the reasons for their values."""
    if isinstance(value, Choice):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _as_split(options: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The options of a corpus with the files of ``split`` alone; where none is called so, all files are.

    >>> _as_split({"type": "json", "train": ["a.jsonl"], "valid": ["b.jsonl"]}, "test")
    {'type': 'json', 'test': ['a.jsonl', 'b.jsonl']}
    """
    found = dict(options)
    for ending in ("", "_target"):
        named = {name: found.pop(f"{name}{ending}") for name in SPLITS if f"{name}{ending}" in found}
        files = named.get(split, [file for one in named.values() for file in one])
        found |= {f"{split}{ending}": files} if files else {}
    return found


BASELINES_FILE = "baselines.json"


def make_baselines(loaded: Loaded, split: str) -> tuple[Baselines, dict[str, Any]]:
    """The baselines of a split, written to the run's directory; its data are prepared first where they aren't.

    Also returns what was read of the split and what was left out, as ``evaluate_run`` does. Raises UserError where the
    task has none.
    """
    directory = loaded.experiment.run_dir
    if not holds_a_run(directory):
        prepare(loaded)
    task = loaded.task()
    found = task.baselines(split)
    about = {"data": task.dataset(split).fingerprint, **asdict(found)}
    write_json(directory / BASELINES_FILE, {**_read_baselines(directory), split: about})
    return found, contents_of_splits(task, [split])


def below_baselines(
    directory: Path, metrics: Mapping[str, float], data: Callable[[str], str] | None = None
) -> list[str]:
    """A line for each split of which a baseline is better than the ``metrics``.

    ``data`` gives the fingerprint of what was evaluated, by split; None: it was the run's own.
    """
    lines = []
    for split, about in _read_baselines(directory).items():
        name = f"{PREFIXES.get(split, split + '_')}{about['figure']}"
        if name not in metrics or (data is not None and data(split) != about["data"]):
            continue
        values = {method: numbers[about["figure"]] for method, numbers in about["figures"].items()}
        best = (max if about["higher"] else min)(values, key=lambda method: values[method])
        if (values[best] > metrics[name]) == about["higher"] and values[best] != metrics[name]:
            reached, of_model = in_words(name, values[best]), in_words(name, metrics[name])
            lines.append(
                f"below its baseline: {name} is {of_model}, and {best} has {reached} (vaak baseline {directory})"
            )
    return lines


def _read_baselines(directory: Path) -> dict[str, Any]:
    return dict(read_json(directory / BASELINES_FILE)) if (directory / BASELINES_FILE).exists() else {}
