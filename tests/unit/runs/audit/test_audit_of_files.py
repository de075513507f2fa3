"""What is said of checkpoints, pointers, statuses and journals, to the word, of runs that are written by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vaak.core.artifact import HASHES
from vaak.core.storage.files import hash_file, read_json, write_json
from vaak.engine.checkpoint.files import step_folder
from written_runs import OPTIONS, WrittenRun, audit

RULE = {"step": 3, "pieces": 2, "numbers": None}


def with_rule(step: int, state: dict[str, Any], is_completed: bool) -> None:
    if step >= 4:
        state["splits"] = [RULE]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = WrittenRun(tmp_path_factory.mktemp("written") / "run", change=with_rule).write()
    (run / "splits.jsonl").write_text(json.dumps({"cut": RULE, "reason": "memory"}) + "\n")
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


def checkpoint(run: Path, step: int, name: str) -> Path:
    return run / "checkpoints" / step_folder(step) / name


def edited(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda run: write_json(run / name, {**read_json(run / name), **values})


def completed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """The state after step 8's evaluation is another."""

    def make(run: Path) -> None:
        about = read_json(checkpoint(run, 8, "completed.json"))
        change(about["state"])
        write_json(checkpoint(run, 8, "completed.json"), about)

    return make


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(content)


COMPLETED = "RUN/checkpoints/step-00000008/completed.json"
FOUND: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda run: None, []),
    "a damaged completion": (text("checkpoints/step-00000008/completed.json", "[]"), [f"{COMPLETED}: this is damaged"]),
    "other conditions after it": (
        completed(lambda state: state.update(conditions={})),
        [f"{COMPLETED}: conditions isn't that of state.json"],
    ),
    "another position": (
        completed(lambda state: state["position"].update(place=1)),
        [f"{COMPLETED}: its position isn't that of state.json"],
    ),
    "an evaluation that is still due after it": (
        completed(lambda state: state["position"].update(duties_pending=True)),
        [f"{COMPLETED}: its position isn't that of state.json"],
    ),
    "other callbacks": (
        completed(lambda state: state["callbacks"].pop()),
        [f"{COMPLETED}: it has other callbacks than state.json"],
    ),
    "another count of the log's": (
        completed(lambda state: state["callbacks"][0][1].update(skipped=1)),
        [f"{COMPLETED}: what was logged so far isn't that of state.json"],
    ),
    "an epoch that the log began": (completed(lambda state: state["callbacks"][0][1].update(epoch={})), []),
    "what a callback remembers": (completed(lambda state: state["callbacks"][1][1].update(more=1)), []),
    "a missing best": (
        lambda run: (run / "checkpoints/best").unlink(),
        ["RUN/checkpoints/best is missing; the one to name is step-00000008"],
    ),
    "a best that isn't kept": (
        lambda run: shutil.rmtree(run / "checkpoints" / step_folder(8)),
        ["RUN/checkpoints/best holds 'step-00000008'; the best checkpoint isn't kept"],
    ),
    "a best that isn't kept, nor named": (
        lambda run: [shutil.rmtree(run / "checkpoints" / step_folder(8)), (run / "checkpoints/best").unlink()],
        [],
    ),
    "another last": (
        text("checkpoints/last", "step-00000010\n"),
        ["RUN/checkpoints/last holds 'step-00000010'; the one to name is step-00000012"],
    ),
    "a long text in last": (
        text("checkpoints/last", "x" * 50),
        [f"RUN/checkpoints/last holds '{'x' * 40}'; the one to name is step-00000012"],
    ),
    "a status of nothing": (text("status.json", "[]"), ["RUN/status.json: this is damaged"]),
    "a step that isn't a number": (edited("status.json", step="12"), ["RUN/status.json: this is damaged"]),
    "no total": (edited("status.json", total_steps=None), ["RUN/status.json: this is damaged"]),
    "an unknown state": (edited("status.json", state="lost"), ["RUN/status.json: this is damaged"]),
    "too early an end": (edited("status.json", total_steps=13), ["RUN/status.json says finished at step 12 of 13"]),
    "an end at another step": (
        edited("status.json", step=11, total_steps=11),
        ["RUN/status.json says finished at step 11, and the newest checkpoint is of step 12"],
    ),
    "a stop at another step": (
        edited("status.json", state="stopped", step=11, reason="time"),
        ["RUN/status.json says stopped at step 11, and the newest checkpoint is of step 12"],
    ),
    "a failure at another step": (edited("status.json", state="failed", step=11, reason="memory"), []),
    "an end for another reason": (
        edited("status.json", reason="time"),
        ["RUN/status.json says finished, because of time"],
    ),
    "a stop because it is finished": (
        edited("status.json", state="stopped"),
        ["RUN/status.json says stopped, because of finished"],
    ),
    "another owner": (
        edited("checkpoints/owner.json", id="two"),
        ["RUN/checkpoints/owner.json names another run than run.json: two, not one"],
    ),
    "a lost rule": (
        lambda run: (run / "splits.jsonl").unlink(),
        ["splits.jsonl lacks the rule from step 3 on that step-00000012 knows"],
    ),
    "a rule that is none": (
        text("splits.jsonl", json.dumps({"cut": RULE}) + "\n" + json.dumps({"cut": {"step": 3}}) + "\n[1]\n"),
        [f"splits.jsonl, line {line}: Vaak didn't write this line" for line in (2, 3)],
    ),
    "a rule of another chunk": (
        text("splits.jsonl", "".join(json.dumps({"cut": {**RULE, "pieces": n}}) + "\n" for n in (2, 3))),
        ["splits.jsonl has a rule from step 3 on that step-00000012 doesn't know"],
    ),
    "a finer rule of the newest step": (
        text(
            "splits.jsonl",
            "".join(json.dumps({"cut": one}) + "\n" for one in (RULE, {**RULE, "step": 12, "pieces": 4})),
        ),
        ["splits.jsonl has a rule from step 12 on that step-00000012 doesn't know"],
    ),
    "a rule that covers less": (
        text("splits.jsonl", "".join(json.dumps({"cut": one}) + "\n" for one in (RULE, {**RULE, "step": 5}))),
        [],
    ),
    "a rule after the newest checkpoint": (
        text(
            "splits.jsonl",
            "".join(json.dumps({"cut": one}) + "\n" for one in (RULE, {**RULE, "step": 13, "pieces": 4})),
        ),
        [],
    ),
    "an example skipped without its number": (
        text("skipped.jsonl", '{"index": 1}\n{"index": "2"}\n{"epoch": 1}\n'),
        [f"skipped.jsonl, line {line}: Vaak didn't write this line" for line in (2, 3)],
    ),
    "prepared data without their record": (
        lambda run: (run / "prepared").mkdir(),
        ["RUN/prepared: its prepared.json is missing"],
    ),
    "a second copy of frozen weights": (
        text("checkpoints/frozen-0123456789ab.safetensors", "x"),
        ["RUN/checkpoints/frozen-0123456789ab.safetensors: this isn't what was written there"],
    ),
    "code": (
        lambda run: [(run / "code").mkdir(), write_json(run / "code/SHA256.json", {"mine.py": "0"})],
        ["RUN/code/mine.py: this can't be read: No such file or directory"],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_does_not_agree_is_named_to_the_word(run: Path, name: str):
    change, expected = FOUND[name]
    change(run)
    # another state has other records, too (test_records.py), and sessions (test_sessions.py)
    found = [line.replace(str(run), "RUN") for line in audit(run).findings]
    assert [one for one in found if not one.startswith(("step-", "metrics", "sessions"))] == expected


def not_covered(run: Path) -> list[str]:
    return [one for one in audit(run).not_covered if not one.startswith(("metrics", "sessions"))]


def test_what_is_not_covered_of_files_is_named(run: Path):
    assert not_covered(run) == [
        "run.json, owner.json: when and where the run was made",
        "splits.jsonl: why batches were divided",
    ]
    completed(lambda state: state["callbacks"][1][1].update(more=1))(run)
    (run / "skipped.jsonl").write_text('{"index": 1}\n')
    write_json(run / "run.json", {"id": "one", "parent": {}})
    edited("checkpoints/step-00000004/MANIFEST.json", periodic=True)(run)
    edited("status.json", state="stopped", reason="time")(run)
    assert not_covered(run) == [
        "checkpoints/*/MANIFEST.json: whether a checkpoint is periodic",
        "step-00000008/completed.json: what OtherCallback remembers",
        "status.json: why the run ended, and after how many steps it would have",
        "run.json, owner.json: when and where the run was made and its parent",
        "skipped.jsonl (followed: what couldn't be read then isn't tried again)",
        "splits.jsonl: why batches were divided",
    ]


@pytest.mark.parametrize("name", ["best", "last"])
def test_while_a_run_trains_its_pointers_may_lag_behind(run: Path, name: str):
    (run / "status.json").unlink()
    (run / "checkpoints" / name).write_text("step-00000004\n")
    assert audit(run).findings == []
    assert f"checkpoints/{name}, which names step-00000004 (the run trains, or was killed)" in not_covered(run)
    (run / "checkpoints" / name).write_text("step-00000003\n")
    assert len(audit(run).findings) == 1, "there is no such checkpoint"


def prepare(run: Path, **about: Any) -> Path:
    """Prepared data of one file, and a copy of what was written down of them in the newest checkpoint."""
    folder = run / "prepared"
    folder.mkdir()
    (folder / "rows.bin").write_bytes(b"rows")
    found = {"format": 1, "options": {}, HASHES: {"rows.bin": hash_file(folder / "rows.bin")}, **about}
    write_json(folder / "prepared.json", found)
    copy = checkpoint(run, 12, "prepared/prepared.json")
    copy.parent.mkdir()
    write_json(copy, {**found, "left_out": ["test"]})
    return folder


def test_prepared_data_are_what_was_written_and_what_the_newest_checkpoint_was_made_with(run: Path):
    folder = prepare(run)
    found = audit(run)
    assert (found.findings, found.damage) == ([], [])
    edited("prepared/prepared.json", options={"more": 1})(run)
    expected = f"{folder / 'prepared.json'}: this isn't what step-00000012 was made with"
    assert (audit(run).findings, audit(run).damage) == ([expected], [expected])
    edited("prepared/prepared.json", options={}, **{HASHES: {}})(run)
    found = audit(run)
    assert f"{folder / 'prepared.json'}: its hashes aren't those that step-00000012 was made with" in found.findings
    assert "prepared/ (prepared by an earlier version, which wrote down no hashes)" in found.not_covered
    assert "prepared/rows.bin" not in found.not_covered


def test_prepared_data_that_are_damaged_are_not_computed_with(run: Path):
    folder = prepare(run)
    (folder / "rows.bin").write_bytes(b"row")
    found = audit(run)
    assert found.damage == found.findings == [f"{folder / 'rows.bin'}: this isn't what was written there"]
    (folder / "prepared.json").write_text("{")
    found = audit(run)
    assert len(found.damage) == 1
    assert str(folder / "prepared.json") in found.damage[0]
    edited("checkpoints/step-00000012/prepared/prepared.json", **{HASHES: {"../../run.json": "0"}})(run)
    about = read_json(checkpoint(run, 12, "prepared/prepared.json"))
    del about["left_out"]
    write_json(folder / "prepared.json", about)
    assert audit(run).damage == [f"{folder}/../../run.json: this can't be read: it is elsewhere"]


def test_a_checkpoint_whose_state_can_not_be_read_is_not_computed_with(run: Path):
    path = checkpoint(run, 12, "state.json")
    path.write_text("{}")
    manifest = read_json(path.with_name("MANIFEST.json"))
    manifest["files"]["state.json"] = {"bytes": 2, "sha256": hash_file(path)}
    write_json(path.with_name("MANIFEST.json"), manifest)
    path.with_name("completed.json").unlink()
    found = audit(run)
    assert [one.name for one in found.sound] == [step_folder(step) for step in (4, 5, 6, 8, 10)]
    assert f"{path.parent}: its state can't be read (KeyError('position'))" in found.findings


def test_weights_that_the_manifest_lacks_make_a_checkpoint_unsound(run: Path):
    for name in ("average", "loss", "frozen"):
        checkpoint(run, 8, f"{name}.safetensors").write_bytes(b"x")
    found = audit(run)
    folder = checkpoint(run, 8, "")
    assert found.findings == [
        f"{folder / name}.safetensors: this isn't in its MANIFEST.json" for name in ("average", "frozen", "loss")
    ]
    assert [one.name for one in found.sound] == [step_folder(step) for step in (4, 5, 6, 10, 12)]


def test_code_is_what_the_newest_checkpoint_has_of_it(run: Path):
    (run / "code").mkdir()
    (run / "code" / "mine.py").write_text("1")
    write_json(run / "code" / "SHA256.json", {"mine.py": hash_file(run / "code" / "mine.py")})
    for step, content in ((10, "another"), (12, "1")):
        copy = checkpoint(run, step, "code/mine.py")
        copy.parent.mkdir()
        copy.write_text(content)
        manifest = read_json(checkpoint(run, step, "MANIFEST.json"))
        manifest["files"]["code/mine.py"] = {"bytes": len(content), "sha256": hash_file(copy)}
        write_json(checkpoint(run, step, "MANIFEST.json"), manifest)
    assert (audit(run).findings, audit(run).damage) == ([], [])
    (run / "code" / "mine.py").write_text("2")
    write_json(run / "code" / "SHA256.json", {"mine.py": hash_file(run / "code" / "mine.py")})
    expected = [f"{run / 'code/mine.py'}: this isn't what step-00000012 has of it"]
    assert (audit(run).findings, audit(run).damage) == (expected, expected)


@pytest.mark.parametrize(("first", "expected"), [(1, 1), (2, 0)])
def test_a_fork_of_any_step_may_know_rules_of_its_parent(first: int, expected: int, tmp_path: Path):
    run = WrittenRun(tmp_path / "run", first=first, sessions={first: OPTIONS}, change=with_rule).write()
    assert len([one for one in audit(run).findings if one.startswith("splits.jsonl lacks the rule")]) == expected
