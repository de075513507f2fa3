"""A run checked against its own past: steps taken again, figures computed again, files hashed again.

A step is a function of the state before it and of its number. So whoever has the folder of a run can take any of its
steps again, from the checkpoint before it, and see whether the run is what it says:

    files     checkpoints, users' code and prepared data have the hashes that were written down when they were made
    steps     what was logged of them, and the tensors of a checkpoint after them, come out again
    figures   the best checkpoint's evaluation comes out again

To the bit where the conditions are those of the run; elsewhere (other versions, threads, devices, number of processes)
within a relative ``tolerance``. RUN/verification.json holds what was found, and the hashes of what it was found of.
"""

from __future__ import annotations

import logging
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vaak
from vaak.callbacks.step_log import is_logged
from vaak.config.load import load
from vaak.config.trust import CODE, HASHES
from vaak.core.artifact import HASHES as HASHES_OF_DATA
from vaak.core.artifact import altered_in
from vaak.core.errors import CheckpointError, UserError
from vaak.core.machine import commit
from vaak.core.storage.files import read_json, sha256_of, write_json
from vaak.engine.checkpoint.companions import FROZEN
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint, pointed, verify
from vaak.engine.checkpoint.names import MANIFEST, listed_files, step_folder, step_of
from vaak.runs.folder.directory import TASKS, holds_a_run
from vaak.runs.folder.sessions import configuration_of_step
from vaak.runs.folder.user_code import demand_trust
from vaak.runs.open_run import run_of
from vaak.runs.prepared import artifact_in, is_prepared, prepared_folder
from vaak.runs.replay import (
    NOT_COMPARED,
    ReplayAgreement,
    approaching,
    standing_at,
    state_differences,
    take_steps_before,
)

log = logging.getLogger("vaak")

VERIFICATION = "verification.json"
TOLERANCE = 1e-3
"""Relative difference of a figure that is put down to rounding, where the conditions are others than the run's."""
NO_RATIO_BELOW = 1e-6
"""Figures smaller than this are compared by their difference alone."""


@dataclass
class Tally:
    """How many things of a kind were compared, and how many are the same to the bit, or within the tolerance."""

    compared: int = 0
    same: int = 0
    close: int = 0

    @property
    def reproduced(self) -> int:
        return self.same + self.close

    def add(self, difference: float, tolerance: float) -> bool:
        """Count one more; return whether it is reproduced. ``difference`` is relative, 0 where the bits are equal."""
        self.compared += 1
        self.same += difference == 0
        self.close += 0 < difference <= tolerance
        return difference <= tolerance

    def __str__(self) -> str:
        return f"{self.reproduced} of {self.compared}"


@dataclass
class Verification:
    """The findings of a verification so far."""

    directory: Path
    tolerance: float
    files: Tally = field(default_factory=Tally)
    steps: Tally = field(default_factory=Tally)
    figures: Tally = field(default_factory=Tally)
    states: Tally = field(default_factory=Tally)
    evaluations: Tally = field(default_factory=Tally)
    findings: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    conditions: dict[str, None] = field(default_factory=dict)
    steps_taken: int = 0

    def allowed(self, agreement: ReplayAgreement) -> float:
        """The tolerance under the conditions of a replay: none where they are the run's own."""
        changed = agreement.changed_conditions()
        self.conditions |= dict.fromkeys(changed)
        return self.tolerance if changed else 0.0

    @property
    def sentence(self) -> str:
        """The findings in one sentence."""
        named = (("steps", self.steps), ("checkpoints", self.states), ("figures", self.evaluations))
        parts = [f"{tally} {name}" for name, tally in named if tally.compared]
        exact = not any(one.close for one in (self.steps, self.figures, self.evaluations, self.states))
        how = "to the bit" if exact else f"within {self.tolerance:g} (relative)"
        again = f"{', '.join(parts)} reproduced {how}; " if parts else "nothing could be computed again; "
        return f"{again}{self.files} files are as they were written"


def verify_run(
    path: Path,
    steps: int | None = 20,
    *,
    seed: int | None = None,
    tolerance: float = TOLERANCE,
    device: str | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Take ``steps`` logged steps of a run again, drawn by ``seed`` (None: a new one), and compare; return JSON.

    With None, every step is taken again, each from the checkpoint before it; as the checkpoints' states are compared,
    too, that is the whole run, from its start. ``verified`` is whether nothing was found; ``findings`` has a line for
    each thing that isn't as it was, ``not_checked`` for what couldn't be looked at.

    Raises UserError where there is no run, or its code isn't trusted.
    """
    directory = run_of(path)
    if not holds_a_run(directory):
        raise UserError(f"{directory} has not started to train, so there is nothing to verify")
    demand_trust(load([directory / "config.yml"], trust_code=trust_code))
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    found = Verification(directory, tolerance)
    sound = _check_files(found)
    records = [record for record in ReplayAgreement.records(directory) if record["kind"] == "step"]
    logged = sorted({record["step"] for record in records})
    chosen = logged if steps is None else sorted(random.Random(seed).sample(logged, min(steps, len(logged))))
    # The newest state is the one that people use, so it is always computed again.
    saved = [step for path in (sound if steps is None else sound[-1:]) if (step := step_of(path))]
    # steps by the checkpoint and the configuration that they are reached from
    groups: defaultdict[tuple[str, Path], list[int]] = defaultdict(list)
    for step in sorted({*chosen, *saved}):
        before = max((path.name for path in sound if path.name < step_folder(step)), default="")
        groups[before, configuration_of_step(directory, step)].append(step)
    for own in groups.values():
        try:
            _replay(found, max(own), [step for step in own if step in set(chosen)], device, trust_code)
        except CheckpointError as error:
            found.findings.append(str(error))
        except UserError as error:
            found.not_checked.append(str(error))
    best = pointed(directory / "checkpoints", "best")
    for checkpoint in sound if steps is None else [one for one in sound if one == best]:
        try:
            _evaluate(found, checkpoint, device, trust_code)
        except CheckpointError as error:  # of other data, or removed since by a run that trains
            found.findings.append(str(error))
    return _report(found, seed, chosen, sound)


def _report(found: Verification, seed: int, chosen: Sequence[int], sound: Sequence[Path]) -> dict[str, Any]:
    directory = found.directory
    covered = [directory / name for name in ("config.yml", "metrics.jsonl")] + [path / MANIFEST for path in sound]
    return {
        "run": str(directory),
        "verified": not found.findings and found.steps.compared > 0,
        "sentence": found.sentence,
        "findings": found.findings,
        "not_checked": found.not_checked,
        "conditions": list(found.conditions),
        "tolerance": found.tolerance if found.conditions else 0.0,
        "seed": seed,
        "steps": list(chosen),
        "steps_taken": found.steps_taken,
        **{
            name: {"compared": tally.compared, "same": tally.same, "close": tally.close}
            for name, tally in (
                ("files", found.files),
                ("replayed_steps", found.steps),
                ("logged_figures", found.figures),
                ("states", found.states),
                ("evaluation_figures", found.evaluations),
            )
        },
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "vaak": vaak.__version__,
        "commit": commit(),
        "sha256": {str(file.relative_to(directory)): sha256_of(file) for file in covered if file.exists()},
    }


def write_verification(report: dict[str, Any]) -> Path:
    """Write a report into its run; return the file. Raises OSError where that can't be written."""
    file = Path(report["run"]) / VERIFICATION
    write_json(file, report)
    return file


def _check_files(found: Verification) -> list[Path]:
    """Compare the hashes of all that has any; return the checkpoints that are sound, the oldest first."""
    directory, sound = found.directory, []

    def count(damage: str | None) -> None:
        if not found.files.add(0.0 if damage is None else math.inf, 0.0):
            found.findings.append(str(damage))

    for checkpoint in list_checkpoints(directory / "checkpoints"):
        try:
            verify(checkpoint)
        except CheckpointError as error:
            count(str(error))
        else:
            sound.append(checkpoint)
            for name, entry in listed_files(checkpoint).items():
                is_there = name == FROZEN or entry.describes(checkpoint / name)  # frozen weights may have another copy
                count(None if is_there else f"{checkpoint / name}: this isn't what was written there")
    for damage in (*_altered_code(directory), *_altered_data(found, sound)):
        count(damage)
    return sound


def _altered_code(directory: Path) -> Iterator[str | None]:
    """Yield what is wrong with each copy of users' code, or None."""
    written = directory / CODE / HASHES
    try:
        hashes = read_json(written) if written.exists() else {}
        names = {str(name): str(value) for name, value in hashes.items()}
    except (OSError, ValueError, AttributeError):
        yield f"{written}: this is damaged"
    else:
        yield from altered_in(directory / CODE, names)


def _altered_data(found: Verification, sound: Sequence[Path]) -> Iterator[str | None]:
    """Yield what is wrong with each file of the prepared data, or None; of each task, where a run has several.

    Checkpoints have a copy of the hashes, which their manifest covers.
    """
    for own in (found.directory, *sorted((found.directory / TASKS).glob("*"))):
        folder = prepared_folder(own)
        if not is_prepared(own):
            continue
        artifact = artifact_in(folder)
        hashed = list(artifact.altered())
        yield from hashed
        for checkpoint in sound[-1:]:
            copy = artifact_in(checkpoint / folder.relative_to(found.directory)).find() or {}
            changed = HASHES_OF_DATA in copy and copy[HASHES_OF_DATA] != artifact.read().get(HASHES_OF_DATA)
            yield f"{artifact.path}: its hashes aren't those that {checkpoint.name} was made with" if changed else None
        if not hashed:
            found.not_checked.append(f"{folder}: prepared by an earlier version, which wrote down no hashes")


def _replay(found: Verification, last: int, chosen: Sequence[int], device: str | None, trust_code: bool) -> None:
    """Take the steps up to ``last`` again from the checkpoint before, and compare what they give with the run."""
    reached = approaching(found.directory, last, device=device, trust_code=trust_code)
    with reached as (trainer, steps, agreement, _):
        agreement.notify(trainer.take_step(take_steps_before(last, trainer, steps, agreement)))
        tolerance = found.allowed(agreement)
        wrong: set[int] = set()
        for record in agreement.records(trainer.directory):
            before = agreement.logged_as(record)
            if before is None:
                continue
            same = True
            for name in sorted((record.keys() | before.keys()) - set(NOT_COMPARED)):
                difference = relative_difference(before.get(name), record.get(name))
                if not found.figures.add(difference, tolerance):
                    found.findings.append(differs(record["step"], name, before.get(name), record.get(name)))
                    wrong.add(record["step"])
                same &= difference == 0
            if record["kind"] == "step" and record["step"] in chosen:
                wrong_here = record["step"] in wrong
                found.steps.add(math.inf if wrong_here else 0.0 if same else tolerance, tolerance)
        found.steps_taken += last - agreement.begun_at
        every = trainer.config.logging.interval
        for step in range(agreement.begun_at + 1, last + 1):
            if is_logged(trainer, step, every) and ("step", step, None) not in agreement.logged:
                found.findings.append(f"step {step}: its record is missing in metrics.jsonl")
        if (state := state_differences(trainer, found.directory)) is not None:
            name, largest = max(state.items(), key=lambda one: one[1], default=("", 0.0))
            if not found.states.add(largest, tolerance):
                found.findings.append(
                    f"step {last}: {len(state)} tensors of {step_folder(last)} are others than those computed again; "
                    f"the furthest is {name} (relative difference {largest:.2g})"
                )


def _evaluate(found: Verification, checkpoint: Path, device: str | None, trust_code: bool) -> None:
    """Evaluate a checkpoint again as training did, and compare every figure with what was logged of it."""
    step = step_of(checkpoint)
    assert step is not None
    loaded = load([configuration_of_step(found.directory, step)], trust_code=trust_code)
    before = _evaluation_of(found.directory, step)
    snapshot = load_checkpoint(checkpoint)
    if before is None and snapshot.state["best"]["step"] == step:
        found.findings.append(f"step {step}: the best checkpoint's evaluation is missing in metrics.jsonl")
    if before is None:
        return
    with standing_at((checkpoint, snapshot), loaded, found.directory, device) as trainer:
        agreement = ReplayAgreement(found.directory, trainer, step, snapshot.state["conditions"])
        trainer.evaluate(due=False)
        now = _evaluation_of(trainer.directory, step) or {}
        tolerance = found.allowed(agreement)
    for name in sorted((before.keys() | now.keys()) - set(NOT_COMPARED)):
        if not found.evaluations.add(relative_difference(before.get(name), now.get(name)), tolerance):
            found.findings.append(differs(step, name, before.get(name), now.get(name)))


def _evaluation_of(directory: Path, step: int) -> dict[str, Any] | None:
    """The last record of an evaluation at a step."""
    records = ReplayAgreement.records(directory)
    return next((one for one in reversed(records) if (one["kind"], one["step"]) == ("evaluation", step)), None)


def differs(step: int, name: str, then: Any, now: Any) -> str:
    return f"step {step}: {name} is {then} in metrics.jsonl, and {now} when it is computed again"


def relative_difference(then: Any, now: Any) -> float:
    """Return |now - then| over the larger of the two; 0 where they are the same, infinity where they can't be compared.

    >>> relative_difference(2.0, 2.0), relative_difference(2.0, 1.0), relative_difference("nan", 1.0)
    (0.0, 0.5, inf)
    """
    if then == now:
        return 0.0
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in (then, now)):
        return math.inf
    return float(abs(now - then) / max(abs(now), abs(then), NO_RATIO_BELOW))
