"""SIGTERM and Ctrl-C end a run in order, with nothing lost; a second Ctrl-C ends it at once."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import (
    TOTAL_STEPS,
    Command,
    Commands,
    Ended,
    assert_same_run,
    checkpoints_of,
    stat_records,
    steps_of,
    wait_until,
)

SIGNALLED = """
import os
import signal
import threading
import time

from vaak.engine.callback import Callback


class Signalled(Callback):
    '''Sends this process a SIGTERM at the end of a step, or once the evaluation after it has begun.'''

    def on_step_end(self, trainer, report):
        if str(report.step) == os.environ.get("SIGNAL_AT"):
            threading.Thread(target=self.send, args=(trainer,)).start()
            if "SIGNAL_DURING" not in os.environ:
                time.sleep(0.1)

    def send(self, trainer):
        while "SIGNAL_DURING" in os.environ and trainer.model.training:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)


class Slow(Callback):
    '''Makes steps a minute long.'''

    def on_step_end(self, trainer, report):
        if os.environ.get("SLOW"):
            time.sleep(60.0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_run_says_how_to_go_on_and_goes_on_to_the_same_bits(
    start: Callable[..., Command], commands: Commands, reference: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    command = start(run, "training.performance.num_workers=2")
    assert wait_until(lambda: (run / "metrics.jsonl").exists() and len(stat_records(run)) > 6, command)
    command.send(number, to_all=True)
    ended = command.wait()
    assert ended.status == (130 if number == signal.SIGINT else 0), ended.errors
    last_step = steps_of(run)[-1]
    assert checkpoints_of(run)[-1] == f"step-{last_step:08d}", "the step it was stopped at is saved"
    said = ended.output.splitlines()
    assert said[-2].startswith(f"stopped at step {last_step} of {TOTAL_STEPS} ({number.name}")
    program, *arguments = shlex.split(said[-1].removeprefix("resume with: "))
    assert program == "vaak"
    ended = commands.start(arguments, tmp_path).wait()
    assert ended.status == 0, ended.errors
    assert "same draws, same bits" in ended.errors
    assert_same_finish(run, reference, extra_step=last_step)


def assert_same_finish(run: Path, reference: Path, extra_step: int) -> None:
    """The stop saved one checkpoint more than the uninterrupted run; apart from it, both left the same."""
    extra = run / "checkpoints" / f"step-{extra_step:08d}"
    if extra.name not in checkpoints_of(reference) and extra.exists():
        extra.rename(run / extra.name)
    assert_same_run(run, reference)


@pytest.fixture(scope="module")
def job(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny job with slower evaluations, and callbacks that are idle where the environment doesn't ask for them."""
    folder = tmp_path_factory.mktemp("signalled")
    (folder / "signalled.py").write_text(SIGNALLED)
    path = folder / "job.yml"
    path.write_text(
        f"extends: {tiny}\n"
        "training:\n"
        "  validation: {interval: 8, batch_size: 1}\n"
        '  callbacks: [{type: "./signalled.py:Signalled"}, {type: "./signalled.py:Slow"}]\n'
    )
    return path


@pytest.fixture(scope="module")
def whole(commands: Commands, job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's run without a signal."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert commands.start(["train", job, f"run_dir={run}"], run.parent).wait().status == 0
    return run


@pytest.mark.parametrize(
    ("step", "when"),
    [
        pytest.param(8, {}, marks=pytest.mark.slow),
        pytest.param(8, {"SIGNAL_DURING": "1"}, marks=pytest.mark.slow),
        pytest.param(TOTAL_STEPS, {}, marks=pytest.mark.slow),
    ],
    ids=["before", "during", "at the last step"],
)
def test_an_evaluation_that_a_stop_prevents_is_done_by_the_resumed_run(
    commands: Commands, job: Path, whole: Path, tmp_path: Path, step: int, when: dict[str, str]
) -> None:
    run = tmp_path / "run"
    arguments: list[str | Path] = ["train", job, f"run_dir={run}"]
    ended = commands.start(arguments, tmp_path, {"SIGNAL_AT": str(step), **when}).wait()
    assert ended.status == 0, ended.errors
    assert f"stopped at step {step} of {TOTAL_STEPS} (SIGTERM)" in ended.output
    kept = [(record["kind"], record["step"]) for record in stat_records(run) if record["kind"] != "memory"]
    assert kept[-1] == ("step", step)
    ended = commands.start(arguments, tmp_path).wait()
    assert ended.status == 0, ended.errors
    assert f"finished step {TOTAL_STEPS}" in ended.output
    assert_same_finish(run, whole, extra_step=step)


def test_a_second_interrupt_ends_at_once(commands: Commands, job: Path, tmp_path: Path) -> None:
    command = commands.start(["train", job, f"run_dir={tmp_path / 'run'}"], tmp_path, {"SLOW": "1"})
    assert wait_until((tmp_path / "run" / "metrics.jsonl").exists, command)
    begun = time.monotonic()
    command.send(signal.SIGINT)
    time.sleep(0.2)
    assert command.is_running, "the first one waits for the step to end"
    command.send(signal.SIGINT)
    ended = command.wait()
    assert ended.status == 130
    assert "interrupted: stopping; press Ctrl-C again to leave at once" in ended.errors
    assert f"left at once: {tmp_path / 'run'} has no checkpoint yet; start it again" in ended.errors
    assert time.monotonic() - begun < 30, "the second one waits for nothing"
    assert checkpoints_of(tmp_path / "run") == []


@pytest.mark.slow
def test_a_run_that_stopped_early_has_ended_for_good(train: Callable[..., Ended], tmp_path: Path) -> None:
    run = tmp_path / "run"
    impatient = "training.early_stopping={patience: 2, min_delta: 1.0}"
    ended = train(run, impatient)
    assert ended.status == 0, ended.errors
    records = (run / "metrics.jsonl").read_text()
    assert steps_of(run)[-1] == 12
    again = train(run, impatient)
    assert f"ended at step 12 of {TOTAL_STEPS} (early stopping: val_loss has not improved" in again.output
    assert "resume with" not in again.output
    assert "vaak eval" in again.output
    assert (run / "metrics.jsonl").read_text() == records
    longer = train(run, "training.early_stopping=null")
    assert f"finished step {TOTAL_STEPS}" in longer.output, longer.errors
