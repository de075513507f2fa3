"""Progress: after a while only, a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from vaak.core import progress as module
from vaak.core.progress import ProgressTask, progress, progress_allowed, track

WORK = """
import sys, time
import vaak.core.progress as progress
progress.QUIET_SECONDS, progress.LINE_SECONDS = {patience}, 0.2
with progress.progress("outer"):
    for item in progress.track(range(20), "reading train", 20):
        time.sleep(0.05)
        if item == 15:
            print("between")
"""


def on_a_terminal(code: str, columns: int, tmp_path: Path) -> tuple[str, str]:
    """Return a script's standard error, which is a terminal, and its standard output, a file."""
    leader, follower = pty.openpty()
    with open(tmp_path / "out", "wb") as out:
        variables = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=follower, env=variables)
    os.close(follower)
    said = b""
    try:
        while piece := os.read(leader, 65536):
            said += piece
    except OSError:  # the end of a terminal
        pass
    assert process.wait() == 0
    os.close(leader)
    return said.decode(), (tmp_path / "out").read_text()


@pytest.mark.parametrize("columns", [80, 50])
def test_bars_of_work_in_work_appear_on_a_terminal(columns: int, tmp_path: Path):
    said, out = on_a_terminal(WORK.format(patience=0.1), columns, tmp_path)
    assert "outer" in said
    assert "reading train" in said
    assert " left" in said
    assert ("━" in said) == (columns == 80)
    assert said.rindex("\x1b[2K") > said.rindex("elapsed"), "at the end the bars are erased"
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h"), "the cursor is there again"
    assert out == "between\n", "what goes to a file stays there"


def test_short_work_shows_nothing_on_a_terminal(tmp_path: Path):
    assert on_a_terminal(WORK.format(patience=30), 80, tmp_path)[0] == ""


def test_elsewhere_there_are_lines_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(module, "LINE_SECONDS", 0.05)
    with progress("reading", 4) as advance:
        advance(1)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 6
    assert all(line.startswith("reading  25 %  0:00 elapsed  0:0") for line in lines)


@pytest.mark.parametrize(("rank", "allowed"), [("1", True), ("0", False)])
def test_other_processes_and_quiet_runs_say_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, allowed: bool
):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(module, "LINE_SECONDS", 0.01)
    with progress_allowed(allowed), progress("reading"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_is_followed_is_unchanged_and_may_be_left_early():
    assert list(track(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    some = track(iter("abc"), "letters")
    assert next(some) == "a"
    some.close()


def test_time_left_is_by_what_was_done_now():
    work = ProgressTask("reading", 100, already=50)
    work.begun -= 10
    work.advance(25)
    assert work.figures() == ["75 %", "0:10 elapsed", "0:10 left"]
    work.advance(50)
    assert work.figures()[0] == "100 %"
    assert work.figures()[-1] == "0:00 left"


def test_a_narrow_bar_is_one_line(monkeypatch: pytest.MonkeyPatch):
    for width in (20, 50, 80):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(module, "console", lambda console=console: console)
        work = ProgressTask("sentences of train", 100)
        work.advance(10)
        text = "".join(segment.text for segment in console.render(work))
        assert text.count("\n") == 1, (width, text)
