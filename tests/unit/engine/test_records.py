"""Records are whole lines of JSON, handed on as they are written."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vaak.engine.metrics_file import Record, Records, read_records


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
