"""What is said of a log, to the word, of runs that are written by hand: nothing of a sound one, and all of another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.records import check_log
from written_runs import OPTIONS, Records, WrittenRun, audit

SPARSE = {"logging": {"interval": 3}, "validation": {"interval": None, "interval_epochs": 2}, "checkpoint": {}}
"""Logged every third step, evaluated after every second epoch."""
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "sparse": {"last": 22, "logged": 3, "evaluated": 10, "better": (10,), "sessions": {1: SPARSE}},
    "forked": {"first": 7, "sessions": {7: OPTIONS}, "saved": (8, 10, 12), "better": (8,)},
    "long": {"last": 60, "saved": (20, 40, 60), "better": (4, 44), "sessions": {1: OPTIONS}},
}
KINDS["sparse"]["saved"] = (5, 10, 20, 22)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    runs = {name: WrittenRun(tmp_path_factory.mktemp(name) / "run", **how).write() for name, how in KINDS.items()}
    return runs.__getitem__


Change = Callable[[Records], object]


def position(records: Records, kind: str, step: int) -> int:
    return next(number for number, one in enumerate(records) if (one["kind"], one["step"]) == (kind, step))


def without(kind: str, *steps: int) -> Change:
    return lambda records: [records.pop(position(records, kind, step)) for step in steps]


def with_values(kind: str, step: int, **values: Any) -> Change:
    return lambda records: records[position(records, kind, step)].update(values)


def moved(kind: str, step: int, before: tuple[str, int]) -> Change:
    def change(records: Records) -> None:
        one = records.pop(position(records, kind, step))
        records.insert(position(records, *before), one)

    return change


def added(after: tuple[str, int], **values: Any) -> Change:
    def change(records: Records) -> None:
        place = position(records, *after)
        about = {"step": after[1], "epoch": records[place]["epoch"]}
        records.insert(place + 1, {**about, **values})

    return change


def lost(kind: str, *steps: int) -> list[str]:
    return [f"step {step}: its {kind} is missing in metrics.jsonl" for step in steps]


FOUND: dict[str, tuple[str, Change, list[str]]] = {
    "the first step": ("dense", without("step", 1), lost("record", 1)),
    "the second": ("dense", without("step", 2), lost("record", 2)),
    "the first of a session": ("dense", without("step", 7), lost("record", 7)),
    "the last of a session": ("dense", without("step", 6), lost("record", 6)),
    "a sparse one": ("sparse", without("step", 3), lost("record", 3)),
    "the first of sparse ones": ("sparse", without("step", 1), lost("record", 1)),
    "a fork's first": ("forked", without("step", 7), lost("record", 7)),
    "many": (
        "dense",
        without("step", 2, 3, 4, 5, 8, 9, 11),
        [*lost("record", 2, 3, 4, 5, 8), "2 more are missing in metrics.jsonl, the last at step 11"],
    ),
    "exactly as many as are named": ("dense", without("step", 2, 3, 4, 5, 8), lost("record", 2, 3, 4, 5, 8)),
    "an evaluation": ("dense", without("evaluation", 4), lost("evaluation", 4)),
    "that of the last step": ("dense", without("evaluation", 12), lost("evaluation", 12)),
    "a sparse evaluation": ("sparse", without("evaluation", 10), lost("evaluation", 10)),
    "an epoch's record": (
        "dense",
        without("epoch", 10),
        [
            "metrics.jsonl, line 15: the step record of step 11 is of epoch 2, and the step of 1",
            "metrics.jsonl, line 16: the step record of step 12 is of epoch 2, and the step of 1",
            "metrics.jsonl, line 17: the evaluation record of step 12 is of epoch 2, and the step of 1",
            *lost("epoch's record", 10),
        ],
    ),
    "an evaluation before its step": (
        "dense",
        moved("evaluation", 8, ("step", 8)),
        ["metrics.jsonl, line 12: the step record of step 8 comes after one of step 8"],
    ),
    "an evaluation after its epoch's record": (
        "sparse",
        moved("epoch", 10, ("evaluation", 10)),
        ["metrics.jsonl, line 8: the evaluation record of step 10 comes after one of step 10"],
    ),
    "a model before its step": (
        "dense",
        moved("model", 1, ("step", 1)),
        ["metrics.jsonl, line 2: the step record of step 1 comes after one of step 1"],
    ),
    "a model after an evaluation": (
        "dense",
        lambda records: [
            added(("evaluation", 4), kind="model")(records),
            added(("step", 5), kind="learning_rates")(records),
            moved("learning_rates", 5, ("step", 5))(records),
        ],
        [
            "metrics.jsonl, line 7: the model record of step 4 comes after one of step 4",
            "metrics.jsonl, line 9: the step record of step 5 comes after one of step 5",
            "metrics.jsonl, line 7: the model record of step 4 isn't due there",
        ],
    ),
    "steps out of order": (
        "dense",
        moved("step", 3, ("step", 2)),
        ["metrics.jsonl, line 4: the step record of step 2 comes after one of step 3"],
    ),
    "a record twice": (
        "dense",
        added(("step", 9), kind="step"),
        ["step 9: metrics.jsonl has 2 step records of it"],
    ),
    "a record three times": (
        "dense",
        lambda records: [added(("epoch", 5), kind="epoch")(records) for _ in "12"],
        [
            "step 5: metrics.jsonl has 3 epoch records of it",
            "metrics.jsonl, line 9: the epoch record of step 5 is of epoch 0, and the one before of 0",
        ],
    ),
    "an epoch left out": (
        "dense",
        with_values("epoch", 10, epoch=2),
        ["metrics.jsonl, line 15: the epoch record of step 10 is of epoch 2, and the one before of 0"],
    ),
    "the step that begins an epoch, in the one before": (
        "dense",
        with_values("step", 6, epoch=0),
        ["metrics.jsonl, line 9: the step record of step 6 is of epoch 0, and the step of 1"],
    ),
    "the step that ends an epoch, in the next": (
        "dense",
        with_values("step", 5, epoch=1),
        ["metrics.jsonl, line 7: the step record of step 5 is of epoch 1, and the step of 0"],
    ),
    "before a fork's first step": (
        "forked",
        lambda records: records.insert(0, {"kind": "step", "step": 6, "epoch": 1}),
        ["metrics.jsonl, line 1: the step record of step 6 is from before the run's first step, 7"],
    ),
    "an evaluation long before a fork's first step": (
        "forked",
        lambda records: records.insert(0, {"kind": "evaluation", "step": 5, "epoch": 1, "scheduled": False}),
        ["metrics.jsonl, line 1: the evaluation record of step 5 is from before the run's first step, 7"],
    ),
    "a scheduled evaluation that isn't due": (
        "dense",
        added(("step", 7), kind="evaluation", scheduled=True, val_loss=9.5),
        [
            "metrics.jsonl, line 11: the evaluation record of step 7 is marked as scheduled, "
            "and the schedule has none there"
        ],
    ),
    "a scheduled one at the end of an odd epoch": (
        "sparse",
        added(("epoch", 15), kind="evaluation", scheduled=True, val_loss=9.5),
        [
            "metrics.jsonl, line 12: the evaluation record of step 15 comes after one of step 15",
            "metrics.jsonl, line 12: the evaluation record of step 15 is marked as scheduled, "
            "and the schedule has none there",
        ],
    ),
    "one that is due, not marked so": (
        "dense",
        with_values("evaluation", 8, scheduled=False),
        ["metrics.jsonl, line 12: the evaluation record of step 8 isn't marked as scheduled, and is"],
    ),
    "a model record later": (
        "dense",
        added(("step", 3), kind="model"),
        ["metrics.jsonl, line 5: the model record of step 3 isn't due there"],
    ),
}


def changed(source: Path, folder: Path, change: Change) -> Path:
    """A copy of a run with other records, of which its checkpoints know that the log has them."""
    run = shutil.copytree(source, folder / "run")
    log = run / "metrics.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    change(records)
    lines = [f"{json.dumps(one)}\n" for one in records]
    log.write_text("".join(lines))
    return run


def said_of_log(run: Path) -> list[str]:
    """What is found in the log, but not what states say of it."""
    of_states = ("bytes, and had", "was changed before its byte", "can't have been there when", "wasn't there when")
    findings = [line for line in audit(run).findings if not line.startswith("step-")]
    return [line for line in findings if not any(one in line for one in of_states)]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_sound_run_nothing_is_said(written: Callable[[str], Path], kind: str):
    found = audit(written(kind))
    assert found.findings == []
    assert "metrics.jsonl: clocks" in found.not_covered
    assert not [one for one in found.not_covered if "only a callback knows" in one or "half line" in one]


@pytest.mark.parametrize("name", FOUND)
def test_a_log_that_no_run_writes_is_named_to_the_word(written: Callable[[str], Path], name: str, tmp_path: Path):
    kind, change, expected = FOUND[name]
    assert said_of_log(changed(written(kind), tmp_path, change)) == expected


NO_RECORD = "metrics.jsonl, line 4: this isn't a record of a run"


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "step", "step": 3, "epoch": "0"}',
        '{"kind": "step", "step": 3.0, "epoch": 0}',
        '{"kind": "step", "step": true, "epoch": 0}',
        '{"kind": null, "step": 3, "epoch": 0}',
        '{"kind": "step", "step": 3, "epoch": 0',
        "[3]",
    ],
)
def test_a_line_without_kind_step_and_epoch_is_no_record(written: Callable[[str], Path], line: str, tmp_path: Path):
    run = shutil.copytree(written("dense"), tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[3] = line
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert [one for one in said_of_log(run) if one != NO_RECORD] == lost("record", 3)
    assert NO_RECORD in audit(run).findings


def test_a_half_line_at_the_end_is_what_a_kill_leaves(written: Callable[[str], Path], tmp_path: Path):
    run = shutil.copytree(written("dense"), tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')
    found = audit(run)
    assert found.findings == []
    assert "metrics.jsonl: a half line at its end, as a kill leaves" in found.not_covered


def test_without_a_log_nothing_else_is_said_of_it(written: Callable[[str], Path], tmp_path: Path):
    run = shutil.copytree(written("dense"), tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    assert audit(run).findings == ["metrics.jsonl is missing"]


def test_kinds_of_clocks_and_of_callbacks_are_named(written: Callable[[str], Path], tmp_path: Path):
    def change(records: Records) -> None:
        for kind in ("lr_finder", "lr_finder", "memory", "system"):
            added(("step", 12), kind=kind, scheduled=False)(records)

    found = audit(changed(written("dense"), tmp_path, change))
    assert [one for one in found.not_covered if one.startswith("metrics.jsonl")] == [
        "metrics.jsonl: clocks and system, memory records",
        "metrics.jsonl: 2 records lr_finder, which only a callback knows",
    ]


def test_what_is_not_on_the_schedule_is_left_to_a_replay(written: Callable[[str], Path], tmp_path: Path):
    second = changed(written("sparse"), tmp_path / "second", added(("model", 1), kind="step", step=2))
    assert 2 in check_log(Inventory(second)).doubtful_steps
    run = changed(written("sparse"), tmp_path, added(("step", 12), kind="evaluation", scheduled=False, val_loss=9.5))
    found = Inventory(run)
    log = check_log(found)
    assert (log.doubtful_steps, log.doubtful_evaluations, log.last) == ({22}, {12}, 22)
    assert log.steps("step") == {1, 3, 6, 9, 12, 15, 18, 21, 22}
    log = check_log(Inventory(written("dense")))
    assert (log.doubtful_steps, log.doubtful_evaluations) == (set(), set())


LINES = [
    0,
    *accumulate(len(json.dumps(one)) + 1 for step in range(1, 13) for one in WrittenRun(Path()).records(step)),
]
"""Where each line of a dense run's log ends."""


def with_state(step: int, change: Callable[[dict[str, Any]], object], completed: bool = False) -> dict[str, Any]:
    """A dense run with another state in one checkpoint."""

    def make(saved: int, state: dict[str, Any], is_completed: bool) -> None:
        if (saved, is_completed) == (step, completed):
            change(state)

    return {"change": make}


def best(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["best"].update(values)


STATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a figure": (
        with_state(5, lambda state: state["metrics"]["figures"].update(val_loss=5.5)),
        ["step-00000005/state.json: val_loss is 5.5 there, and 5.0 in metrics.jsonl"],
    ),
    "a figure that the log hasn't": (
        with_state(5, lambda state: state["metrics"]["figures"].update(more=1.0)),
        ["step-00000005/state.json: more is 1.0 there, and None in metrics.jsonl"],
    ),
    "figures as an earlier version wrote them": (
        with_state(5, lambda state: state.update(metrics={"val_loss": 5.0})),
        [],
    ),
    "no figures": (
        with_state(5, lambda state: state.update(metrics=None)),
        ["step-00000005/state.json: val_loss is None there, and 5.0 in metrics.jsonl"],
    ),
    "figures before any evaluation": (
        with_state(4, lambda state: state.update(metrics={"val_loss": 9.0})),
        ["step-00000004/state.json: val_loss is 9.0 there, and None in metrics.jsonl"],
    ),
    "another best": (
        with_state(12, best(value=0.5)),
        ["step-00000012/state.json: the recorded best is val_loss 0.5 at step 8; metrics.jsonl has no such evaluation"],
    ),
    "a best where nothing was evaluated": (
        with_state(12, best(step=7)),
        ["step-00000012/state.json: the recorded best is val_loss 1.0 at step 7; metrics.jsonl has no such evaluation"],
    ),
    "a best that isn't": (
        with_state(12, best(value=5.0, step=4)),
        ["step-00000012/state.json: the recorded best is at step 4, but step 8 has a better val_loss"],
    ),
    "no best": (
        with_state(6, best(value=None, step=None)),
        ["step-00000006/state.json: the recorded best is at step None, but step 4 has a better val_loss"],
    ),
    "the largest as the best": (
        with_state(10, best(mode="max")),  # isn't what the session compares: it began anew
        [],
    ),
    "the largest as the best of the last step": (with_state(12, best(mode="max"), completed=True), []),
    "fewer bytes, in the middle of a line": (
        with_state(10, lambda state: state.update(metrics_bytes=state["metrics_bytes"] - 1)),
        [
            f"metrics.jsonl was changed before its byte {LINES[14] - 1}, "
            "where a record ended when step-00000010/state.json was written"
        ],
    ),
    "more bytes than there are": (
        with_state(12, lambda state: state.update(metrics_bytes=10**6)),
        [f"metrics.jsonl has {LINES[-1]} bytes, and had 1000000 when step-00000012/state.json was written"],
    ),
    "fewer than none": (
        with_state(12, lambda state: state.update(metrics_bytes=-1)),
        [f"metrics.jsonl has {LINES[-1]} bytes, and had -1 when step-00000012/state.json was written"],
    ),
    "no length": (
        with_state(12, lambda state: state.update(metrics_bytes=None)),
        [f"metrics.jsonl has {LINES[-1]} bytes, and had None when step-00000012/state.json was written"],
    ),
    "a line of the next step more": (
        with_state(5, lambda state: state.update(metrics_bytes=LINES[9]), completed=True),
        [
            "metrics.jsonl, line 9: the step record of step 6 can't have been there when step-00000005/completed.json "
            "was written"
        ],
    ),
    "a line of the step before less": (
        with_state(6, lambda state: state.update(metrics_bytes=LINES[6])),
        ["metrics.jsonl, line 7: the step record of step 5 wasn't there when step-00000006/state.json was written"],
    ),
    "nothing of the log": (
        with_state(6, lambda state: state.update(metrics_bytes=0)),
        ["metrics.jsonl, line 1: the step record of step 1 wasn't there when step-00000006/state.json was written"],
    ),
    "all of a log without a length of its own": (
        with_state(12, lambda state: state.update(metrics_bytes=LINES[17])),
        [],
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_the_log_does_not_lead_to_is_named_to_the_word(name: str, tmp_path: Path):
    how, expected = STATES[name]
    assert audit(WrittenRun(tmp_path / "run", **how).write()).findings == expected


def test_a_run_that_has_just_begun_lacks_nothing(tmp_path: Path):
    assert (
        audit(WrittenRun(tmp_path / "run", last=0, saved=(), sessions={1: OPTIONS}, better=()).write()).findings == []
    )


def test_the_end_of_a_log_that_its_newest_checkpoint_is_beyond_is_missing(
    written: Callable[[str], Path], tmp_path: Path
):
    def change(records: Records) -> None:
        del records[position(records, "step", 11) :]

    run = changed(written("dense"), tmp_path, change)
    assert said_of_log(run) == [*lost("record", 11, 12), *lost("evaluation", 12)]


def test_all_evaluations_that_states_know_of_are_missing(written: Callable[[str], Path], tmp_path: Path):
    assert said_of_log(changed(written("dense"), tmp_path, without("evaluation", 4, 8, 12))) == lost(
        "evaluation", 4, 8, 12
    )


def test_what_is_due_at_the_last_step_may_not_have_been_done(written: Callable[[str], Path], tmp_path: Path):
    """A run that is killed while it evaluates: a resume does that first."""
    run = shutil.copytree(written("dense"), tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    (run / "checkpoints" / "step-00000012" / "completed.json").unlink()
    assert audit(run).findings == []
    (run / "checkpoints" / "step-00000010" / "completed.json").unlink()
    assert audit(run).findings == [
        f"{run / 'checkpoints/step-00000010/completed.json'} is missing: the run continued from there"
    ]


def test_evaluations_of_an_earlier_version_do_not_say_whether_they_were_scheduled(
    written: Callable[[str], Path], tmp_path: Path
):
    def change(records: Records) -> None:
        for one in records:
            one.pop("scheduled", None)
        records[position(records, "step", 7)]["scheduled"] = True  # a figure of a callback's

    assert said_of_log(changed(written("dense"), tmp_path, change)) == []


def test_a_fork_evaluates_what_its_parent_left_due(written: Callable[[str], Path], tmp_path: Path):
    def change(records: Records) -> None:
        records.insert(0, {"kind": "evaluation", "step": 6, "epoch": 1, "scheduled": False, "val_loss": 9.5})

    assert said_of_log(changed(written("forked"), tmp_path, change)) == []


def test_each_session_has_its_own_schedule(tmp_path: Path):
    """The last step of a session may be evaluated by the one that follows; its first step is its own."""
    sparse = {**OPTIONS, "logging": {"interval": 2}, "validation": {"interval": 3}}
    run = WrittenRun(tmp_path / "run", sessions={1: OPTIONS, 7: sparse}, evaluated=100, better=(), saved=(5,)).write()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for step in (12, 9, 6, 4):
        added(("step", step), kind="evaluation", scheduled=True, val_loss=9.5)(records)
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    assert said_of_log(run) == []
    assert check_log(Inventory(run)).doubtful_steps == {7, 9, 11}
    records.insert(position(records, "step", 8), records[position(records, "evaluation", 6)] | {"step": 7})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    assert said_of_log(run) == [
        "metrics.jsonl, line 12: the evaluation record of step 7 is marked as scheduled, "
        "and the schedule has none there"
    ]


def test_a_session_with_another_metric_begins_anew(tmp_path: Path):
    """Its first step is its own: what was evaluated there is the first that counts."""
    other = {**OPTIONS, "checkpoint": {"metric": "val_accuracy", "mode": "max"}}

    def change(step: int, state: dict[str, Any], is_completed: bool) -> None:
        if step >= 8:
            state["best"] = {"metric": "val_loss", "mode": "min", "value": None, "step": None}

    run = WrittenRun(tmp_path / "run", sessions={1: other, 8: OPTIONS}, saved=(8, 12), better=(4, 8), change=change)
    found = [line for line in audit(run.write()).findings if "better" in line]
    assert found == [
        f"{place}: the recorded best is at step None, but step 8 has a better val_loss"
        for place in ("step-00000008/completed.json", "step-00000012/state.json", "step-00000012/completed.json")
    ]
