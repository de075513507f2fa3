"""Processes that are started together end together, with the code and the word of the one that failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vaak.runs.launching import first_host, first_to_fail, join_slurm_step, run_processes

OF_SRUN = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_NTASKS": "7",
}


def run(script: str, number: int, folder: Path) -> int:
    return run_processes(
        [sys.executable, "-I", "-S", "-c", f"import os, sys, time\nos.chdir({str(folder)!r})\n{script}"], number
    )


def test_each_process_knows_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    said = f"open(os.environ['RANK'], 'w').write(' '.join(os.environ[name] for name in {names}))"
    assert run(said, 3, tmp_path) == 0
    places = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [place[:4] + place[5:] for place in places] == [["3", str(rank), "3", "127.0.0.1", "1"] for rank in range(3)]
    assert len({place[4] for place in places}) == 1


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL, and so the 2 others were ended"),
        ("sys.exit(1)", 1, "failed with exit code 1, and so the 2 others were ended; resume with --resume auto"),
        ("sys.exit(2)", 2, ""),  # it has said so itself
    ],
)
def test_one_that_fails_ends_all_with_its_code(tmp_path: Path, capfd, end: str, code: int, said: str):
    """The others are asked to end, and may do something first."""
    script = f"""
import signal
def ended(number, frame):
    open('ended' + os.environ['RANK'], 'w').close()
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
open(os.environ['RANK'], 'w').close()
while not all(os.path.exists(str(rank)) for rank in range(3)):
    time.sleep(0.01)
if os.environ['RANK'] == '1':
    {end}
time.sleep(60)
"""
    begun = time.monotonic()
    assert run(script, 3, tmp_path) == code
    assert time.monotonic() - begun < 20
    assert sorted(path.name for path in tmp_path.glob("ended*")) == ["ended0", "ended2"]
    errors = capfd.readouterr().err
    assert len(errors.splitlines()) == bool(said)
    assert said in errors


def test_of_several_that_fail_at_once_the_one_that_was_killed_is_named():
    ends = ("sys.exit(2)", "sys.exit(1)", "os.kill(os.getpid(), 9)", "pass")
    for chosen in ((0, 1, 2, 3), (3, 1, 0), (3, 0)):
        commands = [[sys.executable, "-I", "-S", "-c", f"import os, sys; {ends[one]}"] for one in chosen]
        processes = [subprocess.Popen(command) for command in commands]
        for process in processes:
            process.wait()
        assert chosen[first_to_fail(processes) or 0] == max(set(chosen) - {3})


STARTED = """
import sys
from vaak.runs.launching import run_processes
sys.exit(run_processes([sys.executable, "-I", "-S", "-c", '''
import os, signal, sys, time
received = []
signal.signal(signal.{name}, lambda number, frame: received.append(number))
open("{folder}/" + os.environ["RANK"], "w").close()
while not received:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(40 + len(received))
'''], 2))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_reaches_each_process_once(tmp_path: Path, name: str):
    """Also one that a terminal sends to the launcher's whole group."""
    script = STARTED.format(name=name, folder=tmp_path)
    launcher = subprocess.Popen(
        [sys.executable, "-c", script], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    while not all((tmp_path / rank).exists() for rank in "01"):
        assert launcher.poll() is None
        time.sleep(0.01)
    os.killpg(launcher.pid, signal.Signals[name])
    assert launcher.communicate(timeout=20)[1] == ""
    assert launcher.returncode == 41


def test_a_task_of_srun_takes_its_place_from_slurm():
    environment = dict(OF_SRUN)
    join_slurm_step(environment)
    joined = {name: value for name, value in environment.items() if name not in OF_SRUN}
    assert joined == {
        "RANK": "5",
        "WORLD_SIZE": "7",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": "10499",
    }
    assert 10_000 <= int(environment["MASTER_PORT"]) < 32_768
    environment = OF_SRUN | {"SLURM_STEP_ID": "3", "MASTER_ADDR": "login", "CUDA_VISIBLE_DEVICES": "1"}
    join_slurm_step(environment)  # another step of the job at once; a GPU of its own for each task
    assert [environment[name] for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")] == ["login", "10500", "0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": None, "SLURM_STEP_ID": None},  # the script of a job, whose SLURM_PROCID is 0
        {"RANK": "0", "WORLD_SIZE": "2"},  # torchrun in each task
        {"SLURM_PROCID": None},  # salloc
    ],
)
def test_nothing_changes_for_one_task_a_script_or_another_launcher(changes: dict[str, str | None]):
    environment = {name: value for name, value in (OF_SRUN | changes).items() if value is not None}
    before = dict(environment)
    join_slurm_step(environment)
    assert environment == before


def test_the_first_host_of_lists():
    lists = ["n1", "n[1-3]", "n[01,03],m2", "a-b[10-12]-ib,c", "r[2-3]n[7,9],x"]
    assert [first_host(one) for one in lists] == ["n1", "n1", "n01", "a-b10-ib", "r2n7"]
