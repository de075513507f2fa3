"""Ctrl-C and SIGTERM ask to stop while the run lasts, and mean what they meant before afterwards."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from toy import toy_trainer
from vaak.engine.callback import Callback, StepReport
from vaak.engine.trainer import stop_on_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_is_restored(number: signal.Signals):
    before, asked = signal.getsignal(number), list[str]()
    with stop_on_signal(asked.append):
        os.kill(os.getpid(), number)
    assert asked == [number.name]
    assert signal.getsignal(number) is before


def test_several_sigterms_and_one_ctrl_c_are_no_hurry():
    """torchrun answers a Ctrl-C by its own SIGTERM."""
    asked = list[str]()
    with stop_on_signal(asked.append):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert asked == ["SIGINT", "SIGTERM", "SIGTERM"]


def test_a_second_ctrl_c_leaves_at_once():
    process = os.fork()
    if process == 0:
        with stop_on_signal(lambda _: None):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130


def test_another_thread_takes_no_signals():
    entered = list[bool]()

    def run() -> None:
        with stop_on_signal(lambda _: None):
            entered.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert entered == [True]


class Killing(Callback):
    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_saves_and_ends_with_the_signals_name(tmp_path: Path):
    trainer = toy_trainer(tmp_path, Killing())
    assert trainer.fit() == "SIGTERM"
    assert trainer.position.step == 2
    assert (tmp_path / "checkpoints" / "step-00000002" / "MANIFEST.json").exists()
