"""skipped.jsonl and splits.jsonl of a start that failed dropped examples and cut batches of the next run there."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import tiny_runs
from vaak.data.loader import Address, Microbatch, Skip
from vaak.engine.journal import Journal, SkippedExamples

SKIPPED = {"epoch": 0, "index": 0, "description": "line 1", "reason": "torn", "occurrence": 0}
CUT = {"cut": {"step": 1, "pieces": 8, "numbers": None, "split": None, "rank": 0}, "reason": "out of memory"}


def leave_journals(run: Path) -> None:
    """What a start leaves that ran out of memory and met a bad example before its first checkpoint."""
    run.mkdir(parents=True)
    (run / "skipped.jsonl").write_text("".join(json.dumps(SKIPPED | {"index": i}) + "\n" for i in range(40)))
    (run / "splits.jsonl").write_text(json.dumps(CUT) + "\n")
    (run / "splits.rank1.jsonl").write_text(json.dumps(CUT) + "\n")


@pytest.mark.parametrize("resume", ["auto", "null"])
def test_a_new_run_sets_them_aside_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str], resume: str):
    tiny_runs.write_corpus(tmp_path / "text")
    options = ("training.max_steps=3", "data.on_bad_example=skip", f"training.checkpoint.resume={resume}")
    leave_journals(tmp_path / "run")
    tiny_runs.train(tmp_path / "text", tmp_path / "run", *options)
    assert "skipped.jsonl, splits.jsonl, splits.rank1.jsonl of an earlier start is set aside" in capfd.readouterr().err
    aside = tmp_path / "run" / "set-aside" / "0001"
    assert sorted(path.name for path in aside.iterdir()) == ["skipped.jsonl", "splits.jsonl", "splits.rank1.jsonl"]
    tiny_runs.train(tmp_path / "text", tmp_path / "clean", *options)
    newest = "checkpoints/step-00000003/model.safetensors"
    assert (tmp_path / "run" / newest).read_bytes() == (tmp_path / "clean" / newest).read_bytes()


def test_entries_of_other_data_do_not_act_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    skip = Skip(0, 3, "line 4", "torn")
    SkippedExamples(tmp_path, 0, data="these").add([Microbatch(Address(1, 0, 0, []), None, [skip])])
    assert SkippedExamples(tmp_path, 0, data="these").known == {(0, 3, 0)}
    with caplog.at_level(logging.WARNING, "vaak"):
        assert SkippedExamples(tmp_path, 0, data="others").known == set()
    assert "1 lines are for other data: ignored" in caplog.text
    assert Journal(tmp_path, "skipped", 0, dict, "these").entries == [SKIPPED | {"index": 3, "description": "line 4"}]
