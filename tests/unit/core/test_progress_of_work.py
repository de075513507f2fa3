"""Work that may take long says how much there is of it, so that the time left is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tiny_runs
from small_diarizers import FRAME_SHIFT, conversation, small_diarizer
from toy import ToyTask, next_microbatches, toy_trainer
from vaak.core import progress as module
from vaak.core.progress import ProgressTask
from vaak.runs.preflight import largest_batch as trials
from vaak.runs.preflight.largest_batch import find_batch_size
from vaak.study.gradient_check import check_gradients
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig
from vaak.tasks.diarization.predict import Diarizer, tune
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer_training import TokenizerFactory
from vaak.text.word_dictionary import FOLDS, Links, translations_by_others


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[ProgressTask]:
    """All work whose progress may be shown, in the order in which it begins."""
    found: list[ProgressTask] = []

    class Recorded(ProgressTask):
        def __init__(self, name: str, total: float | None, already: float = 0.0) -> None:
            super().__init__(name, total, already)
            found.append(self)

    monkeypatch.setattr(module, "ProgressTask", Recorded)
    return found


def amounts(works: list[ProgressTask]) -> list[tuple[str, float | None, float]]:
    return [(work.name, work.total, work.done) for work in works]


def test_a_tokenizer_says_how_many_texts_it_has_read(works: list[ProgressTask]):
    options = TokenizerConfig(type="byte_level", vocab_size=300, training_characters=1000)
    TokenizerFactory(options).create_tokenizer(["यह घर है"] * 7)
    assert amounts(works)[0] == ("reading texts", 7, 7)
    assert works[1].name == "training the tokenizer"
    works.clear()
    TokenizerFactory(options).create_tokenizer(iter(["यह घर है"] * 7))  # a stream's source says it
    assert [work.name for work in works] == ["training the tokenizer"]


def test_a_dictionary_has_rounds_and_parts(works: list[ProgressTask]):
    pairs = [(f"the house {number}", f"घर {number}") for number in range(20)]
    Links(pairs).dictionary(3)
    assert amounts(works) == [("words of pairs", None, 20), ("rounds of a dictionary", 3, 3)]
    works.clear()
    assert len(list(translations_by_others(Links(pairs)))) == 20
    assert ("dictionaries of other pairs", FOLDS, FOLDS) in amounts(works)


def test_tuning_says_how_many_recordings_and_settings_there_are(works: list[ProgressTask]):
    examples = [conversation(seed, 300, f"r{seed}") for seed in range(3)]
    diarizer = Diarizer(small_diarizer(), InferenceConfig(), FRAME_SHIFT)
    with torch.no_grad():
        tune(diarizer, iter(examples), ScoringConfig(), len(examples))
    found = amounts(works)
    assert found[:2] == [("recordings", 3, 3), ("joining windows", 3, 3)]
    assert found[-2:] == [("scoring", 3, 3)] * 2
    assert {work.name for work in works[2:-2]} == {"trying settings"}
    assert all(work.total == work.done > 1 for work in works[2:-2])


def test_the_search_for_a_batch_size_comes_nearer_to_its_end(
    works: list[ProgressTask], tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trials, "STEPS", 1)
    done: list[float] = []

    def tell(trial: trials.Trial) -> None:
        [work] = (work for work in works if work.name == "trying batch sizes")
        done.append(work.done)

    find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"), up_to=16, tell=tell)
    assert done == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_gradients_are_checked_one_after_another(works: list[ProgressTask], tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(dropout=0.0))
    batch = next_microbatches(trainer)[0].batch
    assert batch is not None
    works.clear()
    checks = check_gradients(trainer.task, trainer.model, batch)
    assert ("checking gradients", len(checks), len(checks)) in amounts(works)
