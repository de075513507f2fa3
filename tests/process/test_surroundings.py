"""Where a run finds itself: limits of the system, signals of terminals and clusters, what can't be printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vaak
from commands import Command, Commands, Ended, assert_same_run, steps_of, wait_until
from vaak.cli import table

WORKERS = ("training.performance.num_workers=2", "training.performance.multiprocessing_context=fork")
FROM_A_SERVER = (WORKERS[0], "training.performance.multiprocessing_context=forkserver")
LARGE = ("data.corpus.num_sentences=1200", "training.batch_size=400", "training.performance.prefetch_factor=20")
LONG = ("training.max_steps=100000", "training.checkpoint.interval=100000", "training.validation.interval=100000")
slow = pytest.mark.slow


def last_line(ended: Ended) -> str:
    assert "Traceback" not in ended.errors, ended.errors
    assert ended.status == 2, ended.errors
    return ended.errors.splitlines()[-1]


@pytest.mark.parametrize("workers", [WORKERS, pytest.param(FROM_A_SERVER, marks=slow)], ids=["fork", "forkserver"])
def test_few_open_files_are_named_with_their_limit(
    train: Callable[..., Ended], tmp_path: Path, workers: tuple[str, ...]
) -> None:
    ended = train(tmp_path / "run", *workers, circumstances=["few files"])
    assert "too many files open (the limit is 40): raise it (ulimit -n)" in last_line(ended)


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk for /dev/shm takes root")
@slow
@pytest.mark.parametrize("workers", [WORKERS, FROM_A_SERVER], ids=["fork", "forkserver"])
def test_little_shared_memory_is_named_with_its_size(
    train: Callable[..., Ended], tmp_path: Path, workers: tuple[str, ...]
) -> None:
    """A batch that couldn't be sent was lost, and waited for without end."""
    ended = train(tmp_path / "run", *workers, *LARGE, circumstances=["little shared memory"])
    line = last_line(ended)
    assert "no shared memory left" in line
    assert "docker run --shm-size" in line


@pytest.mark.parametrize(
    "number",
    [signal.SIGHUP, *(pytest.param(one, marks=slow) for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU))],
)
def test_a_terminal_that_closes_and_clusters_signals_save_the_run(
    start: Callable[..., Command], train: Callable[..., Ended], tmp_path: Path, number: signal.Signals
) -> None:
    """The signal goes to all processes of the job, workers included."""
    run = tmp_path / "run"
    command = start(run, *WORKERS, *LONG)
    assert wait_until(lambda: (run / "metrics.jsonl").exists() and len(steps_of_whole(run)) >= 3, command)
    command.send(number, to_all=True)
    ended = command.wait()
    assert ended.status == 0, ended.errors
    reached = steps_of(run)[-1]
    assert f"stopped at step {reached} of 100000 ({number.name})" in ended.output
    assert (run / "checkpoints" / f"step-{reached:08d}").is_dir()
    assert train(run, *LONG, f"training.max_steps={reached + 2}").status == 0
    assert steps_of(run) == list(range(1, reached + 3))


def steps_of_whole(run: Path) -> list[str]:
    """The lines of a log that another process writes."""
    return [line for line in (run / "metrics.jsonl").read_text().split("\n")[:-1] if '"kind": "step"' in line]


@pytest.mark.slow
def test_a_hangup_that_was_ignored_at_the_start_stays_so(
    start: Callable[..., Command], reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = start(run, circumstances=["as under nohup"])
    assert wait_until(lambda: (run / "metrics.jsonl").exists() and len(steps_of_whole(run)) >= 3, command)
    command.send(signal.SIGHUP, to_all=True)
    assert command.wait().status == 0
    assert_same_run(run, reference)


@slow
def test_a_reader_that_does_not_answer_ends_in_a_line_after_sigterm(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = start(run, *WORKERS, *LONG)
    assert wait_until(lambda: (run / "metrics.jsonl").exists() and len(steps_of_whole(run)) >= 3, command)
    for worker in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
        os.kill(int(worker), signal.SIGSTOP)
    command.send(signal.SIGTERM)
    ended = command.wait()
    reached = steps_of(run)[-1]
    if ended.status:  # else enough was read ahead for the last step
        assert "no batch came within 10 s after SIGTERM" in last_line(ended)
    assert (run / "checkpoints" / f"step-{reached:08d}").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["full stdout", pytest.param("full stderr", marks=slow)])
def test_what_cannot_be_printed_ends_no_run(
    train: Callable[..., Ended], reference: Path, tmp_path: Path, stream: str
) -> None:
    ended = train(tmp_path / "run", circumstances=[stream])
    assert ended.status == 0, ended.errors
    assert "Traceback" not in ended.errors
    assert_same_run(tmp_path / "run", reference)


FINISHED: dict[str, tuple[str, str]] = {
    "export": ("export RUN --format hf --output made", "made/README.md"),
    "report": ("report RUN --output report.html", "report.html"),
    "init": ("init quickstart --output quickstart.yml", "quickstart.yml"),
    "eval": ("eval RUN --output evaluated", "evaluated/evaluation.json"),
    "check": ("config check quickstart", ""),
}
"""Commands, and the last file that each writes; none: its result is what it prints."""


@pytest.mark.parametrize("name", ["export", *(pytest.param(one, marks=slow) for one in FINISHED if one != "export")])
@pytest.mark.parametrize("stream", ["full stdout", pytest.param("full stderr", marks=slow)])
def test_what_cannot_be_printed_ends_no_command_that_writes_files(
    commands: Commands, reference: Path, tmp_path: Path, name: str, stream: str
) -> None:
    typed, file = FINISHED[name]
    ended = commands.start(typed.replace("RUN", str(reference)).split(), tmp_path, circumstances=[stream]).wait()
    assert "Traceback" not in ended.errors
    assert ended.status == (2 if not file and stream == "full stdout" else 0), ended.errors
    assert (tmp_path / file).exists()
    if stream == "full stdout":
        assert "No space left on device" in ended.errors


def test_every_command_is_known_for_what_its_result_is() -> None:
    """Those that aren't listed print their results, or have an option that says where these are written."""
    there = {
        f"{name} {inner}".strip()
        for name in table.COMMANDS
        for inner in getattr(table.imported(name), "commands", {"": None})
    }
    grouped = {name for name in there if {name, name.partition(" ")[0]} & table.WRITING}
    assert {*there, "pipeline"} >= table.WRITING
    assert there - grouped == PRINTING


PRINTING = {
    *(
        "launch slurm",
        "launch sky",
        "eval",
        "lm-eval",
        "baseline",
        "predict",
        "generate",
        "translate",
        "classify",
        "diarize",
    ),
    *("serve", "demo", "speak", "transcribe", "align", "find-batch-size", "replay", "verify", "bisect", "runs list"),
    *("find-lr", "check-gradients", "inspect", "doctor", "config check", "config show", "config schema", "model show"),
    *("tokenizer show", "phonemes", "data check", "data list", "score der", "score wer", "score cpwer", "score speech"),
}


def test_characters_that_standard_output_lacks_are_escaped(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRINTS],
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\\u0935\\u093e\\u0915 \\udce9\n", "")


PRINTS = "from vaak.cli.main import exit_on_error; exit_on_error(lambda: print('वाक \\udce9'))"
SOURCE = str(Path(vaak.__file__).parents[1])
