"""What every task keeps, whatever it trains. A new task adds one entry to tests/support/contract_cases.py."""

from __future__ import annotations

import pytest

from contract_cases import CASES, TOYS
from vaak.config.tasks import TASKS
from vaak.testing import CHECKS, Case


def test_every_task_is_under_contract():
    assert {case.task for case in CASES.values()} == set(TASKS)


SLOW = (
    "classification, transformer, two columns, augmented", "classification, several labels",
    "lm pretrained, low-rank adapters", "tts Performer", "tts, learned durations",
    "tts, flow matching by a transformer, learned durations",
    "diarization Performer", "diarization, powerset, augmented", "diarization, speakers by name",
    "seq2seq, two tokenizers", "seq2seq pretrained, low-rank adapters", "asr, a part, augmented",
)  # fmt: skip
"""Further cases of a task, for which there is no time in every run of the tests."""
PARAMETERS = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, case in {**CASES, **TOYS}.items()
]


@pytest.fixture(scope="module", params=PARAMETERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return request.param.prepared(tmp_path_factory.mktemp("prepared"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(case: Case, check):
    check(case)
