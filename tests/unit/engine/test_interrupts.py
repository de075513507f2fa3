"""Ctrl-C is answered by a thread, which ends with what it was begun for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from vaak.engine import interrupts
from vaak.engine.interrupts import acknowledged


def test_who_comes_second_to_answer_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch):
    """It may be the main thread, which ends the process next: the line was lost then."""
    answering, answered, second_is_done = threading.Event(), threading.Event(), threading.Event()

    def say(line: str) -> None:
        answering.set()
        assert answered.wait(20), line

    def come_second() -> None:
        interrupts._answer_once()
        second_is_done.set()

    monkeypatch.setattr(interrupts, "_say", say)
    monkeypatch.setattr(interrupts, "_answers", [])
    first = threading.Thread(target=interrupts._answer_once)
    first.start()
    assert answering.wait(20)
    second = threading.Thread(target=come_second)
    second.start()
    assert not second_is_done.wait(0.2)
    answered.set()
    first.join(20)
    second.join(20)
    assert second_is_done.is_set()


def test_the_answer_comes_before_what_the_interrupted_code_says(monkeypatch: pytest.MonkeyPatch):
    """The thread may get its turn late, as on a busy machine: the answer stood below the table of results then."""
    said: list[str] = []
    its_turn = threading.Event()
    answer = interrupts._answer

    def answer_late(*arguments: Any) -> None:
        assert its_turn.wait(20)
        answer(*arguments)

    monkeypatch.setattr(interrupts, "_say", said.append)
    monkeypatch.setattr(interrupts, "_answer", answer_late)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.default_int_handler)
    with acknowledged():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        said.append("the end")
        its_turn.set()
    assert said == [interrupts.ANSWER, "the end"]


def test_it_ends_although_a_process_that_was_forked_within_lives_on():
    """Such a process, as one that loads data, has the sockets of this one."""
    ended = threading.Event()

    def give_up() -> None:
        if not ended.wait(20):
            os.kill(child, signal.SIGKILL)

    with acknowledged():
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        threading.Thread(target=give_up, daemon=True).start()
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it had to be killed first"
    ended.set()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


TWO_LEAVE = """
import threading, time
from vaak.engine.interrupts import leave_at_once, on_forced_exit

def what_is_left():
    print("asked", flush=True)
    time.sleep(0.3)
    return "a checkpoint"

with on_forced_exit(what_is_left):
    threading.Thread(target=leave_at_once).start()
    leave_at_once()
"""


def test_two_threads_that_leave_at_once_say_it_once():
    """A second Ctrl-C meets the thread that answers and the main thread."""
    left = subprocess.run([sys.executable, "-c", TWO_LEAVE], capture_output=True, text=True)
    assert left.returncode == 130
    assert left.stdout == "asked\n"
    assert left.stderr.strip() == "left at once: a checkpoint"
