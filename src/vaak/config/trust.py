"""Whose code is, and whether it may run: the one place that decides, before anything is imported.

A file that is read has a ``Doubt``, or none if it is the user's own. A file isn't the user's own

- by its place: it has the name of a run's (``config.yml``, ``tuned.yml``, ``sessions/0001.yml``), wherever it was
  copied or moved to, or it is in a run's folder; and so is code in a ``code/`` whose hashes a run has written;
- by its owner, if that is neither the user nor the system;
- by the file that brings it in: **trust is inherited**. Files that such a file extends aren't the user's either.

Each line that is read keeps its file's doubt through merging (``YamlPlace``), so what the user's own file or the
command line says over a run's stays the user's. Loading a configuration notes for all code that it names whether it
may run (``decide``), and ``vaak.config.components.resolve_class``, through which all of it is imported, asks here
(``require_decided``): so a command that forgets to ask executes nothing.

``--trust-code`` is inherited, too: runs that a trusted configuration names (a teacher, a base, a vocoder) are trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vaak.core.errors import UserError

CODE, HASHES = "code", "SHA256.json"
"""Where a run has copies of users' files, and their hashes."""
TUNED = "tuned.yml"
"""Options found after training (vaak tune), in a run's folder."""
MADE_BY_RUNS = ("run.json", "environment.json")
_SIGNS = (*MADE_BY_RUNS, "sessions.jsonl", "MANIFEST.json", f"{CODE}/{HASHES}")
"""Files that Vaak writes next to a configuration: in a run, or in a checkpoint."""


@dataclass(frozen=True)
class Doubt:
    """Why a ``file`` isn't the user's own: the file and the ``reason`` make a sentence."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"

    def inherited_by(self, file: str) -> Doubt:
        """Return the doubt about a file that this one brings in."""
        if file == self.file:
            return self
        if self.reason.startswith("comes with "):
            return Doubt(file, self.reason)
        return Doubt(file, f"comes with {self.file}, which {self.reason}")


def judge_file(file: Path, brought_by: Doubt | None = None) -> Doubt | None:
    """Return why a configuration isn't the user's own; None if it is. ``brought_by``: the doubt about what names it."""
    if brought_by is not None:
        return brought_by.inherited_by(str(file))
    return _judge_place(file, file) or _judge_owner(file)


def judge_run(run: Path, file: Path) -> Doubt:
    """Return the doubt about a file of a run that is opened as one, whatever the file is called."""
    return judge_file(file) or Doubt(str(file), f"belongs to the run {run}")


def judge_code(written: Doubt | None, code: Path | None) -> Doubt | None:
    """Return why code in a file, or in a package (None), isn't the user's own, named where there is this doubt."""
    if written is not None or code is None:
        return written
    if code.parent.name == CODE and (code.parent / HASHES).exists():
        return Doubt(str(code.parent), "belongs to a run")
    return _judge_owner(code)


def find_owning_run(file: Path) -> Path | None:
    """The run directory whose configuration a file is, wherever it was copied or moved; None for a user's file."""
    run = _find_run_folder(file)
    return run if run is not None and any((run / name).is_file() for name in MADE_BY_RUNS) else None


def _find_run_folder(file: Path) -> Path | None:
    if file.name == "config.yml":
        return file.parent
    return file.parent.parent if file.parent.name == "sessions" and file.stem.isdecimal() else None


def _judge_place(file: Path, said: Path) -> Doubt | None:
    for one in (file, file.resolve()):
        # Some file systems find CONFIG.YML by either name.
        by_name = one.with_name(one.name.lower())
        if by_name.name == TUNED or _find_run_folder(by_name) is not None:
            return Doubt(str(said), "belongs to a run, by its name")
    return _judge_folder(file)


def _judge_folder(file: Path) -> Doubt | None:
    """Return whether a file is somewhere below a run's directory."""
    for one in (file.absolute(), file.resolve()):
        for folder in one.parents:
            if (folder / "config.yml").is_file() and any((folder / sign).is_file() for sign in _SIGNS):
                return Doubt(str(file), f"is in {folder}, the folder of a run")
    return None


def _judge_owner(file: Path) -> Doubt | None:
    """Whose a file is, if neither this user's nor the system's (nor, under sudo, the caller's)."""
    if not hasattr(os, "getuid"):
        return None
    try:
        owner = file.stat().st_uid
    except OSError:
        return None
    if owner in (0, os.getuid()) or (os.getuid() == 0 and str(owner) == os.environ.get("SUDO_UID")):
        return None
    try:
        name = file.owner()
    except (KeyError, OSError):
        name = str(owner)
    return Doubt(str(file), f"belongs to the user {name}")


_DECIDED: dict[str, Doubt | None] = {}
"""Decisions about code, by its file or its reference: None if the user named it themselves, or trusts it."""
_TRUSTED_PLACES: set[str] = set()
"""Real paths that configurations named which were loaded with trust."""


def decide(code: str, doubt: Doubt | None) -> None:
    """Note whether code may run: not while there is a doubt, unless the user has named it themselves before."""
    if doubt is None:
        _DECIDED[code] = None
    else:
        _DECIDED.setdefault(code, doubt)


def require_decided(code: str, reference: str) -> None:
    """Raise UserError if code, which a configuration calls ``reference``, may not run."""
    if (doubt := _DECIDED.get(code)) is not None:
        raise UserError(refusal(doubt, reference))


def refusal(doubt: Doubt, references: str) -> str:
    """Return the message about code that isn't executed."""
    return f"{doubt}, and this code would be executed: {references}; read it, and add --trust-code"


def trust_places(names: Iterable[str], folders: Iterable[Path]) -> None:
    """Let runs be trusted that a trusted configuration names, as seen from any of the folders."""
    folders = (*folders,)
    for name in names:
        for folder in folders:
            place = folder / Path(name).expanduser()
            if place.is_dir():
                _TRUSTED_PLACES.add(str(place.resolve()))


def is_trusted_place(run: Path) -> bool:
    """Return whether a trusted configuration names this run, or checkpoint."""
    return str(run.expanduser().resolve()) in _TRUSTED_PLACES
