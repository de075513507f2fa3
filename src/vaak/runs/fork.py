"""A run that shares another's past up to a step, and continues from there with different options.

Shared files (checkpoints and prepared data, which nobody changes) are linked, not copied. Between the nearest
checkpoint and the step, steps are recomputed with the parent's options: a step is a function of the state and its
number, so they are the same steps.

FORK/run.json     as of any run, and its ``parent``: {"id": …, "directory": …, "step": …}
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.config.load import load
from vaak.config.resolved import resolved_values
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.core.errors import CheckpointError, UserError
from vaak.core.secrets import hide_arguments, refer
from vaak.core.storage import files
from vaak.core.storage.links import make_link
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.checkpoint.files import list_checkpoints, read_state, verify
from vaak.engine.checkpoint.names import parse_step
from vaak.engine.checkpoint.resume import METRICS_FILE, require_resumable
from vaak.engine.journal import JOURNALS, journal_files
from vaak.runs.folder.directory import (
    FINISH,
    RUN,
    command_to_finish,
    command_to_go_on,
    finish_fork,
    finishing_fork,
    holds_a_run,
    new_identity,
    read_identity,
)
from vaak.runs.folder.sessions import SESSIONS, configuration_of_step
from vaak.runs.folder.user_code import require_trust
from vaak.runs.open_run import resolve_run
from vaak.runs.replay import require_one_way, require_taken
from vaak.runs.start import train

log = logging.getLogger("vaak")

LINKED_FOLDERS = ("code", "pictures", "prepared", "sessions", "tasks")
"""Folders of a run that are linked, where they are there."""


class StopAfter(Callback):
    """Stops a run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step == self.step:
            trainer.request_stop(f"step {self.step}, where the fork begins")


def fork_run(
    path: Path,
    step: int,
    directory: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    trust_code: bool = False,
    finishes: bool = True,
) -> Path:
    """Make a run that stands where another one stood after ``step``; return its directory, to be resumed there.

    After a kill, the same call finishes it. Where it ``finishes`` not, the next session that begins there does.

    ``directory`` is by default next to the parent's, named after it and the step. The fork will be resumed with
    ``overrides``; they are only checked here. Raises UserError where the run didn't take the step, the directory has
    a run, or an option can't change on resume: then nothing is written.
    """
    parent = resolve_run(path)
    directory = directory or parent.with_name(f"{parent.resolve().name}-from-{step}")
    own = [
        str(parent.resolve()),
        "--step",
        str(step),
        "--run-dir",
        str(directory.resolve()),
        *hide_arguments(overrides),
    ]
    finish = shlex.join(["vaak", "fork", *own, *(["--trust-code"] if trust_code else [])])
    # A fork that a kill cut short has on record which command finishes it; no other may.
    begun = command_to_finish(directory)
    if begun is not None and begun != finish:
        raise UserError(f"{directory} is a fork that wasn't finished; finish it: {begun}; or give another --run-dir")
    if begun is None and (holds_a_run(directory) or (directory / "config.yml").exists()):
        going_on = command_to_go_on(directory)
        raise UserError(f"{directory} holds a run already; resume it: {going_on}; or give another --run-dir")
    configuration = configuration_of_step(parent, step)
    loaded = load([configuration], trust_code=trust_code)
    require_taken(parent, step, loaded)
    require_trust(loaded)
    start = _newest_until(parent, step)
    first = 1 + (parse_step(start) or 0 if start else 0)
    if first <= step:
        require_one_way(parent, first, step, loaded.experiment.reference)
    # The options of the fork are only checked here, before anything is written; it takes them when it resumes.
    changed = load([configuration], [f"run_dir={directory}", *overrides], trust_code=trust_code).experiment
    require_resumable(
        resolved_values(changed), changed.reference, resolved_values(loaded.experiment), start or configuration
    )
    if begun is None:
        with files.whole_folder(directory) as folder:
            _share_past(parent, folder, directory.resolve(), start, configuration, {"step": step, FINISH: finish})
    reached = list_checkpoints(directory / "checkpoints")
    first = 1 + (parse_step(reached[-1]) or 0 if reached else 0)
    if first <= step:
        # The steps up to the fork are the parent's, and so are their options.
        loaded = load([directory / "config.yml"], ["training.checkpoint.resume=auto"], trust_code=trust_code)
        with finishing_fork():
            outcome = train(loaded, (StopAfter(step),))
        outcome.require_not_stopped(f"the steps {first} to {step}", f"finish the fork: {finish}")
    if finishes:
        finish_fork(directory, step)
    return directory


def shared_past(one: Path, other: Path) -> str | None:
    """Say up to which step two runs share their past, where one is a fork of the other or both are of the same run."""
    identities = [read_identity(resolve_run(path)) for path in (one, other)]
    parents = [about.get("parent") or {} for about in identities]
    for number, (first, second) in enumerate(((one, other), (other, one))):
        if parents[number].get("id") and parents[number]["id"] == identities[1 - number].get("id"):
            return f"{first} is a fork of {second}: they share the steps until {parents[number]['step']}"
    if parents[0].get("id") and parents[0]["id"] == parents[1].get("id"):
        until = min(parents[0]["step"], parents[1]["step"])
        return f"{one} and {other} are forks of {parents[0]['directory']}: they share the steps until {until}"
    return None


def _newest_until(parent: Path, step: int) -> Path | None:
    """The newest complete checkpoint of a run that isn't after a step; None where it has none."""
    for path in reversed(list_checkpoints(parent / "checkpoints")):
        if (parse_step(path) or 0) <= step:
            try:
                verify(path)
            except CheckpointError as error:
                log.warning("%s; an earlier checkpoint is taken", error)
                continue
            return path
    return None


def _share_past(
    parent: Path, directory: Path, home: Path, start: Path | None, configuration: Path, origin: dict[str, Any]
) -> None:
    """Fill a directory, which will be ``home``, with a run's past until a checkpoint; with only its data if none is.

    ``origin`` is what it remembers of its parent, besides which that is.
    """
    (directory / "checkpoints").mkdir()
    for name in LINKED_FOLDERS:
        if (parent / name).exists():
            _link(parent / name, directory / name)
    if start is not None:
        for one in list_checkpoints(parent / "checkpoints"):
            # Steps are padded with zeros, so names sort as steps do.
            if one.name <= start.name:
                _link(one, directory / "checkpoints" / one.name)
        history = parent / METRICS_FILE
        content = history.read_bytes() if history.exists() else b""
        # The log up to that checkpoint: later records come from this run's own steps.
        files.write_bytes(directory / METRICS_FILE, content[: read_state(start)["metrics_bytes"]])
        for file in (*journal_files(parent, *JOURNALS), parent / SESSIONS):
            if file.exists():
                shutil.copy(file, directory / file.name)
    values = refer(read_yaml(configuration))
    values["name"], values["run_dir"] = home.name, str(home)
    training = values.setdefault("training", {})
    # Checkpoints were linked into the fork itself, so the parent's save_dir doesn't hold for it.
    training["checkpoint"] = {**(training.get("checkpoint") or {}), "resume": "auto", "save_dir": None}
    files.write_text(directory / "config.yml", yaml_text(values))
    known = {"id": read_identity(parent).get("id"), "directory": str(parent.resolve())}
    files.write_json(directory / RUN, new_identity(str(home)) | {"parent": known | origin})


def _link(source: Path, target: Path) -> None:
    """Have a folder at a second place; where its disk has no hard links, as a copy. A link to a cache stays one."""
    if source.is_symlink():
        make_link(target, source)
        return

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy(one, other)

    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns(".lock", ".*.tmp"))
