"""Lines that are added to a file are there whole or not at all, whatever stood there before."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from vaak.core.storage import json_lines
from vaak.core.storage.json_lines import append_json_lines, read_json_lines


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (b"", 0),
        (b'{"step": 1}\n', 12),
        (b'{"step": 1}', 11),
        (b'{"step": 1}\n{"step": 2, "lo', 12),
        (b'{"step": 1}\n{"step"', 12),
        (b'{"st', 0),
        (b'{"step": 1}\n' + bytes(5000), 12),
        (b'{"step": 1}\n{"text": "' + b"x" * 300_000, 12),
        ('{"step": 1}\n{"text": "वा'.encode()[:-1], 12),
    ],
)
def test_a_new_line_begins_on_a_new_line_and_a_torn_one_gives_way(tmp_path: Path, before: bytes, kept: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before)
    append_json_lines(path, [{"step": 3}, {"step": 4}])
    content = path.read_bytes()
    assert content.startswith(before[:kept])
    found = read_json_lines(path)
    assert not found.malformed
    assert [one["step"] for _, one in found.objects] == [*([1] if kept else []), 3, 4]
    assert content.endswith(b'{"step": 3}\n{"step": 4}\n')


def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_none_of_it(tmp_path: Path) -> None:
    """The system's own limit of a file's size stands for the disk: it takes the part that fits, as a full one does."""
    path = tmp_path / "metrics.jsonl"
    append_json_lines(path, [{"step": 1}])
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
        try:
            append_json_lines(path, [{"step": 2, "text": "x" * 60}])
        except OSError as error:
            os._exit(0 if error.filename == str(path) else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == b'{"step": 1}\n'


def test_long_lines_are_found_from_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "TAIL_BYTES", 7)
    path = tmp_path / "metrics.jsonl"
    for torn in range(1, 40):
        path.write_bytes(b'{"step": 1}\n' + b'{"text": "' + b"y" * torn)
        append_json_lines(path, [{"step": 2}])
        assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
