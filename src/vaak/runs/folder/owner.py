"""The identity of a run, and the owner of a folder of checkpoints: each folder belongs to one run.

    RUN/run.json               id, when it was made, and where; a copy of the run (its original still there) is another
    CHECKPOINTS/owner.json     the id and the directory of the run that writes its checkpoints there

Where the owner is gone (moved, or lost with its disk), the run that asks for the folder takes it over.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.engine.checkpoint.names import list_checkpoints

RUN, OWNER = "run.json", "owner.json"


def demand_free(path: Path, checkpoints: Path) -> None:
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
    demand_free(path, checkpoints)
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
    """Why a run no longer has the checkpoints that it owned."""
    directory = Path(owner["directory"])
    if not directory.is_dir():
        return "which is gone"
    if _is_at_home(owner):
        return f"whose checkpoints are in {(directory / 'checkpoints').resolve()} now"
    return "which is another run now" if (directory / RUN).exists() else "which is not a run any more"


def owner_at_home(checkpoints: Path) -> Path | None:
    """The directory of the run that a folder of checkpoints belongs to, if it is still there."""
    owner = _read(checkpoints / OWNER)
    return Path(owner["directory"]) if owner is not None and _is_at_home(owner) else None


def owner_of(checkpoints: Path) -> str:
    """The directory of the run that a folder of checkpoints belongs to, as far as it is known."""
    owner = _read(checkpoints / OWNER)
    return "another run" if owner is None else str(owner["directory"])


def _identity(path: Path) -> dict[str, Any]:
    """The identity of the run in a directory: another than its file says, if it is a copy."""
    said, here = _read(path / RUN), str(path.resolve())
    if said is None or (_is_at_home(said) and not Path(said["directory"]).samefile(path)):
        return {"id": uuid.uuid4().hex, "made": datetime.now(UTC).isoformat(timespec="seconds"), "directory": here}
    return said | {"directory": here}


def _is_at_home(said: dict[str, Any]) -> bool:
    """Whether the run that a file names is where the file says."""
    there = _read(Path(said["directory"]) / RUN)
    return there is not None and there["id"] == said["id"]


def _read(file: Path) -> dict[str, Any] | None:
    """The content of one of our files; None if it doesn't exist."""
    try:
        found = files.read_json(file)
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("id", "directory"))
    return found if known else None
