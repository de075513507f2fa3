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
    make_run_identity,
    read_identity,
)
from vaak.runs.folder.sessions import SESSIONS, find_step_configuration
from vaak.runs.folder.user_code import require_trust
from vaak.runs.open_run import resolve_run
from vaak.runs.replay import require_one_way, require_taken
from vaak.runs.start import train

log = logging.getLogger("vaak")

LINKED_FOLDERS = ("code", "pictures", "prepared", "sessions", "tasks")
"""Folders of a run that a fork links to, if they exist."""


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
    """Make a run with the state of another run after ``step``; return its directory, from which it is resumed.

    After a kill, the same call finishes the fork. Unless it ``finishes``, the session that resumes it does.

    ``directory`` is by default next to the parent's, named after it and the step. The fork will be resumed with
    ``overrides``, which are only checked here. Raises UserError, before anything is written, if the run didn't take the
    step, the directory has a run, or an option can't change on resume.
    """
    parent = resolve_run(path)
    directory = directory or parent.with_name(f"{parent.resolve().name}-from-{step}")
    fork = ["--step", str(step), "--run-dir", str(directory.resolve()), *hide_arguments(overrides)]
    finish = shlex.join(["vaak", "fork", str(parent.resolve()), *fork, *(["--trust-code"] if trust_code else [])])
    is_begun = _require_own_fork(directory, finish)
    configuration = find_step_configuration(parent, step)
    loaded = load([configuration], trust_code=trust_code)
    require_taken(parent, step, loaded)
    require_trust(loaded)
    start = _newest_until(parent, step)
    first = _first_missing(start)
    if first <= step:
        require_one_way(parent, first, step, loaded.experiment.reference)
    # The fork takes these options when it is resumed; mistakes in them are reported before anything is written.
    changed = load([configuration], [f"run_dir={directory}", *overrides], trust_code=trust_code).experiment
    require_resumable(
        resolved_values(changed), changed.reference, resolved_values(loaded.experiment), start or configuration
    )
    if not is_begun:
        with files.whole_folder(directory) as folder:
            _share_past(parent, folder, directory.resolve(), start, configuration, {"step": step, FINISH: finish})
    reached = list_checkpoints(directory / "checkpoints")
    first = _first_missing(reached[-1] if reached else None)
    if first <= step:
        # The steps up to the fork are computed with the parent's options.
        loaded = load([directory / "config.yml"], ["training.checkpoint.resume=auto"], trust_code=trust_code)
        with finishing_fork():
            outcome = train(loaded, (StopAfter(step),))
        outcome.require_not_stopped(f"the steps {first} to {step}", f"finish the fork: {finish}")
    if finishes:
        finish_fork(directory, step)
    return directory


def _require_own_fork(directory: Path, finish: str) -> bool:
    """Return whether a directory has the fork that the command ``finish`` started, and a kill interrupted.

    Raises UserError if it has another fork or a run.
    """
    begun = command_to_finish(directory)
    if begun is not None and begun != finish:
        raise UserError(f"{directory} is an unfinished fork; finish it: {begun}; or give another --run-dir")
    if begun is None and (holds_a_run(directory) or (directory / "config.yml").exists()):
        raise UserError(
            f"{directory} already holds a run; resume it: {command_to_go_on(directory)}; or give another --run-dir"
        )
    return begun is not None


def _first_missing(checkpoint: Path | None) -> int:
    """Return the first step after a checkpoint; 1 without one."""
    return 1 + (parse_step(checkpoint) or 0 if checkpoint else 0)


def shared_past(one: Path, other: Path) -> str | None:
    """Describe up to which step two runs share their past; None if neither is a fork of the other or of its parent."""
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
    """Return the newest complete checkpoint of a run that isn't after ``step``; None without one."""
    for path in reversed(list_checkpoints(parent / "checkpoints")):
        if (parse_step(path) or 0) <= step:
            try:
                verify(path)
            except CheckpointError as error:
                log.warning("%s; using an earlier checkpoint", error)
                continue
            return path
    return None


def _share_past(
    parent: Path, directory: Path, home: Path, start: Path | None, configuration: Path, origin: dict[str, Any]
) -> None:
    """Fill ``directory``, which will be moved to ``home``, with the parent's data and its past up to ``start``.

    ``start`` is a checkpoint; without one there is no past. ``configuration`` is the parent's configuration of that
    step. ``origin`` is stored in run.json next to the parent's id and directory.
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
        # The log ends at that checkpoint; the fork writes later records itself.
        files.write_bytes(directory / METRICS_FILE, content[: read_state(start)["metrics_bytes"]])
        for file in (*journal_files(parent, *JOURNALS), parent / SESSIONS):
            if file.exists():
                shutil.copy(file, directory / file.name)
    values = refer(read_yaml(configuration))
    values["name"], values["run_dir"] = home.name, str(home)
    training = values.setdefault("training", {})
    # Checkpoints are linked into the fork itself, so the parent's save_dir doesn't apply.
    training["checkpoint"] = {**(training.get("checkpoint") or {}), "resume": "auto", "save_dir": None}
    files.write_text(directory / "config.yml", yaml_text(values))
    known = {"id": read_identity(parent).get("id"), "directory": str(parent.resolve())}
    files.write_json(directory / RUN, make_run_identity(str(home)) | {"parent": known | origin})


def _link(source: Path, target: Path) -> None:
    """Make ``target`` a tree of hard links to the files in ``source``, or of copies if the disk has no hard links.

    If ``source`` is itself a symbolic link, as to a cache, ``target`` becomes one, too.
    """
    if source.is_symlink():
        make_link(target, source)
        return

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy(one, other)

    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns(".lock", ".*.tmp"))
