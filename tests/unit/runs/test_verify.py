"""A run that is what it says is verified; one whose log, checkpoint, data or code was changed afterwards is not."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_runs
from quick_cases import mostly_slow
from vaak.core.artifact import HASHES
from vaak.core.errors import UserError
from vaak.core.storage.files import hash_file, read_json, write_json
from vaak.engine.checkpoint import conditions
from vaak.engine.checkpoint.files import step_folder
from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.records import LogAudit, Record
from vaak.runs.verify import Tally, Verification, _differing_values, relative_difference, verify_run

Vaak = Callable[..., tuple[int, str, str]]
EVERY_STEP = ("training.checkpoint.interval=2", "training.checkpoint.save_total_limit=null")
CALLBACK = """
from vaak.engine.callback import Callback

class Quiet(Callback):
    pass
"""


@pytest.fixture(scope="module")
def trained(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps with dropout, a checkpoint after every other one, two evaluations, and code of the user's."""
    folder = tmp_path_factory.mktemp("verified")
    (folder / "mine.py").write_text(CALLBACK)
    code = f"training.callbacks=[{{type: '{folder / 'mine.py'}:Quiet'}}]"
    tiny_runs.train(tiny_text, folder / "run", *EVERY_STEP, code)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


def verified(run: Path, steps: int | None = None, **options: Any) -> dict[str, Any]:
    return verify_run(run, steps, trust_code=True, **options)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def logged(run: Path, kind: str, step: int) -> str:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    return next(line for line in lines if (json.loads(line)["kind"], json.loads(line)["step"]) == (kind, step))


def test_a_run_is_what_it_says_from_its_start(run: Path):
    before = tiny_runs.hashes(run)
    found = verified(run)
    assert tiny_runs.hashes(run) == before
    assert (found["findings"], found["not_checked"], found["conditions"]) == ([], [], [])
    assert found["verified"]
    assert found["steps"] == list(range(1, 9))
    assert (found["steps_taken"], found["tolerance"]) == (8, 0.0)
    for name, number in {"replayed_steps": 8, "states": 4}.items():
        assert found[name] == {"compared": number, "same": number, "close": 0}
    assert found["evaluation_figures"]["same"] == found["evaluation_figures"]["compared"] >= 6
    assert found["files"]["compared"] > 4 + len(list((run / "prepared" / "train").iterdir()))
    assert found["sentence"].startswith("8 of 8 steps, 4 of 4 checkpoints, ")
    assert "reproduced to the bit" in found["sentence"]
    assert found["sha256"]["metrics.jsonl"] == hash_file(run / "metrics.jsonl")


def test_steps_are_drawn_by_the_seed(run: Path):
    one, same, other = (verified(run, 3, seed=seed) for seed in (1, 1, 2))
    assert len(one["steps"]) == 3
    assert one["steps"] == same["steps"] != other["steps"]
    assert one["replayed_steps"]["same"] == 3
    assert one["states"]["same"] >= 1  # the newest, always


def _a_logged_loss(run: Path) -> str:
    line = logged(run, "step", 3)
    record = json.loads(line)
    record["cross_entropy"] += 1e-6
    change(run / "metrics.jsonl", line, json.dumps(record) + "\n")
    return "step 3: cross_entropy is"


def _a_lost_record(run: Path) -> str:
    change(run / "metrics.jsonl", logged(run, "step", 5), "")
    return "step 5: its record is missing"


def _a_metric_of_the_best(run: Path) -> str:
    step = int((run / "checkpoints" / "best").read_text().strip()[-8:])
    line = logged(run, "evaluation", step)
    record = json.loads(line)
    record["val_accuracy"] = 0.99
    change(run / "metrics.jsonl", line, json.dumps(record) + "\n")
    return f"step {step}: val_accuracy is 0.99"


def _a_flipped_bit(run: Path) -> str:
    path = run / "checkpoints" / step_folder(4) / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    return "optimizer.safetensors does not match its MANIFEST.json"


def _weights_with_a_new_manifest(run: Path) -> str:
    """A forger who knows the format."""
    folder = run / "checkpoints" / step_folder(6)
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    name = min(tensors)
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(9.0))
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")
    manifest = read_json(folder / "MANIFEST.json")
    manifest["files"]["model.safetensors"]["sha256"] = hash_file(folder / "model.safetensors")
    write_json(folder / "MANIFEST.json", manifest)
    return f"step 6: 1 tensors of step-00000006 are others than those computed again; the furthest is model {name}"


def _a_token(run: Path) -> str:
    path = run / "prepared" / "train" / "tokens.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    return "tokens.bin: this isn't what was written there"


def _a_token_with_a_new_hash(run: Path) -> str:
    _a_token(run)
    marker = run / "prepared" / "prepared.json"
    about = read_json(marker)
    about[HASHES]["train/tokens.bin"] = hash_file(run / "prepared" / "train" / "tokens.bin")
    write_json(marker, about)
    return "prepared.json: its hashes aren't those that step-00000008 was made with"


def _a_token_of_one_of_several_tasks(run: Path) -> str:
    shutil.copytree(run / "prepared", run / "tasks" / "one" / "prepared")
    path = run / "tasks" / "one" / "prepared" / "valid" / "tokens.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    return f"{path}: this isn't what was written there"


def _a_list_in_place_of_hashes(run: Path) -> str:
    write_json(run / "code" / "SHA256.json", [1])
    return "SHA256.json: this is damaged"


def _a_companion(run: Path) -> str:
    path = run / "checkpoints" / step_folder(2) / "config.yml"
    text = path.read_text() + "# nothing\n"
    path.unlink()
    path.write_text(text)
    return f"{path}: this isn't what was written there"


def _code(run: Path) -> str:
    with open(run / "code" / "mine.py", "a") as file:
        file.write("# nothing\n")
    return "mine.py: this isn't what was written there"


@pytest.mark.parametrize(
    "tamper",
    mostly_slow(
        [
            _a_logged_loss,
            _a_lost_record,
            _a_metric_of_the_best,
            _a_flipped_bit,
            _weights_with_a_new_manifest,
            _a_token,
            _a_token_with_a_new_hash,
            _a_token_of_one_of_several_tasks,
            _a_list_in_place_of_hashes,
            _a_companion,
            _code,
        ],
        *(_a_logged_loss, _a_metric_of_the_best, _a_flipped_bit),
        *(_a_token_with_a_new_hash, _a_token_of_one_of_several_tasks, _code),
    ),
)
def test_what_was_changed_afterwards_is_found(run: Path, tamper: Callable[[Path], str]):
    expected = tamper(run)
    found = verified(run)
    assert not found["verified"]
    assert [line for line in found["findings"] if expected in line], found["findings"]


def rounded_differently(run: Path, step: int) -> None:
    """Another figure, of as many digits: checkpoints know how long the log was."""
    line = logged(run, "step", step)
    record = json.loads(line)
    value = record["cross_entropy"]
    others = (value * (1 + factor * 1e-6) for factor in range(5, 50))
    record["cross_entropy"] = next(other for other in others if len(repr(other)) == len(repr(value)))
    change(run / "metrics.jsonl", line, json.dumps(record) + "\n")


@pytest.mark.parametrize("step", [1, 3])  # of which the first is reached from the start, where there is no checkpoint
def test_under_other_conditions_rounding_is_allowed_and_said(run: Path, step: int, monkeypatch: pytest.MonkeyPatch):
    then = json.loads((run / "sessions.jsonl").read_text())["conditions"]["processor"]
    monkeypatch.setattr(conditions, "_processor", lambda: "another one")
    rounded_differently(run, step)
    found = verified(run)
    assert found["verified"], found["findings"]
    assert found["conditions"] == [f"processor: {then} then, another one now"]
    assert (found["logged_figures"]["close"], found["replayed_steps"]["close"]) == (1, 1)
    assert "within 0.001 (relative)" in found["sentence"]
    assert found["tolerance"] == 0.001
    assert not verified(run, tolerance=1e-6)["verified"]


def test_of_a_session_that_wrote_down_no_conditions_those_of_the_checkpoint_count(run: Path):
    path = run / "sessions.jsonl"
    session = json.loads(path.read_text())
    del session["conditions"]
    path.write_text(json.dumps(session) + "\n")
    rounded_differently(run, 1)
    found = verified(run)
    assert found["verified"], found["findings"]
    assert "processor: not written down then" in found["conditions"], "of the steps before the first checkpoint"
    rounded_differently(run, 3)
    assert not verified(run)["verified"], "the checkpoint before them says under which they were taken"


def test_the_command(run: Path, vaak: Vaak):
    code, out, err = vaak("verify", run, "--steps", 2, "--seed", 3, "--trust-code")
    assert (code, err) == (0, "")
    said = " ".join(out[out.index("\nverified: ") :].split())
    assert re.fullmatch(
        r"verified: 2 of 2 steps, (\d) of \1 checkpoints, (\d+) of \2 metrics .* as they were written", said
    )
    assert max(map(len, out.splitlines()[1:])) <= 80, "all but the run's path"
    report = read_json(run / "verification.json")
    assert (report["verified"], report["seed"], len(report["steps"])) == (True, 3, 2)
    code, out, err = vaak("verify", run, "--steps", 2)
    assert (code, out) == (2, "")
    assert "--trust-code" in err
    _a_flipped_bit(run)
    code, out, _ = vaak("verify", run, "--from-start", "--trust-code")
    assert code == 2
    assert "NOT VERIFIED: " in out
    assert not read_json(run / "verification.json")["verified"]


def test_what_was_compared_is_counted_as_the_same_or_as_close():
    tally = Tally()
    assert [tally.add(one, 0.1) for one in (0.0, 0.05, 0.1, 0.2, 0.0)] == [True, True, True, False, True]
    assert (tally.compared, tally.same, tally.close, tally.reproduced, str(tally)) == (5, 2, 2, 4, "4 of 5")


def of_records(*records: Record, folder: Path) -> Verification:
    return Verification(folder, 0.001, Inventory(folder), LogAudit(list(records), []))


def test_the_sentence_says_what_was_reproduced_and_how(tmp_path: Path):
    found = of_records(folder=tmp_path)
    found.files.compare(tmp_path / "one")
    found.files.compare(tmp_path / "two", "it is bad")
    assert found.sentence == "nothing could be computed again; 1 of 2 files are as they were written"
    found.figures.add(0.0, 0.0)
    found.steps.add(0.0, 0.0)
    assert found.sentence == "1 of 1 steps reproduced to the bit; 1 of 2 files are as they were written"
    found.evaluations.add(0.5, 0.1)
    said = "1 of 1 steps, 0 of 1 metrics reproduced to the bit; 1 of 2 files are as they were written"
    assert found.sentence == said
    for tally in (found.steps, found.figures, found.evaluations, found.states):
        before = (tally.compared, tally.close)
        tally.add(0.0005, found.tolerance)
        assert " reproduced within 0.001 (relative); " in found.sentence
        tally.compared, tally.close = before


def test_a_step_may_take_a_hundred_times_as_long_as_the_slowest_and_half_an_hour(tmp_path: Path):
    def record(kind: str, clock: Any) -> Record:
        return Record(1, 1, {"kind": kind, "step": 1, "epoch": 0, "clock": clock})

    slow = record("step", {"seconds": 20})
    assert of_records(slow, record("step", {"seconds": 19.0}), folder=tmp_path).longest_seconds == 2000.0
    others = (record("system", {"seconds": 99.0}), record("step", None), record("step", {"seconds": "9"}))
    assert of_records(*others, record("step", {"seconds": 17.9}), folder=tmp_path).longest_seconds == 1800.0


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (0.0, 1e-7, 0.1),  # so small that the difference counts
        (-2.0, 2.0, 2.0),
        (4, 3, 0.25),
        (3, 4, 0.25),
        (True, 1.5, math.inf),
        (None, 1.0, math.inf),
        (1.0, "nan", math.inf),
        ("nan", "nan", 0.0),
        (None, None, 0.0),
    ],
)
def test_the_difference_of_two_values(then: Any, now: Any, expected: float):
    assert relative_difference(then, now) == pytest.approx(expected)


def test_values_of_a_state_are_compared_as_far_as_it_is_of_the_same_moment():
    """A checkpoint may have been made after what was due: then the plateau and what was logged are others."""
    saved: dict[str, Any] = {
        "position": {"step": 3, "totals": {"token": 4.0}, "duties_pending": True},
        "plateau": {"best": 1.0},
        "loss_scale": {},
        "callbacks": [["StepLogCallback", {"window": [1.0, 2.0]}], ["Another", {"more": 1}]],
    }
    now: dict[str, Any] = json.loads(json.dumps(saved)) | {"precision": {"failures": 0}}
    assert list(_differing_values(saved, now)) == []
    now["position"]["totals"]["token"], now["plateau"]["best"] = 8.0, 4.0
    now["callbacks"] = [["StepLogCallback", {"window": [1.0, 4.0]}], ["Another", {"more": 2}]]
    of_position = ("position.totals.token", 0.5)
    others = [("plateau.best", 0.75), ("callbacks.StepLogCallback.window.1", 0.5)]
    assert list(_differing_values(saved, now)) == [of_position, *others]
    now["position"]["duties_pending"] = False
    assert list(_differing_values(saved, now)) == [of_position]
    now["position"]["totals"] = [8.0]
    assert list(_differing_values(saved, now)) == [("position.totals", math.inf)]


def test_a_run_that_has_not_begun(tmp_path: Path, tiny_text: Path):
    tiny_runs.prepared_task(tiny_text, tmp_path / "run")
    with pytest.raises(UserError):
        verified(tmp_path / "run")
