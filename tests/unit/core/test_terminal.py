"""Whether the console is a terminal, as rich would say, without asking it where the answer is negative."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vaak.core import terminal
from vaak.core.terminal import FORCING, ConsoleHandler, broken, is_terminal, print_above


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
    """Lines were cut off at the edge: of a warning, or of the command that goes on, only the beginning was seen."""
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
