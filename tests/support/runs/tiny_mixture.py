"""The pipeline ``moe-asr`` on tones, with a tiny Whisper as its base; and killed where it has left a file."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tiny_listener
from vaak.config.base import from_options
from vaak.core.storage.files import read_json
from vaak.pipeline import rows
from vaak.pipeline.run import PipelineRow, Request, run_pipeline
from vaak.tasks.asr.stages.pipeline import PIPELINE

QUIET = {"logging": {"tensorboard": False, "system_metrics": False}, "performance": {"num_workers": 0}}


def options(corpus: Path, whisper: Path, **more: Any) -> dict[str, Any]:
    """Options of the pipeline: two clusters of 60 % of the training utterances, a few steps of each training."""
    return {
        "datasets": [tiny_listener.make_dataset_from(corpus)],
        "whisper_model": str(whisper),
        "data": {"group": "accent", "max_duration": tiny_listener.SECONDS, "decoding": {"max_new_tokens": 4}},
        "controls": False,
        "embedding_percent": 60.0,
        "expert_percent": 100.0,
        "algorithm": "spectral",
        "num_experts": 2,
        "bootstraps": 2,
        "draw": False,
        "lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]},
        "gate_width": 8,
        "gating_epochs": 4,
        "expert_epochs": 2,
        "expert_lr": 0.01,
        "asr_epochs": 2,
        "save_every_n_epochs": 1,
        "expert_config": {"training": QUIET},
        "asr_config": {"training": QUIET},
        **more,
    }


def run(given: Mapping[str, Any], folder: Path, **request: Any) -> list[PipelineRow]:
    """Run the pipeline in a folder, in this process."""
    made = from_options(PIPELINE.options, dict(given), PIPELINE.name)
    return run_pipeline(PIPELINE, made, folder, Request(resume=True, shows_progress=False, **request))


def run_and_kill(given: Mapping[str, Any], folder: Path, is_reached: Callable[[], bool]) -> bool:
    """Run it in a process that is killed as soon as a moment ``is_reached``; False where it ended before."""
    # Spawned: a fork of a test process that has computed with several threads may crash in its first operator.
    child = multiprocessing.get_context("spawn").Process(
        target=_run_in_child, args=(given, folder, rows.ROWS_PER_SHARD)
    )
    child.start()
    while child.is_alive() and not is_reached():
        time.sleep(0.005)
    child.kill()
    child.join()
    return child.exitcode == -signal.SIGKILL


def _run_in_child(given: Mapping[str, Any], folder: Path, rows_per_shard: int) -> None:
    """Run it with shards of the size that the parent has."""
    rows.ROWS_PER_SHARD = rows_per_shard
    run(given, folder)


def outputs(folder: Path) -> dict[str, Any]:
    """The checksums of what every stage made; of joint training its figures and its best weights."""
    there = [stage.name for stage in PIPELINE.stages[1:] if (folder / stage.name / "manifest.json").exists()]
    found = {name: read_json(folder / name / "manifest.json")["outputs"] for name in there}
    checkpoints = folder / "joint" / "run" / "checkpoints"
    best = (checkpoints / "best").read_text().strip()
    listed = read_json(checkpoints / best / "MANIFEST.json")["files"]
    return {**found, "joint": [best, listed["model.safetensors"], found["joint"]["joint.json"]]}
