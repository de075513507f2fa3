"""A run on a GPU is killed, and resumed to the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contract_cases import CASES
from mock_cuda import MockDevice
from vaak.testing import check_resume


def test_a_killed_run_resumes_with_the_same_bits(gpu: MockDevice, tmp_path: Path):
    of_two_layers = CASES["lm decoder, documents"]
    model = {**of_two_layers.options["model"], "num_layers": 1}
    case = replace(of_two_layers, options={**of_two_layers.options, "model": model}).prepared(tmp_path)
    check_resume(replace(case, training={**case.training, "device": "cuda", "deterministic": True}))
