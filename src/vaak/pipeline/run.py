"""Run a pipeline in its directory: decide which stages run and why, run them, and print tables of the results.

RUN/
  pipeline.json     which pipeline this is, and its options at the last start
  pipeline.log      all messages; appended on resume
  results.md        a row for each stage: state, time, disk, memory, figures
  STAGE/            what a stage makes: see execution.py       set-aside/  what runs again with other options
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vaak.core.artifact import only_writer
from vaak.core.console import format_time
from vaak.core.errors import UserError
from vaak.core.machine import format_bytes
from vaak.core.secrets import look_up, refer
from vaak.core.storage.files import read_json, write_json, write_text
from vaak.core.storage.links import require_own_files
from vaak.pipeline.execution import (
    BEGUN,
    MANIFEST,
    Job,
    Parts,
    StageStatus,
    collect_dependencies,
    get_stage_status,
    make_ready,
    release_memory,
    run_body,
    run_in_own_process,
)
from vaak.pipeline.jobs import Helpers, Jobs, help_rank_0
from vaak.pipeline.stage import Forecast, Options, Pipeline, Stage
from vaak.report.tables import aligned, markdown_table
from vaak.runs.folder.logs import logging_to

log = logging.getLogger("vaak")
PIPELINE_FILE, LOG, RESULTS = "pipeline.json", "pipeline.log", "results.md"
ACTIONS_IN_WORDS = {"starts": "starts", "continues": "resumes", "repairs": "makes damaged outputs again"}
STATE_NAMES = {"starts": "run", "continues": "resumed", "repairs": "repaired"}


@dataclass(frozen=True)
class Request:
    """The options of the command that don't belong to the pipeline.

    All stages from ``first`` on run again; of all stages, ``only`` that one runs. With ``find``, which finds the
    pipeline in another process, each stage runs in a separate process.
    """

    resume: bool = False
    first: str | None = None
    only: str | None = None
    jobs: Jobs = field(default_factory=Jobs)
    log_file: Path | None = None
    find: Callable[[], Pipeline] | None = None
    shows_progress: bool = True
    trust_code: bool = False

    @property
    def continues(self) -> bool:
        """Whether earlier stages may be done already."""
        return self.resume or self.first is not None or self.only is not None


def options_before(pipeline: Pipeline, directory: Path) -> dict[str, Any]:
    """Return the options with which the pipeline in a directory last started; empty if none has started.

    Raises UserError if the directory has another pipeline.
    """
    try:
        about = read_json(directory / PIPELINE_FILE)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / PIPELINE_FILE} can't be read: {error}; give another --output-dir") from error
    if about["pipeline"] != pipeline.name:
        raise UserError(f"{directory} has a run of the pipeline {about['pipeline']}; give another --output-dir")
    known: dict[str, Any] = look_up(about["options"])
    return {name: value for name, value in known.items() if name in pipeline.options.model_fields}


def holds_a_pipeline(pipeline: Pipeline, directory: Path) -> bool:
    """Return whether a pipeline has started in a folder. Raises UserError if the folder has other files only."""
    if (directory / PIPELINE_FILE).exists() or any((directory / stage.name).exists() for stage in pipeline.stages):
        return True
    there = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if others := [name for name in there if name[0] != "." and not name.endswith(".log")]:
        raise UserError(
            f"{directory} has no pipeline to resume: it has {', '.join(others[:5])}, but no {PIPELINE_FILE}; check "
            "--output-dir, or leave out --resume to start one there"
        )
    return False


class PipelinePlan:
    """The stages of a request; the status of each is found when its turn comes."""

    def __init__(self, pipeline: Pipeline, options: Options, directory: Path, request: Request) -> None:
        """Raise UserError for a stage that doesn't exist or that the options leave out, and for a folder of others."""
        self.pipeline, self.options, self.directory, self.request = pipeline, options, directory, request
        self.jobs = request.jobs
        self.begins = request.resume and not holds_a_pipeline(pipeline, directory)
        asked = list(pipeline.asked_for(options))
        for name in filter(None, (request.first, request.only)):
            if pipeline.stage(name) not in asked:
                raise UserError(f"stage {name} is not part of {pipeline.name} with these options")
        self.stages = asked
        # A single stage, and every stage that it reads, directly or through others.
        if request.only is not None:
            required = {request.only}
            for stage in reversed(asked):
                if stage.name in required:
                    required |= set(stage.after)
            self.stages = [stage for stage in asked if stage.name in required]
        names = [stage.name for stage in asked]
        self._forced = set() if request.first is None else set(names[names.index(request.first) :])
        self.digests: dict[str, str] = {}
        self.trusts_runs = request.trust_code

    def is_to_run(self, stage: Stage) -> bool:
        """Return whether a stage may run; others are only read."""
        return self.request.only in (None, stage.name)

    def get_status(self, stage: Stage) -> tuple[StageStatus, Parts]:
        """Return a stage's status and what its results depend on; if it is done, keep its digest for later stages.

        Raises UserError for a stage that isn't done and may not run.
        """
        forced = stage.name in self._forced and self.is_to_run(stage)
        parts = collect_dependencies(stage, self.options, self.digests)
        status = get_stage_status(stage, self.directory / stage.name, parts, forced)
        if status.verdict == "done":
            self.digests[stage.name] = stage.digest(status.manifest["outputs"])
        elif not self.is_to_run(stage):
            raise UserError(
                f"stage {self.request.only} reads {stage.name}, which is not done ({status.why}); run it first: "
                f"--only {stage.name}"
            )
        return status, parts

    def inputs(self, stage: Stage) -> dict[str, Path]:
        """Return the folders that a stage reads, by the names under which its body finds them."""
        there = {one.name for one in self.stages}
        return {stage.roles.get(name, name): self.directory / name for name in stage.after if name in there}

    def forecast(self) -> Iterator[tuple[PipelineRow, Forecast]]:
        """Yield a row for each stage, with its costs if it would run: as the stage estimates, or as the last time."""
        waiting: set[str] = set()
        for stage in self.stages:
            above = [name for name in stage.after if name in waiting]
            for name in above:
                # Assumes that its outputs will be the same again.
                self.digests[name] = self._digest_read(stage, name)
            status, _ = self.get_status(stage)
            row = PipelineRow(stage.name, status.verdict, status.why)
            if status.verdict == "done" and above:
                row = PipelineRow(stage.name, "may run", f"if the outputs of {', '.join(above)} change")
            if row.state != "done":
                waiting.add(stage.name)
            yield row, self._forecast(stage) if stage.name in waiting else Forecast()

    def _digest_read(self, stage: Stage, name: str) -> str:
        for file in (MANIFEST, BEGUN):
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(read_json(self.directory / stage.name / file)["parts"]["reads"][name])
        return ""

    def _forecast(self, stage: Stage) -> Forecast:
        folders = {one.name: self.directory / one.name for one in self.stages} | self.inputs(stage)
        own = Forecast() if stage.forecast is None else stage.forecast(self.options, folders)
        if own.seconds is not None:
            return own
        for folder in (self.directory, self.directory / "set-aside"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                last = read_json(folder / stage.name / MANIFEST)
                memory = last["memory_bytes"] if own.memory_bytes is None else own.memory_bytes
                return Forecast(last["seconds"], last["disk_bytes"], memory, "as it took the last time")
        return own


def run_pipeline(pipeline: Pipeline, options: Options, directory: Path, request: Request) -> list[PipelineRow]:
    """Run the stages of a request in a directory; return a row for each stage.

    Raises UserError if the directory is another pipeline's, or has a run that isn't to be resumed, and the errors of
    stages. Finished stages stay, and ``results.md`` lists them. On other ranks than 0 this helps rank 0, and returns no
    rows.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1 and request.find is not None:
        raise UserError("--separate-processes is for a single process: leave it out with torchrun")
    if int(os.environ.get("RANK", "0")) > 0:
        help_rank_0(directory)
        return []
    plan = PipelinePlan(pipeline, options, directory, request)
    has_begun = any((directory / stage.name).exists() for stage in pipeline.stages)
    if options_before(pipeline, directory) and has_begun and not request.continues:
        raise UserError(f"{directory} already holds a run: add --resume to resume it, or give another --output-dir")
    with _locked(directory), _logged(directory, request) as log_file:
        if plan.begins:
            log.warning("there is nothing to resume in %s: the pipeline starts there", directory)
        write_json(
            directory / PIPELINE_FILE, {"pipeline": pipeline.name, "options": refer(options.model_dump(mode="json"))}
        )
        helpers = Helpers(directory, world_size) if world_size > 1 else None
        plan.jobs = replace(request.jobs, helpers=helpers)
        # The folder of an earlier start may have come from elsewhere, and so may the runs in it.
        plan.trusts_runs = request.trust_code or not has_begun
        return _run_stages(plan, log_file, helpers)


def _run_stages(plan: PipelinePlan, log_file: Path, helpers: Helpers | None) -> list[PipelineRow]:
    """Run the stages one after another; return a row for each. Writes ``results.md``, also after an error."""
    rows: list[PipelineRow] = [PipelineRow(stage.name, "not reached") for stage in plan.stages]
    has_failed = True
    try:
        for index, stage in enumerate(plan.stages):
            # Counts as failed until it returns, so that the table is right after any error.
            rows[index] = PipelineRow(stage.name, "failed")
            rows[index] = _run(plan, stage, log_file)
        has_failed = False
    except (KeyboardInterrupt, Exception) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        rows = [row if row.state != "failed" else PipelineRow(row.stage, "failed", reason) for row in rows]
        raise
    finally:
        if helpers is not None:
            # The other ranks wait for orders, and would wait until this process is gone.
            helpers.close(has_failed)
        results = plan.directory / RESULTS
        try:
            write_text(results, markdown_report(plan.pipeline, plan.options, rows))
        except OSError as error:
            # Logged, because a full disk must not hide the error that ended the pipeline.
            log.warning("%s can't be written: %s", results, error.strerror or error)
        for line in table(rows):
            log.info("%s", line)
    return rows


def _run(plan: PipelinePlan, stage: Stage, log_file: Path) -> PipelineRow:
    """Run a stage unless it is done; return its row."""
    (status, parts), request, directory = plan.get_status(stage), plan.request, plan.directory
    if status.verdict == "done":
        log.info("%s: up to date", stage.name)
        return PipelineRow.of(stage.name, "up to date", status.manifest, _read_report(stage, directory))
    log.info("%s: %s (%s)", stage.name, ACTIONS_IN_WORDS[status.verdict], status.why)
    job = Job(
        stage=stage.name,
        directory=directory,
        values=plan.options.model_dump(),
        inputs=plan.inputs(stage),
        jobs=plan.jobs,
        parts=parts,
        log_file=log_file,
        shows_progress=request.shows_progress,
        trust_code=request.trust_code,
        trusts_runs=plan.trusts_runs,
    )
    if moved := make_ready(status, job):
        log.info("%s: its earlier files were moved to %s; delete them if you don't need them", stage.name, moved)
    if request.find is None:
        run_body(plan.pipeline, job)
        # The next stage runs in this process; a separate one would release all memory when it ends.
        release_memory()
    else:
        run_in_own_process(request.find, stage, job)
    manifest = read_json(job.folder / MANIFEST)
    plan.digests[stage.name] = stage.digest(manifest["outputs"])
    return PipelineRow.of(stage.name, STATE_NAMES[status.verdict], manifest, _read_report(stage, directory))


def _read_report(stage: Stage, directory: Path) -> dict[str, Any]:
    """Read the report of a stage that is done; empty if it has none."""
    return dict(read_json(directory / stage.name / stage.report)) if stage.report else {}


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Create the directory and lock it within this context.

    Raises UserError if it can't be created, or another process has the lock.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} can't be created: {error.strerror}; give another --output-dir") from error
    # Runs in the directory are checked when they are opened.
    require_own_files(directory, deep=False)
    with only_writer(directory, "give another --output-dir"):
        yield


@contextlib.contextmanager
def _logged(directory: Path, request: Request) -> Iterator[Path]:
    """Within this context, log to the console and to a file, whose path is yielded.

    Raises UserError if the file can't be written.
    """
    path = (request.log_file or directory / LOG).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(logging_to(directory, 0, name=str(path), mode="a" if request.continues else "w"))
            started = stack.pop_all()
    except OSError as error:
        raise UserError(f"--log-file {path} can't be written: {error.strerror}") from error
    with started:
        yield path


STAGE_COLUMNS = ("stage", "state", "time", "disk", "memory", "figures")


@dataclass(frozen=True)
class PipelineRow:
    """A stage: its state and the reason; its time and memory, its figures, and its report (``Stage.report``)."""

    stage: str
    state: str
    why: str = ""
    seconds: float | None = None
    disk_bytes: float | None = None
    memory_bytes: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, stage: str, state: str, manifest: Mapping[str, Any], report: Mapping[str, Any] | None = None
    ) -> PipelineRow:
        """Return the row of a stage that is done, from its manifest and its report."""
        seconds, disk_bytes, memory_bytes = (manifest[name] for name in ("seconds", "disk_bytes", "memory_bytes"))
        return cls(stage, state, "", seconds, disk_bytes, memory_bytes, manifest["figures"], report or {})

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells below the header."""
        metrics = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.figures.items()
        )
        return self.stage, self.state, *took(self.seconds, self.disk_bytes, self.memory_bytes), self.why or metrics


def took(seconds: float | None, disk_bytes: float | None, memory_bytes: float | None) -> tuple[str, ...]:
    """Time, disk and memory for a reader; a dash for what isn't known.

    >>> took(75, 1024, None)
    ('1:15', '1.0 KiB', '-')
    """
    return (
        "-" if seconds is None else format_time(seconds),
        *("-" if number is None else format_bytes(number) for number in (disk_bytes, memory_bytes)),
    )


def table(rows: Sequence[PipelineRow]) -> list[str]:
    """The table of what was done, and the time that it took; below it what stages report."""
    seconds = sum(row.seconds or 0 for row in rows if row.state != "up to date")
    return [
        *aligned([STAGE_COLUMNS, *(row.cells for row in rows)]),
        f"in all: {format_time(seconds)}",
        *_report_lines(rows),
    ]


def _report_lines(rows: Sequence[PipelineRow]) -> list[str]:
    """Return the lines that stages report, each report after an empty line."""
    return [line for row in rows if row.report for line in ("", *row.report["lines"])]


def forecast_table(planned: Sequence[tuple[PipelineRow, Forecast]], free: int) -> list[str]:
    """Return the table of what would be done, and what it takes in all; ``free`` are the bytes on the disk."""
    rows = [(row.stage, row.state, *took(it.seconds, it.disk_bytes, it.memory_bytes), row.why) for row, it in planned]
    needed = [it for row, it in planned if row.state != "done"]
    unknown = sum(None in (it.seconds, it.disk_bytes, it.memory_bytes) for it in needed)
    seconds, disk = (sum(getattr(it, name) or 0 for it in needed) for name in ("seconds", "disk_bytes"))
    memory = max((it.memory_bytes or 0 for it in needed), default=0)
    in_all = " / ".join(took(seconds, disk, memory))
    total = f"in all: {in_all} of time, disk and memory; {format_bytes(free)} of disk are free"
    more = [f"of {unknown} stage(s) something isn't known before they have run once"] if unknown else []
    of = {it.certainty: [row.stage for row, other in planned if other.certainty == it.certainty] for _, it in planned}
    sure = [f"{', '.join(stages)}: {certainty}" for certainty, stages in of.items() if certainty]
    return [*aligned([("stage", "state", "time", "disk", "memory", "why"), *rows]), total, *sure, *more]


def markdown_report(pipeline: Pipeline, options: Options, rows: Sequence[PipelineRow]) -> str:
    """Return the table of results as Markdown, with the options."""
    given = "".join(f"- {name}: {value}\n" for name, value in options.model_dump(mode="json").items())
    reported = "".join(f"    {line}".rstrip() + "\n" for line in _report_lines(rows))
    table = markdown_table([STAGE_COLUMNS, *(row.cells for row in rows)])
    return f"# {pipeline.name}\n\n{table}{reported}\nOptions:\n\n{given}"
