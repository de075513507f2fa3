"""The sessions of a run held against its checkpoints: under which configuration and conditions its steps were taken.

A checkpoint's manifest has the hash of its copy of the configuration, and the number of its session; its state has the
options and the conditions. Recomputation from it uses these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.config.training import TrainingConfig
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.core.storage.files import hash_file
from vaak.core.storage.json_lines import read_json_lines
from vaak.engine.checkpoint.files import read_state
from vaak.engine.checkpoint.names import about_checkpoint, listed_files, parse_step, step_folder
from vaak.runs.audit.inventory import Inventory
from vaak.runs.folder.directory import read_identity
from vaak.runs.folder.sessions import SESSIONS, find_session_configuration, list_run_sessions

IN_CONDITIONS = ("vaak", "python", "device", "world_size")
"""Keys of a session's environment that its conditions have, too, under the same name."""
SESSION_KEYS = ("number", "first_step", "after", "time", "conditions")
"""Keys of a session that aren't its environment."""


@dataclass(frozen=True)
class Span:
    """The steps from ``first`` to ``last`` that one session took, with its options as its YAML has them."""

    first: int
    last: float
    options: Mapping[str, Any]

    def option(self, section: str, name: str) -> Any:
        """Return an option of a section of ``training``; its default where the YAML is of before there was one."""
        default = getattr(getattr(TrainingConfig(), section), name)
        return ((self.options.get("training") or {}).get(section) or {}).get(name, default)


def list_spans(directory: Path) -> list[Span]:
    """The sessions that lead to a run's newest state, oldest first; one from step 1 on where none was recorded."""
    sessions = list_run_sessions(directory)
    files = [find_session_configuration(directory, one["number"]) for one in sessions] or [directory / "config.yml"]
    firsts = [one["first_step"] for one in sessions] or [1]
    lasts = [first - 1 for first in firsts[1:]] + [float("inf")]
    return [Span(first, last, _read(file)) for first, last, file in zip(firsts, lasts, files, strict=True)]


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_yaml(file)
    except UserError:
        # Reported by its hash.
        return {}


def check_sessions(found: Inventory) -> None:
    """Compare sessions.jsonl, sessions/, config.yml and environment.json with each other and with the checkpoints."""
    directory = found.directory
    if not (directory / SESSIONS).exists():
        found.leave_out("config.yml (an earlier version wrote down no sessions)")
        _check_configuration_of_states(found, None, directory / "config.yml")
        return
    lines = read_json_lines(directory / SESSIONS)
    sessions = [one for _, one in lines.objects]
    for number, _ in lines.malformed:
        found.compare(directory / SESSIONS, f"{SESSIONS}, line {number}: Vaak didn't write this line")
    found.compare(directory / SESSIONS, *_misnumbered(sessions))
    known = {one["number"]: one for one in sessions if type(one.get("number")) is int}
    for number in known:
        if not find_session_configuration(directory, number).exists():
            found.compare(
                directory / SESSIONS, f"sessions/{number:04d}.yml, the configuration of a session, is missing"
            )
    vouched = _check_against_checkpoints(found, known)
    for number, session in known.items():
        file = find_session_configuration(directory, number)
        if number not in vouched and file.exists():
            found.leave_out(f"sessions/{file.name} and its line in {SESSIONS} (no checkpoint of that session)", file)
        found.compare(directory / SESSIONS, *_contradictions(session))
    _check_beginnings(found, known)
    _check_newest(found, known)
    found.leave_out(f"{SESSIONS}, environment.json: times, commands, platforms")


def _misnumbered(sessions: list[dict[str, Any]]) -> Iterator[str]:
    for expected, session in enumerate(sessions, 1):
        number, first, after = (session.get(name) for name in ("number", "first_step", "after"))
        if number != expected:
            yield f"{SESSIONS}: session {number} stands where {expected} belongs"
        elif type(first) is not int or first < 1 or "after" not in session:
            yield f"{SESSIONS}: session {number} doesn't say where it began"
        elif after is not None and not (type(after) is int and 1 <= after < number):
            yield f"{SESSIONS}: session {number} can't have resumed from session {after}"


def _check_beginnings(found: Inventory, known: Mapping[int, dict[str, Any]]) -> None:
    """A session resumed from the checkpoint before its first step, if that is still there."""
    for number, session in known.items():
        first = session.get("first_step")
        if type(first) is not int or first <= 1:
            continue
        start = found.directory / "checkpoints" / step_folder(first - 1)
        if start not in found.sound:
            found.leave_out(f"{SESSIONS}: where session {number} began ({start.name} isn't there)")
        elif about_checkpoint(start).get("session") not in (session.get("after"), number):
            said = f"{SESSIONS}: session {number} can't have resumed from session {session.get('after')}"
            found.compare(found.directory / SESSIONS, f"{said}: {start.name} is another's")


def _check_against_checkpoints(found: Inventory, known: Mapping[int, dict[str, Any]]) -> set[int]:
    """Compare each sound checkpoint with the session that made it; return the sessions that have one."""
    vouched = set()
    for checkpoint in found.sound:
        number, step = about_checkpoint(checkpoint).get("session"), parse_step(checkpoint) or 0
        # The checkpoint is from before there were sessions, or another program wrote it.
        if number is None:
            continue
        session = known.get(number)
        if session is None:
            found.compare(
                checkpoint.parent.parent / SESSIONS,
                f"{SESSIONS}: session {number}, which made {checkpoint.name}, is missing",
            )
            continue
        vouched.add(number)
        file = find_session_configuration(found.directory, number)
        if session.get("first_step", 0) > step:
            found.compare(found.directory / SESSIONS, f"{SESSIONS}: session {number} began after its {checkpoint.name}")
        conditions = read_state(checkpoint).get("conditions")
        if "conditions" not in session:
            found.leave_out(f"{SESSIONS}: the conditions of session {number}, which wrote none down")
        elif conditions != session["conditions"]:
            said = f"{SESSIONS}: the conditions of session {number} aren't those that {checkpoint.name} was made under"
            found.compare(found.directory / SESSIONS, said)
        copy = listed_files(checkpoint).get("config.yml")
        if copy is not None:
            same = file.exists() and copy.describes(file)
            said = f"sessions/{file.name} isn't the configuration that {checkpoint.name} was made under"
            found.compare(file, None if same else said)
        _check_configuration_of_states(found, checkpoint, file)
    return vouched


def _check_configuration_of_states(found: Inventory, checkpoint: Path | None, file: Path) -> None:
    """Compare a YAML file with the options that a checkpoint's state has; None: with the newest one's."""
    for one in found.sound[-1:] if checkpoint is None else [checkpoint]:
        options = read_state(one).get("configuration")
        if options and not same_options(options, _read(file)):
            found.compare(
                file, f"{file.relative_to(found.directory)}: other options than those of the state of {one.name}"
            )
        elif options:
            found.compare(file)


def same_options(one: Any, other: Any) -> bool:
    """Return whether two values of options are the same, wherever the files are that they name classes of.

    >>> same_options({"type": "/home/a/mine.py:Loss"}, {"type": "./code/mine.py:Loss"})
    True
    >>> same_options([1, "mine.py:A"], [1, "mine.py:B"]), same_options([1, 2], [1]), same_options((1, 2), [1, 2])
    (False, False, True)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_options(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_options, one, other))
    if isinstance(one, str) and isinstance(other, str) and ".py:" in one and ".py:" in other:
        return one.rpartition(":")[2] == other.rpartition(":")[2]
    return bool(one == other)


def _contradictions(session: Mapping[str, Any]) -> Iterator[str]:
    """Yield which versions a session's environment has otherwise than its conditions."""
    conditions = session.get("conditions")
    if not isinstance(conditions, dict):
        return
    packages = session.get("packages") or {}
    for name in IN_CONDITIONS:
        if name in ("vaak", "python") and conditions.get(name, session.get(name)) != session.get(name):
            yield f"{SESSIONS}: session {session.get('number')} has two versions of {name}"
    for name, version in (conditions.get("packages") or {}).items():
        if packages.get(name) != version:
            yield f"{SESSIONS}: session {session.get('number')} has two versions of {name}"


def _check_newest(found: Inventory, known: Mapping[int, dict[str, Any]]) -> None:
    """config.yml and environment.json are the newest session's."""
    directory, newest = found.directory, max(known, default=0)
    if not newest:
        return
    file, current = find_session_configuration(directory, newest), directory / "config.yml"
    if file.exists() and hash_file(file) == hash_file(current):
        found.compare(current)
    elif "parent" in read_identity(directory) and _read(file).get("run_dir") != _read(current).get("run_dir"):
        found.leave_out("config.yml: this fork hasn't trained under it yet", current)
    else:
        found.compare(current, f"config.yml isn't the configuration of the newest session, sessions/{file.name}")
    path = directory / "environment.json"
    now = found.read(path)
    own = {name: value for name, value in known[newest].items() if name not in SESSION_KEYS}
    if now is not None and now != own and "parent" not in read_identity(directory):
        found.compare(path, f"environment.json isn't that of session {newest} in {SESSIONS}")
    elif now is not None:
        found.compare(path)
