"""What torch.compile makes of each task's model: whole graphs, and few of them whatever the lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from contract_cases import CASES
from vaak.engine.trainer import Trainer

pytestmark = [  # of torch's tracing itself
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
GRAPHS = {
    "lm decoder, packed": 2,
    "lm encoder": 2,
    "lm Performer": 4,  # features are drawn again
    "seq2seq": 2,
    "classification": 2,
    "diarization": 1,
    "tts": 3,
    "asr": 2,
    "vocoder": 2,
}
"""The greatest number in five steps: one for the first lengths, one for all, and what differs besides."""
BROKEN = {"tts, learned durations": 6, "asr, experts": 15}
"""Of models that ask what numbers are: which path is the best, which experts were chosen."""
QUICK = ("lm decoder, packed",)


@pytest.fixture(autouse=True)
def _only_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are found, and computed as they are: generating code takes minutes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()
    counters.clear()


def losses_of(trainer: Trainer) -> list[dict[str, float]]:
    """Those of five steps."""
    with closing(trainer.upcoming()) as steps:
        reports = [trainer.take_step(data) for data in islice(steps, 5)]
    return [{name: float(loss) for name, loss in report.losses.items()} for report in reports]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(*one, id=one[0], marks=[] if one[0] in QUICK else [pytest.mark.slow])
        for one in (GRAPHS | BROKEN).items()
    ],
)
def test_a_step_is_few_graphs(name: str, number: int, tmp_path: Path):
    case = CASES[name].prepared(tmp_path)
    expected = losses_of(case.trainer(tmp_path / "plain"))
    found = losses_of(case.trainer(tmp_path / "run", performance={"compile": True}))
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert counters["stats"]["unique_graphs"] <= number
    if name in GRAPHS:
        assert not counters["graph_break"]
