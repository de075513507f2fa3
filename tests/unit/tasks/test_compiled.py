"""torch.compile turns each task's model into whole graphs, and few of them whatever the lengths."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from contract_cases import CASES
from vaak.config.load import load
from vaak.engine.trainer import Trainer
from vaak.runs.start import train

pytestmark = [  # of torch's tracing itself
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
GRAPHS = {
    "lm decoder, packed": 2,
    "lm encoder": 1,
    "lm Performer": 4,  # features are drawn again
    "seq2seq": 1,
    "classification": 1,
    "diarization": 1,
    "tts": 1,
    "asr": 1,
    "vocoder": 2,
}
"""The greatest number in five steps: one for all lengths, and what differs besides."""
BROKEN = {"tts, learned durations": 2, "asr, experts": 15}
"""Of models that ask what numbers are: which path is the best, which experts were chosen."""
QUICK = ("lm decoder, packed",)
COMPILE = torch.compile
EXPERIMENT = """
task: lm
name: compiled
model: {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}
data: {corpus: {type: grammar, num_sentences: 60}, tokenizer: {type: byte_level, vocab_size: 300}, max_length: 32}
training:
  device: cpu
  max_steps: 8
  batch_size: 16
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {warmup_steps: 1}
  performance: {compile: default}
"""


@pytest.fixture(autouse=True)
def _only_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have graphs traced but not compiled, as generating code takes minutes."""
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asr", "lm decoder, documents"])
def test_what_is_computed_again_draws_the_same_dropout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As torch divides a traced step in forward and backward; untraced, the second forward would draw other numbers."""
    monkeypatch.setattr(torch, "compile", partial(COMPILE, backend="aot_eager_decomp_partition"))
    case, found = CASES[name].prepared(tmp_path), []
    for parts in ("none", "block"):
        torch.compiler.reset()
        trainer = case.trainer(tmp_path / parts, performance={"compile": True, "gradient_checkpointing": parts})
        with closing(trainer.upcoming()) as steps:
            report = trainer.take_step(next(steps))
        found.append([*map(float, report.losses.values()), float(report.gradient_norm)])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["stream", "document"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Kernels are those of a batch's shape, whichever shapes came before; an epoch ends with a smaller batch."""
    monkeypatch.setattr(torch, "compile", COMPILE)
    written = tmp_path / "experiment.yml"
    written.write_text(EXPERIMENT)

    def trained(run: str, *overrides: str) -> bytes:
        torch.compiler.reset()
        train(load([written], [f"run_dir={tmp_path / run}", f"data.layout={layout}", *overrides]))
        newest = max((tmp_path / run / "checkpoints").glob("step-*"))
        return (newest / "model.safetensors").read_bytes()

    whole = trained("run", "training.checkpoint.interval=5", "training.checkpoint.save_total_limit=10")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len({row["epoch"] for row in rows if row["kind"] == "step"}) > 1
    for later in (tmp_path / "run" / "checkpoints").glob("step-*8"):
        shutil.rmtree(later)
    assert trained("run", "training.checkpoint.resume=auto") == whole
