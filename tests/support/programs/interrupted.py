"""Checkpoints written under attack: a program that forks a writer for each moment, and says what it left.

    python interrupted.py FOLDER SCENARIO:VERDICT:EVERY ...

VERDICT is what happens to the writer at a system call to do with files: ``kill``, or ``full`` (that write, and all
after it, fail for want of space). Every ``EVERY``-th call is tried, and the last two. A line of JSON each; the first of
a scenario is without an attack.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import all_rooms  # noqa: F401 # before those that it finds
import ptrace
from toy import toy_trainer
from vaak.cli.main import exit_on_error
from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.core.storage.files import remove_leftovers
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.files import CheckpointWriter
from vaak.engine.snapshot import Snapshot

OLD, NEW = 2, 3


def snapshot(step: int, value: float) -> Snapshot:
    tensors = {"weight": torch.full((1000,), value)}
    return Snapshot(step, tensors, tensors, {"position": {"step": step}, "value": value})


def write(run: Path, step: int, value: float, is_best: bool = False) -> None:
    """Write a checkpoint of which one is kept besides best and last."""
    writer = CheckpointWriter(run / "checkpoints", run / "metrics.jsonl", total_limit=1)
    writer.write(snapshot(step, value), is_best)
    writer.finish()


def one_and_two(run: Path) -> None:
    """A run with a best and a last checkpoint."""
    run.mkdir()
    (run / "metrics.jsonl").write_text("{}\n")
    write(run, 1, 1.0, is_best=True)
    write(run, OLD, 2.0)


def half_written(run: Path) -> None:
    """Write the leftovers that several kills may leave together."""
    one_and_two(run)
    folder = run / "checkpoints"
    shutil.copytree(folder / "step-00000002", folder / ".step-00000003.4711.tmp")
    shutil.copytree(folder / "step-00000001", folder / ".step-00000000.removed")
    (folder / "step-00000002").rename(folder / ".step-00000002.replaced")


def half_trained(run: Path) -> None:
    """A toy run with a checkpoint of its first two steps."""
    toy_trainer(run, max_steps=2, **SAVING).fit()


SAVING: dict[str, Any] = {"checkpoint": {"interval": 2, "interval_epochs": None, "save_total_limit": 1}}


def go_on_training(run: Path) -> None:
    """Train the toy run to its fourth step as the command would."""
    trainer = toy_trainer(run, max_steps=4, **SAVING)
    trainer.resume("auto")
    exit_on_error(trainer.fit)


SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "new": (one_and_two, lambda run: write(run, NEW, 3.0, is_best=True)),
    "replaced": (one_and_two, lambda run: write(run, OLD, 3.0)),
    "cleaned": (half_written, lambda run: remove_leftovers(run / "checkpoints")),
    "trained": (half_trained, go_on_training),
}
"""By scenario: prepares the folder, and performs the action that is attacked."""


def attacked(scenario: str, run: Path, decide: Callable[[ptrace.Call], str]) -> tuple[list[ptrace.Call], int, str]:
    """Do it in a separate process; return its calls on files, how it ended, and what it printed."""
    sys.stdout.flush()
    listen, tell = os.pipe()
    errors = run.with_name("errors.txt")
    child = os.fork()
    if child == 0:
        descriptor = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 2)
        os._exit(status_of(lambda: under_trace(scenario, run, tell)))
    os.close(tell)
    with os.fdopen(listen) as heard:
        thread = int(heard.readline())
        calls = ptrace.trace(child, thread, decide)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return calls, status, errors.read_text()


def under_trace(scenario: str, run: Path, tell: int) -> None:
    """Do what the scenario says, with the thread traced that writes."""
    work = SCENARIOS[scenario][1]

    def traced(do: Callable[..., None], *arguments: Any) -> None:
        ptrace.let_parent_trace(tell)
        do(*arguments)

    if scenario == "cleaned":
        thread = threading.Thread(target=traced, args=(work, run))
        thread.start()
        thread.join()
    else:
        real = CheckpointWriter._write
        CheckpointWriter._write = lambda *given: traced(real, *given)  # type: ignore[method-assign]
        work(run)


def status_of(work: Callable[[], None]) -> int:
    """The status that a command would end with."""
    try:
        work()
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    except SystemExit as leaving:
        sys.stderr.flush()
        return int(leaving.code or 0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        return 1
    return 0


def what_is_left(run: Path) -> dict[str, Any]:
    """The state of a run directory once leftovers are removed, as a resume finds it."""
    folder = run / "checkpoints"
    remove_leftovers(folder)
    latest = checkpoint.find_latest_checkpoint(folder)
    assert latest is not None
    loaded = checkpoint.load_checkpoint(latest)
    pointed = {name: checkpoint.pointed(folder, name) for name in ("best", "last")}
    return {
        "latest": latest.name,
        "value": loaded.state.get("value"),
        "checkpoints": [path.name for path in checkpoint.list_checkpoints(folder)],
        "hidden": sorted(path.name for path in folder.glob(".*")),
        "set_aside": (folder / checkpoint.SET_ASIDE).exists(),
        **{name: path and path.name for name, path in pointed.items()},
    }


def what_a_resume_makes(run: Path) -> list[str]:
    """Hashes of the last checkpoint, once the toy run has gone on to its end in a separate process."""
    child = os.fork()
    if child == 0:
        os._exit(status_of(lambda: go_on_training(run)))
    assert os.waitpid(child, 0)[1] == 0
    last = run / "checkpoints" / "step-00000004"
    return [files.hash_file(last / name) for name in ("model.safetensors", "optimizer.safetensors")]


def attack(scenario: str, verdict: str, folder: Path, every: int) -> None:
    """Attack every ``every``-th call, and say what each attack left."""
    before, run = folder / "before", folder / "run"
    SCENARIOS[scenario][0](before)

    def once(decide: Callable[[ptrace.Call], str]) -> tuple[list[ptrace.Call], dict[str, Any]]:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(before, run)
        calls, status, errors = attacked(scenario, run, decide)
        left = {"status": status, "errors": errors, **what_is_left(run)}
        return calls, left | ({"resumed": what_a_resume_makes(run)} if scenario == "trained" else {})

    calls, undisturbed = once(lambda call: "go")
    said = {"scenario": scenario, "verdict": verdict}
    print(json.dumps({**said, "call": None, **undisturbed}))
    targets = [call for call in calls if verdict == "kill" or call.is_writing]
    for target in [*targets[::every], *targets[-2:]]:

        def decide(call: ptrace.Call, target: ptrace.Call = target) -> str:
            if verdict == "kill":
                return "kill" if call.number == target.number else "go"
            return "full" if call.is_writing and call.number >= target.number else "go"

        made, left = once(decide)
        print(json.dumps({**said, "call": asdict(made[min(target.number, len(made)) - 1]), **left}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert threading.active_count() == 1, "a fork would lose threads"
    for number, job in enumerate(sys.argv[2:]):
        scenario, verdict, every = job.split(":")
        folder = Path(sys.argv[1]) / str(number)
        folder.mkdir()
        attack(scenario, verdict, folder, int(every))
