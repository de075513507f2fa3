"""What the harness finds about a model, by task files: its own, those of a folder, or single ones.

A task file may have been written by anyone. What it names to be executed (Python code, data sets and metrics that are
code) requires trust; its templates are Jinja, which could execute anything, and run in a sandbox, trusted or not.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval import tasks as own_tasks
from lm_eval import utils
from lm_eval.api import registry
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError
from ruamel.yaml.error import YAMLError

from vaak.config.components import did_you_mean
from vaak.config.yaml.writer import yaml_text
from vaak.core.errors import UserError
from vaak.core.storage.files import write_text
from vaak.tasks.lm.harness.model import HarnessModel

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}
"""Builders of Hugging Face datasets, by the ending of a file."""
CODE = "!function"
"""How a task file names Python code."""
PICKLES = "pandas"
"""The builder of Hugging Face datasets that reads pickles."""
OWN_TASKS = Path(str(own_tasks.__file__)).resolve().parent


@dataclass(frozen=True)
class Questions:
    """What is to be evaluated.

    ``tasks`` are names (patterns too) or task files, ``folder`` has more of these; ``data`` are files to be read in
    place of a task's own data set, by its name. ``num_fewshot`` and ``limit`` are the harness' options.
    """

    tasks: tuple[str, ...]
    folder: Path | None = None
    data: Mapping[str, Path] = field(default_factory=dict)
    num_fewshot: int | None = None
    limit: int | None = None
    trust_code: bool = False


def evaluate(model: HarnessModel, questions: Questions) -> dict[str, Any]:
    """Figures by name (``acc/blimp_adjunct_island``), their standard errors, and the protocol.

    Raises UserError for an unknown task, one whose data can't be read, or one that would execute code that isn't
    trusted.
    """
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness would fork this process to estimate an error
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    _refuse_code(questions)
    manager = _manager(questions)
    with contextlib.redirect_stdout(sys.stderr), _sandbox(), _specifications(manager, questions) as tasks:
        found = simple_evaluate(
            model=model,
            tasks=tasks,
            task_manager=manager,
            num_fewshot=questions.num_fewshot,
            limit=questions.limit,
            bootstrap_iters=1000,
            log_samples=False,
            confirm_run_unsafe_code=questions.trust_code,
        )
    figures: dict[str, float] = {}
    errors: dict[str, float] = {}
    for task, values in found["results"].items():
        for key, value in values.items():
            metric, _, which = key.partition(",")
            if which and isinstance(value, int | float):
                own = errors if metric.endswith("_stderr") else figures
                name = metric.removesuffix("_stderr") + (f" ({which})" if which != "none" else "")
                own[f"{name}/{task}"] = float(value)
    protocol = {
        "harness": f"lm-eval {version('lm-eval')}",
        "versions": found["versions"],
        "num_fewshot": found["n-shot"],
        "samples": {task: counts["effective"] for task, counts in found["n-samples"].items()},
        "max_length": model.max_length,
    }
    return {"metrics": figures, "standard_errors": errors, "protocol": protocol}


@contextlib.contextmanager
def _sandbox() -> Iterator[None]:
    """Here, templates of task files can't reach Python. Raises UserError for what one does that isn't possible."""
    before: Any = utils.env
    inside = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    inside.filters.update(before.filters)
    utils.env = inside
    try:
        yield
    except TemplateError as error:
        raise UserError(f"--tasks: a template of a task file can't be filled in: {error}") from error
    finally:
        utils.env = before


def _manager(questions: Questions) -> _Tasks:
    """What knows all tasks that are asked for: the harness' own are read, in seconds, only if others don't do."""
    folder = None if questions.folder is None else str(questions.folder)
    others = _Tasks(include_path=folder, include_defaults=False)
    if all(Path(task).is_file() or others.match_tasks([task]) for task in questions.tasks):
        return others
    return _Tasks(include_path=folder)


class _Tasks(TaskManager):
    """Tasks of the harness; what is wrong with them or with their data is the user's to fix."""

    def load(self, task_list: Any) -> Any:
        try:
            return super().load(task_list)
        except TemplateError:
            raise  # the sandbox says so
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            raise UserError(
                f"--tasks: a task or its data can't be loaded: {type(error).__name__}: {reason[0]}; data are read from "
                "the Hugging Face Hub unless --data NAME=FILE gives a file"
            ) from error


@contextlib.contextmanager
def _specifications(manager: _Tasks, questions: Questions) -> Iterator[list[str]]:
    """Names and files of tasks, as the harness takes them. Raises UserError for an unknown one."""
    names: list[str] = []
    for task in questions.tasks:
        matching = [task] if Path(task).is_file() else manager.match_tasks([task])
        if not matching:
            raise UserError(f"--tasks: there is no task {task}{did_you_mean(task, manager.all_tasks)}")
        names += [name for name in matching if name not in names]
    for name in questions.data:
        if name not in names:
            raise UserError(f"--data {name}=…: {name} is not one of --tasks, which are {', '.join(names)}")
    with TemporaryDirectory() as folder:
        yield [_with_data(manager, name, questions.data.get(name), Path(folder)) for name in names]


def _with_data(manager: _Tasks, name: str, data: Path | None, folder: Path) -> str:
    """The task; with ``data``, a file in ``folder`` that is the task's own but for its data.

    Raises UserError for data that aren't a file of a known format.
    """
    if data is None:
        return name
    builder = FORMATS.get(data.suffix)
    if builder is None or not data.is_file():
        raise UserError(f"--data {name}={data}: expected a file that ends in {', '.join(FORMATS)}")
    entry = manager.task_index.get(name)
    files = dict.fromkeys(("train", "validation", "test"), str(data.absolute()))
    content = {
        "include": str(Path(name).absolute() if entry is None else entry.yaml_path),
        "dataset_path": builder,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, **({"sep": "\t"} if data.suffix == ".tsv" else {})},
    }
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    write_text(path, yaml_text(content))
    return str(path)


def _refuse_code(questions: Questions) -> None:
    """Raises UserError where a task file, or one that it includes, names code that isn't trusted."""
    if questions.trust_code:
        return
    files = [Path(task) for task in questions.tasks if Path(task).is_file()]
    if questions.folder is not None:
        if not questions.folder.is_dir():
            raise UserError(f"--include-path {questions.folder}: this is not a folder")
        files += sorted(path for ending in ("yaml", "yml") for path in questions.folder.rglob(f"*.{ending}"))
    seen: set[Path] = set()
    while files:
        path = files.pop(0).resolve()
        if path not in seen and not path.is_relative_to(OWN_TASKS):
            seen.add(path)
            files += _included(path)


def _included(path: Path) -> list[Path]:
    """The files that a task file includes. Raises UserError where it is more than plain YAML, or can't be read."""
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except ConstructorError as error:
        raise UserError(
            f"{path} names Python code ({CODE}), which would be executed: add --trust-code if you trust it"
        ) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise UserError(f"{path}: this task file can't be read: {str(error).splitlines()[0]}") from error
    if executed := next(_fetched_code(content), None):
        raise UserError(
            f"{path}: {executed} is code from elsewhere, which would be executed: add --trust-code if you trust it"
        )
    found = content.get("include", []) if isinstance(content, dict) else []
    return [path.parent / str(one) for one in (found if isinstance(found, list) else [found])]


def _fetched_code(content: Any) -> Iterator[str]:
    """What a task file names that is code: data sets of their own script, pickles, metrics that the harness lacks."""
    if isinstance(content, Mapping):
        metric = content.get("metric")
        if isinstance(metric, str) and (content.get("hf_evaluate") or metric not in registry.metric_registry):
            yield f"metric: {metric}"
        if content.get("trust_remote_code"):
            yield "trust_remote_code"
        if content.get("dataset_path") == PICKLES:
            yield f"dataset_path: {PICKLES}"
    inner: Iterable[Any] = content.values() if isinstance(content, Mapping) else content
    for one in inner if isinstance(content, Mapping | list) else ():
        yield from _fetched_code(one)
