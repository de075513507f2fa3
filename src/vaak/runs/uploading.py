"""A run that is kept at a URL, too (training.checkpoint.upload_to): found there by another machine, kept up to date.

Checkpoints are in ``vaak.engine.checkpoint.uploads``. What comes with them are the run's own small files: its identity,
configuration, sessions, log, and the journals that decide bits. Prepared data, pictures and TensorBoard's files stay
here; a machine that resumes the run prepares its data again, and a resume refuses other ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import CheckpointError, UserError
from vaak.core.machine import format_bytes
from vaak.core.progress import progress_allowed
from vaak.core.storage.files import inside, scratch_folder
from vaak.core.storage.remote import StorageError
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints, parse_step
from vaak.engine.checkpoint.uploads import FOLDER, IDENTITY, RemoteCheckpoints, Uploads
from vaak.engine.journal import JOURNALS, journal_files
from vaak.engine.trainer import Trainer
from vaak.runs.folder.directory import (
    OWNER,
    checkpoints_elsewhere,
    holds_a_run,
    make_directory,
    read_identity,
    require_finished,
    require_own_run,
    the_only_writer,
)

log = logging.getLogger("vaak")
UPLOAD_KEY = "training.checkpoint.upload_to"
OWN_FILES = (
    *(IDENTITY, "config.yml", "environment.json", "sessions.jsonl", "metrics.jsonl", "totals.jsonl"),
    *("train.log", "status.json", "samples.json"),
)
FETCHED = re.compile(
    "|".join(
        [
            *map(re.escape, OWN_FILES),
            rf"({'|'.join(JOURNALS)})(\.rank\d+)?\.jsonl",
            r"sessions/\d+\.yml",
            rf"{FOLDER}/{re.escape(OWNER)}",
        ]
    )
)
"""Names of the files that a resume takes from a URL, besides checkpoints: no code, and nothing that isn't a run's."""
PROBE = ".vaak-can-write"


def list_run_files(directory: Path) -> dict[str, Path]:
    """Return the small files of a run by their names at its URL; some may not be there."""
    found = [directory / name for name in OWN_FILES] + journal_files(directory, *JOURNALS)
    found += sorted((directory / "sessions").glob("*.yml"))
    return {str(path.relative_to(directory)): path for path in (*found, directory / FOLDER / OWNER)}


Remark = tuple[int, str]
"""A level of logging and a line, for when the run's log is open."""


def fetch_run(experiment: Experiment[Any, Any]) -> list[Remark]:
    """Download the newest checkpoint of the run that is to resume, if the URL has a newer one than this machine.

    Returns remarks for the run's log.

    Raises UserError, before any data are read, where the URL can't be read or written, or has another run or something
    else; CheckpointError if all checkpoints there are damaged.
    """
    options, directory = experiment.training.checkpoint, experiment.run_dir
    if options.upload_to is None:
        return []
    remote = RemoteCheckpoints(options.upload_to)
    remarks = _require_writable(remote)
    there = _read_identity(remote)
    if there is None:
        if remote.store.list_files().keys() - {PROBE}:
            raise UserError(f"{remote.shown} has files, and no run: give another {UPLOAD_KEY}")
        return remarks
    own = read_identity(directory)
    if own.get("id") != there["id"]:
        _require_adoptable(experiment, remote, there)
    checkpoints = checkpoints_elsewhere(options.save_dir, experiment.name)
    require_own_run(directory, checkpoints)
    require_finished(directory)
    if own.get("id") == there["id"] and options.resume != "auto":
        return remarks
    make_directory(directory, checkpoints)
    shown = experiment.training.logging.progress_bar and not experiment.training.logging.json_lines
    with the_only_writer(directory), progress_allowed(shown):
        return remarks + _fetch_newest(remote, directory, is_new=own.get("id") != there["id"])


def _read_identity(remote: RemoteCheckpoints) -> dict[str, Any] | None:
    """Return which run is at a URL; None if none is."""
    content = remote.store.read(IDENTITY)
    if content is None:
        return None
    with contextlib.suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("id", "directory")):
            return found
    raise UserError(f"{remote.shown}/{IDENTITY} is damaged, or not a run's: give another {UPLOAD_KEY}")


def _require_writable(remote: RemoteCheckpoints) -> list[Remark]:
    """Raise StorageError if nothing can be written at a URL; return a remark where nothing can be removed."""
    try:
        remote.store.write(PROBE, b"vaak")
    except StorageError as error:
        raise StorageError(f"{UPLOAD_KEY}: {error}; correct it, or train without ({UPLOAD_KEY}=null)") from error
    try:
        remote.store.remove([PROBE])
    except StorageError as error:
        return [(logging.WARNING, f"{UPLOAD_KEY}: {error}: superfluous checkpoints will stay there")]
    return []


def _require_adoptable(experiment: Experiment[Any, Any], remote: RemoteCheckpoints, there: dict[str, Any]) -> None:
    """Raise UserError if the run at a URL isn't the one that is to resume here."""
    advice = f"give another {UPLOAD_KEY}"
    if holds_a_run(experiment.run_dir):
        raise UserError(
            f"{remote.shown} has another run than {experiment.run_dir}, from {there['directory']}: {advice}"
        )
    if experiment.training.checkpoint.resume is None:
        raise UserError(
            f"{remote.shown} already holds a run, from {there['directory']}: add training.checkpoint.resume=auto to "
            f"resume it, or {advice}"
        )
    with scratch_folder("remote") as folder, contextlib.suppress(UserError, OSError):
        remote.store.fetch("config.yml", folder / "config.yml")
        name = read_yaml(folder / "config.yml").get("name")
    if name not in (None, experiment.name):
        raise UserError(f"{remote.shown} has the run {name}, and this one is {experiment.name}: {advice}")


def _fetch_newest(remote: RemoteCheckpoints, directory: Path, *, is_new: bool) -> list[Remark]:
    """Bring the newest whole checkpoint that is at a URL, and the best one, if it is newer than those here."""
    checkpoints = directory / FOLDER
    here = [parse_step(path) or 0 for path in list_checkpoints(checkpoints) if (path / MANIFEST).is_file()]
    remote.look()
    newer = sorted((step for step in remote.whole if step > max(here, default=0)), reverse=True)
    if not newer and not is_new:
        return []
    for name in remote.store.list_files():
        if FETCHED.fullmatch(name) and inside(name):
            remote.store.fetch(name, directory / name)
    remarks: list[Remark] = []
    for step in newer:
        try:
            path = remote.fetch(step, checkpoints)
        except CheckpointError as error:
            remarks.append((logging.WARNING, f"{error}; it is set aside there, and the one before is used"))
            remote.set_aside(step)
            continue
        size = sum(entry.size for entry in remote.whole[step].listed.values())
        said = f"{path.name}, {format_bytes(size)}, was downloaded from {remote.shown} and verified"
        remarks.append((logging.INFO, said))
        best = remote.find_pointed("best")
        if best is not None and best != step and best in remote.whole and best not in here:
            with contextlib.suppress(CheckpointError):
                remote.fetch(best, checkpoints)
        return remarks
    if remarks and not here:
        raise CheckpointError(f"no checkpoint at {remote.shown} is whole: {remarks[0][1]}; give another {UPLOAD_KEY}")
    return remarks


@contextlib.contextmanager
def uploading(trainer: Trainer, url: str | None) -> Iterator[None]:
    """Within this context, the checkpoints of a trainer that has its place are uploaded; at the end, all are there.

    Raises UserError if the URL has another run, or can't be written.
    """
    if url is None or not trainer.ranks.is_main:
        yield
        return
    remote, directory = RemoteCheckpoints(url), trainer.directory
    there, own = _read_identity(remote), read_identity(directory)
    if there is not None and there["id"] != own["id"]:
        raise UserError(
            f"{remote.shown} has another run than {directory}, from {there['directory']}: give another {UPLOAD_KEY}"
        )
    remote.store.write(IDENTITY, (directory / IDENTITY).read_bytes())
    remote.claim()
    remote.look()
    for step in sorted(remote.whole):
        if step > trainer.position.step:
            log.warning(
                "%s/%s/step-%08d is set aside there: it is later than the checkpoint from which this run resumes",
                *(remote.shown, FOLDER, step),
            )
            remote.set_aside(step)
    uploads = Uploads(remote, trainer.saving.writer, lambda: list_run_files(directory))
    uploads.start()
    try:
        yield
    finally:
        trainer.saving.writer.wait()
        uploads.close()
