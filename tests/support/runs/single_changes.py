"""Changes of one thing in a run, as a forger, an editor or a bad disk makes them: which files, and how.

python single_changes.py RUN NUMBER SEED      verifies RUN after each of NUMBER changes, and prints what was noticed
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.runs.audit.inventory import list_files
from vaak.runs.verify import verify_run


@dataclass(frozen=True)
class Change:
    """One change of a run: its file below the run's directory, in words, and what makes it."""

    file: str
    what: str
    make: Callable[[Path], object]

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def _rewritten(path: Path, content: bytes) -> None:
    """Write a file anew: what has a hard link to it stays as it was."""
    path.unlink()
    path.write_bytes(content)


def _flip(place: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1
        _rewritten(path, bytes(content))

    return make


def _with_lines(change: Callable[[list[bytes], int], None], place: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        change(lines, int(place * (len(lines) - 1)))
        _rewritten(path, b"".join(lines))

    return make


def _remove(lines: list[bytes], number: int) -> None:
    del lines[number]


def _double(lines: list[bytes], number: int) -> None:
    lines.insert(number, lines[number])


def _move(lines: list[bytes], number: int) -> None:
    line = lines.pop(number)
    lines.insert(0 if number else len(lines), line)


def numbers_in(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a JSON value has numbers."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(one, (*keys, key))
    elif isinstance(value, int | float):
        yield keys


def changed_number(value: Any, keys: tuple[Any, ...]) -> None:
    """Make the number at a place of a JSON value another one, of as many digits if it has several."""
    for key in keys[:-1]:
        value = value[key]
    old = value[keys[-1]]
    if isinstance(old, bool):
        value[keys[-1]] = not old
        return
    text = str(old)
    digit = next(place for place, one in enumerate(text) if one.isdigit() and (one != "0" or len(text) == 1))
    value[keys[-1]] = type(old)(float(text[:digit] + str(int(text[digit]) % 9 + 1) + text[digit + 1 :]))


def _number(draw: random.Random) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        is_lines = path.suffix == ".jsonl"
        values = [json.loads(line) for line in text.splitlines()] if is_lines else json.loads(text)
        places = list(numbers_in(values))
        changed_number(values, draw.choice(places))
        lines = [json.dumps(one, ensure_ascii=False) for one in values] if is_lines else [json.dumps(values, indent=2)]
        _rewritten(path, "".join(f"{line}\n" for line in lines).encode())

    return make


def _swap(other: Path) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        _rewritten(path, other.read_bytes())

    return make


def changes_of(run: Path, file: Path, draw: random.Random) -> Iterator[Change]:
    """Yield the changes of a file: a bit, its lines, a number, what it names, and all of it."""
    name = file.relative_to(run).as_posix()
    content = file.read_bytes()

    def change(what: str, make: Callable[[Path], None]) -> Change:
        return Change(name, what, make)

    if not content:
        return
    for _ in range(3):
        place = draw.random()
        yield change(f"a bit at {place:.0%}", _flip(place))
    yield change("removed", Path.unlink)
    yield change("cut to half", lambda path: _rewritten(path, content[: len(content) // 2]))
    yield change("a byte more at its end", lambda path: _rewritten(path, content + b"x"))
    if file.suffix in (".jsonl", ".json", ".yml", ".log"):
        of_several = () if len(content.splitlines()) == 1 else (("moved", _move),)
        for what, how in (("removed", _remove), ("doubled", _double), *of_several):
            place = draw.random()
            yield change(f"the line at {place:.0%} {what}", _with_lines(how, place))
    if file.suffix in (".jsonl", ".json") and any(True for _ in numbers_in(_values(file))):
        for number in range(4):
            yield change(f"a number {number}", _number(random.Random(draw.random())))
    others = [one for one in file.parent.iterdir() if one.is_file() and one.read_bytes() != content]
    if others:
        other = draw.choice(sorted(others))
        yield change(f"is {other.name} now", _swap(other))
    if file.name in ("best", "last"):
        yield change("names another", lambda path: _rewritten(path, b"step-00000002\n"))
        yield change("names what isn't there", lambda path: _rewritten(path, b"step-00000003\n"))


def _values(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
    except ValueError:
        return None


def added_files(run: Path) -> Iterator[Change]:
    """Yield files that no run writes, in every folder of one."""
    for folder in sorted({file.parent for file in list_files(run)}):
        for name in ("average.safetensors", "extra.json"):
            place = (folder / name).relative_to(run).as_posix()
            yield Change(place, "added", lambda path: path.write_bytes(b"{}"))


def every_change(run: Path, seed: int) -> list[Change]:
    """All changes, in a random order that begins with one of each file."""
    draw = random.Random(seed)
    by_file = [list(changes_of(run, file, draw)) for file in sorted(list_files(run)) if file.name != ".lock"]
    by_file.append(list(added_files(run)))
    for own in by_file:
        draw.shuffle(own)
    most = max(map(len, by_file))
    return [own[number] for number in range(most) for own in by_file if number < len(own)]


def is_noticed(run: Path, change: Change, **options: Any) -> tuple[bool, str]:
    """Make a change in a copy of a run; return whether verify finds it or doesn't cover what it is in, and the line."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder) / "run", symlinks=True)
        change.make(copy / change.file)
        try:
            found = verify_run(copy, trust_code=True, seed=0, **options)
        except UserError as error:  # in one line
            return True, f"refused: {error}"
        if not found["verified"]:
            return True, str((found["findings"] or found["not_checked"] or [found["sentence"]])[0])
        parts = NOT_COVERED.get(Path(change.file).name)
        if parts and any(parts.line in said for said in found["not_covered"]):
            same = parts.covered(run / change.file) == parts.covered(copy / change.file)
            return same, f"not covered: {parts.line}" if same else ""
        named = [said for said in found["not_covered"] if names_file(said, change.file)]
        return bool(named), f"not covered: {named[0]}" if named else ""


def names_file(said: str, file: str) -> bool:
    """Return whether a line of what isn't covered is about a whole file."""
    name = said.partition(" ")[0]
    return file == name or (name.endswith("/") and file.startswith(name))


@dataclass(frozen=True)
class Parts:
    """The line that says which keys of a file aren't covered, and those keys."""

    line: str
    keys: tuple[str, ...]
    kinds: tuple[str, ...] = ()

    def covered(self, path: Path) -> Any:
        """Return the content of a file without them; None where it can't be read."""
        values = _values(path)
        entries = values if isinstance(values, list) else [values]
        if not all(isinstance(one, dict) for one in entries):
            return None
        kept = [one for one in entries if one.get("kind") not in self.kinds]
        return [{name: value for name, value in one.items() if name not in self.keys} for one in kept]


IDENTITY = Parts("run.json, owner.json: when and where the run was made", ("made", "directory", "parent"))
NOT_COVERED = {
    "run.json": IDENTITY,
    "owner.json": IDENTITY,
    "MANIFEST.json": Parts("MANIFEST.json: whether a checkpoint is periodic", ("periodic",)),
    "metrics.jsonl": Parts("metrics.jsonl: clocks", ("clock",), ("system", "memory", "profile")),
    "sessions.jsonl": Parts("sessions.jsonl, environment.json: times", ("time", "command", "platform", "commit")),
}


def main() -> None:
    run, number, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    missed = 0
    for change in every_change(run, seed)[:number]:
        noticed, said = is_noticed(run, change, steps=3)
        missed += not noticed
        print("noticed" if noticed else "MISSED ", change, "|", said.replace(str(run), "RUN"), flush=True)
    print(f"{number - missed} of {number} noticed, or named as not covered")


if __name__ == "__main__":
    main()
