"""A run on a GPU that ends at any moment is resumed to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import killed_on_gpu
from commands import records_of, state_of
from contract_cases import CASES
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
    whole, killed = (tmp_path / name / "checkpoints" / "step-00000007" for name in ("whole", "killed"))
    for file in ("model", "optimizer", "average"):
        assert (killed / f"{file}.safetensors").read_bytes() == (whole / f"{file}.safetensors").read_bytes(), file
    assert state_of(killed) == state_of(whole)
    assert records_of(tmp_path / "killed") == records_of(tmp_path / "whole")
