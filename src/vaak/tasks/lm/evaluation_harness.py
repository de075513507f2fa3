"""A decoder in the LM Evaluation Harness: its task files have the questions, and how answers are scored. Needs lm-eval.

    minimal pairs, multiple choice   loglikelihood of each continuation, given its context
    perplexity                       loglikelihood_rolling of whole texts, in windows of max_length
    answers in words                 generate_until, up to a string that ends them

Texts are read as in training: normalised, after the token that begins a document. Metrics are those of the harness'
own ``hf`` model on the exported folder: with ``add_bos_token=True``, and of whole texts with ``add_bos_token=False``.
Where windows begin with this token (data.bos_in_windows), so does each part of a long text, which the harness doesn't
do.

A task file may have been written by anyone. What it names to be executed (Python code, data sets and metrics that are
code) requires trust; its templates are Jinja, which could execute anything, and run in a sandbox, trusted or not.
Source: Gao et al., "The Language Model Evaluation Harness" (lm-eval), whose interface this is.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval import tasks as own_tasks
from lm_eval import utils
from lm_eval.api import registry
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError
from ruamel.yaml.error import YAMLError
from torch import nn

from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError, UserError
from vaak.core.names import quote_unmatched, require_known
from vaak.core.progress import progress
from vaak.core.storage.dialects import ENDINGS
from vaak.core.storage.files import scratch_folder, write_text
from vaak.core.storage.spreadsheets import SPREADSHEETS
from vaak.core.storage.tables import Table, is_table
from vaak.core.storage.text_lines import read_text_lines
from vaak.tasks.lm.model import AnyLanguageModel
from vaak.tasks.lm.predict import token_scores
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text.corpora.readers import json_entries
from vaak.text.tokenizer import normalise

log = logging.getLogger("vaak")
MAX_NEW_TOKENS = 256
"""The most tokens of an answer, where the task file doesn't say (``max_gen_toks``), as in the harness."""
SAMPLED_BY = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
Request = tuple[Any, list[int], list[int]]
"""A request, the tokens of its context and those that are scored."""
Score = tuple[float, bool]
"""The log-probability of tokens, and whether each of them is the most probable one."""


class HarnessModel(TemplateLM):
    """Answers the harness's requests to a language model."""

    def __init__(self, task: LanguageModelTask, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        assert isinstance(model, AnyLanguageModel)
        self.task, self.model, self.batch_size = task, model, batch_size
        self.max_length, self.longest_read = task.data.max_length, task.longest_read

    @property
    def eot_token_id(self) -> int:
        return self.task.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self.task.tokenizer.bos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens of a text, after the one that begins a document, unless ``add_special_tokens`` is False."""
        ids = self.task.tokenizer.encode(normalise(string))
        return ids if add_special_tokens is False else [self.prefix_token_id, *ids]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text: windows don't overlap, and each is read after the token before it."""
        windows: list[Request] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1):
                context, scored = make_disjoint_window(window)
                begins = [] if self.task.reads.begins_with is None else [self.task.reads.begins_with]
                windows.append((None, [*begins, *context[len(begins) :]], scored))
                owners.append(number)
        totals = [0.0 for _ in requests]
        for owner, (score, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += score
        return totals

    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[Score]:
        """The score of each request, whose texts the harness has turned into tokens; long ones are read first."""
        lengths = [len(context) + len(scored) - 1 for _, context, scored in requests]
        if cut := sum(length > self.longest_read for length in lengths):
            longest = f"{cut} of {len(lengths)} texts are longer than the {self.longest_read:,} tokens that are read"
            log.warning("%s: their beginning isn't", longest)
        order = sorted(range(len(requests)), key=lambda one: -lengths[one])
        scores: list[Score] = [(0.0, True) for _ in requests]
        with progress("log-probabilities", len(requests)) as advance:
            for first in range(0, len(order), self.batch_size):
                chosen = order[first : first + self.batch_size]
                for place, score in zip(chosen, self._scores([requests[one] for one in chosen]), strict=True):
                    scores[place] = score
                advance(len(chosen))
        return scores

    def _scores(self, requests: Sequence[Request]) -> Iterator[Score]:
        """Yield the scores of one batch: rows of as many last tokens as the model reads, padded on the right.

        Raises DataError for more tokens to score than these.
        """
        for asked, _, scored in requests:
            if len(scored) > self.longest_read:
                longest = f"the {self.longest_read} that the model reads"
                raise DataError(f"{asked}: {len(scored)} tokens to score, more than {longest} (data.max_length)")
        keep_last = self.task.reads.keep_last
        rows = [keep_last([*context, *scored], self.longest_read + 1) for _, context, scored in requests]
        for own, greedy in token_scores(self.model, rows, [len(scored) for _, _, scored in requests]):
            yield float(own.sum()), bool(greedy.all())

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the model's continuation of each context, up to the first of the strings that end it."""
        answers: list[str] = []
        with progress("answers", len(requests)) as advance:
            for request in requests:
                context, options = request.args
                answers.append(self._answer(context, options))
                advance(1)
        return answers

    def _answer(self, context: str, options: dict[str, Any]) -> str:
        until = options.get("until") or []
        ends = [until] if isinstance(until, str) else list(until)
        settings = {name: options[name] for name in SAMPLED_BY if name in options}
        if not options.get("do_sample", settings.get("temperature", 0.0) > 0):
            settings["temperature"] = 0.0
        number = int(options.get("max_gen_toks", MAX_NEW_TOKENS))
        text = ""
        for piece in self.task.stream(self.model, context, self.task.sampling(max_new_tokens=number, **settings)):
            text += piece
            if any(end in text for end in ends):
                break
        return text[: min((text.index(end) for end in ends if end in text), default=len(text))]


LINES = (".json", ".jsonl", ".txt")
"""Endings of files that are read line by line; tables and Parquet are read, too."""
_WHOLE, _NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})"), re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")
CODE = "!function"
"""How a task file names Python code."""
PICKLES = "pandas"
"""The builder of Hugging Face datasets that reads pickles."""
OWN_TASKS = Path(str(own_tasks.__file__)).resolve().parent


@dataclass(frozen=True)
class Questions:
    """The tasks to evaluate, with their options.

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
    """Metrics by name (``acc/blimp_adjunct_island``), their standard errors, and the protocol.

    Raises UserError for an unknown task, one whose data can't be read, or one that would execute code that isn't
    trusted.
    """
    # The harness would fork this process, with its threads and its GPU, to estimate standard errors.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    _refuse_code(questions)
    manager = _manager(questions)
    # The harness prints tables and progress; standard output is for the results.
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
    metrics: dict[str, float] = {}
    errors: dict[str, float] = {}
    for task, values in found["results"].items():
        for key, value in values.items():
            metric, _, which = key.partition(",")
            # Other values are names of the task and its groups.
            if which and isinstance(value, int | float):
                own = errors if metric.endswith("_stderr") else metrics
                name = metric.removesuffix("_stderr") + (f" ({which})" if which != "none" else "")
                own[f"{name}/{task}"] = float(value)
    protocol = {
        "harness": f"lm-eval {version('lm-eval')}",
        "versions": found["versions"],
        "num_fewshot": found["n-shot"],
        "samples": {task: counts["effective"] for task, counts in found["n-samples"].items()},
        "max_length": model.max_length,
    }
    return {"metrics": metrics, "standard_errors": errors, "protocol": protocol}


@contextlib.contextmanager
def _sandbox() -> Iterator[None]:
    """Within it, templates of task files can't reach Python. Raises UserError for one that can't be filled in."""
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
    """Return the harness' manager of all requested tasks: its own are read, in seconds, only if others don't do."""
    folder = None if questions.folder is None else str(questions.folder)
    others = _Tasks(include_path=folder, include_defaults=False)
    if all(Path(task).is_file() or others.match_tasks([task]) for task in questions.tasks):
        return others
    return _Tasks(include_path=folder)


class _Tasks(TaskManager):
    """Tasks of the harness; faults in them or in their data are reported as user errors."""

    def load(self, task_list: Any) -> Any:
        try:
            return super().load(task_list)
        except TemplateError:
            # The sandbox's own error is clear.
            raise
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            raise UserError(
                f"--tasks: a task or its data can't be loaded: {type(error).__name__}: {reason[0]}; data are read from "
                "the Hugging Face Hub unless --data NAME=FILE gives a file"
            ) from error


@contextlib.contextmanager
def _specifications(manager: _Tasks, questions: Questions) -> Iterator[list[str]]:
    """Names and files of tasks, as the harness takes them. Raises UserError for an unknown one."""
    found = {task: [task] if Path(task).is_file() else manager.match_tasks([task]) for task in questions.tasks}
    if unmatched := [task for task, matching in found.items() if not matching]:
        raise UserError(f"--tasks: unknown task {quote_unmatched(unmatched, manager.all_tasks)}")
    names = list(dict.fromkeys(name for matching in found.values() for name in matching))
    require_known(questions.data, names, "--data: --tasks doesn't have", error=UserError)
    with scratch_folder("lm-eval") as folder:
        yield [_write_task(manager, name, questions.data.get(name), folder) for name in names]


def _write_task(manager: _Tasks, name: str, data: Path | None, folder: Path) -> str:
    """Return the task; with ``data``, a file in ``folder`` that is the task's own but for its data.

    Raises UserError for data that aren't a file of a known format.
    """
    if data is None:
        return name
    ending, number = data.suffix.lower(), len(list(folder.iterdir()))
    if not (is_table(data) or ending in (*LINES, ".parquet")) or not data.is_file():
        known = ", ".join((*LINES, *ENDINGS, ".parquet", *SPREADSHEETS))
        raise UserError(f"--data {name}={data}: expected a file that ends in {known}")
    read = data.absolute()
    if ending != ".parquet":
        read = folder / f"{number}.jsonl"
        write_text(read, "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in _read_rows(data)))
    entry = manager.task_index.get(name)
    content = {
        "include": str(Path(name).absolute() if entry is None else entry.yaml_path),
        "dataset_path": "parquet" if ending == ".parquet" else "json",
        "dataset_name": None,
        # Whichever split the task reads, it finds these rows.
        "dataset_kwargs": {"data_files": dict.fromkeys(("train", "validation", "test"), str(read))},
    }
    path = folder / f"{number}.yaml"
    write_text(path, yaml_text(content))
    return str(path)


class _AsTheyAre:
    """Bytes that aren't text are an error."""

    on_invalid_utf8 = "fail"


def _read_rows(path: Path) -> Iterator[Any]:
    """The rows of a table, with numbers in columns that have nothing else; values of JSON; lines of text, as objects.

    Raises DataError for what can't be read, with file and line.
    """
    if path.suffix.lower() == ".txt":
        yield from ({"text": line} for line in read_text_lines(path))
    elif not is_table(path):
        yield from (entry.value for entry in json_entries(path, _AsTheyAre()))
    else:
        rows = []
        for row, cells in Table(path).entries():
            if row.problem is not None:
                raise row.problem
            rows.append(cells)
        kinds = {name: _find_kind([row[name] for row in rows]) for name in (rows[0] if rows else ())}
        yield from ({name: kinds[name](cell) if cell else None for name, cell in row.items()} for row in rows)


def _find_kind(cells: Sequence[str]) -> Callable[[str], Any]:
    """How the cells of a column become values: as numbers or truth values where all that are filled are such."""
    filled = [cell for cell in cells if cell]
    if filled and all(map(_WHOLE.fullmatch, filled)):
        return int
    if filled and all(_WHOLE.fullmatch(cell) or _NUMBER.fullmatch(cell) for cell in filled):
        return float
    if filled and all(cell.lower() in ("true", "false") for cell in filled):
        return lambda cell: cell.lower() == "true"
    return str


def _refuse_code(questions: Questions) -> None:
    """Raises UserError if a task file, or one that it includes, names code that isn't trusted."""
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
        # The harness's own task files are as trusted as its package; files that include each other are read once.
        if path not in seen and not path.is_relative_to(OWN_TASKS):
            seen.add(path)
            files += _included_files(path)


def _included_files(path: Path) -> list[Path]:
    """Return the files that a task file includes. Raises UserError if it is more than plain YAML, or can't be read."""
    try:
        # The harness's loader imports what a tag names; this one only builds plain values, and raises for such a tag.
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
    """Return the code that a task file names: scripts of data sets, pickles, metrics that the harness lacks."""
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
