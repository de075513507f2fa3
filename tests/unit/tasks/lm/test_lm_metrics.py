"""Figures equal those of a direct computation over the whole text that shares no code with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import tiny_runs
from networks import draw_weights
from vaak.core.batch import Batch
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Evaluator
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.lm.metrics import PairMeters
from vaak.tasks.lm.model import AnyLanguageModel
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text.tokenizer import normalise

SIZE, STRIDE = 128, 64


def figures(task: LanguageModelTask, model: torch.nn.Module, split: str, batch_size: int) -> dict[str, float]:
    training = task.experiment.training
    validation = training.validation.model_copy(update={"batch_size": batch_size})
    config = training.model_copy(update={"validation": validation})
    return Evaluator(task, config, Ranks(torch.device("cpu"))).evaluate(model, split)


def sharp_model(task: LanguageModelTask) -> AnyLanguageModel:
    """A model whose predictions differ from place to place and depend on the context."""
    torch.manual_seed(0)
    model = task.model().double().eval()
    draw_weights(model)
    return model


@torch.no_grad()
def nats_by_sliding_windows(model: AnyLanguageModel, ids: list[int], size: int, stride: int) -> list[float]:
    """-ln p of ids[1:], each in the first window that holds it, as a loop that moves a window along."""
    nats: list[float] = []
    begin = 0
    while len(nats) < len(ids) - 1:
        window = ids[begin : begin + size + 1]
        scores = model(torch.tensor([window[:-1]]))[0].log_softmax(-1)
        known = len(nats) - begin
        nats += [-float(scores[place, window[place + 1]]) for place in range(known, len(window) - 1)]
        begin += stride
    return nats


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of unequal length with empty lines, one without a newline at its end, and a single letter."""
    folder = tmp_path_factory.mktemp("text")
    tiny_runs.write_corpus(folder)
    lines = (folder / "train.txt").read_text().splitlines()
    (folder / "long.txt").write_text("\n".join(lines[:60]) + "\n\n\n")
    (folder / "middle.txt").write_text("\n\n" + "\n".join(lines[60:85]))
    (folder / "short.txt").write_text("क")
    (folder / "lines.txt").write_text("\n".join([*lines[:40], " ".join(lines[40:70]), "क"]) + "\n")
    return folder


def make_task(files: Path, name: str, *overrides: str) -> LanguageModelTask:
    windows = (f"data.max_length={SIZE}", f"data.stride={STRIDE}", "model.dropout=0")
    return tiny_runs.prepared_task(files, files / name, *windows, *overrides)


def test_a_stream_of_files_is_scored_whole(files: Path):
    names = [files / name for name in ("long.txt", "middle.txt", "short.txt")]
    test = ",".join(f"'{name}'" for name in names)
    task = make_task(files, "stream", "data.layout=stream", "data.corpus.document=file", f"data.corpus.test=[{test}]")
    model, tokenizer = sharp_model(task), task.tokenizer
    texts = [[tokenizer.bos_id, *tokenizer.encode(normalise(name.read_text()))] for name in names]
    nats = [value for ids in texts for value in nats_by_sliding_windows(model, ids, SIZE, STRIDE)]
    assert len(texts[0]) > 3 * SIZE
    assert len(nats) == sum(len(ids) - 1 for ids in texts)

    result = figures(task, model, "test", batch_size=3)
    num_bytes = sum(name.stat().st_size for name in names)
    assert result["test_loss"] == pytest.approx(math.fsum(nats) / len(nats), rel=1e-6)
    assert result["test_perplexity"] == pytest.approx(math.exp(math.fsum(nats) / len(nats)), rel=1e-6)
    assert result["test_bits_per_byte"] == pytest.approx(math.fsum(nats) / math.log(2) / num_bytes, rel=1e-6)
    assert task.meters("test").protocol["newline"] == "every one counted"


def test_lines_are_scored_each_with_its_end(files: Path):
    task = make_task(files, "lines", f"data.corpus.test=['{files / 'lines.txt'}']")
    model, tokenizer = sharp_model(task), task.tokenizer
    nats = []
    for line in (files / "lines.txt").read_text().splitlines():
        ids = [tokenizer.bos_id, *tokenizer.encode(normalise(line)), tokenizer.eos_id]
        nats += nats_by_sliding_windows(model, ids, SIZE, STRIDE)
    num_bytes = (files / "lines.txt").stat().st_size
    for batch_size in (1, 5, 64):  # the mean of batch means would change with it
        result = figures(task, model, "test", batch_size)
        assert result["test_loss"] == pytest.approx(math.fsum(nats) / len(nats), rel=1e-6)
        assert result["test_bits_per_byte"] == pytest.approx(math.fsum(nats) / math.log(2) / num_bytes, rel=1e-6)
    assert task.meters("test").protocol["newline"] == "one at the end of each document"


def test_what_a_tokenizer_loses_is_not_credited_to_the_model(files: Path, caplog: pytest.LogCaptureFixture):
    """An unknown word had counted with all its bytes: bits per byte fell by what the tokenizer lost."""
    lines = (files / "test.txt").read_text().splitlines()
    (files / "strange.txt").write_text("\n".join([*lines[:20], "यह Ωmega है।", *lines[20:]]) + "\n")
    strange = f"data.corpus.valid=['{files / 'strange.txt'}']"
    with caplog.at_level("WARNING", logger="vaak"):
        task = make_task(files, "lossy", "data.tokenizer.type=wordpiece", strange)
    reason = f"the tokenizer loses text in 1 of {len(lines) + 1} documents"
    assert f"valid: no bits per byte: {reason}" in caplog.messages
    model = sharp_model(task)
    assert "val_bits_per_byte" not in figures(task, model, "valid", 7)
    assert task.meters("valid").protocol["bits_per_byte"] == f"withheld, {reason}"
    assert "test_bits_per_byte" in figures(task, model, "test", 7)  # of this split it loses nothing
    assert "bits_per_byte" not in task.meters("test").protocol

    caplog.clear()
    assert not task.make_dataset_from(["Ωmega", lines[0]]).store.is_exact
    assert "no bits per byte: the tokenizer loses text in 1 of 2 documents" in caplog.messages
    exact = make_task(files, "exact", strange)
    assert "val_bits_per_byte" in figures(exact, sharp_model(exact), "valid", 7)


def test_accuracy_counts_tokens(files: Path):
    task = make_task(files, "accuracy")
    model, tokenizer = sharp_model(task), task.tokenizer
    right = total = 0
    for line in (files / "test.txt").read_text().splitlines():
        ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(normalise(line)), tokenizer.eos_id]])
        right += int((model(ids[:, :-1]).argmax(-1) == ids[:, 1:]).sum())
        total += ids.shape[1] - 1
    assert figures(task, model, "test", 7)["test_accuracy"] == pytest.approx(right / total)


def test_the_masked_objective_is_scored_where_tokens_were_chosen(files: Path):
    task = make_task(files, "masked", "model.model_type=encoder")
    model = sharp_model(task)
    result = figures(task, model, "valid", batch_size=4)
    assert figures(task, model, "valid", batch_size=4) == result  # the same tokens are masked each time
    assert figures(task, model, "valid", batch_size=1)["val_loss"] == pytest.approx(result["val_loss"], rel=1e-6)
    assert "val_bits_per_byte" not in result
    assert task.meters("valid").protocol["objective"] == "masked"
    assert result["val_perplexity"] == pytest.approx(math.exp(result["val_loss"]))


class FixedScores(torch.nn.Module):
    """Gives each token the same score wherever it stands."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, inputs: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.scores.expand(*inputs.shape, -1)


def test_ties_are_wrong_and_phenomena_are_kept_apart():
    def batch(phenomena: list[str], *targets: list[int]) -> Batch:
        padded = torch.tensor([row + [IGNORED] * (3 - len(row)) for row in targets]).unflatten(0, (-1, 2))
        return Batch(
            {"inputs": torch.zeros_like(padded), "targets": padded, "documents": padded},
            {},
            extra={"packed": False, "phenomena": phenomena},
        )

    from vaak.tasks.lm.config import LanguageModelConfig

    meters, model = PairMeters({}, LanguageModelConfig()), FixedScores([0.0, 1.0, 2.0])
    meters.update(model, batch(["a", "b"], [2, 2], [1, 1], [1, 2], [2, 1]))  # right; a tie
    meters.update(model, batch(["a"], [2, 2, 2], [2]))  # longer, so less probable
    assert meters.results(meters.sums()) == {"accuracy": 1 / 3, "accuracy/a": 0.5, "accuracy/b": 0.0}
    assert meters.summary(meters.sums(), {}) == {"phenomena": {"a": [1.0, 2.0], "b": [0.0, 1.0]}}
    nats = F.cross_entropy(model(torch.zeros(1, 2))[0], torch.tensor([2, 2]), reduction="sum")
    assert nats == pytest.approx(2 * (math.log(1 + math.e + math.e**2) - 2))
