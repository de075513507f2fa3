"""Utterances are prepared once, with durations and normalised bins; bad ones are an error, or skipped and counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import tiny_voice
from quick_cases import mostly_slow
from tiny_voice import RATE, cut, utterance, write_cuts
from vaak.audio.cuts.recordings import LeftOut
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.training import BatchingConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError
from vaak.data.batching import make_planner
from vaak.tasks.tts.prepare import SpeechSources
from vaak.tasks.tts.recordings import utterances

Change = Callable[[Path], Any]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return tiny_voice.write_voice(tmp_path / "corpus")


def make_task(corpus: Path, *overrides: str, **more: Any):
    """The task on a corpus, not prepared yet."""
    file = corpus.parent / "voice.yml"
    file.write_text(yaml_text(tiny_voice.options(corpus, **more)))
    experiment = load([file], list(overrides)).experiment
    return task_class("tts")(experiment, corpus.parent / "run", corpus.parent)


def test_durations_add_up_to_the_frames_of_every_utterance(corpus: Path):
    task = make_task(corpus)
    task.prepare()
    for split, number in tiny_voice.NUM_UTTERANCES.items():
        dataset = task.dataset(split)
        assert len(dataset.lengths) == number
        for index in range(number):
            example = dataset.example(index, np.random.default_rng(0))
            assert example.durations is not None
            assert example.durations.sum() == len(example.mel)
            assert len(example.durations) == len(example.ids)
            assert dataset.lengths[index] == pytest.approx(len(example.mel) * 64 / RATE)


def test_durations_are_those_of_the_alignment(corpus: Path):
    task = make_task(corpus, "data.silence=null")
    task.prepare()
    example = task.dataset("train").example(3, np.random.default_rng(0))
    _, _, phones = read_utterance(3)
    starts = np.cumsum(example.durations) - example.durations
    symbols = task.prepared.processor.decode(example.ids.tolist())
    spoken = [start for start, symbol in zip(starts, symbols, strict=True) if symbol not in (" ", ",", ".", "sil")]
    expected = [start for label, start, _ in phones if label != "sil"]
    assert np.abs(np.array(spoken) * 64 / RATE - expected).max() <= 64 / RATE


def read_utterance(index: int):
    """Utterance ``index`` of train, recomputed."""
    rng = np.random.default_rng(0)
    for _ in range(index):
        utterance(rng, int(rng.integers(2, 7)))
    return utterance(rng, int(rng.integers(2, 7)))


def test_bins_are_normalised_by_all_frames_of_training(corpus: Path):
    task = make_task(corpus)
    task.prepare()
    store = task.prepared.store("train")
    frames = np.concatenate([store.mel(index) for index in range(len(store))])
    assert task.prepared.normalisation.mel_mean == pytest.approx(frames.mean(0).tolist(), abs=1e-4)
    assert task.prepared.normalisation.mel_deviation == pytest.approx(frames.std(0).tolist(), abs=1e-4)


def test_what_was_prepared_is_found_again(corpus: Path):
    make_task(corpus).prepare()
    lines = corpus.parent / "run" / "prepared" / "train" / "utterances.jsonl"
    written = lines.stat().st_mtime_ns
    make_task(corpus).prepare()
    assert lines.stat().st_mtime_ns == written
    make_task(corpus, "data.front_end.stress=false").prepare()
    assert lines.stat().st_mtime_ns > written


def test_learned_durations_need_no_alignment(corpus: Path):
    lines = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    for line in lines:
        del line["supervisions"][0]["alignment"]
    (corpus / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = make_task(corpus, "model.durations=learned")
    task.prepare()
    assert task.dataset("train").example(0, np.random.default_rng(0)).durations is None


def change_line(corpus: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the second utterance of train."""
    lines = (corpus / "train.jsonl").read_text().splitlines()
    line = json.loads(lines[1])
    change(line)
    (corpus / "train.jsonl").write_text("\n".join([lines[0], json.dumps(line), *lines[2:]]) + "\n")


def replace_audio(corpus: Path, samples: np.ndarray, rate: int = RATE, **how: str) -> None:
    soundfile.write(corpus / "train1.wav", samples, rate, **how)


def label(line: dict[str, Any], **values: Any) -> None:
    line["supervisions"][0].update(values)


def with_nan(corpus: Path) -> None:
    samples, _ = soundfile.read(corpus / "train1.wav")
    samples[len(samples) // 2] = np.nan
    replace_audio(corpus, samples, subtype="FLOAT")


def align(line: dict[str, Any], change: Callable[[list[Any]], list[Any]], tier: str = "phone") -> None:
    line["supervisions"][0]["alignment"] = {tier: change(line["supervisions"][0]["alignment"]["phone"])}


BAD: dict[str, tuple[Change, str]] = {
    "nothing to speak": (
        lambda corpus: change_line(corpus, lambda line: label(line, text="?!")),
        r"train1 .*train1\.wav\): '\?!': there is nothing to speak in it",
    ),
    "other letters": (
        lambda corpus: change_line(corpus, lambda line: label(line, text="он me.")),
        r"train1 .*Cyrillic.*can't be read in English",
    ),
    "no alignment": (
        lambda corpus: change_line(corpus, lambda line: line["supervisions"][0].pop("alignment")),
        r"train1 .*it has no alignment; give alignments, or set model.durations: learned",
    ),
    "alignment of a part": (
        lambda corpus: change_line(corpus, lambda line: align(line, lambda phones: phones[: len(phones) // 3])),
        r"train1 .*its alignment ends at \d\.\d\d s, but speech at \d\.\d\d s: it is truncated",
    ),
    "alignment beyond the audio": (
        lambda corpus: change_line(corpus, lambda line: align(line, lambda phones: [*phones, ["M", 9.0, 0.5, None]])),
        r"train1 .*its alignment goes to 9\.50 s, but it lasts \d\.\d\d s",
    ),
    "alignment of another text": (
        lambda corpus: change_line(corpus, lambda line: label(line, text="go now, go now.")),
        r"train1 .*its alignment is of another text: only \d+ of \d+ phonemes",
    ),
    "alignment of words alone": (
        lambda corpus: change_line(corpus, lambda line: align(line, lambda phones: phones, "word")),
        r"train1 .*it has words but no phones; give alignments, or set model.durations: learned",
    ),
    "much text, little audio": (
        lambda corpus: change_line(corpus, lambda line: label(line, text="he saw me, " * 100)),
        r"train1 .*symbols in \d\.\d\d s, \d+ frames: the text is not that of the audio",
    ),
    "NaN": (with_nan, r"train1\.wav: the sample at 0\.\d+ s is nan, not a number; fix the file"),
    "missing audio": (lambda corpus: (corpus / "train1.wav").unlink(), r"train1\.wav"),
    "too low a rate": (
        lambda corpus: change_rate(corpus, 4000),
        r"train1 .*it has 4,000 Hz, so nothing above 2,000 Hz, but global_config.mel.f_max is 4,000 Hz",
    ),
}


def change_rate(corpus: Path, rate: int) -> None:
    """The second utterance of train at another rate."""
    _, samples, phones = read_utterance(1)
    replace_audio(corpus, samples[:: RATE // rate], rate)
    line = cut("train1", corpus / "train1.wav", read_utterance(1)[0], phones).to_dict()
    change_line(corpus, lambda old: old.update(line))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_utterance_is_one_clear_line(corpus: Path, name: str):
    change, message = BAD[name]
    change(corpus)
    with pytest.raises(DataError, match=message) as caught:
        make_task(corpus).prepare()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", mostly_slow(BAD, *list(BAD)[::3]))
def test_bad_utterances_can_be_skipped(corpus: Path, name: str):
    BAD[name][0](corpus)
    task = make_task(corpus, "data.on_bad_example=skip")
    task.prepare()
    dataset = task.dataset("train")
    assert len(dataset.lengths) == tiny_voice.NUM_UTTERANCES["train"] - 1
    names = {dataset.example(index, np.random.default_rng(0)).name for index in range(len(dataset.lengths))}
    assert "train1" not in names


def test_two_utterances_of_one_name_are_an_error(corpus: Path):
    (corpus / "train.jsonl").write_text((corpus / "train.jsonl").read_text() * 2)
    with pytest.raises(DataError, match="two cuts with the name train0"):
        make_task(corpus).prepare()


def test_an_unknown_speaker_in_validation_is_said_when_it_is_read(corpus: Path):
    lines = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        label(line, speaker=("ann", "ben")[number % 2])
    (corpus / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    valid = [json.loads(line) for line in (corpus / "valid.jsonl").read_text().splitlines()]
    label(valid[0], speaker="eve")
    (corpus / "valid.jsonl").write_text("".join(json.dumps(line) + "\n" for line in valid))
    task = make_task(corpus)
    task.prepare()
    assert task.model().speakers is not None
    with pytest.raises(DataError, match="eve is not a speaker of training"):
        task.dataset("valid").example(0, np.random.default_rng(0))


def text_of_line(line: dict[str, Any]) -> str:
    text: str = line["supervisions"][0]["text"]
    return text


def test_symbols_that_are_not_spoken_are_counted_and_named(corpus: Path, caplog: pytest.LogCaptureFixture):
    change_line(corpus, lambda line: label(line, text=f"{text_of_line(line)} 😀 ™"))
    task = make_task(corpus, "model.durations=learned")
    task.prepare()
    (line,) = [one for one in caplog.records if "can't be spoken" in one.getMessage()]
    lines = [json.loads(one) for one in (corpus / "train.jsonl").read_text().splitlines()]
    characters = sum(not one.isspace() for line in lines for one in text_of_line(line))
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        f"train: {200 / characters:.1f} % of the characters (2 of {characters}) and 0.0 % of the words can't be "
        "spoken: 😀 (1, first in train1) ™ (1, first in train1)"
    )
    about = {split: one["unspoken"] for split, one in task.prepared.about["statistics"].items()}
    assert about["valid"] == {"characters": 0.0, "words": 0.0}
    share = {"characters": round(200 / characters, 4), "words": 0.0}
    assert about["train"] == {**share, "most_frequent": {"😀": 1, "™": 1}}


def test_guessed_readings_are_counted_and_said(corpus: Path, caplog: pytest.LogCaptureFixture):
    change_line(corpus, lambda line: label(line, text=f"{text_of_line(line)} It is 3-4 or 1/2."))
    task = make_task(corpus, "model.durations=learned")
    with caplog.at_level(logging.INFO):
        task.prepare()
    said = [one.getMessage() for one in caplog.records if "are guesses" in one.getMessage()]
    assert said == ["train: 2 readings are guesses: 1/2 as a fraction (1), 3-4 as a range (1)"]
    about = {split: one["guesses"] for split, one in task.prepared.about["statistics"].items()}
    assert about["train"] == {"3-4 as a range": 1, "1/2 as a fraction": 1}
    assert about["valid"] == {}


def test_words_that_no_front_end_takes_are_refused_or_skipped_and_counted(corpus: Path):
    """Letters of another script: with ``skip`` their utterance is left out, up to data.max_unknown."""
    change_line(corpus, lambda line: label(line, text=f"{text_of_line(line)} Москва река Москва"))
    with pytest.raises(DataError, match="can't be read in English"):
        make_task(corpus, "model.durations=learned").prepare()
    skip = ("model.durations=learned", "data.on_bad_example=skip")
    message = (
        r"train: [\d.]+ % of the characters \(16 of \d+\) and [\d.]+ % of the words \(as Москва река\) can't be "
        r"spoken: к \(3, first in train1\) а .*; write them in words, .* or raise data\.max_unknown \(5 %\)"
    )
    with pytest.raises(DataError, match=message):
        make_task(corpus, *skip).prepare()
    task = make_task(corpus, *skip, "data.max_unknown=20")
    task.prepare()
    lines = [json.loads(one) for one in (corpus / "train.jsonl").read_text().splitlines()]
    words = sum(len(text_of_line(line).split()) for line in lines)
    about = task.prepared.about["statistics"]["train"]
    assert about["utterances"] == len(lines) - 1
    assert about["unspoken"]["words"] == round(300 / words, 4)
    assert about["unspoken"]["most_frequent"]["М"] == 2


def test_a_corpus_without_texts_is_an_error(corpus: Path, tmp_path: Path):
    _, samples, phones = utterance(np.random.default_rng(0), 3)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    write_cuts(corpus / "train.jsonl", [cut("a", tmp_path / "a.wav", None, phones)])
    with pytest.raises(DataError, match="train is empty: no dataset has a usable utterance"):
        make_task(corpus).prepare()


def test_a_text_much_longer_than_its_audio_is_found(corpus: Path):
    def kinds() -> list[str]:
        task = make_task(corpus, "model.durations=learned")
        task.prepare()
        return [f"{one.mark} {one.kind} {one.example.split()[0]}" for one in task.data_findings("train")]

    assert kinds() == []
    change_line(corpus, lambda line: label(line, text=(line["supervisions"][0]["text"] + " ") * 2))
    assert kinds() == ["warning rate train1"]


def test_what_was_skipped_is_not_taken_for_whole_from_a_cache(corpus: Path, tmp_path: Path):
    BAD["no alignment"][0](corpus)
    (tmp_path / "run").mkdir()
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    make_task(corpus, cache, "data.on_bad_example=skip").prepare()
    with pytest.raises(DataError, match="no alignment"):
        make_task(corpus, cache).prepare()


@pytest.mark.slow
def test_less_than_five_per_cent_of_the_quick_starts_batches_is_padding(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment: Any = load([Path(__file__).parents[4] / "configs" / "tts" / "quickstart.yml"]).experiment
    [corpus] = SpeechSources.of(experiment, experiment.datasets).corpora()
    audio, data = experiment.global_config, experiment.data
    cuts = utterances(corpus.cuts("train"), audio, data.silence, data.max_duration, LeftOut(skip_bad=False))
    lengths = np.array([one.duration for one in cuts])
    assert len(lengths) > 300
    training = experiment.training
    rows: dict[str, Any] = {"lengths": lengths, "strata": None, "batch_size": training.batch_size, "seed": 0}
    planner = make_planner(training.batching, **rows, row_capacity=None)
    assert planner.plan(0).padding_waste(lengths) < 0.05
    assert planner.num_microbatches <= 1.05 * len(lengths) / training.batch_size + 1
    unsorted = make_planner(BatchingConfig(type="fixed"), **rows, row_capacity=None)
    assert unsorted.plan(0).padding_waste(lengths) > 0.2
