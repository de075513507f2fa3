"""The files of a run that have hashes, or that name one another: checkpoints, prepared data, code, pointers, identity.

What is found damaged here isn't computed with: a changed byte of an index sends a reader anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.trust import CODE, HASHES
from vaak.core.artifact import HASHES as HASHES_OF_DATA
from vaak.core.artifact import altered_in
from vaak.core.errors import CheckpointError, DataError
from vaak.core.storage.files import hash_file, inside, read_json
from vaak.core.storage.json_lines import read_json_lines
from vaak.engine.checkpoint.bundled_files import OF_THE_STATE, STATE
from vaak.engine.checkpoint.files import COMPLETED, pointed, read_state, verify
from vaak.engine.checkpoint.names import MANIFEST, about_checkpoint, list_checkpoints, listed_files, parse_step
from vaak.engine.journal import JOURNALS, journal_files
from vaak.engine.snapshot import FROZEN
from vaak.engine.state import ChunkRule
from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.sessions import list_spans
from vaak.runs.folder.directory import OWNER, RUN, TASKS_FOLDER, read_status
from vaak.runs.prepared import LEFT_OUT, PREPARED_FILE, artifact_in, is_prepared, prepared_folder

CHANGED_BY_AN_EVALUATION = ("best", "metrics", "plateau", "callbacks", "metrics_bytes", "splits", "position")


def check_files(found: Inventory) -> None:
    """Compare the files of a run that have hashes; list the checkpoints that are sound, and what is damaged."""
    for checkpoint in list_checkpoints(found.directory / "checkpoints"):
        try:
            verify(checkpoint)
            state = read_state(checkpoint)
            step = state["position"]["step"]
        except CheckpointError as error:
            found.compare(checkpoint / MANIFEST, str(error))
        except (OSError, ValueError, KeyError, TypeError) as error:
            found.compare(checkpoint / STATE, f"{checkpoint}: its state can't be read ({error!r})")
        else:
            found.sound.append(checkpoint)
            _check_checkpoint(found, checkpoint, step)
    _check_second_copies(found)
    _check_code(found)
    _check_data(found)


def check_names(found: Inventory) -> None:
    """Check what names a checkpoint or the run: best, last, status.json, run.json; and the journals."""
    _check_pointers(found)
    _check_status(found)
    _check_identity(found)
    _check_journals(found)


def _check_checkpoint(found: Inventory, checkpoint: Path, step: Any) -> None:
    listed = listed_files(checkpoint)
    for name, entry in listed.items():
        # Frozen weights that are damaged here may be whole in their second copy (checkpoints/frozen-HASH.safetensors).
        is_there = name == FROZEN or entry.describes(checkpoint / name)
        found.compare(
            checkpoint / name, None if is_there else f"{checkpoint / name}: this isn't what was written there"
        )
    named, said = parse_step(checkpoint), about_checkpoint(checkpoint).get("step")
    wrong = f"{checkpoint} is of step {step}, by its manifest of {said}"
    found.compare(checkpoint / MANIFEST, None if step == said == named else wrong)
    for name in sorted({*OF_THE_STATE, FROZEN} - listed.keys()):
        if (checkpoint / name).exists():
            found.compare(checkpoint / name, f"{checkpoint / name}: this isn't in its {MANIFEST}")
            # A file that the manifest doesn't name was never checked, and would be loaded: compute nothing with it.
            found.sound.remove(checkpoint) if checkpoint in found.sound else None
    if "periodic" in about_checkpoint(checkpoint):
        found.leave_out(f"checkpoints/*/{MANIFEST}: whether a checkpoint is periodic")
    if (checkpoint / COMPLETED).exists():
        found.compare(checkpoint / COMPLETED, *_wrong_completion(found, checkpoint))


def _wrong_completion(found: Inventory, checkpoint: Path) -> Iterator[str]:
    """Yield what the state after an evaluation has otherwise than the state before, except what that changes."""
    path = checkpoint / COMPLETED
    about, before = found.read(path), read_json(checkpoint / STATE)
    state = about.get("state") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(state, dict) or not isinstance(state.get("position"), dict):
        yield f"{path}: this is damaged"
        return
    if about.get("completes") != hash_file(checkpoint / STATE):
        yield f"{path}: this completes another state than that of {checkpoint.name}"
        return
    for name in sorted((state.keys() | before.keys()) - set(CHANGED_BY_AN_EVALUATION)):
        if state.get(name) != before.get(name):
            yield f"{path}: {name} isn't that of {STATE}"
    # The evaluation was the pending duty; it moves nothing else of the position.
    if state["position"] != before["position"] | {"duties_pending": False}:
        yield f"{path}: its position isn't that of {STATE}"
    names = [[one[0] for one in each.get("callbacks", ())] for each in (state, before)]
    if names[0] != names[1]:
        yield f"{path}: it has other callbacks than {STATE}"
        return
    for one, other in zip(state.get("callbacks", ()), before.get("callbacks", ()), strict=True):
        # The record of an epoch's end comes with the evaluation, and empties the tally of that epoch.
        if one[0] == "StepLogCallback" and one[1] != other[1] and one[1] != other[1] | {"epoch": {}}:
            yield f"{path}: what was logged so far isn't that of {STATE}"
        elif one[1] != other[1] and one[0] != "StepLogCallback":
            found.leave_out(f"{checkpoint.name}/{COMPLETED}: what {one[0]} remembers")


def _check_second_copies(found: Inventory) -> None:
    for path in sorted((found.directory / "checkpoints").glob("frozen-*.safetensors")):
        same = hash_file(path).startswith(path.stem.removeprefix("frozen-"))
        found.compare(path, None if same else f"{path}: this isn't what was written there")


def _check_code(found: Inventory) -> None:
    """Copies of users' code have the hashes next to them, and those in the newest checkpoint."""
    folder = found.directory / CODE
    written = folder / HASHES
    hashes = found.read(written) if written.exists() else {}
    if not isinstance(hashes, dict):
        found.compare(written, f"{written}: this is damaged")
        hashes = {}
    for name, damage in zip(
        hashes, altered_in(folder, {str(key): str(value) for key, value in hashes.items()}), strict=True
    ):
        _compare_data(found, folder / name, damage)
    for name, entry in _newest_listed(found, CODE).items():
        path = found.directory / name
        _compare_data(
            found, path, None if entry.describes(path) else f"{path}: this isn't what {found.sound[-1].name} has of it"
        )


def _newest_listed(found: Inventory, folder: str) -> Mapping[str, Any]:
    listed = listed_files(found.sound[-1]) if found.sound else {}
    return {name: entry for name, entry in listed.items() if name.startswith(f"{folder}/")}


def _compare_data(found: Inventory, path: Path, damage: str | None) -> None:
    """Compare a file that recomputation reads."""
    found.compare(path, damage)
    if damage is not None:
        found.damage.append(damage)


def _check_data(found: Inventory) -> None:
    """Prepared data have the hashes that they were written with; of each task, where a run has several.

    Checkpoints have a copy of this record, which their manifest covers.
    """
    for own in (found.directory, *sorted((found.directory / TASKS_FOLDER).glob("*"))):
        folder = prepared_folder(own)
        if not is_prepared(own):
            if folder.exists():
                _compare_data(found, folder / PREPARED_FILE, f"{folder}: its {PREPARED_FILE} is missing")
            continue
        artifact = artifact_in(folder)
        try:
            about = artifact.read()
        except DataError as error:
            _compare_data(found, artifact.path, str(error))
            continue
        hashes = about.get(HASHES_OF_DATA)
        named = {str(name): str(value) for name, value in hashes.items()} if isinstance(hashes, dict) else {}
        for name, damage in zip(named, altered_in(folder, named), strict=True):
            _compare_data(found, folder / _safe(name), damage)
        if not named:
            size_damage = artifact.damage()
            place = folder.relative_to(found.directory)
            files = [path for path in folder.rglob("*") if path.is_file() and path != artifact.path]
            found.leave_out(f"{place}/ (prepared by an earlier version, which wrote down no hashes)", *files)
            if size_damage is not None:
                _compare_data(found, artifact.path, size_damage)
        _check_copy(found, artifact.path, about)


def _safe(name: str) -> str:
    try:
        return inside(name)
    except ValueError:
        return PREPARED_FILE


def _check_copy(found: Inventory, path: Path, about: dict[str, Any]) -> None:
    """Check that the record of prepared data equals the newest checkpoint's copy of it."""
    if not found.sound:
        return
    checkpoint = found.sound[-1]
    copy = found.read(checkpoint / path.relative_to(found.directory))
    if not isinstance(copy, dict):
        return
    # Only the checkpoint's copy says which splits it lacks.
    copy.pop(LEFT_OUT, None)
    said = f"{path}: its hashes aren't those that {checkpoint.name} was made with"
    if copy.get(HASHES_OF_DATA) == about.get(HASHES_OF_DATA):
        said = f"{path}: this isn't what {checkpoint.name} was made with"
    _compare_data(found, path, None if copy == about else said)


def _check_pointers(found: Inventory) -> None:
    """``last`` names the newest checkpoint, and ``best`` the one that it says is the best so far, if it is there."""
    folder = found.directory / "checkpoints"
    if not found.sound:
        return
    newest = list_checkpoints(folder)[-1]
    best = (read_state(found.sound[-1]).get("best") or {}).get("step")
    there = {parse_step(path): path for path in list_checkpoints(folder)}
    ended = read_status(found.directory).get("state") in ("finished", "stopped")
    for name, expected in (("last", newest), ("best", there.get(best))):
        path = folder / name
        # The message below shows it, and a damaged pointer may hold anything: 40 bytes are enough for a folder's name.
        held = path.read_bytes()[:40].decode(errors="replace").strip() if path.is_file() else None
        if expected is None and held is None:
            continue
        if expected is not None and held == expected.name:
            found.compare(path)
        # Pointers are updated after the checkpoint is written, so a kill in between leaves the previous ones.
        elif not ended and pointed(folder, name) is not None:
            found.leave_out(f"checkpoints/{name}, which names {held} (the run trains, or was killed)", path)
        else:
            right = f"the one to name is {expected.name}" if expected else "the best checkpoint isn't kept"
            found.compare(
                path, f"{path} holds {held!r}; {right}" if held is not None else f"{path} is missing; {right}"
            )


def _check_status(found: Inventory) -> None:
    path = found.directory / "status.json"
    if not path.exists():
        return
    status = found.read(path)
    state, step, total = (
        (status.get(name) for name in ("state", "step", "total_steps")) if isinstance(status, dict) else (None,) * 3
    )
    newest = max(filter(None, map(parse_step, list_checkpoints(found.directory / "checkpoints"))), default=None)
    wrong = None
    if type(step) is not int or type(total) is not int or state not in ("finished", "stopped", "failed"):
        wrong = f"{path}: this is damaged"
    elif state == "finished" and step != total:
        wrong = f"{path} says finished at step {step} of {total}"
    # A failed run stopped wherever its error was, so its newest checkpoint may be older.
    elif state != "failed" and newest not in (None, step):
        wrong = f"{path} says {state} at step {step}, and the newest checkpoint is of step {newest}"
    elif (state == "finished") != (status.get("reason") == "finished"):
        wrong = f"{path} says {state}, because of {status.get('reason')}"
    found.compare(path, wrong)
    if state != "finished":
        found.leave_out("status.json: why the run ended, and after how many steps it would have")


def _check_identity(found: Inventory) -> None:
    """run.json and checkpoints/owner.json name the same run."""
    path, owner = found.directory / RUN, found.directory / "checkpoints" / OWNER
    mine, theirs = found.read(path), found.read(owner)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        same = mine.get("id") == theirs.get("id")
        wrong = None if same else f"{owner} names another run than {RUN}: {theirs.get('id')}, not {mine.get('id')}"
        found.compare(path, wrong)
        found.compare(owner, wrong)
        more = " and its parent" * ("parent" in mine)
        found.leave_out(f"{RUN}, {OWNER}: when and where the run was made{more}")


def _check_journals(found: Inventory) -> None:
    """Lines of journals are what Vaak writes; splits are those that the newest checkpoint knows."""
    for path in journal_files(found.directory, *JOURNALS):
        read = read_json_lines(path)
        lines = [number for number, _ in read.malformed]
        if path.name.startswith("splits"):
            lines += [number for number, entry in read.objects if _rule(entry) is None]
            found.compare(path, *_unknown_splits(found, path, [entry for _, entry in read.objects]))
            found.leave_out(f"{path.name}: why batches were divided")
        else:
            lines += [number for number, entry in read.objects if type(entry.get("index")) is not int]
            found.leave_out(f"{path.name} (followed: what couldn't be read then isn't tried again)")
        found.compare(path, *(f"{path.name}, line {number}: Vaak didn't write this line" for number in sorted(lines)))

    _check_lost_splits(found)


def _check_lost_splits(found: Inventory) -> None:
    """Every rule that the newest checkpoint knows is in a journal; one resumed from another run's has more."""
    if not found.sound or list_spans(found.directory)[0].first > 1:
        return
    files = journal_files(found.directory, "splits")
    written = [_rule(entry) for path in files for _, entry in read_json_lines(path).objects]
    lost = [
        one for one in map(ChunkRule.from_json, read_state(found.sound[-1]).get("splits", ())) if one not in written
    ]
    for rule in lost:
        found.say(f"splits.jsonl lacks the rule from step {rule.step} on that {found.sound[-1].name} knows")


def _rule(entry: Mapping[str, Any]) -> ChunkRule | None:
    try:
        return ChunkRule.from_json(entry.get("cut"))
    except ValueError:
        return None


def _unknown_splits(found: Inventory, path: Path, entries: list[dict[str, Any]]) -> Iterator[str]:
    if not found.sound:
        return
    step = parse_step(found.sound[-1]) or 0
    known = [ChunkRule.from_json(one) for one in read_state(found.sound[-1]).get("splits", ())]
    for rule in filter(None, map(_rule, entries)):
        if rule.step <= step and rule not in known and not any(one.covers(rule) for one in known):
            yield f"{path.name} has a rule from step {rule.step} on that {found.sound[-1].name} doesn't know"
