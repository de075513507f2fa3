"""Ctrl-C is answered by a thread, which ends with what it was begun for."""

from __future__ import annotations

import os
import signal
import threading

from vaak.core.interrupts import acknowledged


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
