"""Records are whole lines of JSON, passed on when written."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.engine.metrics_file import (
    BYTES_A_TOTAL,
    METRICS_FILE,
    TOTALS_FILE,
    Record,
    Records,
    iterate_records,
    read_records,
    read_totals,
)


def of_a_step(record: dict) -> dict:
    return record | {"kind": "step", "step": 1}


values = st.one_of(st.integers(), st.booleans(), st.text(), st.floats(allow_nan=False, allow_infinity=False))


@given(written=st.lists(st.dictionaries(st.text(), values, max_size=4).map(of_a_step), max_size=5))
def test_what_is_written_is_read_and_handed_on(written: list[dict], tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "metrics.jsonl"
    records, heard = Records(path), list[Record]()
    records.subscribe(heard.append)
    path.touch()
    for record in written:
        records.write(record)
    assert read_records(path) == written == heard


def test_what_json_cannot_hold_is_text_and_the_file_stays_json(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    Records(path).write({"loss": float("nan"), "worst": float("-inf"), "name": "हिन्दी"})
    assert json.loads(path.read_text(), parse_constant=lambda name: 1 / 0) == {
        "loss": "nan",
        "worst": "-inf",
        "name": "हिन्दी",
    }


def test_a_half_line_is_left_out(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    Records(path).write({"kind": "step", "step": 1})
    with open(path, "a") as file:
        file.write('{"step": 2, "lo')
    assert read_records(path) == [{"kind": "step", "step": 1}]


def test_other_ranks_write_nothing_and_tell_no_one():
    records, heard = Records(None), list[Record]()
    records.subscribe(heard.append)
    records.write({"step": 1})
    assert heard == []


def write_steps(run: Path, steps: Iterable[int], seconds: float = 0.25) -> None:
    """Log steps as a session of a run does, 200 bytes each."""
    records = Records(run / METRICS_FILE)
    for step in steps:
        if step == 1:
            records.write({"kind": "model", "step": 1, "parameters": 1234})
        records.write({"kind": "step", "step": step, "name": "x" * 100, "clock": {"seconds": seconds}})


def sum_all(run: Path) -> tuple[int, float, int | None]:
    """The totals of a log that is read whole."""
    totals = (run / TOTALS_FILE).rename(run / "away") if (run / TOTALS_FILE).exists() else None
    found = read_totals(run)
    if totals is not None:
        totals.rename(run / TOTALS_FILE)
    return found.step, found.seconds, found.parameters


def read(run: Path) -> tuple[int, float, int | None]:
    found = read_totals(run)
    return found.step, found.seconds, found.parameters


def test_totals_of_a_long_log_are_kept_so_that_only_its_end_is_read(tmp_path: Path):
    write_steps(tmp_path, range(1, 3001))
    assert read(tmp_path) == sum_all(tmp_path) == (3000, 750.0, 1234)
    log_file = tmp_path / METRICS_FILE
    content = log_file.read_bytes()
    end = len(content) - BYTES_A_TOTAL - 2048
    # What is damaged before the last entry is never seen.
    log_file.write_bytes(b"#" * end + content[end:])
    assert read(tmp_path) == (3000, 750.0, 1234)
    assert sum_all(tmp_path)[2] is None


def test_a_short_log_has_no_file_of_totals(tmp_path: Path):
    write_steps(tmp_path, range(1, 100))
    assert not (tmp_path / TOTALS_FILE).exists()
    assert read(tmp_path) == (99, 24.75, 1234)


@pytest.mark.parametrize("length", [0.0, 0.1, 0.5, 0.999])
def test_totals_after_a_resume_that_cut_the_log(tmp_path: Path, length: float):
    write_steps(tmp_path, range(1, 3001))
    log_file = tmp_path / METRICS_FILE
    content = log_file.read_bytes()
    log_file.write_bytes(content[: content.rfind(b"\n", 0, int(length * len(content))) + 1])
    last = read(tmp_path)[0]
    assert read(tmp_path) == sum_all(tmp_path)
    # The new steps take other times.
    write_steps(tmp_path, range(last + 1, 4001), seconds=0.5)
    assert read(tmp_path) == sum_all(tmp_path) == (4000, 0.25 * last + 0.5 * (4000 - last), 1234)


DAMAGES: dict[str, Callable[[str], str]] = {
    "not JSON": lambda content: content[7:],
    "a torn line": lambda content: content[:-20],
    "another log's": lambda content: content.replace('"before": "', '"before": "0'),
    "words": lambda content: content.replace('"bytes": ', '"bytes": "many", "was": '),
    "beyond the log": lambda content: content.replace('"bytes": ', '"bytes": 9'),
    "empty": lambda content: "",
}


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_damaged_totals_are_summed_up_again(tmp_path: Path, harm: Callable[[str], str]):
    write_steps(tmp_path, range(1, 1001))
    path = tmp_path / TOTALS_FILE
    path.write_text(harm(path.read_text()))
    assert read(tmp_path) == (1000, 250.0, 1234)
    write_steps(tmp_path, range(1001, 2001))
    assert read(tmp_path) == sum_all(tmp_path) == (2000, 500.0, 1234)


def test_totals_that_cannot_be_written_end_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / TOTALS_FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        write_steps(tmp_path, range(1, 1001))
    assert read(tmp_path) == (1000, 250.0, 1234)
    assert "totals.jsonl can't be written" in caplog.text


def test_lines_that_are_no_records_are_reported_also_by_the_totals(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_steps(tmp_path, range(1, 1001))
    with open(tmp_path / METRICS_FILE, "a") as file:
        file.write('[1]\n{"step": 3}\n')
    write_steps(tmp_path, range(1001, 2001))
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path) == (2000, 500.0, 1234)
    assert "2 lines aren't records of a run" in caplog.text


def measure_peak(act: Callable[[], object]) -> int:
    """The bytes that Python holds at most while it acts."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_reading_a_log_does_not_grow_with_it(tmp_path: Path):
    peaks = []
    for factor in (1, 4, 16):
        run = tmp_path / str(factor)
        run.mkdir()
        lines = [f'{{"kind": "step", "step": {step}, "loss": 0.5}}\n' for step in range(500 * factor)]
        (run / METRICS_FILE).write_text("".join(lines))

        def read_through(run: Path = run) -> None:
            read_totals(run)
            assert sum(1 for _ in iterate_records(run / METRICS_FILE)) == 500 * int(run.name)

        peaks.append(measure_peak(read_through))
    assert max(peaks) < 1.2 * min(peaks) + 10_000
