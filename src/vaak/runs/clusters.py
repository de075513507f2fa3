"""A run on a cluster: the file that a SLURM job is made of, or workers of Ray that start its processes.

Both begin with ``--resume auto``, so that a requeued job and restarted workers resume.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.core.errors import UserError, optional_import
from vaak.engine.interrupts import LAUNCHED
from vaak.runs.launching import train_command

STOP_SECONDS = 120
"""How long before its time is over a job is asked to save and stop."""
RESUMING = "training.checkpoint.resume=auto"


SCRIPT = """\
#!/bin/bash
{options}

cd {folder}
srun --kill-on-bad-exit=1 {command}
code=$?
# Before its time is over, or another job takes its place, SLURM sends a signal: the run is saved and stops.
if [ $code -eq 0 ] && grep -qE '"reason": "SIG(TERM|HUP|USR1|USR2|XCPU)"' {status}; then
    scontrol requeue "$SLURM_JOB_ID"
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
    )


def submit(script: Path) -> str:
    """Give a job to SLURM; return what it answers. Raises UserError where it doesn't take it."""
    try:
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UserError(f"this machine has no sbatch: submit {script} where SLURM is installed") from error
    if done.returncode:
        raise UserError(f"sbatch doesn't take {script}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def train_on_ray(
    experiment: Experiment[Any, Any], arguments: Sequence[str], processes: tuple[int, int], cpus: float, failures: int
) -> None:
    """Train in workers of Ray: on the cluster that RAY_ADDRESS names, or one of this machine that ends with this.

    ``processes`` are their minimum and maximum number, each with ``cpus`` cores and, unless the run is to use none, a
    GPU. After one is lost, all are restarted, up to ``failures`` times. Raises UserError where Ray isn't
    installed, has no GPU that is asked for, or where training fails.
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
