"""The ASR pipeline's commands are accepted as typed there, with the same meaning and defaults."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import DATASET_ROOT, get_base

BATCHES = "--asr-batch-size 2 --gradient-accumulation-steps 8"
RECOMMENDED = (
    "--mode full --resume --fp16 --gating-batch-size 512 --expert-batch-size 4 --asr-batch-size 2 --num-workers 4 "
    "--gradient-accumulation-steps 8 --eval-every-n-epochs 2 --save-every-n-epochs 5 --log-file Runs/full/training.log"
)
COMMANDS = (
    "--mode quick --seed 42",
    f"--mode full --seed 42 {BATCHES}",
    f"--mode full --seed 42 --skip-pretraining --num-experts 8 {BATCHES}",
    f"--mode full --seed 42 --data-percent 10 {BATCHES} --log-file Runs/full/training.log",
    f"--mode full --seed 42 --clustering-algorithm spectral --num-experts 8 --data-percent 50 {BATCHES}",
    f"--mode full --seed 42 {BATCHES} --log-file Runs/full/training.log --resume",
    f"--mode full --no-plot {BATCHES}",
    RECOMMENDED,
    f"{RECOMMENDED} --no-plot",
    f"--mode full --reduce umap --reduce-dim 50 {BATCHES}",
    f"--mode full --no-reduce-experts {BATCHES}",
    "--only embeddings --pooling mean --whisper-model v3",
    "--algorithm spectral --pooling mean --reduce pca --reduce-dim 50 --plot umap",
)
"""Every one of its commands that is different; the last two are its first steps."""
DEFAULTS = {
    "mode": "full", "seed": 42, "skip_pretraining": False, "data_percent": None, "experts": 8,
    "gating_batch_size": None, "expert_batch_size": None, "asr_batch_size": None, "num_workers": None,
    "gradient_accumulation_steps": 1, "fp16": None, "eval_every_n_epochs": 1, "save_every_n_epochs": 5,
    "algorithm": "hdbscan", "min_cluster_size": 5, "min_clusters": 8, "min_samples": None, "metric": "euclidean",
    "allow_single_cluster": False, "hdbscan_algorithm": "best", "reduce_experts": True, "min_experts": 2,
    "max_retries": 5, "reduce": "pca", "reduce_dim": 50, "pooling": "mean", "plot_method": "umap", "draw": True,
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_original_is_taken(
    command: str, vaak: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run says what would run, without a network, in the folder of its mode."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Data" / "extracted_data" / "Train").mkdir(parents=True)
    (tmp_path / "Data" / "extracted_data" / "Train" / "train.jsonl").write_text("")
    words = shlex.split(command)
    code, out, err = vaak("pipeline", "moe-asr", *words, "--dry-run", "--json")
    assert code == 0, err
    stages = [row["stage"] for row in json.loads(out)]
    own = [stage for stage in stages if stage in ("embeddings", "joint")]
    assert own[-1] == ("embeddings" if "--only" in words else "joint")
    assert ("comparison" in stages) is ("--only" not in words and "quick" not in words)
    assert ("gate" in stages) is ("--skip-pretraining" not in words and "--only" not in words)


def test_defaults_are_the_originals() -> None:
    options = MoeOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    assert (str(DATASET_ROOT), get_base(options)) == ("Data/extracted_data", "v2")
