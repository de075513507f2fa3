"""A run on a GPU that ends at any moment is resumed to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import killed_on_gpu
from commands import Commands, stat_records, state_of
from contract_cases import CASES
from exact_cases import trained
from mock_cuda import MockDevice
from vaak.testing import check_resume


def test_an_interrupted_run_resumes_with_the_same_bits(gpu: MockDevice, tmp_path: Path):
    of_two_layers = CASES["lm decoder, documents"]
    model = {**of_two_layers.options["model"], "num_layers": 1}
    case = replace(of_two_layers, options={**of_two_layers.options, "model": model}).prepared(tmp_path)
    check_resume(replace(case, training={**case.training, "device": "cuda", "deterministic": True}))


@pytest.mark.slow
def test_a_run_that_the_system_kills_resumes_with_the_same_bits(request: pytest.FixtureRequest, tmp_path: Path):
    """With dropout, averages of the weights, and bf16, which auto is on a GPU."""
    mock = [] if torch.cuda.is_available() else [str(request.getfixturevalue("device_library"))]
    program = [sys.executable, killed_on_gpu.__file__, str(tmp_path), *mock]
    variables = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # or it couldn't fork once it has looked for a GPU
    ended = subprocess.run(program, capture_output=True, text=True, check=False, env=variables)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["ended"] == [-signal.SIGKILL] * len(killed_on_gpu.KILLED_AFTER)
    assert said["resumed_at"] in (2, 4, 6), "a checkpoint that was being written may be lost"
    require_same(tmp_path / "killed", tmp_path / "whole", last=7)


@pytest.mark.slow
def test_processes_that_divide_a_model_resume_with_the_same_bits(
    device_library: Path, tmp_path: Path, commands: Commands
):
    """In bf16, which auto is on a GPU; how often each waits for its own is bounded, too.

    A step of several processes waits once for what they have added up, and once for whether it is finite.
    """
    common: dict[str, Any] = {"device": "cuda", "deterministic": True, "memory": {}}

    def on_two(*stages: str, **distributed: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
        return stages, {**common, "distributed": {"backend": "gloo", **distributed}}

    whole, updates, divided, killed, offloaded = runs = trained(
        commands,
        tmp_path,
        "lm decoder, documents",
        device_library,
        whole=on_two("8:2"),
        updates=on_two("3:2", "8:2", strategy="zero1"),
        divided=on_two("8:2", strategy="fsdp"),
        killed=on_two("5:2", "8:2", strategy="fsdp"),
        offloaded=on_two("8:2", strategy="fsdp", cpu_offload=True),
    )
    require_same(updates, whole, last=8)
    require_same(killed, divided, last=8)
    for run, others, rtol in ((divided, whole, 1e-2), (offloaded, divided, 1e-4)):
        for mine, theirs in zip(stat_records(run), stat_records(others), strict=True):
            metrics = [name for name in ("loss", "val_loss", "gradient_norm") if name in mine]
            assert_close([mine[name] for name in metrics], [theirs[name] for name in metrics], rtol=rtol, atol=1e-5)
    for run in runs[:4]:
        steps = [step for rank in (0, 1) for step in json.loads((run / f"waits-{rank}.json").read_text())[-2:]]
        assert all(len(waits) <= 2 for waits in steps), "\n".join(steps[-1])


def require_same(ours: Path, theirs: Path, last: int) -> None:
    """The same bits in the last checkpoint, and the same log."""
    found, expected = (run / "checkpoints" / f"step-{last:08}" for run in (ours, theirs))
    for file in ("model", "optimizer", "average"):
        assert (found / f"{file}.safetensors").read_bytes() == (expected / f"{file}.safetensors").read_bytes(), file
    assert state_of(found) == state_of(expected)
    assert stat_records(ours) == stat_records(theirs)
