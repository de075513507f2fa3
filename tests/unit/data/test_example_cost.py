"""An example's cost is measured on a few, by its parts, without side effects."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

import tiny_runs
from toy import ToyDataset
from vaak.audio.augmentation.pipeline import augmented
from vaak.audio.config import AugmentationConfig
from vaak.audio.segments import LabelledAudio
from vaak.core.costs import collect_costs, time_part
from vaak.core.errors import DataError
from vaak.data.example_cost import MOST_MEASURED, REST, measure_examples
from vaak.runs.preflight.doctor import data


class Slow(ToyDataset):
    """Examples with a slow part, a quick one, and time that no part has; each is counted."""

    draws_globally = False

    def __init__(self, size: int, slow: float = 0.02) -> None:
        super().__init__(size)
        self.slow, self.made = slow, list[int]()

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        self.made.append(index)
        with time_part("codec"):
            time.sleep(self.slow)
        with time_part("reading"):
            time.sleep(self.slow / 10)
        time.sleep(self.slow / 10)
        return super().example(index, rng)


class Bad(ToyDataset):
    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        raise DataError("it can't be read")


def test_the_part_that_takes_most_is_named_first():
    dataset = Slow(1000)
    cost = measure_examples(dataset, seed=1)
    assert cost is not None
    assert max(cost.parts, key=cost.parts.__getitem__) == "codec"
    assert set(cost.parts) == {"codec", "reading", REST}
    assert cost.seconds == pytest.approx(sum(cost.parts.values()))
    assert 0.02 <= cost.parts["codec"] <= cost.seconds
    assert "(codec " in str(cost)
    # For a third of a second, from all over the dataset, the first one to warm up.
    assert 1 <= cost.number <= MOST_MEASURED
    assert len(dataset.made) == cost.number + 1
    assert max(dataset.made) - min(dataset.made) >= 60 * (len(dataset.made) - 1)


def test_one_slow_example_is_enough():
    dataset = Slow(5, slow=0.4)
    cost = measure_examples(dataset, seed=1)
    assert cost is not None
    assert (cost.number, dataset.made) == (1, [0])


def test_examples_that_cannot_be_made_have_no_cost():
    assert measure_examples(Bad(5), seed=1) is None


def test_parts_are_timed_only_where_someone_asks():
    with time_part("before"):
        pass
    with collect_costs() as found:
        with time_part("a"):
            pass
        with time_part("a"):
            pass
    with time_part("after"):
        pass
    assert list(found) == ["a"]


def test_each_part_of_augmentation_has_its_cost():
    audio = LabelledAudio("a", np.random.default_rng(0).normal(0, 0.1, 8000).astype(np.float32), 16000)
    config = AugmentationConfig(
        speed=(0.9,), volume=(-3, 3), codecs=("mulaw",), codec_probability=1, room={}, noise={"snr": (5, 10)}
    )
    with collect_costs() as found:
        measured = augmented(audio, config, np.random.default_rng(1)).samples
    assert set(found) == {"speed", "room", "noise", "codec mulaw"}
    assert np.array_equal(measured, augmented(audio, config, np.random.default_rng(1)).samples)


def test_config_check_measures_some_training_examples_and_keeps_nothing(tmp_path, monkeypatch, vaak):
    monkeypatch.chdir(tmp_path)
    tiny_runs.write_corpus(tmp_path)
    check = "config", "check", "tiny.yml", "run_dir=run", "--data"
    monkeypatch.setattr(data, "MOST_SECONDS", 600.0)  # on a busy machine, too
    before = sorted(tmp_path.rglob("*"))
    code, said, _ = vaak(*check)
    assert code == 0
    assert re.fullmatch(r"a training example takes .* ms.* to make: the mean of \d+", said.splitlines()[-1])
    assert sorted(tmp_path.rglob("*")) == before
    example = json.loads(vaak(*check, "--json")[1])["example"]
    assert 1 <= example["number"] <= MOST_MEASURED
    assert example["seconds"] > 0


def test_config_check_says_why_an_example_cannot_be_measured(tmp_path, monkeypatch, vaak):
    monkeypatch.chdir(tmp_path)
    tiny_runs.write_corpus(tmp_path)
    check = "config", "check", "tiny.yml", "--data"
    unknown = "not known: what a training example takes to make ("
    code, said, _ = vaak(*check, "data.corpus.train=[nowhere.txt]")
    assert code == 0
    assert said.splitlines()[-1].startswith(unknown)
    assert "nowhere.txt" in said
    monkeypatch.setattr(data, "MOST_SECONDS", 0.1)
    monkeypatch.setattr(data, "measure_examples", lambda *_: time.sleep(60))
    begin = time.monotonic()
    assert f"{unknown}preparing the training data takes more than 0.1 s; " in vaak(*check)[1]
    assert time.monotonic() - begin < 30
