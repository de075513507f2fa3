"""Skipped examples are journalled before they take effect, and skipped again after a resume."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from toy import ToyTask, same_bits, toy_trainer, weights
from vaak.core.errors import DataError
from vaak.data.loader import Address, Microbatch, Skip
from vaak.engine.callback import Callback, StepReport
from vaak.engine.journal import SkippedExamples

ADDRESS = Address(1, 0, 0, [])


def skipped(*indices: int, epoch: int = 0) -> list[Microbatch]:
    return [Microbatch(ADDRESS, None, [Skip(epoch, index, f"line {index}", "torn") for index in indices])]


def test_each_is_written_once_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = SkippedExamples(tmp_path, 0)
    with caplog.at_level(logging.WARNING, "vaak"):
        for microbatches in (skipped(3, 5), skipped(5), [], skipped(3, epoch=1)):
            journal.add(microbatches)
    lines = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["index"]) for line in lines] == [(0, 3), (0, 5), (1, 3)]
    assert lines[0]["description"] == "line 3"
    assert caplog.messages[0] == "skipped example 3 (line 3): torn"


def test_a_resume_knows_all_ranks_entries_and_no_half_line(tmp_path: Path):
    for rank, index in ((0, 3), (1, 7)):
        SkippedExamples(tmp_path, rank).add(skipped(index))
    with open(tmp_path / "skipped.rank1.jsonl", "a") as file:
        file.write('{"epoch": 0, "ind')
    assert SkippedExamples(tmp_path, 0).known == {(0, 3, 0), (0, 7, 0)}


def test_a_new_entry_after_a_half_line_is_read(tmp_path: Path):
    (tmp_path / "skipped.jsonl").write_text('{"epoch": 0, "index": 3}\n{"epoch": 0, "ind')
    SkippedExamples(tmp_path, 0).add(skipped(9))
    assert SkippedExamples(tmp_path, 0).known == {(0, 3, 0), (0, 9, 0)}


def test_a_new_entry_after_a_line_without_its_end_is_another_line(tmp_path: Path):
    (tmp_path / "skipped.jsonl").write_text('{"epoch": 0, "index": 3}')
    SkippedExamples(tmp_path, 0).add(skipped(9))
    assert SkippedExamples(tmp_path, 0).known == {(0, 3, 0), (0, 9, 0)}
    assert (tmp_path / "skipped.jsonl").read_text().count("\n") == 2


def test_an_entry_is_on_the_disk_before_it_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    on_disk: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda file: on_disk.append(Path(f"/proc/self/fd/{file}").read_bytes()))
    SkippedExamples(tmp_path, 0).add(skipped(3))
    assert on_disk == [(tmp_path / "skipped.jsonl").read_bytes()] != [b""]


def test_what_was_moved_away_is_forgotten(tmp_path: Path):
    (tmp_path / "skipped.jsonl").write_text('{"epoch": 0, "index": 3}\n[4]\n')
    skips = SkippedExamples(tmp_path, 0)
    assert (skips.journal.entries, skips.known) == ([(0, 3, 0)], {(0, 3, 0)})
    assert skips.journal.problem == f"{tmp_path / 'skipped.jsonl'}, line 2: Vaak didn't write this line ([4])"
    skips.forget()
    assert (skips.journal.entries, skips.known) == ([], set())
    assert skips.journal.problem is None


def test_lines_of_other_data_are_counted_and_long_ones_shortened(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lines = [{"epoch": 0, "index": 1, "data": "a"}, {"epoch": 0, "index": 2, "data": "b"}, {"epoch": 0, "index": 4}]
    (tmp_path / "skipped.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines) + "x" * 81 + "\n")
    for data, known in (("a", {1, 4}), (None, {1, 2, 4})):
        caplog.clear()
        skips = SkippedExamples(tmp_path, 0, data)
        assert {index for _, index, _ in skips.known} == known
        expected = [f"{tmp_path / 'skipped.jsonl'}: 1 lines are for other data: ignored"] if data else []
        assert caplog.messages == expected
        assert (
            skips.journal.problem == f"{tmp_path / 'skipped.jsonl'}, line 4: Vaak didn't write this line ({'x' * 80}…)"
        )
    caplog.clear()
    assert SkippedExamples(tmp_path, 1, "a").known == {(0, 1, 0), (0, 4, 0)}
    assert caplog.messages == [], "only rank 0 logs it"
    skips.journal.append([{"epoch": 1, "index": 2}])
    skips.journal.data = "a"
    skips.journal.append([{"epoch": 1, "index": 3}])
    written = (tmp_path / "skipped.jsonl").read_text().splitlines()[-2:]
    assert [json.loads(one) for one in written] == [
        {"epoch": 1, "index": 2},
        {"epoch": 1, "index": 3, "data": "a"},
    ]


def test_a_run_without_skips_writes_nothing(tmp_path: Path):
    SkippedExamples(tmp_path, 0).add([Microbatch(ADDRESS, None)])
    assert list(tmp_path.iterdir()) == []


def test_a_bad_example_fails_the_run_by_name(tmp_path: Path):
    with pytest.raises(DataError, match=r"example 5 .toy.txt line 6. can't be read"):
        toy_trainer(tmp_path, task=ToyTask(bad=(5,))).fit()


class Heard(Callback):
    def __init__(self) -> None:
        self.examples = 0.0

    def on_step_end(self, trainer: object, report: StepReport) -> None:
        self.examples += report.counts["example"]


def test_skipped_it_is_counted_and_left_out_of_the_counts(tmp_path: Path):
    heard = Heard()
    toy_trainer(tmp_path, heard, task=ToyTask(bad=(5, 9)), skip_bad=True).fit()
    assert heard.examples == 2 * 38
    assert len((tmp_path / "skipped.jsonl").read_text().splitlines()) == 2 * 2  # in each of two epochs


def test_mended_data_do_not_change_a_run_that_had_skipped_them(tmp_path: Path):
    """The file is there again when the run is resumed: its example is left out as before, so the draws are the same."""
    whole = toy_trainer(tmp_path / "whole", task=ToyTask(bad=(5, 9)), skip_bad=True)
    whole.fit()
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "skipped.jsonl").write_text((tmp_path / "whole" / "skipped.jsonl").read_text())
    again = toy_trainer(tmp_path / "again", task=ToyTask(), skip_bad=True)
    again.fit()
    assert same_bits(weights(again), weights(whole))
