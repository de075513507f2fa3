"""A run on a cluster or a cloud: the file of a SLURM job or of SkyPilot, or workers of Ray that start its processes.

All begin with ``--resume auto``, so that a requeued job, another machine and restarted workers resume.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shlex
import socket
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vaak
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded
from vaak.config.paths import list_read_paths
from vaak.core.errors import UserError, optional_import
from vaak.core.names import from_home
from vaak.core.storage.remote import is_url
from vaak.engine.interrupts import LAUNCHED
from vaak.runs.launching import train_command

STOP_SECONDS = 120
"""How long before its time is over a job is asked to save and stop."""
RESUMING = "training.checkpoint.resume=auto"


STOPPED_BY_SIGNAL = r'"reason": "SIG(TERM|HUP|USR1|USR2|XCPU)"'
"""Pattern in status.json of a run that a scheduler asked to stop, and which is to be resumed."""
SCRIPT = """\
#!/bin/bash
{options}

cd {folder}
srun --kill-on-bad-exit=1 {command}
code=$?
# Before its time is over, or another job takes its place, SLURM sends a signal: the run is saved and stops.
if [ $code -eq 0 ] && grep -qE '{stopped}' {status}; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""

TRY_AGAIN = 75
"""The exit code by which SkyPilot starts a job again (EX_TEMPFAIL of sysexits.h)."""
PYTHON = "3.11"
SKY = """\
# sky jobs launch{secrets_given} {output}
name: {name}
workdir: .
num_nodes: 1
resources:
{resources}
  job_recovery:
    recover_on_exit_codes: [{again}]
{mounts}{secrets}setup: |
{setup}
run: |
  code=0
  "$HOME/vaak-env/bin/vaak" train {arguments} || code=$?
  # A machine that is taken away may send a signal first: the run is saved and ends well, and isn't finished.
  if [ $code -eq 0 ] && grep -qE '{stopped}' {status}; then
      exit {again}
  fi
  exit $code
"""


def slurm_script(experiment: Experiment[Any, Any], arguments: Sequence[str], requests: Sequence[str]) -> str:
    """Return the script of a job that trains, and is queued again where it was stopped before its end.

    ``arguments`` are those of ``vaak train``; ``requests`` are options of sbatch.
    """
    name, status = experiment.name, experiment.run_dir / "status.json"
    own = (f"--job-name={name}", f"--output={name}-%j.log", "--open-mode=append", "--requeue")
    return SCRIPT.format(
        options="\n".join(f"#SBATCH {option}" for option in (*own, f"--signal=TERM@{STOP_SECONDS}", *requests)),
        folder=shlex.quote(os.getcwd()),
        command=shlex.join(train_command([*arguments, RESUMING])),
        status=shlex.quote(str(status)),
        stopped=STOPPED_BY_SIGNAL,
    )


@dataclass(frozen=True)
class SkyRequest:
    """The resources that a SkyPilot job requests.

    ``gpus`` are a kind and a number (``H100:8``), or None for a machine without; ``infra`` is a cloud, a region or a
    Kubernetes context (None: the cheapest). ``mounts`` are buckets by the folder in which they are seen; ``secrets``
    are names of variables that the job is given when it is launched. ``setup`` are commands that make ``~/vaak-env``.
    """

    gpus: str | None
    infra: str | None
    is_spot: bool
    mounts: Mapping[str, str]
    secrets: Sequence[str]
    setup: str


def sky_setup(extras: Sequence[str]) -> str:
    """Return the commands that install Vaak on a new machine: this checkout, if it is one, or this version."""
    wanted = ",".join(dict.fromkeys(["cloud", *extras]))
    here = Path("pyproject.toml")
    is_checkout = here.is_file() and '\nname = "vaak"\n' in here.read_text(encoding="utf-8", errors="replace")
    package = f".[{wanted}]" if is_checkout else f"vaak[{wanted}]=={vaak.__version__}"
    # SkyPilot's own Python may be older than what Vaak needs.
    return (
        "python3 -m pip install --quiet uv\n"
        f'python3 -m uv venv --quiet --python {PYTHON} "$HOME/vaak-env"\n'
        f'python3 -m uv pip install --quiet --python "$HOME/vaak-env/bin/python" {shlex.quote(package)}'
    )


def require_seen_by_sky(loaded: Loaded, files: Sequence[str], mounts: Mapping[str, str]) -> None:
    """Raise UserError for what a job in a cloud would lack: checkpoints that outlive its machine, files it can't see.

    SkyPilot copies the working folder; ``files`` are the YAMLs that were given, and ``mounts`` buckets by their folder.
    """
    experiment = loaded.experiment
    url = experiment.training.checkpoint.upload_to
    if url is None or url.startswith(("file:", "local:", "memory:")):
        raise UserError(
            "the machine may be taken away with its disk: give a bucket for checkpoints, such as "
            "training.checkpoint.upload_to=s3://my-bucket/run"
        )
    here = Path.cwd()
    named = [(file, file) for file in files if Path(file).exists()]
    named += [("run_dir", str(experiment.run_dir)), *list_read_paths(loaded.tree, type(experiment))]
    for key, path in named:
        place = Path(from_home(path))
        is_mounted = any(Path(path).is_relative_to(folder) for folder in mounts)
        # A name on a hub, such as org/model, is no path; what is relative and below is copied.
        is_below = not place.is_absolute() and ".." not in place.parts and (here / place).resolve().is_relative_to(here)
        if not (is_url(path) or is_mounted or is_below):
            raise UserError(
                f"{key}: {path} is not below the working folder by a relative path, and so not on the job's machine: "
                "move it there, or give a URL, or --mount FOLDER=URL"
            )


def sky_file(experiment: Experiment[Any, Any], arguments: Sequence[str], request: SkyRequest, output: str) -> str:
    """Return the YAML of a managed job of SkyPilot, which is saved as ``output``, that trains and resumes elsewhere.

    ``arguments`` are those of ``vaak train``. Its machine may be taken away at any time, with its disk: the run is kept
    at ``training.checkpoint.upload_to``. Source: https://docs.skypilot.co/en/latest/reference/yaml-spec.html.
    """
    resources = {"infra": request.infra, "accelerators": request.gpus, "cpus": None if request.gpus else "4+"}
    lines = [f"  {key}: {json.dumps(value)}" for key, value in resources.items() if value is not None]
    lines.append(f"  use_spot: {json.dumps(request.is_spot)}")
    mounts = [f"  {json.dumps(place)}: {json.dumps(url)}\n" for place, url in request.mounts.items()]
    secrets = [f"  {name}: null\n" for name in request.secrets]
    return SKY.format(
        output=shlex.quote(output),
        secrets_given="".join(f" --secret {name}" for name in request.secrets),
        name=json.dumps(re.sub(r"[^a-zA-Z0-9._-]+", "-", experiment.name).strip("-._") or "vaak"),
        resources="\n".join(lines),
        mounts="".join(["file_mounts:\n", *mounts]) if mounts else "",
        secrets="".join(["secrets:\n", *secrets]) if secrets else "",
        setup=textwrap.indent(request.setup.strip(), "  "),
        arguments=shlex.join([*arguments, RESUMING]),
        stopped=STOPPED_BY_SIGNAL,
        status=shlex.quote(str(experiment.run_dir / "status.json")),
        again=TRY_AGAIN,
    )


def submit(script: Path, command: Sequence[str] = ("sbatch",), what: str = "SLURM") -> str:
    """Give a job to SLURM, or by another command; return what it answers. Raises UserError if it isn't taken."""
    try:
        done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UserError(f"this machine has no {command[0]}: submit {script} where {what} is installed") from error
    if done.returncode:
        raise UserError(f"{command[0]} doesn't take {script}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def train_on_ray(
    experiment: Experiment[Any, Any], arguments: Sequence[str], processes: tuple[int, int], cpus: float, failures: int
) -> None:
    """Train in workers of Ray: on the cluster that RAY_ADDRESS names, or one of this machine that ends with this.

    ``processes`` are their minimum and maximum number, each with ``cpus`` cores and, unless the run is to use none, a
    GPU. After one is lost, all are restarted, up to ``failures`` times. Raises UserError if Ray isn't
    installed, has no GPU that is asked for, or if training fails.
    """
    with optional_import("vaak launch ray requires Ray", "ray"):
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError

    # Ray reports usage to its makers unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    least, most = processes
    own: dict[str, Any] = {"include_dashboard": False, "num_cpus": math.ceil(most * cpus)}
    # Ray refuses the resources of a cluster that is already there.
    ray.init(logging_level=logging.WARNING, **({} if "RAY_ADDRESS" in os.environ else own))
    try:
        device, has_gpu = experiment.training.device, ray.cluster_resources().get("GPU", 0) > 0
        if device == "cuda" and not has_gpu:
            raise UserError("training.device is cuda but this Ray cluster has no GPU; use device: auto or cpu")
        use_gpu = has_gpu and device in ("auto", "cuda")
        each = {"CPU": cpus, "GPU": 1.0} if use_gpu else {"CPU": cpus}
        DataParallelTrainer(
            _train_in_worker,
            train_loop_config={"command": train_command([*arguments, RESUMING]), "folder": os.getcwd()},
            scaling_config=ScalingConfig(
                num_workers=most if least == most else (least, most), use_gpu=use_gpu, resources_per_worker=each
            ),
            run_config=RunConfig(
                name=experiment.name,
                storage_path=str((experiment.run_dir / "ray").absolute()),
                failure_config=FailureConfig(max_failures=failures),
            ),
        ).fit()
    except TrainingFailedError as error:
        # The error is a worker's whole traceback; the line that names its rank says what happened (_train_in_worker).
        said = [line for line in str(error).splitlines() if "rank" in line] or [repr(error)]
        raise UserError(f"training failed on Ray: {said[-1].strip()}; the same command resumes it") from error
    finally:
        ray.shutdown()


def _train_in_worker(values: dict[str, Any]) -> None:
    """Start a process of the run and wait for it; the system ends it with this worker.

    It is a separate process because Ray calls this in a thread, and signals and gloo's shutdown need the main thread.
    """
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    context = get_context()
    address = ray.util.get_node_ip_address()
    # Each worker finds a free port on its machine; the broadcast makes rank 0's the one where all of them meet.
    with contextlib.closing(socket.create_server((address, 0))) as server:
        own = [address, server.getsockname()[1]]
    address, port = broadcast_from_rank_zero(own)
    # Where Ray shows a worker its own GPU alone, that is number 0 to it; where it shows those of all, the local rank
    # chooses.
    one_gpu = len(os.environ.get("CUDA_VISIBLE_DEVICES", ",").split(",")) == 1
    places = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": 0 if one_gpu else context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    environment = {**os.environ, **{name: str(place) for name, place in places.items()}, LAUNCHED: "1"}
    process = subprocess.Popen(values["command"], cwd=values["folder"], env=environment, stdin=subprocess.DEVNULL)
    if code := process.wait():
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise RuntimeError(f"rank {places['RANK']} (process {process.pid} on {socket.gethostname()}) {how}")
