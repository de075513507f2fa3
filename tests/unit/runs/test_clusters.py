"""The file of a SLURM job: what it asks for, what it starts, and when it is queued again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def script(vaak: Vaak, tiny_text: Path, tmp_path: Path) -> str:
    """The file of a job for a run in a folder whose name a shell would split."""
    run = tmp_path / "a folder's" / "run"
    given = (
        "--nodes",
        2,
        "--processes",
        4,
        "--time",
        "1:00:00",
        "--sbatch=--partition=gpu",
        "--output",
        tmp_path / "job",
    )
    code, out, err = vaak("launch", "slurm", tiny_text / "tiny.yml", f"run_dir={run}", "training.device=auto", *given)
    assert (code, err) == (0, "")
    text = (tmp_path / "job").read_text()
    assert out.startswith(text)
    assert f"written to {tmp_path / 'job'}, not submitted" in out
    return text


def test_what_a_job_asks_for(script: str):
    asked = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    for option in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1:00:00", "--partition=gpu"):
        assert option in asked
    assert {"--job-name=tiny", "--requeue", "--open-mode=append", "--signal=TERM@120"} <= set(asked)


SRUN = """#!/bin/sh
printf '%s\\n' "$@" > "$FOLDER/started"
mkdir -p "$RUN" && printf '{\\n  "state": "stopped",\\n  "reason": "%s"\\n}\\n' "$REASON" > "$RUN/status.json"
exit $CODE
"""


@pytest.mark.parametrize(
    ("reason", "code", "queued"), [("SIGTERM", 0, True), ("finished", 0, False), ("SIGTERM", 2, False)]
)
def test_a_job_that_was_stopped_is_queued_again(
    script: str, tiny_text: Path, tmp_path: Path, reason: str, code: int, queued: bool
):
    """Run by a shell; in the place of SLURM's commands, some that write down how they were called."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "scontrol": '#!/bin/sh\necho "$@" > "$FOLDER/queued"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    run = tmp_path / "a folder's" / "run"
    values = {"FOLDER": str(tmp_path), "RUN": str(run), "REASON": reason, "CODE": str(code), "SLURM_JOB_ID": "17"}
    values["PATH"] = f"{commands}:{os.environ['PATH']}"
    assert subprocess.run(["bash", str(tmp_path / "job")], env={**os.environ, **values}).returncode == code
    started = (tmp_path / "started").read_text().splitlines()
    assert started[started.index("train") :] == [
        *("train", str(tiny_text / "tiny.yml"), f"run_dir={run}", "training.device=auto"),
        "training.checkpoint.resume=auto",
    ]
    assert (tmp_path / "queued").exists() == queued
    if queued:
        assert (tmp_path / "queued").read_text() == "requeue 17\n"


def test_what_cannot_be_submitted_is_said(vaak: Vaak, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*arguments: object) -> str:
        code, _, err = vaak("launch", "slurm", tiny_text / "tiny.yml", "--output", tmp_path / "job", *arguments)
        assert code == 2
        assert len(err.splitlines()) == 1
        return err

    assert "model.nothing" in refused("model.nothing=1")
    assert "isn't an option of sbatch" in refused("--sbatch=gpu")
    assert "isn't an option of sbatch" in refused("--sbatch=--comment=a\nrm")
    assert not (tmp_path / "job").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "this machine has no sbatch" in refused("--yes")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho sbatch: error: no partition >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert "sbatch doesn't take" in (said := refused("--yes"))
    assert "no partition" in said
    code, _, err = vaak("launch", "ray", tiny_text / "tiny.yml", "--processes", 2, "--min-processes", 3)
    assert (code, err) == (2, "--min-processes 3 is more than --processes 2\n")
