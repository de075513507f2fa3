"""Several tasks whose epochs are planned in pieces are resumed, replayed and divided over ranks to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract_cases import CASES
from vaak.config.training import TrainingConfig
from vaak.core.task import Dataset
from vaak.data.batching import training_planner
from vaak.data.plan import PiecewisePlan, Planner
from vaak.engine import training_data
from vaak.testing import Check, check_ranks, check_replay, check_resume

CURRICULUM = {"curriculum": {"difficulty": "length", "initial_difficulty": 0.4, "num_epochs": 2}}


@pytest.mark.parametrize("training", [{}, CURRICULUM], ids=["plain", "curriculum"])
@pytest.mark.parametrize(
    "check", [check_resume, *(pytest.param(one, marks=pytest.mark.slow) for one in (check_replay, check_ranks))]
)
def test_in_pieces_too(check: Check, training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def in_pieces(config: TrainingConfig, dataset: Dataset) -> Planner:
        planner = training_planner(config, dataset, largest=5)
        assert isinstance(planner.plan(0), PiecewisePlan)
        return planner

    monkeypatch.setattr(training_data, "training_planner", in_pieces)
    check(replace(CASES["multitask"], training=training).prepared(tmp_path))
