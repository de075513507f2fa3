"""Weights of classes: the loss is that of torch's CrossEntropyLoss, for any split of a step into parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vaak.config.load import load
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.runs.start import prepare, train
from vaak.tasks.classification.data import balanced
from vaak.tasks.classification.task import ClassificationTask

CONFIG = """\
task: classification
name: tiny
model: {architecture: cnn, embed_size: 8, num_filters: 6, filter_sizes: [1, 2], dropout: 0.0}
data:
  corpus: {train: texts.json, train_fraction: 0.8, valid_fraction: 0.1, deduplicate: false}
  label_column: [label, kind]
  tokenizer: {type: word, vocab_size: 200, min_frequency: 1}
training: {max_steps: 1, batch_size: 12, device: cpu, logging: {tensorboard: false, interval: 1}}
"""
ONE = "data.corpus.label_columns=[label]"
COUNTS = {"a": 60, "b": 25, "c": 5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    labels = [label for label, number in COUNTS.items() for _ in range(number)]
    rows = [
        {"text": f"w{place % 7} x{place % 11}", "label": one, "kind": place % 2} for place, one in enumerate(labels)
    ]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    (tmp_path / "tiny.yml").write_text(CONFIG)
    return tmp_path


def weighted(weight: Any, smoothing: float = 0.0) -> str:
    return f"training.loss={{main: {{type: cross_entropy, weight: {weight}}}, label_smoothing: {smoothing}}}"


def made(folder: Path, *overrides: str) -> tuple[ClassificationTask, nn.Module, Batch]:
    """A prepared task, its model in 64 bits, and all training texts as one batch."""
    loaded = load(["tiny.yml"], overrides)
    task = ClassificationTask(loaded.experiment, folder / "run", loaded.folder)
    task.prepare()
    torch.manual_seed(0)
    dataset, model = task.dataset("train"), task.model().double()
    rng = np.random.default_rng(0)
    return task, model, dataset.collate([[dataset.example(index, rng)] for index in range(len(dataset.lengths))])


def compute_mean(task: ClassificationTask, model: nn.Module, batches: list[Batch]) -> Tensor:
    """The loss of a step: each term's sum over all batches, over the count of its unit in all of them."""
    found = [task.losses(model, batch) for batch in batches]
    totals = {name: torch.stack([terms[name].total for terms in found]).sum() for name in found[0]}
    counts = {name: sum(batch.counts[one.per].sum() for batch in batches) for name, one in found[0].items()}
    return sum((totals[name] / counts[name] for name in totals), torch.tensor(0.0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [[0.5, 2.0, 7.0], "balanced"])
def test_one_column_has_the_loss_and_the_gradient_of_torch(folder: Path, weight: Any, smoothing: float):
    task, model, batch = made(folder, ONE, weighted(weight, smoothing))
    counts = np.bincount(batch["targets"][:, 0])
    wanted = len(batch["targets"]) / (3 * counts) if weight == "balanced" else weight
    theirs = nn.CrossEntropyLoss(torch.tensor(wanted, dtype=torch.float64), label_smoothing=smoothing)
    expected = theirs(model(batch["inputs"], batch["mask"]), batch["targets"][:, 0])
    for batches in ([batch], batch.split(2), batch.split(5)):
        found = compute_mean(task, model, batches)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        gradients = torch.autograd.grad(found, [*model.parameters()])
        wanted_gradients = torch.autograd.grad(expected, [*model.parameters()], retain_graph=True)
        for one, other in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)


def test_each_of_several_columns_is_divided_by_its_own_weights(folder: Path):
    task, model, batch = made(folder, weighted("balanced"), "model.label_weights=[1, 0.3]")
    scores, expected = model(batch["inputs"], batch["mask"]).split([3, 2], 1), torch.tensor(0.0)
    for place, (factor, one) in enumerate(zip((1, 0.3), scores, strict=True)):
        weight = torch.from_numpy(balanced(np.bincount(batch["targets"][:, place])))
        expected = expected + factor * nn.CrossEntropyLoss(weight)(one, batch["targets"][:, place])
    for batches in ([batch], batch.split(3)):
        torch.testing.assert_close(compute_mean(task, model, batches), expected, rtol=1e-12, atol=0)


def test_equal_weights_are_none(folder: Path):
    task, model, batch = made(folder, ONE, weighted([3, 3, 3]))
    plain, *_ = made(folder, ONE)
    torch.testing.assert_close(
        compute_mean(task, model, [batch]), compute_mean(plain, model, [batch]), rtol=1e-12, atol=0
    )


def test_a_trained_step_doesnt_depend_on_its_microbatches(folder: Path):
    losses = []
    for rows, parts in ((12, 1), (4, 3)):
        sizes = [f"training.batch_size={rows}", f"training.gradient_accumulation_steps={parts}"]
        train(load(["tiny.yml"], [f"name=r{parts}", weighted("balanced"), *sizes]))
        lines = (folder / "runs" / f"r{parts}" / "metrics.jsonl").read_text().splitlines()
        losses.append(next(one["loss"] for one in map(json.loads, lines) if "loss" in one))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_balanced_is_that_of_scikit_learn():
    of_sklearn = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = np.repeat([0, 1, 2], [60, 25, 5])
    expected = of_sklearn("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(balanced(np.bincount(labels)), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([ONE, weighted([1, 2])], "has 2 numbers; label has 3 classes, in this order: a, b, c"),
        ([ONE, weighted([1, -2, 1])], "expected balanced, or a list with a number of 0 or more for each class"),
        ([ONE, weighted("equal")], "is equal; expected balanced, or a list"),
        ([weighted([1, 2, 3])], "there are several; expected balanced"),
        ([ONE, "data.corpus.multi_label=true", weighted("balanced")], "with multi_label a text has no single class"),
        ([ONE, "model.num_labels=3", weighted([1, 2])], "has 2 numbers for 3 classes (model.num_labels)"),
        ([ONE, "training.loss.main={type: cross_entropy, weigth: balanced}"], "no option weigth"),
        ([ONE, "training.loss.main={type: focal, weight: balanced}"], "focal has no option weight"),
        ([ONE, "training.loss.main={type: focal, gama: 2}"], "focal has no option gama; its options are gamma"),
    ],
)
def test_mistakes_have_one_line(folder: Path, overrides: list[str], words: str):
    with pytest.raises(UserError) as caught:
        prepare(load(["tiny.yml"], overrides))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_other_tasks_have_no_class_weights(folder: Path):
    (folder / "lm.yml").write_text("task: lm\n")
    with pytest.raises(UserError, match=r"training.loss.main.weight: only classifiers have class weights"):
        load(["lm.yml"], [weighted("balanced")])
