"""Windows are as hard as their texts; they are measured once, and a language model trains on a curriculum of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_runs
from vaak.core.errors import UserError
from vaak.tasks.lm.data import StreamDataset, TextDataset
from vaak.tasks.lm.task import LanguageModelTask
from vaak.text import difficulties as measuring
from vaak.text.difficulties import measure_difficulties

CURRICULUM = (
    "training.max_steps=null",
    "training.epochs=2",
    "training.validation.interval=null",
    "training.checkpoint.interval=null",
    "training.curriculum.difficulty=lexical",
    "training.curriculum.initial_difficulty=0.25",
)


def lines(folder: Path) -> list[str]:
    return (folder / "train.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def task(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModelTask:
    return tiny_runs.prepared_task(tiny_text, tmp_path_factory.mktemp("run") / "r", "data.max_length=256")


@pytest.mark.parametrize("measure", ["lexical", "morphology"])
def test_a_document_in_one_window_is_as_hard_as_its_text(task: LanguageModelTask, tiny_text: Path, measure: str):
    difficulties = task.dataset("train").difficulty(measure)
    assert np.ptp(difficulties) > 0
    np.testing.assert_allclose(difficulties, measure_difficulties(lines(tiny_text), measure), atol=1e-6)


def test_length_is_that_of_the_windows_in_tokens(task: LanguageModelTask):
    dataset = task.dataset("train")
    assert np.array_equal(dataset.difficulty("length"), dataset.lengths)


def test_another_measure_is_refused(task: LanguageModelTask):
    with pytest.raises(UserError, match="unknown difficulty depth"):
        task.dataset("train").difficulty("depth")


@pytest.mark.parametrize("layout", ["document", "stream"])
def test_windows_are_measured_by_tokens_that_each_stand_in_one(layout: str, tiny_text: Path, tmp_path: Path):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "r", f"data.layout={layout}", "data.max_length=16")
    dataset = task.dataset("train")
    assert isinstance(dataset, TextDataset | StreamDataset)
    ids = np.concatenate([dataset.ids(index)[1:] for index in range(len(dataset.lengths))])
    tokens = ids[(ids != task.tokenizer.bos_id) & (ids != task.tokenizer.eos_id)]
    assert np.array_equal(tokens, dataset.store.tokens[: len(tokens)])
    assert len(dataset.store.tokens) - len(tokens) < 16  # a stream that is shifted leaves its end out


def test_it_is_measured_once_by_prepare_and_kept(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "r", *CURRICULUM)
    (kept,) = (tmp_path / "r" / "prepared" / "train").glob("difficulty-lexical-*.bin")
    first = task.dataset("train").difficulty("lexical").copy()
    with monkeypatch.context() as context:
        context.setattr(measuring, "count_words", None)
        assert np.array_equal(task.dataset("train").difficulty("lexical"), first)
    kept.write_bytes(kept.read_bytes()[:-3])  # damaged: measured again
    assert np.array_equal(task.dataset("train").difficulty("lexical"), first)
    assert kept.stat().st_size == 8 * len(first)


def test_a_folder_that_cannot_be_written_only_costs_time(
    tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    task = tiny_runs.prepared_task(tiny_text, tmp_path / "r")
    monkeypatch.setattr(measuring, "write_bytes", full)
    assert len(task.dataset("train").difficulty("lexical")) == len(lines(tiny_text))


def test_other_windows_and_another_tokenizer_are_other_measurements(tiny_text: Path, tmp_path: Path):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "r")
    for length in (8, 16):
        task.data = task.data.model_copy(update={"max_length": length})
        task.dataset("train").difficulty("lexical")
    assert len(list((tmp_path / "r" / "prepared" / "train").glob("difficulty-lexical-*.bin"))) == 2


@pytest.mark.slow
def test_minimal_pairs_have_none(tiny_text: Path, tmp_path: Path):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "r", "data.minimal_pairs=[grammar]", "data.max_length=64")
    with pytest.raises(UserError, match="not trained on"):
        task.dataset("pairs").difficulty("lexical")


@pytest.mark.slow
@pytest.mark.parametrize(
    "batching",
    [
        "fixed",
        "packed",
        "{type: bucketed, max_tokens: 256}",
    ],
)
def test_a_language_model_trains_on_a_curriculum(tiny_text: Path, tmp_path: Path, batching: str):
    """As many steps as without, easy windows first, and everything in the end."""
    options = (*CURRICULUM, "training.curriculum.num_epochs=1", f"training.batching={batching}")
    tiny_runs.train(tiny_text, tmp_path / "plain", *options, "training.curriculum=null")
    outcome = tiny_runs.train(tiny_text, tmp_path / "run", *options)
    assert outcome.reason == "finished"
    steps, plain_steps = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"kind": "step"' in line]
        for run in (tmp_path / "run", tmp_path / "plain")
    )
    assert [record["step"] for record in steps] == [record["step"] for record in plain_steps]
    assert steps[0]["loss"] != plain_steps[0]["loss"]
    assert outcome.metrics["val_loss"] < steps[0]["loss"]
