"""A run checked against its own past, both ways: recomputed results are in its files, and these have nothing else.

A step is a function of the state before it and of its number. So anyone with the folder of a run can recompute any of
its steps, from the checkpoint before it, and check the run's records:

    files        checkpoints, users' code and prepared data have the hashes that were recorded when they were made;
                 configurations, pointers and states agree with them (vaak.runs.audit); what is damaged isn't used
    records      each is where the schedule has one (vaak.runs.audit.records)
    steps        what was logged of them, and the checkpoints after them, come out again
    evaluations  so do their metrics: those of the best checkpoint, or all

Every file is recomputed, compared with what vouches for it, or named as not covered. To the bit where the conditions
are those of the run; elsewhere (other versions, threads, devices, number of processes) within a relative ``tolerance``.
RUN/verification.json holds what was found, and the hashes of what it was found of.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import vaak
from vaak.callbacks.step_log import is_logged
from vaak.config.load import load
from vaak.core.errors import CheckpointError, UserError
from vaak.core.interrupts import TooLongError, limit_time
from vaak.core.machine import commit
from vaak.core.storage.files import hash_file, read_json, write_json
from vaak.engine.checkpoint.bundled_files import STATE
from vaak.engine.checkpoint.files import load_checkpoint, pointed
from vaak.engine.checkpoint.names import MANIFEST, parse_step, step_folder
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData
from vaak.runs.audit.files import check_files, check_names
from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.records import LogAudit, check_log
from vaak.runs.audit.sessions import check_sessions
from vaak.runs.folder.directory import holds_a_run, read_status
from vaak.runs.folder.sessions import find_step_configuration
from vaak.runs.folder.user_code import OF_THE_LOOP, require_secrets, require_trust
from vaak.runs.open_run import resolve_run
from vaak.runs.replay import (
    ReplayAgreement,
    approaching,
    do_what_is_due,
    standing_at,
    state_differences,
    take_steps_before,
)

log = logging.getLogger("vaak")

VERIFICATION = "verification.json"
CLOSE_TOLERANCE = 1e-3
"""Relative difference of a figure that is put down to rounding, where the conditions are others than the run's."""
NO_RATIO_BELOW = 1e-6
"""Figures smaller than this are compared by their difference alone."""
LEAST_SECONDS, TIMES_AS_LONG = 1800.0, 100.0
"""The time limit of a step or evaluation: seconds, or a multiple of the run's slowest record, whichever is longer."""
NOT_METRICS = ("kind", "step", "clock")
VALUES = ("position", "loss_scale", "precision", "plateau")
"""The parts of a state without tensors that a replay comes to by itself."""


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
    """The findings of a verification so far; ``files`` has those of the files, ``records`` those of the log."""

    directory: Path
    tolerance: float
    files: Inventory
    records: LogAudit
    steps: Tally = field(default_factory=Tally)
    figures: Tally = field(default_factory=Tally)
    states: Tally = field(default_factory=Tally)
    evaluations: Tally = field(default_factory=Tally)
    evaluated: set[int] = field(default_factory=set)
    not_checked: list[str] = field(default_factory=list)
    conditions: dict[str, None] = field(default_factory=dict)
    steps_taken: int = 0

    def allowed(self, agreement: ReplayAgreement) -> float:
        """Return the tolerance under the conditions of a replay: none if they are the run's own."""
        changed = agreement.changed_conditions()
        self.conditions |= dict.fromkeys(changed)
        return self.tolerance if changed else 0.0

    def find(self, finding: str) -> None:
        """Add a finding, once."""
        self.files.say(finding)

    @property
    def sentence(self) -> str:
        """The findings in one sentence."""
        named = (("steps", self.steps), ("checkpoints", self.states), ("metrics", self.evaluations))
        parts = [f"{tally} {name}" for name, tally in named if tally.compared]
        exact = not any(one.close for one in (self.steps, self.figures, self.evaluations, self.states))
        how = "to the bit" if exact else f"within {self.tolerance:g} (relative)"
        again = f"{', '.join(parts)} reproduced {how}; " if parts else "nothing could be computed again; "
        number, same = self.files.num_files
        return f"{again}{same} of {number} files are as they were written"

    @property
    def longest_seconds(self) -> float:
        """How long a step or an evaluation may take."""
        clocks = [one.values.get("clock") for one in self.records.of_kind("step")]
        seconds = [clock.get("seconds") for clock in clocks if isinstance(clock, dict)]
        return max([LEAST_SECONDS, *(TIMES_AS_LONG * one for one in seconds if isinstance(one, float | int))])


def verify_run(
    path: Path,
    steps: int | None = 20,
    *,
    seed: int | None = None,
    tolerance: float = CLOSE_TOLERANCE,
    device: str | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Recompute ``steps`` logged steps of a run, drawn by ``seed`` (None: a new one), and compare; return JSON.

    With None, every step and every evaluation is recomputed, each step from the checkpoint before it; as the
    checkpoints' states are compared, too, that is the whole run, from its start. ``verified`` is whether nothing was
    found; ``findings`` has a line for each difference, ``not_checked`` for each thing that couldn't be examined,
    ``not_covered`` for each file, or part of one, that nothing vouches for.

    Raises UserError if the path isn't a run, or its code isn't trusted.
    """
    directory = resolve_run(path)
    if not holds_a_run(directory):
        raise UserError(f"{directory} has not started to train, so there is nothing to verify")
    require_trust(load([directory / "config.yml"], trust_code=trust_code))
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    files = Inventory(directory)
    check_files(files)
    check_sessions(files)
    check_names(files)
    found = Verification(directory, tolerance, files, check_log(files))
    files.name_uncovered()
    logged = sorted(found.records.steps("step"))
    chosen = logged if steps is None else sorted(random.Random(seed).sample(logged, min(steps, len(logged))))
    if files.damage:
        found.not_checked.append(f"nothing is computed with what is damaged ({files.damage[0]})")
    else:
        _compute_again(found, chosen, device, trust_code, every=steps is None)
    return _report(found, seed, chosen)


def _compute_again(
    found: Verification, chosen: Sequence[int], device: str | None, trust_code: bool, every: bool
) -> None:
    directory, records, sound = found.directory, found.records, found.files.sound
    evaluations = records.steps("evaluation") if every else records.doubtful_evaluations
    # The newest state is the one that people use, so it is always computed again.
    saved = {step for path in (sound if every else sound[-1:]) if (step := parse_step(path))}
    # steps by the checkpoint and the configuration that they are reached from
    groups: defaultdict[tuple[str, Path], list[int]] = defaultdict(list)
    for step in sorted({*chosen, *saved, *evaluations, *records.doubtful_steps}):
        before = max((path.name for path in sound if path.name < step_folder(step)), default="")
        groups[before, find_step_configuration(directory, step)].append(step)
    for own in groups.values():
        last = max(own)
        with _reported(found, f"steps up to {last}"), limit_time(found.longest_seconds) as restart:
            _replay(found, last, (set(chosen), evaluations), (device, trust_code), restart)
    best = pointed(directory / "checkpoints", "best")
    for checkpoint in sound:
        if checkpoint == best and parse_step(checkpoint) not in found.evaluated:
            with _reported(found, f"the evaluation of {checkpoint.name}"), limit_time(found.longest_seconds):
                _evaluate(found, checkpoint, device, trust_code)


@contextlib.contextmanager
def _reported(found: Verification, what: str) -> Iterator[None]:
    """Note what can't be computed within this context; data without hashes may make any error."""
    try:
        yield
    except CheckpointError as error:
        # It is of other data, or was removed since by a run that trains.
        found.find(str(error))
    except UserError as error:
        found.not_checked.append(str(error))
    except TooLongError:
        found.find(f"{what}: stopped after {found.longest_seconds:g} s without coming to a step's end")
    except Exception as error:
        if not any("no hashes" in line for line in found.files.not_covered):
            raise
        found.find(f"{what}: {type(error).__name__} ({error}); its data have no hashes, and may be damaged")


def _report(found: Verification, seed: int, chosen: Sequence[int]) -> dict[str, Any]:
    directory, (number, same) = found.directory, found.files.num_files
    covered = [directory / name for name in ("config.yml", "metrics.jsonl")]
    covered += [path / MANIFEST for path in found.files.sound]
    compared = sorted(path.relative_to(directory).as_posix() for path in found.files.compared if path != directory)
    tallies = {
        "replayed_steps": found.steps,
        "logged_figures": found.figures,
        "states": found.states,
        "evaluation_figures": found.evaluations,
    }
    return {
        "run": str(directory),
        # A run of which nothing was recomputed hasn't been verified, whatever its files say.
        "verified": not found.files.findings and found.steps.compared > 0,
        "sentence": found.sentence,
        "findings": found.files.findings,
        "not_checked": found.not_checked,
        "not_covered": found.files.not_covered,
        "conditions": list(found.conditions),
        "tolerance": found.tolerance if found.conditions else 0.0,
        "seed": seed,
        "steps": list(chosen),
        "steps_taken": found.steps_taken,
        "recomputed": {
            "steps": [found.steps.compared, len(found.records.steps("step"))],
            "evaluations": [len(found.evaluated), len(found.records.steps("evaluation"))],
            "checkpoints": [found.states.compared, len(found.files.sound)],
        },
        "files": {"compared": number, "same": same, "close": 0},
        **{
            name: {"compared": tally.compared, "same": tally.same, "close": tally.close}
            for name, tally in tallies.items()
        },
        "compared": compared,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "vaak": vaak.__version__,
        "commit": commit(),
        # With these, a later reader sees whether the run has changed since.
        "sha256": {str(file.relative_to(directory)): hash_file(file) for file in covered if file.exists()},
    }


def write_verification(report: dict[str, Any]) -> Path:
    """Write a report into its run; return the file. Raises OSError if that can't be written."""
    file = Path(report["run"]) / VERIFICATION
    write_json(file, report)
    return file


def _replay(
    found: Verification,
    last: int,
    wanted: tuple[Collection[int], Collection[int]],
    how: tuple[str | None, bool],
    restart: Callable[[], None],
) -> None:
    """Take the steps up to ``last`` again from the checkpoint before, and compare what they give with the run.

    ``wanted`` are the steps that count, and those after which it is evaluated; ``how`` the device, and whether code is
    trusted. ``restart`` is called at each step.
    """
    chosen, evaluations = wanted

    def watched(steps: Iterator[StepData]) -> Iterator[StepData]:
        for data in steps:
            restart()
            yield data

    with approaching(found.directory, last, device=how[0], trust_code=how[1]) as (trainer, steps, agreement, _):
        after = {step for step in evaluations if agreement.begun_at < step <= last}
        data = take_steps_before(last, trainer, watched(steps), agreement, after)
        agreement.notify(trainer.take_step(data))
        tolerance = found.allowed(agreement)
        _compare_state(found, trainer, agreement, tolerance)
        # What is due after a step is done before the next one is taken; after the last one, that is here.
        if last in after or trainer.position.place == 0:
            restart()
            do_what_is_due(trainer, after)
        found.steps_taken += last - agreement.begun_at
        _compare_records(found, agreement, chosen, tolerance)
        _find_undue(found, trainer, agreement, last)
        found.evaluated |= after


def _compare_records(
    found: Verification, agreement: ReplayAgreement, chosen: Collection[int], tolerance: float
) -> None:
    """Compare every value that a replay logs with the run's own record of it."""
    for record in agreement.records(agreement.trainer.directory):
        before = agreement.logged_as(record)
        if before is None:
            if record["kind"] == "evaluation":
                found.find(f"step {record['step']}: its evaluation's record in metrics.jsonl is another, or missing")
            continue
        tally = found.evaluations if record["kind"] == "evaluation" else found.figures
        differences = _compare_metrics(found, before, record, tally, tolerance)
        if record["kind"] == "step" and record["step"] in chosen:
            found.steps.add(max(differences, default=0.0), tolerance)


def _compare_metrics(
    found: Verification, before: Mapping[str, Any], now: Mapping[str, Any], tally: Tally, tolerance: float
) -> list[float]:
    """Compare the values of two records; return by how much each differs."""
    differences = []
    for name in sorted((before.keys() | now.keys()) - set(NOT_METRICS)):
        difference = relative_difference(before.get(name), now.get(name))
        if name in ("epoch", "scheduled"):
            # They say where it is, and aren't values.
            reproduced = difference == 0
        else:
            differences.append(difference)
            reproduced = tally.add(difference, tolerance)
        if not reproduced:
            found.find(differs(now["step"], name, before.get(name), now.get(name)))
            differences.append(difference)
    return differences


def _find_undue(found: Verification, trainer: Trainer, agreement: ReplayAgreement, last: int) -> None:
    """Find records of the recomputed steps that are missing in the log, and records that aren't due there."""
    every, made = (
        trainer.config.logging.interval,
        {(one["kind"], one["step"]) for one in agreement.records(trainer.directory)},
    )
    for step in range(agreement.begun_at + 1, last + 1):
        is_there = ("step", step) in found.records.logged
        if is_logged(trainer, step, every) and not is_there:
            found.find(f"step {step}: its record is missing in metrics.jsonl")
        elif is_there and not is_logged(trainer, step, every):
            found.find(f"step {step}: no record is due there, and metrics.jsonl has one")
    for kind, step in found.records.logged:
        # The last step has a record of its epoch only if it ends it.
        ended = kind == "epoch" and (step < last or trainer.position.place == 0)
        if agreement.begun_at < step <= last and (kind == "model" or ended) and (kind, step) not in made:
            found.find(
                f"step {step}: metrics.jsonl has a record {kind} there that none gives when it is computed again"
            )
    status = read_status(found.directory)
    if (
        status.get("state") == "finished"
        and status.get("step") == last
        and status.get("total_steps") != trainer.total_steps
    ):
        found.find(f"status.json: the run has {trainer.total_steps} steps, not {status.get('total_steps')}")


def _compare_state(found: Verification, trainer: Trainer, agreement: ReplayAgreement, tolerance: float) -> None:
    """Compare tensors and values with the checkpoint that the run has of this step, if it has one."""
    step = trainer.position.step
    checkpoint = found.directory / "checkpoints" / step_folder(step)
    if checkpoint not in found.files.sound:
        return
    state = state_differences(trainer, found.directory)
    if state is None:
        return
    name, largest = max(state.items(), key=lambda one: one[1], default=("", 0.0))
    if largest > tolerance:
        found.find(
            f"step {step}: {len(state)} tensors of {step_folder(step)} are others than those computed again; "
            f"the furthest is {name} (relative difference {largest:.2g})"
        )
    saved, now = read_json(checkpoint / STATE), trainer.state.values()
    for key, difference in _differing_values(saved, now):
        largest = max(largest, difference)
        if difference > tolerance:
            found.find(f"step {step}: {key} in {step_folder(step)}/{STATE} isn't what is computed again")
    for key, value in (("data", trainer.data.fingerprint), ("plan", trainer.data.plan_fingerprint)):
        said = saved.get(key)
        # Earlier versions wrote both hashes as one text, without a plan.
        if (said.get("fingerprint") if isinstance(said, dict) else said) != value and "plan" in saved:
            largest = math.inf
            found.find(f"step {step}: {key} in {step_folder(step)}/{STATE} isn't what is computed again")
    found.states.add(largest, tolerance)


def _differing_values(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a state that aren't those of another, by their keys, with the relative difference."""
    # a checkpoint may have been made after what was due there
    as_then = now["position"]["duties_pending"] == (saved.get("position") or {}).get("duties_pending")
    for name in VALUES:
        if name in saved and name in now and (name != "plateau" or as_then):
            for key, difference in _differences(saved[name], now[name], name):
                if key != "position.duties_pending":
                    yield key, difference
    ours, theirs = (dict(each.get("callbacks", ())) for each in (now, saved))
    if "StepLogCallback" in theirs and as_then:
        yield from _differences(theirs["StepLogCallback"], ours["StepLogCallback"], "callbacks.StepLogCallback")


def _differences(then: Any, now: Any, key: str) -> Iterator[tuple[str, float]]:
    """Yield the leaves of JSON values that differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in then.keys() | now.keys():
            yield from _differences(then.get(name), now.get(name), f"{key}.{name}")
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from _differences(one, other, f"{key}.{number}")
    elif (difference := relative_difference(then, now)) > 0:
        yield key, difference


def _evaluate(found: Verification, checkpoint: Path, device: str | None, trust_code: bool) -> None:
    """Evaluate a checkpoint again as training did, and compare every metric with what was logged of it."""
    step = parse_step(checkpoint)
    assert step is not None
    loaded = load([find_step_configuration(found.directory, step)], trust_code=trust_code)
    require_trust(loaded)
    require_secrets(loaded, but=OF_THE_LOOP)
    before = _find_evaluation(found.directory, step)
    snapshot = load_checkpoint(checkpoint)
    if before is None and snapshot.state["best"]["step"] == step:
        found.find(f"step {step}: the best checkpoint's evaluation is missing in metrics.jsonl")
    if before is None:
        return
    with standing_at((checkpoint, snapshot), loaded, found.directory, device) as trainer:
        agreement = ReplayAgreement(found.directory, trainer, step, snapshot.state["conditions"])
        trainer.evaluate(trainer.evaluation_due())
        now = _find_evaluation(trainer.directory, step) or {}
        _compare_metrics(found, before, now, found.evaluations, found.allowed(agreement))
        found.evaluated.add(step)


def _find_evaluation(directory: Path, step: int) -> dict[str, Any] | None:
    """Return the last record of an evaluation at a step."""
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
