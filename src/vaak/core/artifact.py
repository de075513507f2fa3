"""Folders that are made once: whole, of what they say they are made of, or not at all.

FOLDER/
  .lock      held by the process that makes it; others wait
  …          its files; half-written ones have a temporary name, ``.NAME.PID.tmp``
  MARKER     JSON: what the folder was made of, what came out, and the size of every file (of prepared data, its hash)

Two moments to write a marker:

last     it means "complete": prepared.json, features.json, cuts.json, utterances.json, store.json of tokens and cuts,
         manifest.json of a stage
first    it says whose the folder is, where work continues file by file after a kill: begun.json of a stage, index.json
         of rows, simulated.json, sweep.json, crossval.json

Markers are read as all earlier versions wrote them: sizes, which once weren't there, are checked where they are.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError, FormatError, UserError
from vaak.core.storage.files import hash_file, inside, read_json, remove_empty, remove_temporary, write_json
from vaak.core.storage.files import list_missing_folders as folders_to_make
from vaak.core.storage.lock import describe_holder, locked

LOCK = ".lock"
SIZES_KEY, HASHES = "sizes", "sha256"
# Listing runs holds the lock for a moment, too.
ASKING_SECONDS = 0.5
CHARACTERS_SHOWN = 200
"""Characters of a value in a message; one of some options is a whole section."""


@dataclass(frozen=True)
class Artifact:
    """A folder and its marker.

    ``what`` it holds is how messages call it; ``remedy`` is what a user does about damage, by default to
    delete the folder and to run the command again. ``keys`` are those that a marker has, with their types. ``format``
    is its value of the key "format"; without one, a marker that lacks keys is another version's.
    """

    folder: Path
    marker: str
    what: str
    format: str | None = None
    keys: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)
    remedy: str = ""

    @property
    def path(self) -> Path:
        """The marker's path."""
        return self.folder / self.marker

    def read(self) -> dict[str, Any]:
        """Return the marker's content.

        Raises DataError if it is missing, can't be read or is damaged, FormatError if another version wrote it.
        """
        path, remedy = self.path, self.remedy or f"delete {self.folder} and run again"
        try:
            about = read_json(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"{self.folder}: the {self.what} are missing or incomplete (no {self.marker})"
            raise DataError(f"{problem}; {self.remedy}" if self.remedy else problem) from error
        except PermissionError as error:
            raise DataError(f"{path}: this can't be read: {error}; give yourself permission to read it") from error
        except OSError as error:
            raise DataError(f"{path}: this can't be read: {error}; {remedy}") from error
        except ValueError as error:
            raise DataError(f"{path}: this is damaged ({error}); {remedy}") from error
        found: dict[str, Any] = about if isinstance(about, dict) else {}
        if self.format is not None and found.get("format") != self.format:
            kind = found.get("format")
            raise FormatError(path, self.what, "of an unknown format" if kind is None else str(kind)[:40], self.format)
        lacking = sorted(name for name, kind in self.keys.items() if not isinstance(found.get(name), kind))
        # this kind of artifact has no format number: missing keys mean another version, not damage
        if lacking and self.format is None:
            raise FormatError(path, self.what, f"without {' and '.join(lacking)}", "those with them")
        if lacking or not isinstance(about, dict):
            raise DataError(f"{path}: this is damaged; {remedy}")
        return found

    def find(self) -> dict[str, Any] | None:
        """Return the marker's content; None if it is missing, damaged or another version's."""
        try:
            return self.read()
        except DataError:
            return None

    def damage(self, concerns: Callable[[str], bool] = lambda name: True) -> str | None:
        """Describe the damage to the first file that has changed, with its path; None if none has.

        Only files are looked at whose name below the folder ``concerns`` the caller. Raises what ``read`` does.
        """
        sizes = self.read().get(SIZES_KEY)
        written = sizes.items() if isinstance(sizes, dict) else ()
        return damage_in(self.folder, {name: size for name, size in written if concerns(name)})

    @contextlib.contextmanager
    def making(self, is_done: Callable[[], bool], remedy: str = "", *, keeps_empty: bool = True) -> Iterator[bool]:
        """Hold the folder's lock; yield whether it is still to be made, then without its marker and temporary files.

        ``is_done`` is asked while the lock is held. Waits for other processes. A folder that is new and empty after an
        error is removed, unless ``keeps_empty``.

        Raises UserError, which ends with the ``remedy``, where the folder can't be written.
        """
        new = [] if keeps_empty else folders_to_make(self.folder)
        try:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with locked(self.folder / LOCK):
                    # asked only under the lock: another process may have finished while this one waited
                    needed = not is_done()
                    if needed:
                        # the marker goes first: a kill from here on must not leave one over half-made files
                        self.path.unlink(missing_ok=True)
                        remove_temporary(self.folder)
                    yield needed
            # Ctrl-C, too, must not leave new empty folders
            except BaseException:
                remove_empty(new, {LOCK})
                raise
        except OSError as error:
            problem = f"{self.what} can't be written to {self.folder}: {error.strerror or error}"
            raise UserError(f"{problem}; {remedy}" if remedy else problem) from error

    def finish(self, about: Mapping[str, Any], *, with_sizes: bool = True, with_hashes: bool = False) -> None:
        """Write the marker, after all other files: they are complete."""
        sizes = list_sizes(self.folder, leave_out={self.marker}) if with_sizes or with_hashes else {}
        more: dict[str, Any] = {SIZES_KEY: sizes} if with_sizes else {}
        if with_hashes:
            more[HASHES] = {name: hash_file(self.folder / name) for name in sizes}
        write_json(self.path, {**about, **more})

    def altered(self) -> Iterator[str | None]:
        """Yield, for every file whose hash was written down, what is wrong with it now, or None.

        Raises what ``read`` does.
        """
        hashes = self.read().get(HASHES)
        return altered_in(self.folder, hashes if isinstance(hashes, dict) else {})

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write the marker, before all other files: from now on the folder is that of ``identity``."""
        write_json(self.path, identity)

    def require_same(self, identity: Mapping[str, Any], remedy: str) -> None:
        """Accept a missing marker, or one with the same values of the keys of ``identity``.

        Raises DataError, which says what differs and ends with the ``remedy``, where it has other ones.
        """
        before = self.read() if self.path.exists() else identity
        if changed := list(differences({name: before[name] for name in identity if name in before}, identity)):
            named = "; ".join(change for change in changed if not change.startswith("fingerprint "))
            how = f"made with other options ({named})" if named else "made with other options or from other data"
            raise DataError(f"{self.folder} contains {self.what} {how}: {remedy}")


@contextlib.contextmanager
def only_writer(folder: Path, otherwise: str, about: Callable[[], str] = str) -> Iterator[None]:
    """Hold the lock of a folder, which is there, as long as a command works in it.

    Raises UserError if another process has it, with what that is, what ``about`` returns of the folder, and what to
    do ``otherwise`` than to wait.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / LOCK, ASKING_SECONDS))
        except BlockingIOError as error:
            holder = f"{describe_holder(folder / LOCK)}{about()}"
            raise UserError(f"{folder} is being written by {holder}; wait for it, or {otherwise}") from error
        yield


def differences(before: Any, now: Any, key: str = "") -> Iterator[str]:
    """Yield what differs between JSON values, each with its key and both values.

    >>> list(differences({"power": 2, "layers": [1, 2], "old": 0}, {"power": 3, "layers": [1, 3], "new": "x"}))
    ['power was 2, is 3 now', 'layers.1 was 2, is 3 now', 'new is new, "x"', "old was 0, isn't given now"]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*now, *before]):
            place = f"{key}.{name}".lstrip(".")
            if name not in before:
                yield f"{place} is new, {_json(now[name])}"
            elif name not in now:
                yield f"{place} was {_json(before[name])}, isn't given now"
            else:
                yield from differences(before[name], now[name], place)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{key}.{number}".lstrip("."))
    elif before != now:
        yield f"{key} was {_json(before)}, is {_json(now)} now"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[: CHARACTERS_SHOWN - 1]}…"


def list_sizes(folder: Path, leave_out: Collection[str] = ()) -> dict[str, int]:
    """The bytes of every file below a folder, by its path there; except hidden ones and those with these names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {path.relative_to(folder): path.stat().st_size for path in files if path.name not in leave_out}
    return {path.as_posix(): size for path, size in named.items() if not any(part[0] == "." for part in path.parts)}


def damage_in(folder: Path, sizes: Mapping[str, int]) -> str | None:
    """Describe the damage to the first file that is missing or has another size, with its path; None if none is.

    Raises OSError if the folder can't be read.
    """
    for name, size in sizes.items():
        path = folder / name
        try:
            found = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{path}: this file is missing"
        if found != size:
            return f"{path}: this file has {found} bytes where {size} were written"
    return None


def altered_in(folder: Path, hashes: Mapping[str, str]) -> Iterator[str | None]:
    """Yield, for every file below a folder, by its SHA-256, what is wrong with it now, with its path; or None."""
    for name, written in hashes.items():
        try:
            same = hash_file(folder / inside(name)) == written
        except (OSError, ValueError) as error:
            yield f"{folder / name}: this can't be read: {getattr(error, 'strerror', None) or 'it is elsewhere'}"
        else:
            yield None if same else f"{folder / name}: this isn't what was written there"


def suggest_remedy(error: Exception) -> str:
    """Return the remedy for a file of made data that can't be read."""
    if isinstance(error, PermissionError):
        return "give yourself permission to read it"
    return "delete the folder to make it again"
