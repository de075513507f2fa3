"""A checkpoint killed between any two of its system calls, or without space at any of its writes, costs nothing older.

The calls are those that the thread which writes really makes; another process stops it there (support/ptrace.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ptrace
from commands import Commands

INTERRUPTED = Path(ptrace.__file__).with_name("interrupted.py")
SOME = ("new:kill:12", "replaced:kill:12", "cleaned:kill:8", "new:full:8", "replaced:full:8", "trained:full:18")
EVERY_ONE = tuple(f"{job.rpartition(':')[0]}:1" for job in SOME)

Attacks = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(SOME, id="some"), pytest.param(EVERY_ONE, id="every one", marks=pytest.mark.slow)],
)
def attacks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Attacks:
    """What each attack left, by scenario and verdict; the first of each is without an attack."""
    reason = ptrace.reason_not_to()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("attacks")
    done = commands.start([folder, *request.param], folder, script=INTERRUPTED).wait(600)
    assert done.status == 0, done.errors
    found: Attacks = {}
    for left in map(json.loads, done.output.splitlines()):
        found.setdefault((left["scenario"], left["verdict"]), []).append(left)
    return found


def of(attacks: Attacks, scenario: str, verdict: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the outcome without an attack, and that of each attack."""
    undisturbed, *left = attacks[scenario, verdict]
    assert undisturbed["status"] == 0, undisturbed
    assert len(left) > 2
    return undisturbed, left


def assert_whole(left: dict[str, Any], old: tuple[str, float | None], new: tuple[str, float | None]) -> None:
    """A resume finds the checkpoint before or this one, verified, next to best and last, and nothing else."""
    assert (left["latest"], left["value"]) in (old, new), left
    assert left["best"] in left["checkpoints"], left
    assert left["last"] in left["checkpoints"], left
    assert left["hidden"] == [], left
    assert not left["set_aside"], left


STEP_2, STEP_3 = ("step-00000002", 2.0), ("step-00000003", 3.0)


@pytest.mark.parametrize(("scenario", "new"), [("new", STEP_3), ("replaced", ("step-00000002", 3.0))])
def test_killed_between_two_system_calls_it_is_there_whole_or_not_at_all(
    attacks: Attacks, scenario: str, new: tuple[str, float]
) -> None:
    undisturbed, left = of(attacks, scenario, "kill")
    assert (undisturbed["latest"], undisturbed["value"]) == new
    for one in left:
        assert_whole(one, STEP_2, new)
        assert one["status"] == -9
    found = [(one["latest"], one["value"]) for one in left]
    assert found[0] == STEP_2
    assert found[-1] == new
    assert found == sorted(found), "once it is there, it stays"


def test_cleaning_up_after_a_kill_may_be_killed_too(attacks: Attacks) -> None:
    undisturbed, left = of(attacks, "cleaned", "kill")
    assert undisturbed["checkpoints"] == ["step-00000001", "step-00000002"]
    for one in left:
        assert_whole(one, STEP_2, STEP_2)
        assert one["checkpoints"] == undisturbed["checkpoints"]


@pytest.mark.parametrize(("scenario", "new"), [("new", STEP_3), ("replaced", ("step-00000002", 3.0))])
def test_without_space_at_a_write_the_checkpoint_before_stays_whole(
    attacks: Attacks, scenario: str, new: tuple[str, float]
) -> None:
    _, left = of(attacks, scenario, "full")
    for one in left:
        assert_whole(one, STEP_2, new)
        assert one["call"]["is_writing"]
        assert_one_line(one)


def test_without_space_at_a_write_a_run_ends_with_one_line_and_goes_on_to_the_same_bits(attacks: Attacks) -> None:
    undisturbed, left = of(attacks, "trained", "full")
    for one in left:
        assert_whole(one, ("step-00000002", None), ("step-00000004", None))
        assert_one_line(one)
        assert one["resumed"] == undisturbed["resumed"]
    assert left[0]["latest"] == "step-00000002"


def assert_one_line(left: dict[str, Any]) -> None:
    """It ended as a user's mistake does: exit 2, and one line that says what is wrong."""
    assert left["status"] == 2, left
    assert left["errors"].count("\n") == 1, left["errors"]
    assert "can't be written" in left["errors"]
    assert "o space left on device" in left["errors"]
