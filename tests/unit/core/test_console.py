"""Whether the console is a terminal, as rich would say, without asking it where the answer is negative."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vaak.cli.main import exit_on_error
from vaak.cli.streams import shown_safely
from vaak.core import console as terminal
from vaak.core import progress as progress_of_work
from vaak.core.console import FORCING, broken, escape, is_terminal, print_above
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.runs.folder.logs import ConsoleHandler, logging_to


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FORCING:
        monkeypatch.delenv(name, raising=False)


def test_a_file_is_none_and_a_terminal_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not is_terminal()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert is_terminal()


@pytest.mark.parametrize(("name", "value", "expected"), [("FORCE_COLOR", "1", True), ("TTY_COMPATIBLE", "0", False)])
def test_a_variable_that_rich_reads_decides(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO() if expected else Terminal())
    monkeypatch.setenv(name, value)
    assert is_terminal() is expected


def test_a_process_without_standard_error_has_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not is_terminal()


@pytest.mark.parametrize("terminal_there", [True, False])
def test_messages_are_printed_as_they_are_and_warnings_say_so(
    terminal_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Terminal() if terminal_there else io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(terminal, "console", lambda: Console(file=written, width=80, color_system=None))
    for level, text in ((logging.INFO, "step [1/2]"), (logging.WARNING, "no space on %s"), (logging.ERROR, "broken")):
        ConsoleHandler().emit(logging.LogRecord("vaak", level, "", 0, text, ("/disk",) if "%s" in text else (), None))
    assert written.getvalue().splitlines() == ["step [1/2]", "warning: no space on /disk", "broken"]


def test_a_message_with_numbers_and_paths_has_no_colours_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied from the console is what was printed: rich colours numbers and paths by itself."""
    written = Terminal()
    coloured = Console(file=written, width=80, force_terminal=True, color_system="truecolor", no_color=False)
    monkeypatch.setattr(terminal, "console", lambda: coloured)
    print_above("step 20/60  loss 5.6866  see /a/long/path [bold]")
    assert written.getvalue() == "step 20/60  loss 5.6866  see /a/long/path [bold]\n"


LONG = (
    "warning: tiny.yml:5: data.corpus.train: is read by the type text only\nresume with: vaak train "
    "/a/path/that/is/longer/than/a/narrow/terminal/run/config.yml --resume auto"
)


@pytest.mark.parametrize("columns", [20, 60, 100])
def test_nothing_of_a_line_is_lost_on_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines used to be cut off at the edge, so only the beginning of a warning or of a command was seen."""
    written = io.StringIO()
    narrow = Console(file=written, width=columns, force_terminal=True, color_system=None)
    monkeypatch.setattr(terminal, "console", lambda: narrow)
    print_above(LONG)
    lines = written.getvalue().splitlines()
    assert " ".join(lines).split() == LONG.split()
    assert all(len(line) <= columns or len(line.split()) == 1 for line in lines)


@given(st.text(st.sampled_from("ab-/. \n"), max_size=60), st.integers(1, 30))
def test_breaking_lines_changes_no_word(text: str, width: int) -> None:
    lines = broken(text, width).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines if line.strip())


HOSTILE = "\x1b]52;c;eA==\x07\x1b]0;title\x1b\\\x1b[2J\x9b31m\rover\x7f\u202egpj.\u2066x"
KEPT = "क्\u200dष \u200c 👩\u200d🚀\ta\nb"


def on_terminal(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of commands to a terminal, both streams together."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    attributes = termios.tcgetattr(follower)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(follower, termios.TCSANOW, attributes)
    with open(follower, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        terminal.console.cache_clear()
        run()
        stream.flush()
        monkeypatch.undo()
        terminal.console.cache_clear()
        os.write(follower, b"\x04END")
    said = b""
    while not said.endswith(b"\x04END"):
        said += os.read(leader, 65536)
    os.close(leader)
    return said[:-4].decode()


@pytest.mark.parametrize("how", ["print", "stderr", "log", "log above a bar", "print above a bar", "error", "bar"])
def test_what_others_wrote_controls_no_terminal(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_of_work, "QUIET_SECONDS", 0.0)
    text = f"{HOSTILE} [bold][link=http://x]here[/link] {KEPT}"
    printing = {"__name__": "vaak.cli.tasks.generate", "text": text, "sys": sys}

    def run() -> None:
        if "bar" in how:
            with progress(text if how == "bar" else "reading", 10) as advance:
                advance(3)
                time.sleep(0.3)
                say()
        else:
            say()

    def say() -> None:
        if how.startswith("print"):
            exec("print(text, flush=True)", printing)
        elif how == "stderr":
            exec("print(text, file=sys.stderr)", printing)
        elif how.startswith("log"):
            ConsoleHandler().emit(logging.LogRecord("vaak", logging.WARNING, "", 0, "%s", (text,), None))
        elif how == "error":
            raise UserError(text)

    with contextlib.suppress(SystemExit):
        said = on_terminal(lambda: with_exit_code(run), monkeypatch)
    drawn = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r") if "bar" in how else re.compile("(?!)")
    assert not re.search(r"\x1b\]|\x07|\x1b\[2J|\x9b|\x7f|[\u202a-\u202e\u2066-\u2069]|\x1b\[1m", said)
    assert not terminal.CONTROL.search(drawn.sub("", said))
    if how != "bar":
        assert "\\u001b]52;c;eA==\\u0007\\u001b]0;title" in said
        assert "[bold][link=http://x]here[/link]" in drawn.sub("", said)
        assert "क्\u200dष \u200c 👩\u200d🚀" in said


def with_exit_code(run: Callable[[], object]) -> None:
    with contextlib.suppress(SystemExit):
        exit_on_error(run)


def test_what_is_piped_keeps_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with shown_safely():
        for stream in (sys.stdout, sys.stderr):
            exec("print(text, file=stream)", {"__name__": "vaak.cli.x", "text": HOSTILE, "stream": stream})
    assert out.getvalue() == f"{HOSTILE}\n"
    assert err.getvalue() == f"{escape(HOSTILE)}\n"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_other_packages_may_draw_bars_and_colours_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    with shown_safely():
        exec("sys.stderr.write('\\r\\x1b[32m 50 %\\x1b[0m\\x1b[A\\x1b]0;t\\x07')", {"__name__": "tqdm.std", "sys": sys})
    assert err.getvalue() == "\r\x1b[32m 50 %\x1b[0m\x1b[A\\u001b]0;t\\u0007"


@given(st.text())
def test_nothing_that_controls_is_left_and_nothing_else_changes(text: str) -> None:
    shown = escape(text)
    assert not terminal.CONTROL.search(shown)
    assert escape(shown) == shown
    assert not (set(shown) - set(text) - set("\\u0123456789abcdef"))


def test_a_log_is_looked_at_on_a_terminal_too(tmp_path: Path) -> None:
    with logging_to(tmp_path, 0):
        logging.getLogger("vaak").warning("skipped %s", HOSTILE + KEPT)
    logged = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert not terminal.CONTROL.search(logged)
    assert escape(HOSTILE) + KEPT in logged
