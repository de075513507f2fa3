"""Read and skipped items are reported once, in a line for each reason, and noted for the JSON of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vaak.core.left_out import SplitContents, files_to_json, join_contents, noting_files, report_files


@pytest.fixture(autouse=True)
def _is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaak.core.left_out.log.propagate", True)


def test_a_line_for_each_reason_and_one_for_files_of_other_kinds(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    others = [tmp_path / name for name in ("a.docx", "b.TXT", "c.txt", "README")]
    left_out = {f"{number}.wav": "hidden" for number in range(14)} | {"x.wav": "not a file"}
    for _ in range(2):
        report_files(tmp_path, 1, left_out, others)
    shown = ", ".join(f"{number}.wav" for number in range(12))
    assert caplog.messages == [
        f"{tmp_path}: 1 file is read; 14 files left out (hidden): {shown} and 2 more",
        f"{tmp_path}: 1 file is read; 1 file left out (not a file): x.wav",
        f"{tmp_path}: 1 file is read; other files in this folder: 2 .txt, 1 .docx, 1 without an ending",
    ]


def test_what_is_said_only_once_is_noted_each_time(tmp_path: Path):
    for _ in range(2):
        with noting_files() as noted:
            report_files(tmp_path, 2, {"b.wav": "hidden"}, [tmp_path / "n.txt"])
            report_files(tmp_path / "all", 3)
        [some, whole] = json.loads(json.dumps(files_to_json(noted)))
        assert some == {
            "where": str(tmp_path),
            "read": 2,
            "left_out": {"hidden": ["b.wav"]},
            "other_files": {".txt": 1},
        }
        assert (whole["read"], whole["left_out"]) == (3, {})
    report_files(tmp_path, 9)
    assert noted[str(tmp_path)].num_read == 2, "after the command"


def test_parts_of_a_split_add_up():
    parts = [
        SplitContents("utterances", 5, {"too long": 1, "silent": 2}, {"silent": ["a", "b"]}),
        SplitContents("recordings", 0, {"silent": 2}, {"silent": ["c", "d"]}),
    ]
    together = join_contents(parts)
    assert together.describe("test") == "test: 5 utterances; left out: 1 too long; 4 silent (a, b, c and 1 more)"
    assert SplitContents.from_json(json.loads(json.dumps(together.to_json()))) == together
