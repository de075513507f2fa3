"""A vocoder for the tones of tiny_voice, trained in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_voice
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.runs.start import train as train_run

DISCRIMINATORS = {"periods": [2], "period_channels": 2, "resolutions": [128], "resolution_channels": 2}
SIZES = {"width": 32, "num_layers": 2, "inner_width": 64}
CROP = 16 * tiny_voice.MEL["hop_length"]
"""Samples of a training example."""


def options(folder: Path | str, **more: Any) -> dict[str, Any]:
    """A small experiment on what ``tiny_voice.write_voice`` wrote in a folder."""
    return {
        "task": "vocoder",
        "name": "tones",
        "model": {
            "width": 32,
            "num_layers": 2,
            "inner_width": 64,
            "discriminators": DISCRIMINATORS,
            **more.get("model", {}),
        },
        "global_config": {"mel": tiny_voice.MEL, **more.get("global_config", {})},
        "datasets": [tiny_voice.make_dataset_from(folder)],
        "data": {"crop_frames": 16, "evaluation_window": 1.0, "num_samples": 1, **more.get("data", {})},
        "training": {
            "device": "cpu",
            "max_steps": 12,
            "batch_size": 8,
            "optimizer": {"lr": 2e-3},
            "checkpoint": {"interval_epochs": None},
            "logging": {"interval": 1, "tensorboard": False, "progress_bar": False},
            "memory": {"rehearsal": False},
            **more.get("training", {}),
        },
    }


def train(corpus: Path, run: Path, *overrides: str, **more: Any) -> Path:
    """Train a small vocoder on what was written in a folder; its run directory."""
    file = run.parent / f"{run.name}.yml"
    file.write_text(yaml_text(options(corpus, **more)))
    train_run(load([file], [f"run_dir={run}", *overrides]))
    return run
