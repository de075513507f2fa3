"""Evaluate a trained run on any split of its own or other data, and simple baselines on the same data.

RUN/baselines.json      {split: {"data": fingerprint, "figure": …, "higher": …, "figures": {method: {figure: value}}}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
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
    """Evaluate a run or a checkpoint at ``path`` on ``splits``, in fp32 unless overridden; return a report.

    The report has:

    - ``checkpoint``: the checkpoint that was evaluated
    - ``metrics`` and ``protocol``: metrics of all splits, and how those of each split were computed
    - ``counts``: lines on how often something was found, such as words in recordings without speech
    - ``data``: what was read of each split and what was left out
    - ``files``: files of searched folders that weren't read
    - ``below_baselines``: a line for each split on which a known baseline is better

    ``files`` and ``overrides`` may name other data, which are prepared in a temporary folder, with the run's tokenizer
    and the like. ``device``, ``weights`` and ``trust_code`` are those of ``open_run``. ``watched`` gets the meters of
    each split, and returns those to use, such as meters that also record what they are updated with.

    Raises UserError if no split is given.
    """
    with scratch_folder("eval") as temporary_folder, keeping_kernels(), noting_files() as noted:
        # First, so that the user's overrides win.
        overrides = ["training.mixed_precision=no", *overrides]
        opened = open_run(
            path,
            files,
            overrides,
            device,
            weights=weights,
            temporary_folder=temporary_folder,
            splits=tuple(splits),
            trust_code=trust_code,
        )
        # Raises for an unknown split before any is evaluated.
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
        contents = collect_split_contents(opened.task, splits)
    report: dict[str, Any] = {"checkpoint": str(opened.checkpoint), "metrics": metrics, "protocol": protocol}
    report["counts"] = describe_counts(metrics)
    return {**report, "data": contents, "files": files_to_json(noted), "below_baselines": below}


def collect_split_contents(task: Any, splits: Iterable[str]) -> dict[str, Any]:
    """Return what a task read of each split and what it left out, where that is known (``vaak.core.left_out``)."""
    found = {split: task.split_contents(split) for split in splits}
    return {split: one.to_json() for split, one in found.items() if one is not None}


def make_data_overrides(path: Path, data: Path, split: str) -> list[str]:
    """Return overrides with which the run or pretrained model at ``path`` is evaluated on a file or folder ``data``.

    The kind of data is detected as by ``vaak init``. All of them are taken as ``split``, unless they have a split of
    that name. Raises UserError for data that aren't recognised, or that the task can't be evaluated on.
    """
    task = Base.find(path).task if is_base(path) else load([*list_layers(resolve_run(path))]).experiment.task
    fill = spec_by_name(task).starter
    if fill is None:
        raise UserError(f"--data: data of task {task} can't be detected; give a YAML of data")
    corpora = select_corpora(select_usable(survey_folder(data)), task)
    # All of it is evaluated on: as of a corpus that wasn't counted, nothing is to be spared for other splits.
    for one in corpora:
        one.splits = {name: replace(counted, is_whole=False) for name, counted in one.splits.items()}
    processor = Device("cpu", "cpu", GIB, GIB)
    sections = _plain(load_name(fill)(corpora, add_up_amounts(corpora), processor))
    if "datasets" in sections:
        return [f"datasets={flow_text([_as_split(one, split) for one in sections['datasets']])}"]
    # All splits are overridden, because the run's own corpus may name files of other splits.
    corpus: dict[str, Any] = {name: [] for name in SPLITS} | _as_split(sections["data"]["corpus"], split)
    return [f"data.corpus.{key}={flow_text(value)}" for key, value in corpus.items()]


def _plain(value: Any) -> Any:
    """Return sections without the reasons for their values."""
    if isinstance(value, Choice):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _as_split(options: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the options of a corpus with only the files of ``split``; if it has no such split, all files.

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
    """Compute the baselines of a split and write them to the run directory; prepare the data first, if necessary.

    Also returns what was read of the split and what was left out, as in the report of ``evaluate_run``. Raises
    UserError for a task without baselines.
    """
    directory = loaded.experiment.run_dir
    if not holds_a_run(directory):
        prepare(loaded)
    task = loaded.task()
    found = task.baselines(split)
    about = {"data": task.dataset(split).fingerprint, **asdict(found)}
    write_json(directory / BASELINES_FILE, {**_read_baselines(directory), split: about})
    return found, collect_split_contents(task, [split])


def below_baselines(
    directory: Path, metrics: Mapping[str, float], data: Callable[[str], str] | None = None
) -> list[str]:
    """Return a line for each split on which a baseline is better than ``metrics``.

    ``data`` returns the fingerprint of a split's evaluated data; None if these are the run's own.
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
