"""Whether the console is a terminal, as rich would say, without asking it where the answer is negative."""

from __future__ import annotations

import io
import sys

import pytest

from vaak.core.terminal import FORCING, is_terminal


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
