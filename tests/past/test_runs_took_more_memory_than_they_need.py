"""Memory that a run took and had no use for: torch's compiler, rich without a terminal, the trainer before it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from tiny_runs import loaded, train, write_corpus
from vaak.runs.start import open_trainer

TRAINED = """
import json, sys
from vaak.config.load import load
from vaak.runs.start import train
for optimizer in sys.argv[3:]:
    given = [f"training.optimizer={{type: {optimizer}, lr: 1e-3}}", "training.logging.tensorboard=true",
             "training.max_steps=1"]
    outcome = train(load([sys.argv[1]], [f"run_dir={sys.argv[2]}/{optimizer}", *given]))
    print(json.dumps([optimizer, outcome.reason, *sys.modules]))
"""
UNNEEDED = ("torch._dynamo", "torch._inductor", "sympy", "rich", "vaak.text.grammar", "accelerate", "pandas")
OPTIMIZERS = ("adamw", "muon", "lion")


@pytest.mark.slow
def test_a_run_loads_nothing_that_it_has_no_use_for(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    arguments = [sys.executable, "-c", TRAINED, str(tmp_path / "tiny.yml"), str(tmp_path), *OPTIMIZERS]
    done = subprocess.run(arguments, capture_output=True, text=True)
    loaded_by = {name: modules for name, *modules in map(json.loads, done.stdout.splitlines())}
    assert tuple(loaded_by) == OPTIMIZERS, done.stderr
    for name, (reason, *modules) in loaded_by.items():
        assert reason == "finished", name
        assert not set(UNNEEDED) & set(modules), name


def test_a_run_frees_the_one_before_it_in_the_same_process(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    gc.collect()
    gc.disable()
    try:
        with open_trainer(loaded(tmp_path / "corpus", tmp_path / "first")) as trainer:
            trainer.fit()
            model: weakref.ref[torch.nn.Module] = weakref.ref(trainer.model)
        del trainer
        train(tmp_path / "corpus", tmp_path / "second", "training.max_steps=1")
    finally:
        gc.enable()
    assert model() is None
