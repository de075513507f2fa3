"""Figures of a classifier are scikit-learn's, however the texts are batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from vaak.core.batch import Batch
from vaak.tasks.classification.metrics import BINS, ClassMeters, ScopeMeters

CLASSES = {"a": ["x", "y", "z"], "b": ["0", "1"]}


def measured(meters: Any, logits: np.ndarray, targets: np.ndarray, cuts: list[int]) -> dict[str, float]:
    """The results of logits and targets shown in batches that end at ``cuts``."""
    for rows in np.split(np.arange(len(logits)), sorted(cuts)):
        if len(rows):
            batch = Batch(
                {"inputs": torch.tensor(logits[rows]), "mask": torch.tensor(0), "targets": torch.tensor(targets[rows])},
                {},
                [[int(row)] for row in rows],
            )
            meters.update(lambda inputs, mask: inputs, batch)
    results: dict[str, float] = meters.results(meters.sums())
    return results


def scores(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    metrics = {
        f"{name}_f1": f1_score(true, predicted, average=name, zero_division=0)
        for name in ("macro", "micro", "weighted")
    }
    return {"accuracy": accuracy_score(true, predicted), **metrics}


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.lists(st.integers(0, 60), max_size=4))
def test_single_labels(seed: int, size: int, cuts: list[int]):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(size=(size, 5)), np.stack([rng.integers(3, size=size), rng.integers(2, size=size)], 1)
    found = measured(ClassMeters({}, CLASSES, False, (1.0, 0.5)), logits, targets, cuts)
    parts, loss = {}, 0.0
    for column, part, weight in (("a", slice(0, 3), 1.0), ("b", slice(3, 5), 0.5)):
        true = targets[:, 0 if column == "a" else 1]
        probabilities = np.exp(logits[:, part]) / np.exp(logits[:, part]).sum(1, keepdims=True)
        predicted, confidence = probabilities.argmax(1), probabilities.max(1)
        bins = np.clip(np.ceil(confidence * BINS), 1, BINS)
        gaps = [
            abs((predicted == true)[bins == one].mean() - confidence[bins == one].mean()) * (bins == one).mean()
            for one in set(bins)
        ]
        parts[column] = {**scores(true, predicted), "ece": sum(gaps)}
        loss += weight * -np.log(probabilities[np.arange(size), true]).mean()
    expected = {f"{name}/{column}": value for column, one in parts.items() for name, value in one.items()}
    expected |= {name: (parts["a"][name] + parts["b"][name]) / 2 for name in parts["a"]} | {"loss": loss}
    assert found == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 30), max_size=3))
def test_several_labels(seed: int, cuts: list[int]):
    rng = np.random.default_rng(seed)
    logits, targets = rng.normal(size=(30, 3)), (rng.random((30, 3)) < 0.4).astype(np.float32)
    found = measured(ClassMeters({}, {"tags": ["x", "y", "z"]}, True), logits, targets, cuts)
    expected = scores(targets.astype(int), (logits > 0).astype(int))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    losses = np.log1p(np.exp(-np.abs(logits))) + np.maximum(logits, 0) - logits * targets
    assert found["loss"] == pytest.approx(losses.mean(), abs=1e-9)


def test_tables_have_every_class_and_every_text():
    meters = ClassMeters({}, {"label": ["x", "y"]}, False)
    measured(meters, np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), np.array([[0], [1], [1]]), [1])
    tables = meters.tables()
    assert tables["classes"].splitlines() == [
        "class,precision,recall,f1,texts,predicted",
        "x,0.500000,1.000000,0.666667,1,2",
        "y,1.000000,0.500000,0.666667,2,1",
    ]
    assert tables["predictions"].splitlines()[0] == "index,label,predicted_label,confidence"
    assert [line.split(",")[:3] for line in tables["predictions"].splitlines()[1:]] == [
        ["0", "x", "x"],
        ["1", "y", "y"],
        ["2", "y", "x"],
    ]
    pytest.importorskip("matplotlib")
    assert all(picture.startswith(b"\x89PNG") for picture in meters.pictures().values())


def test_out_of_scope_is_the_area_under_the_curve():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 3)) * np.where(np.arange(600) < 400, 4.0, 2.0)[:, None]
    targets = np.where(np.arange(600) < 400, 0, -100)[:, None]
    found = measured(ScopeMeters({}, {"label": ["x", "y", "z"]}), logits, targets, [100, 450])
    confidence = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1)
    inside = targets[:, 0] >= 0
    assert found["auroc"] == pytest.approx(roc_auc_score(inside, confidence), abs=2e-3)
    threshold = np.sort(confidence[inside])[20]
    assert found["fpr95"] == pytest.approx((confidence[~inside] >= threshold).mean(), abs=0.02)


def test_what_is_not_learned_has_no_part_in_means_and_confidence():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(60, 5)), np.stack([rng.integers(3, size=60), rng.integers(2, size=60)], 1)
    found = measured(ClassMeters({}, CLASSES, False, (1.0, 0.0)), logits, targets, [])
    assert found["accuracy"] == found["accuracy/a"] != found["accuracy/b"]
    targets[30:] = -100
    both = measured(ScopeMeters({}, CLASSES, (1.0, 0.0)), logits, targets, [])
    alone = measured(ScopeMeters({}, {"a": CLASSES["a"]}), logits[:, :3], targets[:, :1], [])
    assert both == alone


def test_the_summary_has_the_surest_errors_with_their_texts_however_it_is_divided():
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(90, 3)), rng.integers(3, size=(90, 1))
    classes, texts = {"label": ["x", "y", "z"]}, [f"text {index}" for index in range(90)]
    seen: dict[str, list[Any]] = {}
    sums: dict[str, float] = {}
    for rank in range(2):
        meters: Any = ClassMeters({}, classes, False, get_text=texts.__getitem__)
        rows = np.arange(rank, 90, 2)
        batch = {"inputs": torch.tensor(logits[rows]), "mask": torch.tensor(0), "targets": torch.tensor(targets[rows])}
        meters.update(lambda inputs, mask: inputs, Batch(batch, {}, [[int(row)] for row in rows]))
        for name, found in meters.seen().items():
            seen.setdefault(name, []).extend(found)
        for key, value in meters.sums().items():
            sums[key] = sums.get(key, 0.0) + value
    summary = meters.summary(sums, seen)
    predicted, true = logits.argmax(1), targets[:, 0]
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (true, predicted), 1)
    assert summary["confusions"]["label"] == {"classes": classes["label"], "counts": expected.tolist()}
    assert summary["scores"]["sums"] == [[float(one), 1] for one in predicted == true]
    confidences = np.exp(logits).max(1) / np.exp(logits).sum(1)
    wrong = [index for index in range(8, 90) if predicted[index] != true[index]]
    kept = {one["index"]: one for one in summary["examples"]}
    assert set(sorted(wrong, key=lambda index: -confidences[index])[:42]) <= set(kept)
    assert all(one["text"] == texts[index] for index, one in kept.items())
    assert all(one["class"] == classes["label"][true[index]] for index, one in kept.items())
    assert sum(number for number, *_ in summary["calibration"]["label"]) == 90
