"""The files of a SLURM job and of SkyPilot: what they ask for, what they start, and when they are started again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

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


SKY_JOB = """
task: lm
name: a run's
model: {d_model: 16, num_layers: 1, num_heads: 2}
data: {corpus: {type: grammar, num_sentences: 60}}
training: {checkpoint: {upload_to: "s3://bucket/run"}}
"""


@pytest.fixture
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with job.yml."""
    (tmp_path / "job.yml").write_text(SKY_JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sky_job(vaak: Vaak, *arguments: str) -> str:
    code, out, err = vaak("launch", "sky", "job.yml", "--output", "job.sky.yml", *arguments)
    assert (code, err) == (0, "")
    text = Path("job.sky.yml").read_text()
    assert out.startswith(text)
    return text


def test_what_a_job_of_skypilot_asks_for(vaak: Vaak, in_project: Path):
    (in_project / "a.py").write_text("class A:\n    def __init__(self, api_key):\n        pass\n")
    asked = ("--gpus", "H100:8", "--infra", "aws", "--mount", "/data=s3://b/data", "--secret", "TOKEN")
    text = sky_job(
        vaak,
        *asked,
        "--extras",
        "audio",
        "training.callbacks.0.api_key=${OWN_KEY}",
        "training.callbacks.0.type=./a.py:A",
    )
    found = YAML(typ="safe").load(text)
    assert found["resources"] == {
        "infra": "aws",
        "accelerators": "H100:8",
        "use_spot": True,
        "job_recovery": {"recover_on_exit_codes": [75]},
    }
    assert (found["name"], found["workdir"], found["num_nodes"]) == ("a-run-s", ".", 1)
    assert found["file_mounts"] == {"/data": "s3://b/data"}
    assert found["secrets"] == {"TOKEN": None, "OWN_KEY": None}
    assert text.startswith("# sky jobs launch --secret TOKEN --secret OWN_KEY job.sky.yml\n")
    assert "vaak[cloud,audio]==" in found["setup"]
    assert "use_spot: false" in sky_job(vaak, "--on-demand")


@pytest.mark.parametrize(
    ("reason", "code", "ends"), [("SIGTERM", 0, 75), ("finished", 0, 0), ("early_stopping", 0, 0), ("SIGTERM", 2, 2)]
)
def test_a_job_of_skypilot_that_was_stopped_is_started_again(
    vaak: Vaak, in_project: Path, reason: str, code: int, ends: int
):
    """Run by a shell, with a ``vaak`` that writes down how it was called."""
    given = ("run_dir=runs/a folder's", "--gpus", "A100-80GB:4")
    run = YAML(typ="safe").load(sky_job(vaak, *given))["run"]
    program = in_project / "vaak-env/bin/vaak"
    program.parent.mkdir(parents=True)
    program.write_text(SRUN)
    program.chmod(0o755)
    values = {"HOME": str(in_project), "FOLDER": str(in_project), "RUN": "runs/a folder's", "REASON": reason}
    environment = {**os.environ, **values, "CODE": str(code)}
    assert subprocess.run(["bash", "-e", "-c", run], env=environment).returncode == ends
    assert (in_project / "started").read_text().splitlines() == [
        *("train", "job.yml", "run_dir=runs/a folder's", "--processes", "4", "training.checkpoint.resume=auto")
    ]


def test_what_a_machine_in_a_cloud_would_lack_is_said(
    vaak: Vaak, in_project: Path, tmp_path_factory: pytest.TempPathFactory
):
    def refused(*arguments: object) -> str:
        code, _, err = vaak("launch", "sky", *arguments)
        assert (code, len(err.splitlines())) == (2, 1)
        return err

    elsewhere = tmp_path_factory.mktemp("elsewhere") / "texts.txt"
    elsewhere.write_text("a text\n")
    corpus = ("data.corpus.type=text", f"data.corpus.train={elsewhere}")
    assert f"data.corpus.train: {elsewhere} is not below the working folder" in refused("job.yml", *corpus)
    assert "--mount FOLDER=URL" in refused(in_project / "job.yml")
    assert "run_dir" in refused("job.yml", "run_dir=../elsewhere")
    assert "may be taken away with its disk" in refused("job.yml", "training.checkpoint.upload_to=null")
    code, _, err = vaak("launch", "sky", "job.yml", *corpus, "--mount", f"{elsewhere.parent}=s3://b/texts")
    assert code == 0, err


def test_skypilot_takes_the_file(vaak: Vaak, in_project: Path):
    """By its own reader, where it is installed (``pip install skypilot``; tried with 0.14.1)."""
    sky = pytest.importorskip("sky", reason="requires skypilot")
    sky_job(vaak, "--gpus", "H100:8", "--mount", "/data=s3://b/data")
    task = sky.Task.from_yaml("job.sky.yml")
    (resources,) = task.resources
    assert (resources.use_spot, resources.accelerators) == (True, {"H100": 8})
    assert resources.job_recovery["recover_on_exit_codes"] == [75]
