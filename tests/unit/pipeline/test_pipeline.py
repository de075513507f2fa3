"""A stage runs once, and again only if its options changed, its output is damaged or it is asked for."""

from __future__ import annotations

import gc
import json
import os
import shutil
import stat
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_pipeline
from quick_cases import mostly_slow
from vaak.config.base import Section
from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.run import Request, run_pipeline
from vaak.pipeline.stage import Pipeline, Stage, StageWork

REFERENCE = f"{Path(tiny_pipeline.__file__)}:PIPELINE"
RUN = "Runs/seed-1"
SUMS = Counter(f"sums {piece}" for piece in range(tiny_pipeline.NUM_SUMS))
NUMBERS = Counter(f"numbers {first}" for first in (0, 100, 200, 300))

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tiny(
    vaak: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, Counter[str], str]]:
    """``tiny(*arguments)`` runs the pipeline and gives its exit code, the pieces of work it began, and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DONE", str(tmp_path / "done"))

    def run(*arguments: object) -> tuple[int, Counter[str], str]:
        (tmp_path / "done").write_text("")
        code, out, err = vaak("pipeline", REFERENCE, *arguments)
        return code, Counter((tmp_path / "done").read_text().splitlines()), out + err

    return run


def contents(folder: Path, *leave_out: str) -> dict[str, bytes]:
    """The files below a folder, except those that hold times."""
    varying = {"pipeline.log", "results.md", "manifest.json", ".lock", *leave_out}
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(files.items()) if path.name not in varying}


def test_everything_runs_once_and_a_moved_copy_is_as_good(tiny: Any, tmp_path: Path) -> None:
    code, pieces, said = tiny()
    assert (code, pieces) == (0, NUMBERS + SUMS + Counter(["result"])), said
    assert "| numbers | run |" in (tmp_path / RUN / "results.md").read_text()
    code, pieces, said = tiny()
    assert (code, pieces) == (2, Counter())
    assert said == f"{RUN} already holds a run: add --resume to resume it, or give another --output-dir\n"
    shutil.move(tmp_path / RUN, tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    for place in ("moved", "copied"):
        code, pieces, said = tiny("--resume", "--output-dir", place)
        assert (code, pieces) == (0, Counter()), said
        assert said.count("up to date") == 6
    everything = {**contents(tmp_path / "copied"), "manifest": (tmp_path / "copied/sums/manifest.json").read_bytes()}
    assert not any(str(tmp_path).encode() in content for content in everything.values())


@pytest.mark.parametrize(
    ("change", "again", "why"),
    [
        (("--power", 3), SUMS + Counter(["result"]), "sums: starts (power was 2, is 3 now)"),
        pytest.param(
            ("--sign", -1), Counter(["result"]), "result: starts (sign was 1, is -1 now)", marks=pytest.mark.slow
        ),
        pytest.param(
            *(("--rows", 150), Counter(["numbers 0", "numbers 100", "result"]) + SUMS, "num_rows was 350, is 150 now"),
            marks=pytest.mark.slow,
        ),
        ((), Counter(), "result: up to date"),
    ],
)
def test_changed_options_invalidate_what_depends_on_them(
    change: tuple[Any, ...], again: Counter[str], why: str, tiny: Any, tmp_path: Path
) -> None:
    tiny("--output-dir", "run")
    planned = tiny("--output-dir", "run", "--resume", "--dry-run", *change)
    assert planned[:2] == (0, Counter())
    code, pieces, said = tiny("--output-dir", "run", "--resume", *change)
    assert (code, pieces) == (0, again), said
    assert why in said
    assert why.partition(" (")[2].rstrip(")") in planned[2]
    tiny("--output-dir", "fresh", *change)
    assert {**contents(tmp_path / "run", "pipeline.json"), **contents(tmp_path / "fresh", "pipeline.json")} == contents(
        tmp_path / "run", "pipeline.json"
    )
    assert tiny("--output-dir", "run", "--resume")[1] == Counter(), "options that aren't given stay as they were"


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("numbers/rows/rows-00002.bin", Counter(["numbers 200"])),
        ("sums/sums.npy", SUMS),
        ("result/result.json", Counter(["result"])),
    ],
)
@pytest.mark.parametrize("damage", mostly_slow(("flipped", "truncated", "missing"), "flipped"))
def test_a_damaged_output_is_found_and_made_again(
    file: str, again: Counter[str], damage: str, tiny: Any, tmp_path: Path
) -> None:
    tiny()
    before, path = contents(tmp_path / RUN), tmp_path / RUN / file
    content = path.read_bytes()
    times = path.stat()
    path.write_bytes({"flipped": bytes([content[0] ^ 1]) + content[1:]}.get(damage, content[:-1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if damage == "missing":
        path.unlink()
    code, pieces, said = tiny("--resume")
    assert (code, pieces) == (0, again), said
    assert f"{file}: " in said
    after = contents(tmp_path / RUN)
    assert {name: after[name] for name in before} == before, "later stages stay valid: they read the same bytes"


def test_a_folder_of_something_else_is_not_resumed(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    for also in ((), ("--dry-run",)):
        code, pieces, said = tiny("--resume", "--output-dir", "photos", *also)
        assert (code, pieces) == (2, Counter())
        assert said == (
            "photos has no pipeline to resume: it has cat.jpg, but no pipeline.json; check --output-dir, or leave "
            "out --resume to start one there\n"
        )
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "training.log").write_text("of a shell")
    code, pieces, said = tiny("--resume", "--output-dir", "logs")
    assert (code, pieces) == (0, NUMBERS + SUMS + Counter(["result"]))
    assert "there is nothing to resume in logs: the pipeline starts there" in said
    shutil.rmtree(tmp_path / "logs" / "sums")
    (tmp_path / "logs" / "pipeline.json").unlink()
    assert tiny("--resume", "--output-dir", "logs")[:2] == (0, SUMS), "its stages say what it is"


def test_from_and_only(tiny: Any, tmp_path: Path) -> None:
    code, pieces, said = tiny("--only", "sums")
    assert (code, pieces) == (2, Counter())
    assert said.splitlines()[-1] == (
        "stage sums reads numbers, which is not done (has not run yet); run it first: --only numbers"
    )
    assert tiny("--only", "numbers")[1] == NUMBERS
    assert tiny("--only", "sums")[1] == SUMS
    assert tiny("--resume")[1] == Counter(["result"])
    assert tiny("--from", "sums")[1] == SUMS + Counter(["result"])
    assert tiny("--from", "sums", "--only", "sums")[1] == SUMS
    assert tiny("--resume")[1] == Counter(), "the same outputs again: what reads them stays valid"
    assert "has no stage nothing; it has numbers, sums, model, result" in tiny("--from", "nothing")[2]
    assert "stage model is not part of tiny with these options" in tiny("--only", "model")[2]


def test_a_dry_run_says_what_why_and_how_much_and_changes_nothing(tiny: Any, vaak: Command, tmp_path: Path) -> None:
    code, pieces, said = tiny("--dry-run")
    assert (code, pieces, (tmp_path / "Runs").exists()) == (0, Counter(), False)
    assert said.splitlines()[1].split() == [
        "numbers",
        "starts",
        "0:01",
        "87.5",
        "KiB",
        "1.0",
        "MiB",
        "has",
        "not",
        "run",
        "yet",
    ]
    tiny()
    before = contents(tmp_path)
    planned = json.loads(vaak("pipeline", REFERENCE, "--from", "sums", "--power", 3, "--dry-run", "--json")[1])
    assert [(row["stage"], row["state"]) for row in planned] == [
        ("numbers", "done"),
        ("sums", "starts"),
        ("result", "starts"),
    ]
    assert planned[1]["seconds"] >= 0, "what it took the last time"
    assert planned[1]["memory_bytes"] > 1 << 20
    planned = json.loads(vaak("pipeline", REFERENCE, "--resume", "--power", 3, "--dry-run", "--json")[1])
    assert (planned[2]["state"], planned[2]["why"]) == ("may run", "if the outputs of sums change")
    assert contents(tmp_path) == before


def test_options_come_from_a_file_and_errors_are_one_line(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"exponent": 3, "sign": -1, "num_rows": 120, "notes": ["one"]}')
    code, _, said = tiny("--config", "options.json", "--sign", 1, "--log-file", "logs/it.log")
    assert code == 0, said
    options = json.loads((tmp_path / RUN / "pipeline.json").read_text())["options"]
    expected = {"seed": 1, "num_rows": 120, "power": 3, "sign": 1, "trains": False, "notes": ["one"], "fails": "no"}
    assert options == expected
    assert "--notes" not in tiny("--help")[2]
    first = (tmp_path / "logs/it.log").read_text()
    tiny("--resume", "--log-file", "logs/it.log")
    assert (tmp_path / "logs/it.log").read_text().startswith(first), "the log is appended on resume"
    for arguments, error in {
        ("--rows", 0): "tiny.num_rows: Input should be greater than or equal to 1",
        ("--config", "missing.yml"): "missing.yml",
        ("--executor", "abacus"): "--executor",
        ("--resume", "--output-dir", "done"): "done",
    }.items():
        code, pieces, said = tiny(*arguments)
        assert (code, pieces, len(said.splitlines())) == (2, Counter(), 1), said
        assert error in said


@pytest.mark.slow
def test_what_had_cost_time_is_set_aside_and_nothing_of_others_is_touched(tiny: Any, tmp_path: Path) -> None:
    tiny()
    finished = (tmp_path / RUN / "sums" / "sums.npy").read_bytes()
    tiny("--resume", "--power", 3)
    aside = tmp_path / RUN / "set-aside" / "sums" / "sums.npy"
    assert aside.read_bytes() == finished
    (tmp_path / RUN / "sums" / "manifest.json").unlink()  # as if it had been cut
    tiny("--resume", "--power", 4)
    assert aside.read_bytes() == finished, "a finished one is not replaced by one that was cut"
    (tmp_path / "own" / "numbers").mkdir(parents=True)
    (tmp_path / "own" / "numbers" / "notes.txt").write_text("mine")
    code, pieces, said = tiny("--output-dir", "own")
    assert (code, pieces) == (2, Counter())
    assert "own/numbers has no readable begun.json" in said
    assert (tmp_path / "own" / "numbers" / "notes.txt").read_text() == "mine"


def test_files_have_the_usual_modes(tiny: Any, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert tiny()[0] == 0
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / RUN).rglob("*") if path.is_file()}
    assert modes == {0o640}


def test_a_stage_that_fails_by_a_bug_is_not_done(tiny: Any, tmp_path: Path) -> None:
    code, pieces, said = tiny("--fails", "bug")
    assert (code, pieces["result"]) == (1, 1), said
    assert "ZeroDivisionError" in said
    assert "| result | failed |" in (tmp_path / RUN / "results.md").read_text()
    code, pieces, said = tiny("--resume", "--fails", "no")
    assert (code, pieces) == (0, Counter(["result"])), said


class KilledError(BaseException):
    """Stands for a kill: nothing happens after it."""


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Be killed at the operation on files of this number, from 1; returns those that are asked for."""
    asked: list[str] = []

    def failing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            asked.append(name)
            if 0 < number <= len(asked):
                raise KilledError
            return real(*arguments, **options)

        return called

    for name in ("replace", "rename", "unlink", "mkdir", "fsync"):
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))
    return asked


def damage(run: Path) -> None:
    (run / "numbers" / "rows" / "rows-00001.bin").write_bytes(b"damaged")


SCENARIOS: dict[str, tuple[Callable[[Path], None], tuple[Any, ...]]] = {
    "new": (shutil.rmtree, ()),
    "changed": (lambda run: None, ("--resume", "--rows", 150, "--power", 3)),
    "damaged": (damage, ("--resume",)),
    "from": (lambda run: None, ("--from", "sums")),
}
"""A change to a finished run, and the arguments of the next command."""


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", mostly_slow(SCENARIOS, "new", "damaged"))
def test_killed_at_every_operation_on_files_it_ends_with_the_same_bits(
    scenario: str, every: int, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before, arguments), run = SCENARIOS[scenario], tmp_path / RUN
    monkeypatch.setattr("vaak.pipeline.run.release_memory", lambda: None)  # takes longer than the stages
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the disk's time proves nothing here
    tiny()
    shutil.copytree(run, tmp_path / "kept")

    def attempt(number: int) -> tuple[int, bool]:
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "kept", run)
        before(run)
        with pytest.MonkeyPatch.context() as patch:
            asked = kill_at(number, patch)
            try:
                tiny(*arguments)
            except KilledError:
                return len(asked), True
        return len(asked), False

    total, _ = attempt(0)
    expected = contents(run, "begun.json", "pipeline.json")
    made = Counter(name.partition("/")[0] for name in expected)
    assert total > 10
    assert {"numbers", "sums", "result"} <= set(made)
    resumed = [argument for argument in arguments if argument not in ("--from", "sums", "--resume")]
    for number in range(1, total + 1, every):
        assert attempt(number)[1], number
        code, _, said = tiny("--resume", *resumed)
        assert code == 0, (number, said)
        found = contents(run, "begun.json", "pipeline.json")
        same = {name: found.get(name) == content for name, content in expected.items() if "set-aside" not in name}
        assert all(same.values()), (number, same)


class Node:
    """Something that only the collector of garbage can release."""

    def __init__(self) -> None:
        self.itself = self


LEFT: list[weakref.ref[Node]] = []


def leave_garbage(work: StageWork) -> None:
    LEFT.append(weakref.ref(Node()))


def look_for_it(work: StageWork) -> dict[str, bool]:
    return {"released": LEFT[-1]() is None}


def test_what_a_stage_leaves_in_memory_is_released_before_the_next(tmp_path: Path) -> None:
    stages = Stage("first", leave_garbage, ""), Stage("second", look_for_it, "")
    gc.disable()
    try:
        rows = run_pipeline(Pipeline("leaving", "", Section, stages), Section(), tmp_path, Request())
    finally:
        gc.enable()
    assert [row.figures for row in rows] == [{}, {"released": True}]


def doubled(work: StageWork) -> None:
    """Reads ``before``, where there is one."""
    number = read_json(work.inputs["before"] / "n.json")["n"] if "before" in work.inputs else 1
    write_json(work.folder / "n.json", {"n": 2 * number, "lines": [f"it is {2 * number}"]})


def test_stages_with_one_body_read_by_roles_and_report(tmp_path: Path) -> None:
    def stage(name: str, **more: Any) -> Stage:
        return Stage(name, doubled, "", outputs=("n.json",), **more)

    stages = stage("one"), stage("two", after=("one",), roles={"one": "before"}, report="n.json")
    pipeline = Pipeline("doubling", "", Section, stages)
    for states in (["run", "run"], ["up to date", "up to date"]):
        rows = run_pipeline(pipeline, Section(), tmp_path, Request(resume=True))
        assert [row.state for row in rows] == states
        assert [row.report for row in rows] == [{}, {"n": 4, "lines": ["it is 4"]}]
        assert "    it is 4\n" in (tmp_path / "results.md").read_text()
    (tmp_path / "one" / "n.json").write_text('{"n": 5}')
    rows = run_pipeline(pipeline, Section(), tmp_path, Request(resume=True))
    assert [row.state for row in rows] == ["run", "up to date"], "what it reads by a role counts, too"


def test_mistakes_in_a_declaration_are_named() -> None:
    class Options(Section):
        pass

    for stages, error in {
        (Stage("one", print, "", ("size",)),): "no option size",
        (Stage("one", print, "", after=("two",)), Stage("two", print, "")): "no stage two before it",
        (Stage("one", print, ""), Stage("one", print, "")): "its own name",
        (Stage("one", print, "", roles={"two": "other"}),): "two has a role",
        (Stage("one", print, "", outputs=("a.json",), report="b.json"),): "its report b.json",
    }.items():
        with pytest.raises(ValueError, match=error):
            Pipeline("wrong", "", Options, stages)


def test_options_of_someone_elses_folder_that_name_code_ask_for_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vaak: Callable[..., tuple[int, str, str]]
):
    """Sections of a run may name classes: in the options that a folder's pipeline began with, or in a run's file."""
    monkeypatch.chdir(tmp_path)
    said = "and this code would be executed: somewhere.models:Loss; read it, and add --trust-code"
    for name in ("mine.yml", "config.yml"):
        Path(name).write_text("{num_rows: 8, notes: ['somewhere.models:Loss', 'a note: this']}\n")
    code, _, errors = vaak("pipeline", REFERENCE, "--config", "config.yml", "--output-dir", "x", "--dry-run")
    assert (code, f"config.yml belongs to a run, by its name, {said}" in errors) == (2, True), errors
    assert vaak("pipeline", REFERENCE, "--config", "mine.yml", "--output-dir", "theirs")[0] == 0
    code, _, errors = vaak("pipeline", REFERENCE, "--output-dir", "theirs", "--resume")
    assert (code, f"theirs has the options of an earlier start, {said}" in errors) == (2, True), errors
    for trusted in (["--trust-code"], ["--config", "mine.yml"]):
        code, _, errors = vaak("pipeline", REFERENCE, "--output-dir", "theirs", "--resume", *trusted)
        assert code == 0, errors
