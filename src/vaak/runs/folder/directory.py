"""The run directory: where a run keeps everything, which run it is, and its one writer.

RUN/config.yml  environment.json  train.log  metrics.jsonl  status.json  checkpoints/  tensorboard/  prepared/
    sessions.jsonl  sessions/  each start of it, with its configuration        code/  users' own classes
    pictures/  pictures, audio and examples of evaluations      tuned.yml  left by vaak tune
    set-aside/  what a resume moved out of the way        tasks/  where a run has several, the data of each
    samples.json  what a finished run showed: {"step": …, "samples": [a line each]}        report.html  of vaak report
    totals.jsonl  of a long log: what a listing needs of it (vaak.engine.metrics_file)
    preprocessed.json  vaak data preprocess made prepared/
    run.json  id, version of this format, time and place of creation; a copy of the run (its original still there) is
              another run; for a fork, its parent
CHECKPOINTS/owner.json  the id and the directory of the run that writes its checkpoints there

A folder of checkpoints belongs to one run. Where the owner is gone (moved, or lost with its disk), the run that asks
for the folder takes it over.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shlex
import shutil
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vaak.config.trust import CODE, find_owning_run
from vaak.config.yaml.text import read_yaml
from vaak.core.artifact import LOCK, only_writer
from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.core.storage.links import make_link, require_own_files
from vaak.core.storage.lock import is_locked
from vaak.engine.checkpoint.names import is_checkpoint, list_checkpoints, parse_step

RUNS = "runs"
"""The folder that has the runs, unless run_dir names another."""
TASKS_FOLDER = "tasks"
PREPARED = "prepared"
SAMPLES = "samples.json"
PREPROCESSED = "preprocessed.json"
"""Says that data were prepared without training, and stay until they are trained on."""


def suggest_run(path: Path) -> str:
    """Return ``; did you mean …?`` with the run in ``runs`` whose name is nearest to that of a path, or nothing."""
    runs = {file.parent.name: file.parent for file in sorted(Path(RUNS).glob("*/config.yml"))}
    near = difflib.get_close_matches(path.name, [*runs], n=1)
    return f"; did you mean {runs[near[0]]}?" if near else ""


def make_directory(path: Path, checkpoints: Path | None) -> None:
    """Make a run directory; with ``checkpoints``, its checkpoints are there and RUN/checkpoints points to them.

    Raises UserError where it can't be created or written.
    """
    try:
        with files.unmade_after_errors(path):
            link = path / "checkpoints"
            if checkpoints is None:
                link.mkdir(exist_ok=True)
            else:
                if link.is_symlink() and not link.exists():
                    # The folder it points to was moved.
                    link.unlink()
                if link.is_dir() and link.resolve() != checkpoints.resolve():
                    _remove_unused(link, checkpoints)
                checkpoints.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    make_link(link, checkpoints)
            for folder in (path, link.resolve()):
                require_writable(folder)
    except OSError as error:
        if checkpoints is not None and Path(str(error.filename)).resolve().is_relative_to(checkpoints.resolve()):
            raise UserError(
                f"checkpoints can't be written to {checkpoints}: {error.strerror}; give another "
                "training.checkpoint.save_dir"
            ) from error
        raise UserError(
            f"the run directory {path} can't be created: {error.strerror}; give another run_dir="
        ) from error


def _remove_unused(link: Path, checkpoints: Path) -> None:
    """Remove RUN/checkpoints, which is another folder than ``checkpoints``. Raises UserError where it has anything."""
    there = link.resolve()
    if {file.name for file in there.iterdir()} - {LOCK, OWNER}:
        move = f"mkdir -p {shlex.quote(str(checkpoints.parent))} && mv {shlex.quote(str(there))} "
        raise UserError(
            f"the checkpoints of this run are in {there}, training.checkpoint.save_dir says {checkpoints}: a resume "
            f"doesn't move them; move that folder ({move}{shlex.quote(str(checkpoints))}), or restore the option"
        )
    if link.is_symlink():
        link.unlink()
    else:
        shutil.rmtree(link)


def require_own_run(path: Path, checkpoints: Path | None = None, *, deep: bool = True) -> None:
    """Raise UserError where something in a run leads out of it, or is a pipe or a device; ours may lead out.

    Those are RUN/checkpoints, to the ``checkpoints`` that the options name or to a folder with its owner's name;
    RUN/prepared (of each task), to data in a cache; and logs that W&B keeps elsewhere, which nothing here opens. In the
    Hugging Face Hub's cache, all files of a run are such links.
    """

    def is_ours(link: Path) -> bool:
        aim, name = link.resolve(), link.relative_to(path).parts
        if name == ("checkpoints",):
            return _leads_to_own_checkpoints(path, aim, checkpoints)
        if name == (PREPARED,) or (name[0], name[2:]) == (TASKS_FOLDER, (PREPARED,)):
            return _is_in_a_cache(aim)
        if len(name) == 4 and (name[0], name[2]) == ("wandb", "logs") and link.suffix == ".log":
            return not aim.is_dir()
        return path.parent.name == "snapshots" and aim.parent == path.resolve().parent.parent / "blobs"

    require_own_files(path, is_ours, deep=deep)
    if (there := path / "checkpoints").is_symlink() and there.is_dir():
        require_own_files(there.resolve(), deep=deep)


def _leads_to_own_checkpoints(path: Path, aim: Path, wanted: Path | None) -> bool:
    """Whether RUN/checkpoints leads where this run's options say, or to a folder that says that it is this run's."""
    owner, identity = _read(aim / OWNER), _read(path / RUN)
    if owner is not None and identity is not None and owner["id"] == identity["id"]:
        return True
    return wanted is not None and (not aim.exists() or aim == wanted.resolve())


def _is_in_a_cache(aim: Path) -> bool:
    """Return whether a folder is one of prepared data in a cache, named after what it was prepared from.

    Nothing is read of one that has gone or is damaged: training prepares the data again.
    """
    try:
        about = files.read_json(aim / "prepared.json")
    except (OSError, ValueError):
        return True
    return isinstance(about, dict) and about.get("fingerprint") == aim.name


def require_writable(folder: Path) -> None:
    """Raises OSError where nothing can be written to a folder."""
    if not os.access(folder, os.W_OK):
        read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY
        reason = errno.EROFS if read_only else errno.EACCES
        raise OSError(reason, os.strerror(reason), str(folder))


def holds_a_run(path: Path) -> bool:
    """Whether training has begun here; a directory left by a run that failed before its first step doesn't count."""
    return any(list_checkpoints(one / "checkpoints") or (one / "metrics.jsonl").exists() for one in runs_at(path))


def runs_at(path: Path) -> tuple[Path, ...]:
    """Return the directories that may be a directory's run: itself and, of RUN/tasks/NAME, a task of a run, RUN."""
    return (path, path.parent.parent) if path.parent.name == TASKS_FOLDER else (path,)


def has_checkpoints(directory: Path) -> bool:
    """Return whether the run in a directory has saved its weights."""
    return any(path for run in runs_at(directory) for path in (run / "checkpoints").glob("step-*"))


def checkpoints_elsewhere(save_dir: str | None, name: str) -> Path | None:
    """Return where a run's checkpoints are, by save_dir; None where they are in its directory."""
    return Path(save_dir) / name if save_dir else None


def require_room(path: Path, checkpoints: Path | None, resumes: bool) -> None:
    """Raises UserError where a run can't be there: one is there already, or its files would replace a user's."""
    if checkpoints is not None:
        require_free(path, checkpoints)
    if not resumes and (holds_a_run(path) or (checkpoints is not None and list_checkpoints(checkpoints))):
        where = path if holds_a_run(path) else checkpoints
        raise UserError(
            f"{where} already holds a run: add training.checkpoint.resume=auto to resume it, "
            "or give another name= or run_dir="
        )
    config = path / "config.yml"
    if config.exists() and find_owning_run(config) is None and not holds_a_run(path):
        raise UserError(
            f"{config} is not a run's configuration, and training in {path} would replace it: give another run_dir="
        )


@contextlib.contextmanager
def the_only_writer(path: Path) -> Iterator[None]:
    """Hold the locks of the run directory and of its checkpoints. Raises UserError where another process has one."""
    checkpoints, save_dir = (path / "checkpoints").resolve(), "give another name= or training.checkpoint.save_dir"
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_writer(path, "give another run_dir="))
        if checkpoints.is_dir():
            stack.enter_context(only_writer(checkpoints, save_dir, lambda: f" ({find_owner(checkpoints)})"))
        yield


def is_being_written(path: Path) -> bool:
    """Return whether a process holds the run directory's lock, this one included."""
    return is_locked(path / LOCK)


def configurations_below(folder: Path) -> Iterator[Path]:
    """Return every ``config.yml`` below a folder, which need not be there, but those that checkpoints have.

    Raises UserError where it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the one that has the runs")
    # walk skips folders that go while it looks, as a run in training removes checkpoints
    places = (Path(place) for place, _, files in os.walk(folder) if "config.yml" in files)
    return (
        place / "config.yml"
        for place in places
        # a checkpoint may be half-written, damaged, or copied under another name
        if not (place.name.startswith(".step-") or parse_step(place) is not None or is_checkpoint(place))
    )


def command_to_go_on(path: Path) -> str:
    """Return the command that resumes a run from its newest checkpoint."""
    trust = " --trust-code" if (path / CODE).is_dir() else ""
    return f"vaak train {shlex.quote(str(path))}/config.yml --resume auto{trust}"


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Write the run's status, for listing runs."""
    files.write_json(path / "status.json", status)


def read_status(path: Path) -> dict[str, Any]:
    """Return the content that ``write_status`` wrote; empty if the run never ended in any way."""
    try:
        status = files.read_json(path / "status.json")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        files.warn_unread(path / "status.json", error)
        return {}
    return status if isinstance(status, dict) else {}


RUN, OWNER = "run.json", "owner.json"
RUN_FORMAT = "1.0"
"""The version of the run directory's format. A later first number can't be read; a later second one adds files or keys.

Older runs have none in their run.json, and are read with defaults for missing keys.
"""


def require_known_format(path: Path) -> None:
    """Raise UserError where a run was written by a later version of Vaak, in a format that this one doesn't read."""
    said = str(read_identity(path).get("format", RUN_FORMAT))
    if said.partition(".")[0] != RUN_FORMAT.partition(".")[0]:
        known = f"this one reads up to {RUN_FORMAT.partition('.')[0]}.x"
        raise UserError(f"{path} was written by a later version of Vaak, in run format {said}; {known}: update Vaak")


def require_free(path: Path, checkpoints: Path) -> None:
    """Raises UserError where a folder of checkpoints is that of another run than the one in ``path``."""
    owner = _read(checkpoints / OWNER)
    if owner is None or checkpoints.resolve().is_relative_to(path.resolve()) or owner["id"] == _identity(path)["id"]:
        return
    if _is_at_home(owner) and (Path(owner["directory"]) / "checkpoints").resolve() == checkpoints.resolve():
        link = path / "checkpoints"
        remove = f", and remove the link {link}" if link.is_symlink() else ""
        raise UserError(
            f"{checkpoints} has the checkpoints of another run, {owner['directory']}: "
            f"give another name= or training.checkpoint.save_dir{remove}"
        )


def claim(path: Path) -> str | None:
    """Write the run's identity, and that it owns RUN/checkpoints; return remarks on who owned it.

    Its writer holds the locks of both. Raises UserError where the checkpoints are another run's.
    """
    checkpoints = (path / "checkpoints").resolve()
    require_known_format(path)
    require_free(path, checkpoints)
    identity, owner = _identity(path), _read(checkpoints / OWNER)
    mine = {"id": identity["id"], "directory": identity["directory"]}
    if _read(path / RUN) != identity:
        files.write_json(path / RUN, identity)
    if owner != mine:
        files.write_json(checkpoints / OWNER, mine)
    if checkpoints.is_relative_to(path.resolve()) or not list_checkpoints(checkpoints):
        return None
    if owner is None:
        return f"{checkpoints} has checkpoints of an unknown run: this run takes them over"
    if owner["id"] != mine["id"]:
        return f"{checkpoints} has checkpoints of {owner['directory']}, {_why_left(owner)}: this run takes them over"
    return None


def _why_left(owner: dict[str, Any]) -> str:
    """Return why a run no longer has the checkpoints that it owned."""
    directory = Path(owner["directory"])
    if not directory.is_dir():
        return "which is gone"
    if _is_at_home(owner):
        return f"whose checkpoints are in {(directory / 'checkpoints').resolve()} now"
    return "which is another run now" if (directory / RUN).exists() else "which is not a run any more"


def read_identity(path: Path) -> dict[str, Any]:
    """Return which run a directory is: its ``id``, and its ``parent`` if it is a fork; empty if unknown."""
    return _read(path / RUN) or {}


FINISH = "finish"
"""Key in a fork's parent: the command that finishes the fork, until it is finished."""
_finishing: ContextVar[bool] = ContextVar("finishing", default=False)


@contextlib.contextmanager
def finishing_fork() -> Iterator[None]:
    """Within this context, a fork that isn't finished may be trained, as the command that makes it does."""
    token = _finishing.set(True)
    try:
        yield
    finally:
        _finishing.reset(token)


def command_to_finish(path: Path) -> str | None:
    """Return the command that finishes a fork that was killed while it was made; None for every other directory."""
    parent = read_identity(path).get("parent")
    said = parent.get(FINISH) if isinstance(parent, dict) else None
    return said if isinstance(said, str) else None


def require_finished(path: Path) -> None:
    """Raise UserError where a directory is a fork that isn't finished: it would continue with its parent's options."""
    command = command_to_finish(path)
    if command is not None and not _finishing.get():
        raise UserError(f"{path} is an unfinished fork; finish it: {command}")


def finish_fork(path: Path, step: int) -> None:
    """Note that a fork stands where it begins, or later, with its own options."""
    about = read_identity(path)
    parent = about.get("parent")
    if isinstance(parent, dict) and FINISH in parent and step >= parent["step"]:
        kept = {name: value for name, value in parent.items() if name != FINISH}
        files.write_json(path / RUN, about | {"parent": kept})


def owner_at_home(checkpoints: Path) -> Path | None:
    """Return the directory of the run that a folder of checkpoints belongs to, if it is still there."""
    owner = _read(checkpoints / OWNER)
    return Path(owner["directory"]) if owner is not None and _is_at_home(owner) else None


def find_owner(checkpoints: Path) -> str:
    """Return the directory of the run that a folder of checkpoints belongs to, if known."""
    owner = _read(checkpoints / OWNER)
    return "another run" if owner is None else str(owner["directory"])


def _identity(path: Path) -> dict[str, Any]:
    """Return the identity of the run in a directory: another than its file says, if it is a copy."""
    said, here = _read(path / RUN), str(path.resolve())
    if said is None or (_is_at_home(said) and not Path(said["directory"]).samefile(path)):
        return make_run_identity(here)
    return said | {"directory": here, "format": RUN_FORMAT}


def make_run_identity(directory: str) -> dict[str, Any]:
    """Return the identity of a new run."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {"id": uuid.uuid4().hex, "made": made, "directory": directory, "format": RUN_FORMAT}


def _is_at_home(said: dict[str, Any]) -> bool:
    """Return whether the run that a file names is where the file says."""
    there = _read(Path(said["directory"]) / RUN)
    return there is not None and there["id"] == said["id"]


def _read(file: Path) -> dict[str, Any] | None:
    """Return the content of one of our files; None if it doesn't exist."""
    try:
        found = files.read_json(file)
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("id", "directory"))
    return found if known else None


def iterate_run_dirs(directory: Path) -> Iterator[str]:
    """Yield the ``run_dir`` of each session of a run, as given by the user."""
    for path in (directory / "config.yml", *directory.glob("sessions/*.yml")):
        values = read_yaml(path) if path.exists() else {}
        if "run_dir" in values:
            yield str(values["run_dir"])


def list_candidate_places(path: Path, directory: Path) -> list[Path]:
    """Return where a run may be that another one, in ``directory``, names by ``path``, in the order to look.

    These are: the path from the working folder; its place relative to the run, if both moved together; and a relative
    path from any folder above the run, such as the project's.
    """
    places = [Path(place) for place in iterate_run_dirs(directory)]
    moved = [directory / os.path.relpath(path, was) for was in places if was.is_absolute() == path.is_absolute()]
    around = [] if path.is_absolute() else [folder / path for folder in directory.absolute().parents]
    return list(dict.fromkeys(Path(os.path.normpath(place)) for place in (path, *moved, *around)))
