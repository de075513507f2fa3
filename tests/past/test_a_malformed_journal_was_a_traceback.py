"""A line of skipped.jsonl, splits.jsonl or another file that is read back line by line, malformed: one clear line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs
from quick_cases import mostly_slow
from toy import ToyTask, toy_trainer
from vaak.core.errors import UserError
from vaak.engine.metrics_file import read_newest_records, read_records

Vaak = Callable[..., tuple[int, str, str]]
MALFORMED = {
    "skipped.jsonl": [
        b'{"epoch": 0}',
        b'{"epoch": "0", "index": 1}',
        b'{"epoch": 0, "index": 1.5}',
        b'{"epoch": [0], "index": {}}',
        b"3",
        b"[]",
        b"null",
        b'"text"',
        b"not JSON}",
        b"\xff",
        b'{"epoch": 0, "index": 1, "description": "\xff"}',
    ],
    "splits.jsonl": [
        b'{"cut": 3}',
        b'{"cut": null}',
        b'{"cut": {"step": 1}}',
        b'{"cut": {"step": 1, "pieces": 0, "numbers": null}}',
        b'{"cut": {"step": 1, "pieces": "2", "numbers": null}}',
        b'{"cut": {"step": 1, "pieces": 2, "numbers": 7}}',
        b'{"cut": {"step": 1, "pieces": 2, "numbers": ["x"]}}',
        b'{"cut": {"step": 1, "pieces": 2, "numbers": null, "other": 1}}',
        b"{}",
        b"\xff",
    ],
}
LINES = [(name, line) for name, lines in MALFORMED.items() for line in lines]


@pytest.mark.parametrize(("name", "line"), LINES, ids=[f"{name} {line!r}" for name, line in LINES])
def test_a_malformed_line_of_a_journal_is_one_clear_line_that_names_it(name: str, line: bytes, tmp_path: Path):
    (tmp_path / name).write_bytes(b'{"data": "of another run"}\n' + line + b"\n")
    trainer = toy_trainer(tmp_path, task=ToyTask())
    with pytest.raises(
        UserError, match=rf"{name}, line 2: Vaak didn't write this line .*; the run depends on this file"
    ):
        trainer.fit()


@pytest.mark.parametrize("name", mostly_slow(MALFORMED, "skipped.jsonl"))
def test_the_run_resumes_once_the_line_is_gone_and_a_fresh_start_never_minds(name: str, vaak: Vaak, tmp_path: Path):
    tiny_runs.write_corpus(tmp_path / "text")
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_bytes(b"\xff\n" + MALFORMED[name][0] + b"\n")
    tiny_runs.train(tmp_path / "text", run, "training.max_steps=1")
    assert (run / "set-aside" / "0001" / name).exists()
    (run / name).write_bytes(MALFORMED[name][0] + b"\n")
    resume = ("train", run / "config.yml", "--resume", "auto", "training.max_steps=2")
    code, _, err = vaak(*resume)
    assert code == 2
    assert f"{run / name}, line 1: Vaak didn't write this line" in err.splitlines()[-1]
    assert "Traceback" not in err
    (run / name).write_bytes(b'{"epoch": 0, "ind')
    code, _, err = vaak(*resume)
    assert code == 0, err


def test_a_torn_last_line_is_replaced_by_the_next_entry(tmp_path: Path):
    """Left in the middle of the file, it was malformed for ever."""
    journal = tmp_path / "skipped.jsonl"
    journal.write_bytes(b'{"epoch": 7, "index": 3}\n{"epoch": 0, "ind')
    toy_trainer(tmp_path, task=ToyTask(bad=(5,)), skip_bad=True).fit()
    assert b'"ind{' not in journal.read_bytes()
    assert journal.read_bytes().count(b"\n") == 3
    toy_trainer(tmp_path, task=ToyTask(bad=(5,)), skip_bad=True).fit()


def test_one_that_an_earlier_version_left_within_the_file_is_ignored(tmp_path: Path):
    (tmp_path / "skipped.jsonl").write_bytes(b'{"epoch": 0, "ind\n{"epoch": 0, "index": 3}\n')
    trainer = toy_trainer(tmp_path, task=ToyTask(), skip_bad=True)
    trainer.fit()
    assert (0, 3, 0) in trainer.data.skipped.known


@pytest.mark.parametrize("line", [b"3", b"[]", b"{}", b'{"step": "x"}', b'{"kind": "step"}', b"\xff", b"oops", b"null"])
def test_malformed_records_are_ignored_with_a_warning(line: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file, record = tmp_path / "metrics.jsonl", b'{"kind": "step", "step": 1}\n'
    file.write_bytes(record + line + b"\n" + record + b'{"kind": "st')
    assert [one["step"] for one in read_records(file)] == [1, 1]
    assert [one["step"] for one in read_newest_records(file, 1)] == [1, 1]
    assert f"{file}: 1 lines aren't records of a run: they are ignored" in caplog.text


def test_a_run_with_malformed_records_and_sessions_is_listed_resumed_and_replayed(vaak: Vaak, tmp_path: Path):
    tiny_runs.write_corpus(tmp_path / "text")
    tiny_runs.train(tmp_path / "text", tmp_path / "run", "training.logging.tensorboard=true")
    run = shutil.copytree(tmp_path / "run", tmp_path / "runs" / "run")
    for name in ("metrics.jsonl", "sessions.jsonl"):
        with open(run / name, "ab") as file:
            file.write(b'3\n{"step": null}\n\xff\n{"kind": 1, "number": "1"}\n')
    for command in (
        ("runs", tmp_path / "runs"),
        ("replay", run, "--step", 6),
        ("train", run / "config.yml", "--resume", "auto", "training.max_steps=9"),
    ):
        code, _, err = vaak(*command)
        assert code == 0, (command, err)
