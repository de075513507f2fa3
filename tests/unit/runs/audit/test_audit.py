"""Every file of a run is held against the others: one change of one thing is noticed, or is named as not covered."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from single_changes import every_change, is_noticed
from vaak.core.artifact import HASHES
from vaak.core.storage.files import hash_file, read_json, write_json
from vaak.engine.checkpoint.files import step_folder
from vaak.engine.trainer import Trainer
from vaak.runs import verify
from vaak.runs.audit.files import check_files, check_names
from vaak.runs.audit.inventory import Inventory, list_files
from vaak.runs.audit.records import check_log
from vaak.runs.audit.sessions import check_sessions
from vaak.runs.verify import verify_run

EVERY_STEP = ("training.checkpoint.interval=2", "training.checkpoint.save_total_limit=null")


@pytest.fixture(scope="module")
def resumed_once(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, then six more of the same run: three epochs, five evaluations, two sessions."""
    run = tmp_path_factory.mktemp("audited") / "run"
    few = (*EVERY_STEP, "training.batch_size=32", "training.gradient_accumulation_steps=2")
    tiny_runs.train(tiny_text, run, *few, "training.max_steps=6")
    tiny_runs.train(tiny_text, run, *few, "training.max_steps=12", "training.checkpoint.resume=auto")
    return run


@pytest.fixture
def resumed(resumed_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(resumed_once, tmp_path / "run")


def rewrite(path: Path, new: Callable[[Any], Any]) -> None:
    """Change the JSON of a file, or of its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        values = new([json.loads(line) for line in text.splitlines()])
        path.write_text("".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values), encoding="utf-8")
    else:
        write_json(path, new(json.loads(text)))


def with_lines(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        def changed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
            change(records)
            return records

        rewrite(run / "metrics.jsonl", changed)

    return make


def position(records: list[dict[str, Any]], kind: str, step: int) -> int:
    return next(number for number, one in enumerate(records) if (one["kind"], one["step"]) == (kind, step))


def edited(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda run: rewrite(run / name, lambda old: {**old, **values})


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        path = run / name
        text = path.read_text(encoding="utf-8")
        assert old in text, (name, old)
        path.unlink()
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return make


def forged_state(change: Callable[[dict[str, Any]], object], name: str = "state.json", step: int = 8) -> Any:
    """A state's values changed by one who knows the format: its manifest, or what it completes, says so too."""

    def make(run: Path) -> None:
        folder = run / "checkpoints" / step_folder(step)
        state = read_json(folder / name)
        change(state["state"] if name == "completed.json" else state)
        (folder / name).unlink()
        write_json(folder / name, state)
        if name == "completed.json":
            return
        manifest, size = read_json(folder / "MANIFEST.json"), (folder / name).stat().st_size
        manifest["files"][name] = {"bytes": size, "sha256": hash_file(folder / name)}
        write_json(folder / "MANIFEST.json", manifest)
        completed = read_json(folder / "completed.json")
        write_json(folder / "completed.json", completed | {"completes": hash_file(folder / name)})

    return make


def _of_log(state: dict[str, Any]) -> dict[str, Any]:
    return dict(state["callbacks"])["StepLogCallback"]


def _session(place: int, **values: Any) -> Callable[[Path], None]:
    def change(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sessions[place - 1] |= values
        return sessions

    return lambda run: rewrite(run / "sessions.jsonl", change)


def _invented(records: list[dict[str, Any]], step: int, **values: Any) -> None:
    place, model = position(records, "step", step), records[position(records, "evaluation", 8)]
    epoch = records[place]["epoch"]
    records.insert(place + 1, {**model, "step": step, "epoch": epoch, "val_loss": 0.1, **values})


NOTICED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "the seed of config.yml": (
        replaced("config.yml", "random_seed: 42", "random_seed: 43"),
        "config.yml isn't the configuration of the newest session",
    ),
    "the rate of the session that took the steps": (
        replaced("sessions/0001.yml", "lr: 0.01", "lr: 0.02"),
        "sessions/0001.yml isn't the configuration that step-00000002 was made under",
    ),
    "a scheduled evaluation that never was": (
        with_lines(lambda records: _invented(records, 7)),
        "the evaluation record of step 7 is marked as scheduled, and the schedule has none there",
    ),
    "a second evaluation": (
        with_lines(lambda records: _invented(records, 8)),
        "step 8: metrics.jsonl has 2 evaluation records of it",
    ),
    "a record that stands twice": (
        with_lines(lambda records: records.insert(9, dict(records[position(records, "step", 4)]))),
        "step 4: metrics.jsonl has 2 step records of it",
    ),
    "a record at another step": (
        with_lines(lambda records: records[position(records, "step", 3)].update(step=4)),
        "step 3: its record is missing in metrics.jsonl",
    ),
    "records out of order": (
        with_lines(lambda records: records.insert(0, records.pop(position(records, "step", 9)))),
        "comes after one of step 9",
    ),
    "a record of another epoch": (
        with_lines(lambda records: records[position(records, "step", 9)].update(epoch=2)),
        "is of epoch 2, and the step of 1",
    ),
    "a lost record": (
        with_lines(lambda records: records.pop(position(records, "step", 9))),
        "step 9: its record is missing in metrics.jsonl",
    ),
    "a lost evaluation": (
        with_lines(lambda records: records.pop(position(records, "evaluation", 8))),
        "step 8: its evaluation is missing in metrics.jsonl",
    ),
    "the last evaluation, lost": (
        with_lines(lambda records: records.pop(position(records, "evaluation", 12))),
        "step 12: its evaluation is missing in metrics.jsonl",
    ),
    "the record of an epoch, lost": (
        with_lines(lambda records: records.pop(position(records, "epoch", 10))),
        "step 10: its epoch's record is missing",
    ),
    "half of the log": (
        lambda run: (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:3000]),
        "when step-00000012/completed.json was written",
    ),
    "no log": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl is missing"),
    "a line that is no record": (
        lambda run: replaced("metrics.jsonl", '{"kind": "step", "step": 2', '{"kind": "step, "step": 2')(run),
        "this isn't a record of a run",
    ),
    "a best that isn't": (
        lambda run: (run / "checkpoints" / "best").write_text(f"{step_folder(2)}\n"),
        "best holds 'step-00000002'; the one to name is step-00000012",
    ),
    "garbage in last": (
        lambda run: (run / "checkpoints" / "last").write_bytes(b"\x00\xff"),
        "the one to name is step-00000012",
    ),
    "no best": (lambda run: (run / "checkpoints" / "best").unlink(), "best is missing"),
    "the best of a state": (
        forged_state(lambda state: state["best"].update(value=0.1), "completed.json", 12),
        "metrics.jsonl has no such evaluation",
    ),
    "an earlier best": (
        forged_state(lambda state: state["best"].update(step=4, value=state["metrics"]["figures"]["val_loss"])),
        "metrics.jsonl has no such evaluation",
    ),
    "a figure of a state": (
        forged_state(lambda state: state["metrics"]["figures"].update(val_accuracy=0.9), "completed.json"),
        "step-00000008/completed.json: val_accuracy is 0.9 there",
    ),
    "totals after an evaluation": (
        forged_state(lambda state: state["position"]["totals"].update(token=1.0), "completed.json"),
        "its position isn't that of state.json",
    ),
    "what a completed state counts": (
        forged_state(
            lambda state: state["callbacks"][1][1].update(skipped={"overflow": 1, "non_finite": 0}), "completed.json"
        ),
        "completed.json: what was logged so far isn't that of state.json",
    ),
    "the completion of another checkpoint": (
        lambda run: shutil.copy(
            run / "checkpoints" / step_folder(4) / "completed.json", run / "checkpoints" / step_folder(8)
        ),
        "this completes another state than that of step-00000008",
    ),
    "no completion": (
        lambda run: (run / "checkpoints" / step_folder(8) / "completed.json").unlink(),
        "completed.json is missing: the run continued from there",
    ),
    "weights that the manifest doesn't have": (
        lambda run: shutil.copy(
            run / "checkpoints" / step_folder(4) / "model.safetensors",
            run / "checkpoints" / step_folder(8) / "average.safetensors",
        ),
        "average.safetensors: this isn't in its MANIFEST.json",
    ),
    "a checkpoint under another name": (
        lambda run: shutil.copytree(run / "checkpoints" / step_folder(4), run / "checkpoints" / step_folder(5)),
        "is of step 4, by its manifest of 4",
    ),
    "the conditions of a session": (
        _session(2, conditions={"torch": "9.9"}),
        "the conditions of session 2 aren't those that step-00000008 was made under",
    ),
    "where a session began": (_session(2, first_step=5, after=2), "can't have resumed from session 2"),
    "a session's number": (_session(2, number=3), "session 3 stands where 2 belongs"),
    "a lost session": (lambda run: rewrite(run / "sessions.jsonl", lambda all: all[:1]), "session 2, which made"),
    "a session's lost configuration": (
        lambda run: (run / "sessions" / "0002.yml").unlink(),
        "sessions/0002.yml, the configuration of a session, is missing",
    ),
    "the environment": (edited("environment.json", world_size=8), "environment.json isn't that of session 2"),
    "the run's identity": (edited("run.json", id="another"), "owner.json names another run than run.json"),
    "how it ended": (edited("status.json", step=11), "says finished at step 11 of 12"),
    "the options of prepared data": (edited("prepared/prepared.json", options={}), "this isn't what step-00000012 was"),
    "prepared data that say nothing": (
        lambda run: (run / "prepared" / "prepared.json").unlink(),
        "prepared.json is mi",
    ),
    "a journal that Vaak didn't write": (
        lambda run: (run / "splits.jsonl").write_text('{"cut": {"step": -1}}\n'),
        "splits.jsonl, line 1: Vaak didn't write this line",
    ),
    "a split that never was": (
        lambda run: (run / "splits.jsonl").write_text(
            json.dumps({"cut": {"step": 3, "pieces": 2, "numbers": None}, "reason": "none"}) + "\n"
        ),
        "splits.jsonl has a rule from step 3 on that step-00000012 doesn't know",
    ),
}


@pytest.mark.parametrize("change", NOTICED)
def test_a_change_is_noticed_without_computing_anything(resumed: Path, change: str):
    make, expected = NOTICED[change]
    assert audited(resumed).findings == []
    make(resumed)
    assert [line for line in audited(resumed).findings if expected in line], audited(resumed).findings


def audited(run: Path) -> Inventory:
    """What ``verify_run`` does before it computes."""
    found = Inventory(run)
    for check in (check_files, check_sessions, check_names, check_log):
        check(found)
    found.name_uncovered()
    return found


def test_a_resumed_run_is_what_it_says_and_every_file_is_accounted_for(resumed: Path):
    for name in ("tuned.yml", "report.html", "notes.txt", "prepared/extra.bin", "checkpoints/step-00000004/notes.txt"):
        (resumed / name).write_text("{}")
    found = verify_run(resumed, None)
    assert (found["findings"], found["verified"]) == ([], True)
    assert found["recomputed"] == {"steps": [12, 12], "evaluations": [4, 4], "checkpoints": [6, 6]}
    said = " ".join(found["not_covered"])
    for file in list_files(resumed):
        name = file.relative_to(resumed).as_posix()
        assert name in found["compared"] or name.split("/")[0] in said or file.name in said, name
    for name in ("tuned.yml", "report.html", "notes.txt", "prepared/extra.bin", "train.log"):
        assert name in said


def test_what_is_not_covered_is_named_once_by_file_or_folder(resumed: Path):
    for number in range(10):
        (resumed / "prepared" / f"{number}.bin").touch()
    (resumed / "wandb").mkdir()
    (resumed / "wandb" / "one.log").touch()
    (resumed / "skipped.jsonl").write_text('{"epoch": 0, "index": 1}\n')
    said = audited(resumed).not_covered
    assert "skipped.jsonl (followed: what couldn't be read then isn't tried again)" in said
    assert {"prepared/0.bin", "prepared/7.bin", "2 more files in prepared", "wandb/ (1)", ".lock (3)"} <= set(said)
    assert "run.json, owner.json: when and where the run was made" in said
    assert not {"prepared/8.bin", "prepared/9.bin", "skipped.jsonl"} & set(said)
    assert not [line for line in said if line.startswith("sessions/")], "each has a checkpoint that vouches for it"


def test_a_session_that_no_checkpoint_is_left_of_is_not_covered(resumed: Path):
    for step in (8, 10, 12):
        shutil.rmtree(resumed / "checkpoints" / step_folder(step))
    assert [line for line in audited(resumed).not_covered if line.startswith("sessions/0002.yml and its line")]


@pytest.mark.parametrize(
    "line", ['{"kind": 1, "step": 2, "epoch": 0}', '{"kind": "step", "epoch": 0}', '{"step": 2, "epoch": 0}']
)
def test_a_line_that_lacks_what_a_record_has_is_none(resumed: Path, line: str):
    log = resumed / "metrics.jsonl"
    first, rest = log.read_text().split("\n", 1)
    log.write_text(f"{first}\n{line}\n{rest}")
    assert "metrics.jsonl, line 2: this isn't a record of a run" in audited(resumed).findings


def test_a_record_that_no_schedule_has_is_found_by_the_step_itself(resumed: Path):
    """Logged every second step: the record of step 3 is due only were it the last."""
    for file in (resumed / "config.yml", *resumed.glob("sessions/*.yml")):
        file.write_text(file.read_text().replace("    interval: 1\n", "    interval: 2\n"))
    found = verify_run(resumed, 1, seed=0)
    assert "step 3: no record is due there, and metrics.jsonl has one" in found["findings"]
    assert not [line for line in found["findings"] if "record is missing" in line]


def test_an_unscheduled_evaluation_that_never_was_is_made_again(resumed: Path):
    with_lines(lambda records: _invented(records, 11, scheduled=False))(resumed)
    found = verify_run(resumed, 1, seed=0)
    assert any("val_loss is 0.1 in metrics.jsonl" in line for line in found["findings"]), found["findings"]
    assert found["recomputed"]["evaluations"][1] == 5


def test_what_a_forger_writes_into_a_state_comes_out_otherwise(resumed: Path):
    forged_state(lambda state: state["position"]["totals"].update(token=1.0), step=12)(resumed)
    found = verify_run(resumed, 1, seed=0)
    assert any("position.totals.token in step-00000012/state.json isn't" in line for line in found["findings"])


@pytest.mark.parametrize("name", ["train/offsets.bin", "valid/offsets.bin", "tokenizer/tokenizer.json"])
def test_damaged_data_are_named_and_not_computed_with(resumed: Path, name: str):
    path = resumed / "prepared" / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 64
    path.write_bytes(content)
    found = verify_run(resumed, 2, seed=0)
    assert f"{path}: this isn't what was written there" in found["findings"]
    assert (found["verified"], found["steps_taken"]) == (False, 0)
    assert found["not_checked"] == [f"nothing is computed with what is damaged ({found['findings'][0]})"]
    assert found["sentence"].startswith("nothing could be computed again; ")


def test_data_without_hashes_that_give_an_error_are_a_finding(resumed: Path):
    """Earlier versions wrote none down, so damage shows only as what it does to a step."""
    for marker in (resumed / "prepared" / "prepared.json", *resumed.glob("checkpoints/*/prepared/prepared.json")):
        about = read_json(marker)
        del about[HASHES]
        marker.unlink()
        write_json(marker, about)
    path = resumed / "prepared" / "train" / "offsets.bin"
    content = bytearray(path.read_bytes())
    content[-2] ^= 64
    path.write_bytes(content)
    found = verify_run(resumed, 2, seed=0)
    assert not found["verified"]
    assert found["findings"], "by what it leads to"
    assert any("wrote down no hashes" in line for line in found["not_covered"])


def test_a_step_that_never_ends_is_stopped(resumed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verify, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(verify, "TIMES_AS_LONG", 0.0)
    monkeypatch.setattr(Trainer, "take_step", lambda trainer, data: time.sleep(60))
    found = verify_run(resumed, 1, seed=0)
    assert not found["verified"]
    assert any("stopped after 0.5 s without coming to a step's end" in line for line in found["findings"])
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
def test_of_many_single_changes_each_is_noticed_or_not_covered(resumed: Path):
    """``python tests/support/runs/single_changes.py RUN 150 SEED`` tries more."""
    for change in every_change(resumed, seed=1)[:40]:
        noticed, said = is_noticed(resumed, change, steps=2)
        assert noticed, (str(change), said)
