"""How a command ends: Ctrl-C is answered at once, and leaves within two seconds; ranks end with their launcher.

Python runs signal handlers between its own instructions only, so seconds of work in a library would delay the answer
and the end (training a tokenizer, clustering). The system writes to a pipe when the signal comes, and a thread that
reads it answers, and ends the process where the main thread hasn't. What is half-written then is as after a kill:
removed or recreated by the next start. Only what has its own orderly way to stop takes its time (``in_order``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from vaak.core.console import restore_cursor
from vaak.core.interrupts import STOPPING, end_with_parent

LAUNCHED = "VAAK_LAUNCHED"
"""Set by ``vaak train --processes``, which says for all processes which one was lost, and why."""
LAUNCHERS = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION", LAUNCHED)
"""Variables of launchers that wait for what they start."""
ASKING = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop a run whoever else receives them."""
ANSWER = "interrupted: stopping; press Ctrl-C again to leave at once"
IMPORTING = ("_frozen_importlib", "importlib._bootstrap")
"""The names of the module that imports: the second one from the first ``import importlib`` on."""
_answering, _leaving = threading.RLock(), threading.Lock()
_answers: list[str] = []
"""The line, once the first Ctrl-C has been answered."""
_left: list[Callable[[], str]] = []
"""Messages for leaving at once, the innermost last."""
_in_order: list[object] = []
"""One for each ``in_order`` that the process is in."""
_ending = threading.Event()
"""Set by a Ctrl-C that isn't left to what stops in order."""
GRACE_SECONDS = 1.0
"""How long the main thread has to end the process."""


@contextlib.contextmanager
def acknowledged(says: bool = True) -> Iterator[None]:
    """Within this context, Ctrl-C is answered on standard error, and ends the process with 130 within two seconds.

    What runs ``in_order`` is ended by a second one only. Where it ``says`` nothing, another process answers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    own = os.getpid()
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _leave_signals_of_children_alone()
    _ending.clear()
    # Those of an earlier command in this process are forgotten.
    _answers[:] = [] if says else [""]
    thread = threading.Thread(target=_answer, args=(reading, own), daemon=True, name="interrupts")
    thread.start()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # Otherwise it is ignored, as under nohup.
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if os.getpid() == own:
            signal.set_wakeup_fd(before)
            # Closing alone isn't enough: forked processes have the socket, too.
            writing.shutdown(socket.SHUT_RDWR)
            writing.close()
            thread.join()
            reading.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Answer before anything is printed about the end, and raise KeyboardInterrupt.

    During an import, leave: libraries catch the exception there, and run on half imported.
    """
    _ending.set()
    _answer_once()
    while frame is not None:
        if frame.f_globals.get("__name__") in IMPORTING:
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


@functools.cache
def _leave_signals_of_children_alone() -> None:
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Within this context, a first Ctrl-C stops what runs in its own time, since a handler asks it to."""
    mark = object()
    _in_order.append(mark)
    try:
        yield
    finally:
        _in_order.remove(mark)


def signals_to_hear() -> list[signal.Signals]:
    """Return those of ``STOPPING`` by which a run stops here.

    One that was ignored at the start stays so: nohup, and the background of a shell's script, ask for that. One that
    other code handles, or that isn't Python's to know, is that code's.
    """
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    return [
        number
        for number, handler in handlers.items()
        if handler is signal.SIG_DFL or (number in ASKING and handler not in (signal.SIG_IGN, None))
    ]


@contextlib.contextmanager
def passed_on(send: Callable[[int], None]) -> Iterator[None]:
    """Within this context, ``signals_to_hear`` are given to ``send``: other processes answer them and end."""
    wakeup = signal.set_wakeup_fd(-1)
    before = {number: signal.signal(number, lambda received, frame: send(received)) for number in signals_to_hear()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


@contextlib.contextmanager
def on_forced_exit(what_is_left: Callable[[], str]) -> Iterator[None]:
    """Within this context, a second Ctrl-C prints what this returns before it ends the process."""
    _left.append(what_is_left)
    try:
        yield
    finally:
        _left.remove(what_is_left)


def leave_at_once() -> None:
    """End this process now, saying what it leaves; once, whichever thread comes first."""
    _leaving.acquire()
    said = "left at once"
    with contextlib.suppress(Exception):
        said += f": {_left[-1]()}" if _left else "; what was half-written is removed or recreated by the next start"
    _say(said)
    restore_cursor()
    os._exit(130)


def _answer(reading: socket.socket, own: int) -> None:
    interrupts = 0
    while True:
        try:
            content = reading.recv(1)
        # only set after the first Ctrl-C: the program didn't end within its grace period
        except TimeoutError:
            leave_at_once()
        if not content:
            return
        if content[0] != signal.SIGINT:
            continue
        interrupts += 1
        if interrupts == 1:
            # a run that saves itself in order takes its time; everything else gets a deadline
            if not _in_order:
                _ending.set()
                reading.settimeout(GRACE_SECONDS)
            _answer_once()
        else:
            leave_at_once()


def _answer_once() -> None:
    """Say that the first Ctrl-C was heard, whichever thread comes first; the other waits for it."""
    with _answering:
        if not _answers:
            _answers.append(ANSWER)
            _say(ANSWER)


def is_ending() -> bool:
    """Return whether Ctrl-C is ending this process, so that later failures are attributed to it."""
    return _ending.is_set()


def end_soon() -> None:
    """Leave within the time that there is after Ctrl-C, also where threads and libraries take longer to close."""
    ending = threading.Timer(GRACE_SECONDS, os._exit, (130,))
    ending.daemon = True
    ending.start()


def _say(line: str) -> None:
    """Print a line, in one process of several."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):
            os.write(2, f"\n{line}\n".encode())


def end_with_launcher() -> None:
    """End with torchrun, accelerate launch or ``vaak train --processes`` where it started this one, even when killed.

    Otherwise the ranks of a killed launcher would keep training unseen and keep the run's lock. Ranks started by hand
    from a shell have no launcher that waits for them.
    """
    if sys.platform == "linux" and any(name in os.environ for name in LAUNCHERS):
        end_with_parent()
