"""What is said of a run's sessions, to the word, where they don't agree with its checkpoints, or with each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vaak.core.storage.files import read_json, write_json
from vaak.engine.checkpoint.files import step_folder
from vaak.runs.audit.sessions import Span, list_spans
from written_runs import CONDITIONS, OPTIONS, WrittenRun, audit

OTHER = {**OPTIONS, "logging": {"interval": 1, "smoothing": 0.5}}
NEWER = ("step-00000008", "step-00000010", "step-00000012")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WrittenRun(tmp_path_factory.mktemp("written") / "run", sessions={1: OPTIONS, 7: OTHER}).write()


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


def with_sessions(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        path = run / "sessions.jsonl"
        sessions = [json.loads(line) for line in path.read_text().splitlines()]
        change(sessions)
        path.write_text("".join(f"{json.dumps(one)}\n" for one in sessions))

    return make


def session(place: int, **values: Any) -> Callable[[Path], None]:
    return with_sessions(lambda sessions: sessions[place - 1].update(values))


def manifest(step: int, **values: Any) -> Callable[[Path], None]:
    def make(run: Path) -> None:
        path = run / "checkpoints" / step_folder(step) / "MANIFEST.json"
        write_json(path, {**read_json(path), **values})

    return make


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(content)


FOUND: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda run: None, []),
    "a line that is none": (
        lambda run: (run / "sessions.jsonl").write_text((run / "sessions.jsonl").read_text() + "[3]\n"),
        ["sessions.jsonl, line 3: Vaak didn't write this line"],
    ),
    "a number": (
        session(1, number=4),
        [
            "sessions.jsonl: session 4 stands where 1 belongs",
            "sessions/0004.yml, the configuration of a session, is missing",
            *(f"sessions.jsonl: session 1, which made {step_folder(step)}, is missing" for step in (4, 5, 6)),
            "config.yml isn't the configuration of the newest session, sessions/0004.yml",
        ],
    ),
    "where the first began": (session(1, first_step=0), ["sessions.jsonl: session 1 doesn't say where it began"]),
    "where the second began": (
        session(2, first_step=9),
        [
            "sessions.jsonl: session 2 began after its step-00000008",
        ],
    ),
    "a session that began at its checkpoint's own step": (session(2, first_step=8), []),
    "from itself": (
        session(2, after=2),
        [
            "sessions.jsonl: session 2 can't have resumed from session 2",
            "sessions.jsonl: session 2 can't have resumed from session 2: step-00000006 is another's",
        ],
    ),
    "from none": (
        session(2, after=0),
        [
            "sessions.jsonl: session 2 can't have resumed from session 0",
            "sessions.jsonl: session 2 can't have resumed from session 0: step-00000006 is another's",
        ],
    ),
    "another's checkpoint": (
        manifest(6, session=7),
        [
            "sessions.jsonl: session 7, which made step-00000006, is missing",
            "sessions.jsonl: session 2 can't have resumed from session 1: step-00000006 is another's",
        ],
    ),
    "conditions": (
        session(2, conditions={**CONDITIONS, "threads": 2}),
        [f"sessions.jsonl: the conditions of session 2 aren't those that {name} was made under" for name in NEWER],
    ),
    "two versions of Vaak": (session(2, vaak="1.1"), ["sessions.jsonl: session 2 has two versions of vaak"]),
    "two versions of Python": (session(1, python="3.12"), ["sessions.jsonl: session 1 has two versions of python"]),
    "two versions of a package": (
        session(1, packages={"torch": "2.1"}),
        ["sessions.jsonl: session 1 has two versions of torch"],
    ),
    "a configuration": (
        text("sessions/0001.yml", json.dumps({"training": OTHER})),
        [
            f"{what}step-0000000{step}{end}"
            for step in (4, 5, 6)
            for what, end in (
                ("sessions/0001.yml isn't the configuration that ", " was made under"),
                ("sessions/0001.yml: other options than those of the state of ", ""),
            )
        ],
    ),
    "no configuration that can be read": (
        text("sessions/0001.yml", "a: [1"),
        [
            f"{what}step-0000000{step}{end}"
            for step in (4, 5, 6)
            for what, end in (
                ("sessions/0001.yml isn't the configuration that ", " was made under"),
                ("sessions/0001.yml: other options than those of the state of ", ""),
            )
        ],
    ),
    "config.yml": (
        text("config.yml", json.dumps({"training": OPTIONS})),
        ["config.yml isn't the configuration of the newest session, sessions/0002.yml"],
    ),
    "the environment": (
        text("environment.json", '{"vaak": "2.0"}'),
        ["environment.json isn't that of session 2 in sessions.jsonl"],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_does_not_agree_is_named_to_the_word(run: Path, name: str):
    change, expected = FOUND[name]
    change(run)
    about = ("sessions", "config.yml", *["environment.json"] * (name == "the environment"))
    assert [one for one in audit(run).findings if one.startswith(about)] == expected


def of_sessions(run: Path) -> list[str]:
    return [one for one in audit(run).not_covered if "session" in one or "config" in one]


ALWAYS = "sessions.jsonl, environment.json: times, commands, platforms"


def test_what_is_not_covered_of_sessions_is_named(run: Path):
    assert of_sessions(run) == [ALWAYS]
    session(1)(run)
    with_sessions(lambda sessions: sessions[0].pop("conditions"))(run)
    shutil.rmtree(run / "checkpoints" / step_folder(6))
    assert of_sessions(run) == [
        "sessions.jsonl: the conditions of session 1, which wrote none down",
        "sessions.jsonl: where session 2 began (step-00000006 isn't there)",
        ALWAYS,
    ]
    for name in NEWER:
        shutil.rmtree(run / "checkpoints" / name)
    assert "sessions/0002.yml and its line in sessions.jsonl (no checkpoint of that session)" in of_sessions(run)
    assert "sessions/0002.yml" not in of_sessions(run), "named once"


def test_a_checkpoint_of_no_session_is_passed_over(run: Path):
    manifest(4, session=None)(run)
    assert audit(run).findings == []


def test_a_fork_that_has_not_trained_yet_may_have_other_options(run: Path):
    (run / "config.yml").write_text(json.dumps({"training": OTHER, "run_dir": "fork"}))
    expected = "config.yml isn't the configuration of the newest session, sessions/0002.yml"
    assert audit(run).findings == [expected]
    write_json(run / "run.json", {"id": "one", "directory": "run", "parent": {}})
    assert audit(run).findings == []
    assert "config.yml: this fork hasn't trained under it yet" in of_sessions(run)
    assert "config.yml" not in of_sessions(run)
    (run / "config.yml").write_text(json.dumps({"training": OPTIONS}))
    assert audit(run).findings == [expected], "a fork has a folder of its own"
    (run / "environment.json").write_text("{}")
    assert audit(run).findings == [expected], "a fork is made elsewhere"


def test_a_run_that_wrote_down_no_sessions_is_one_span_from_its_first_step(run: Path):
    (run / "sessions.jsonl").unlink()
    assert list_spans(run) == [Span(1, float("inf"), {"training": OTHER})]
    assert "config.yml (an earlier version wrote down no sessions)" in of_sessions(run)
    assert audit(run).findings == []
    (run / "config.yml").write_text(json.dumps({"training": {**OTHER, "batch_size": 3}}))
    assert audit(run).findings == ["config.yml: other options than those of the state of step-00000012"]


def test_the_spans_of_sessions_follow_one_another(run: Path):
    spans = list_spans(run)
    assert [(one.first, one.last) for one in spans] == [(1, 6), (7, float("inf"))]
    assert [one.option("logging", "smoothing") for one in spans] == [0.98, 0.5]
    assert spans[0].option("validation", "interval") == 4
