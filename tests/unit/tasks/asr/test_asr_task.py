"""A tiny recogniser: its data, its figures, its transcripts, and one line for what can't be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.supervision import AlignmentItem
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

import tiny_listener
from vaak.config.load import load, load_layers
from vaak.config.tasks import TASKS
from vaak.config.training import TrainingConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError, UserError
from vaak.engine.checkpoint.files import resolve_checkpoint
from vaak.runs.open_run import open_run
from vaak.runs.preflight.doctor.data import prepared_task, read_examples
from vaak.tasks.asr.config import SCRATCH
from vaak.tasks.asr.long_form import cut_windows, quietest
from vaak.tasks.asr.utterances import split_at_silences
from vaak.tasks.asr.whisper.features import SAMPLING_RATE
from vaak.tasks.asr.whisper.task import WhisperTask


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, trained to its end; tests don't change it."""
    return tiny_listener.train(corpus, tmp_path_factory.mktemp("run") / "listener")


def make_task(corpus: Path, folder: Path, **more: Any) -> Any:
    """A task, prepared."""
    folder.mkdir(exist_ok=True)
    file = folder / "case.yml"
    file.write_text(yaml_text(tiny_listener.options(corpus, **more)))
    experiment: Any = load([file]).experiment
    task = WhisperTask(experiment, folder, folder)
    task.prepare()
    return task


@pytest.mark.parametrize(
    ("model", "device", "chosen"),
    [
        ({}, "cuda", "device"),
        ({"graphs": True}, "cuda", "loader"),
        ({}, "cpu", "loader"),
        ({}, "mps", "loader"),
        ({"architecture": "ctc"}, "cuda", "device"),
        ({"architecture": "ctc", "base": "facebook/wav2vec2-base"}, "cuda", "loader"),
        ({"architecture": "decoder", "base": "UsefulSensors/moonshine-tiny"}, "cuda", "loader"),
    ],
)
def test_where_features_are_made_follows_from_the_device_and_the_model(model: dict[str, Any], device: str, chosen: str):
    training = TrainingConfig(performance={"cuda_graphs": model.get("graphs", False)})

    def choose(where: str) -> Mapping[str, tuple[str, str]]:
        options = SimpleNamespace(**{"architecture": "whisper", "base": SCRATCH, **model})
        data = SimpleNamespace(features_on=where)
        return TASKS["asr"].settles(SimpleNamespace(data=data, model=options, training=training), device)

    assert choose("auto")["data.features_on"][0] == chosen
    assert choose("loader") == choose("device") == {}


@pytest.mark.slow
def test_a_run_keeps_where_its_features_are_made(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):

    def train(name: str, steps: int, *overrides: str) -> tuple[str, str]:
        capfd.readouterr()
        resume = "training.checkpoint.resume=auto"
        run = tiny_listener.train(corpus, tmp_path / name, resume, f"training.max_steps={steps}", *overrides)
        return capfd.readouterr().err, (run / "config.yml").read_text()

    said, recorded = train("open", 1)
    assert "data.features_on: auto is loader here: there is no GPU to make them" in said
    assert "features_on: loader" in recorded
    assert "data.features_on was" not in train("open", 2)[0]
    train("as on a GPU", 1, "data.features_on=device")
    said, recorded = train("as on a GPU", 2)
    assert "data.features_on: auto is device here: with which the run began" in said
    assert "features_on: device" in recorded
    # As one that began before the option.
    before = {**TASKS["asr"].newer(lambda key: None)}
    assert before["data.features_on"] == "loader"


@pytest.mark.parametrize(
    "augmentation",
    [None, {"spec_augment": {"time_mask": 0.2, "probability": 0.7}}, {"speed": [0.9, 1.1], "noise": "coloured"}],
    ids=["plain", "masked", "changed"],
)
def test_features_made_on_the_device_are_those_of_the_loader(corpus: Path, tmp_path: Path, augmentation: Any):
    """Up to rounding, with the same draws; other splits have theirs from the loader, which keeps them."""
    tasks = [
        make_task(corpus, tmp_path / where, data={"features_on": where, "augmentation": augmentation})
        for where in ("loader", "device")
    ]
    batches, draws, first = [], [], []
    for task in tasks:
        dataset, rng = task.dataset("train"), np.random.default_rng(3)
        examples = [dataset.example(index, rng) for index in range(8)]
        batches.append(dataset.collate([[one] for one in examples]))
        draws.append(rng.random())
        first.append(dataset.compute_features(examples[0]))
    of_loader, on_device = batches
    assert draws[0] == draws[1]
    np.testing.assert_allclose(first[1], first[0], rtol=0, atol=1e-5)
    assert "features" not in on_device.tensors
    found, expected = tasks[1].compute_features(on_device), of_loader["features"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    if augmentation is not None and "spec_augment" in augmentation:
        assert len({tuple(masks) for masks in on_device["masks"].flatten(1).tolist()}) > 4, "each row has its own"
    (_, alone) = on_device.split(2)  # another number of rows, with the same padding
    torch.testing.assert_close(tasks[1].compute_features(alone), expected[4:], rtol=0, atol=1e-5)
    for name in ("inputs", "targets"):
        assert torch.equal(on_device[name], of_loader[name])
    assert {name: ones.tolist() for name, ones in on_device.counts.items()} == {
        name: ones.tolist() for name, ones in of_loader.counts.items()
    }
    assert "features" in tasks[1].dataset("valid").collate([[tasks[1].dataset("valid").example(0, rng)]]).tensors


def test_figures_are_of_all_and_of_each_group(run: Path):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    last = [line for line in lines if line["kind"] == "evaluation"][-1]
    words = {"low": 9, "high": 3}  # of valid: utterances of 1, 2, 3, 1, 2, 3 words, every fourth from the first high
    shares = {name: last[f"val_wer/{name}"] * number for name, number in words.items()}
    assert last["val_wer"] == pytest.approx(sum(shares.values()) / 12)
    assert 0 < last["val_accuracy"] <= 1
    assert last["val_loss"] < 3


def test_the_best_checkpoint_is_that_of_the_lowest_word_error_rate(run: Path):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["val_wer"] for line in lines if line["kind"] == "evaluation" and line["scheduled"]}
    assert rates[int(resolve_checkpoint(run).name.rpartition("-")[2])] == min(rates.values())


def test_a_long_recording_is_transcribed_in_windows(run: Path, tmp_path: Path):
    rng = np.random.default_rng(1)
    pauses = [np.concatenate((tiny_listener.make_samples(["mi", "su"], "low", rng), np.zeros(2400))) for _ in range(5)]
    soundfile.write(tmp_path / "long.wav", np.concatenate(pauses), tiny_listener.RATE)
    opened = open_run(run)
    (found,) = opened.task.predict(opened.model, [tmp_path / "long.wav"])
    assert found.duration == pytest.approx(4.0)
    assert len(found.segments) >= 5
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert before.start < before.end <= after.start + 0.1
    assert found.text == " ".join(segment.text for segment in found.segments if segment.text)
    first = found.srt.splitlines()
    assert first[0] == "1"
    assert " --> " in first[1]


def test_windows_are_cut_where_it_is_quiet_and_cover_all_speech():
    rng = np.random.default_rng(0)
    samples = rng.normal(0, 0.1, 10 * SAMPLING_RATE).astype(np.float32)
    for second in (1.5, 3.1, 4.4, 6.0, 7.7, 9.0):
        samples[round(second * SAMPLING_RATE) : round((second + 0.3) * SAMPLING_RATE)] *= 1e-3

    def read(start: float, end: float) -> np.ndarray:
        return samples[round(start * SAMPLING_RATE) : round(end * SAMPLING_RATE)]

    windows = list(cut_windows(read, 10.0, 2.0, SAMPLING_RATE))
    assert sum(len(window) for *_, window in windows) == len(samples)
    assert all(len(window) <= 2 * SAMPLING_RATE for *_, window in windows)
    assert windows[0][2] == pytest.approx(1.5, abs=0.1)
    assert 1.5 * SAMPLING_RATE < len(windows[0][3]) < 1.8 * SAMPLING_RATE

    def silence(start: float, end: float) -> np.ndarray:
        return np.zeros(round((end - start) * SAMPLING_RATE))

    assert list(cut_windows(silence, 10.0, 2.0, SAMPLING_RATE)) == []
    assert 0 <= quietest(np.zeros(10), SAMPLING_RATE) <= 10


def test_a_run_transcribes_where_its_corpus_is_gone(run: Path, corpus: Path, tmp_path: Path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(run, moved, ignore=shutil.ignore_patterns("train", "valid", "test"))
    opened = open_run(moved)
    expected = open_run(run)
    files = [corpus / "test0.wav", corpus / "test2.wav"]
    texts = [[str(found) for found in one.task.predict(one.model, files)] for one in (opened, expected)]
    assert texts[0] == texts[1]


def test_a_part_of_training_has_the_proportions_of_groups(corpus: Path, tmp_path: Path):
    task = make_task(corpus, tmp_path / "half", data={"percent": 50.0})
    about = task.prepared.about["statistics"]
    assert about["train"]["groups"] == {"high": 3, "low": 9}
    assert about["valid"]["utterances"] == tiny_listener.NUM_UTTERANCES["valid"]
    dataset = task.dataset("train")
    assert dataset.strata is not None
    assert len(dataset.strata) == len(dataset.lengths) == 12
    names = {dataset.example(index, np.random.default_rng(0)).name for index in range(12)}
    assert len(names) == 12


def test_only_the_groups_that_are_asked_for_are_used(corpus: Path, tmp_path: Path):
    task = make_task(corpus, tmp_path / "low", data={"groups": ["low"], "max_valid_samples": 2})
    about = task.prepared.about["statistics"]
    assert [about[split]["groups"] for split in ("train", "valid", "test")] == [{"low": 18}, {"low": 2}, {"low": 3}]
    dataset = task.dataset("train")
    assert {dataset.example(index, np.random.default_rng(0)).group for index in range(18)} == {"low"}
    with pytest.raises(DataError, match=r"no utterance of train has the accent 'neither'; it has 'high', 'low'"):
        make_task(corpus, tmp_path / "none", data={"groups": ["neither"]})


def test_speakers_can_be_the_groups_and_an_unknown_label_is_an_error(corpus: Path, tmp_path: Path):
    assert (
        len(make_task(corpus, tmp_path / "a", data={"group": "speaker"}).dataset("valid").utterances.group_names) == 6
    )
    with pytest.raises(DataError, match=r"data\.group: no utterance of train has a label 'etiology'"):
        make_task(corpus, tmp_path / "b", data={"group": "etiology"})


def test_a_base_keeps_its_window_unless_it_is_cut(whisper_folder: Path, corpus: Path, tmp_path: Path, caplog: Any):
    """Shorter utterances are padded to what the base was trained with; ``model.window`` shortens it, with a message."""
    model = {"base": str(whisper_folder), "window": None}
    task = make_task(corpus, tmp_path / "whole", model=model, data={"max_duration": 0.8})
    network = task.model().whisper
    assert (task.window, network.config.max_source_positions) == (30.0, 1500)
    theirs = WhisperForConditionalGeneration.from_pretrained(whisper_folder).model.encoder.embed_positions.weight
    assert torch.equal(network.model.encoder.embed_positions.weight, theirs)
    assert "ct2" not in task.refused_exports()
    options = tiny_listener.options(corpus, model=model | {"window": 1.0})
    loaded = load_layers([options])
    assert any("model.window" in one and "repeats and loses words" in one for one in loaded.warnings)
    task = make_task(corpus, tmp_path / "cut", model=model | {"window": 1.0})
    network = task.model().whisper
    assert torch.equal(network.model.encoder.embed_positions.weight, theirs[:50])
    assert "model.window cut this Whisper's positions to 1 s" in task.refused_exports()["ct2"]
    with pytest.raises(UserError, match=r"model.window: 0.6 s is less than an utterance may have"):
        load_layers([tiny_listener.options(corpus, model=model | {"window": 0.6}, data={"max_duration": 0.8})])
    budget = {"type": "bucketed", "max_duration": 8}
    with pytest.raises(UserError, match=r"training.batching.max_duration: 8 s is less than an example takes"):
        load_layers([tiny_listener.options(corpus, model=model, training={"batching": budget})])


def test_what_is_too_long_is_listed_before_training(corpus: Path, tmp_path: Path):
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "max_target_length": 6}
    limits = {"model": {"scratch": sizes}, "data": {"max_duration": 0.6}}  # <s> and "ba do", but not three words
    task = make_task(corpus, tmp_path / "case", **limits)
    about = task.prepared.about["statistics"]["train"]
    listed = (tmp_path / "case" / "prepared" / "train" / "left_out.jsonl").read_text().splitlines()
    assert about["left_out"] == {"utterances longer than data.max_duration": 8}
    assert (about["utterances"], len(listed)) == (16, 8)
    assert json.loads(listed[0]) == {"name": "train2", "reason": "0.75 s, more than the 0.6 s of data.max_duration"}
    sizes["max_target_length"] = 5
    about = make_task(corpus, tmp_path / "tokens", **limits).prepared.about["statistics"]["train"]
    assert about["left_out"]["utterances with more tokens than the decoder writes"] == 8
    with pytest.raises(DataError, match=r"has 0\.75 s, more than .*; set data\.too_long to drop or split"):
        make_task(corpus, tmp_path / "fails", model=limits["model"], data={"max_duration": 0.6, "too_long": "fail"})


def spoken(times: list[tuple[str, float, float]], text: str, duration: float) -> MonoCut:
    """A cut with words at these times."""
    recording = Recording("a", [AudioSource("file", [0], "a.wav")], 16_000, round(duration * 16_000), duration)
    items = [AlignmentItem(word, start, round(end - start, 6)) for word, start, end in times]
    label = SupervisionSegment("a", "a", 0.0, duration, text=text, alignment={"word": items} if items else None)
    return MonoCut("a", 0.0, duration, 0, supervisions=[label], recording=recording)


def test_long_utterances_are_cut_in_the_longest_pauses_with_their_words():
    times = [("so", 0.1, 0.5), ("it", 0.6, 0.9), ("is", 1.6, 1.9), ("not", 2.0, 2.4), ("so", 2.5, 2.8)]
    parts = split_at_silences(spoken(times, "So, it is not so.", 3.0), 2.0)
    assert [part.supervisions[0].text for part in parts] == ["So, it", "is not so."]
    assert [(part.start, part.duration) for part in parts] == [(0.0, 1.25), (1.25, 1.75)]
    assert len({part.id for part in parts}) == 2
    assert split_at_silences(spoken([], "So it is.", 3.0), 2.0) == []
    assert split_at_silences(spoken([("sooo", 0.0, 2.5)], "Sooo", 3.0), 2.0) == []
    short, long = split_at_silences(spoken(times, "So, it is not so.", 3.0), 9.0, lambda text: len(text) <= 10)
    assert [part.supervisions[0].text for part in (short, long)] == ["So, it", "is not so."]
    again = split_at_silences(long, 9.0, lambda text: len(text.split()) <= 2)
    assert [(part.id, part.supervisions[0].text) for part in again] == [("a-001-000", "is not"), ("a-001-001", "so.")]
    assert [part.start for part in again] == pytest.approx([1.25, 2.45])
    assert split_at_silences(long, 9.0, lambda text: not text) == []


def test_a_transcript_with_too_many_tokens_is_split_at_its_words(corpus: Path, tmp_path: Path):
    """The utterances of train are of one, two or three words; the decoder writes five tokens, a letter each."""
    data = shutil.copytree(corpus, tmp_path / "c")
    entries = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    for entry in entries[:3]:
        said = entry["text"].split()
        entry["alignment"] = {"word": [[0.25 * at + 0.05, 0.25 * at + 0.25, word] for at, word in enumerate(said)]}
    (data / "train.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "max_target_length": 6}
    task = make_task(data, tmp_path / "case", model={"scratch": sizes}, data={"too_long": "split", "percent": 100.0})
    about, dataset = task.prepared.about["statistics"]["train"], task.dataset("train")
    assert about["left_out"] == {"utterances with more tokens than the decoder writes": 7}, "without times of words"
    assert about["utterances"] == len(dataset.lengths) == 24 - 7 + 1
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(dataset.lengths))]
    assert {len(one.ids) for one in examples} == {2, 5}
    parts = {one.name: (one.text, one.group) for one in examples if one.name.startswith("train2-")}
    first, second, third = entries[2]["text"].split()
    assert parts in (
        {"train2-000": (first, "low"), "train2-001": (f"{second} {third}", "low")},
        {"train2-000": (f"{first} {second}", "low"), "train2-001": (third, "low")},
    )
    assert sum(about["groups"].values()) == 18


def lines(corpus: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the corpus with another first line."""
    shutil.copytree(corpus, folder)
    first, *rest = (folder / "train.jsonl").read_text().splitlines()
    entry = {name: value for name, value in {**json.loads(first), **changes}.items() if value is not None}
    (folder / "train.jsonl").write_text("\n".join([json.dumps(entry), *rest]) + "\n")
    return folder


def test_a_tokenizer_of_the_users_own_is_refused(corpus: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"data\.tokenizer\.type: is ./own.py:Characters; .* expected one of bpe, "):
        make_task(corpus, tmp_path / "case", data={"tokenizer": {"type": "./own.py:Characters"}})


def left_out(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "prepared" / "train" / "left_out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("speaker", ["s0", None])
@pytest.mark.parametrize("text", ["", " \t"])
def test_an_empty_transcript_is_silence_and_where_refused_an_error_or_listed(
    text: str, speaker: str | None, corpus: Path, tmp_path: Path
):
    data = lines(corpus, tmp_path / "c", text=text, speaker=speaker)
    task = make_task(data, tmp_path / "silent")
    about = task.prepared.about["statistics"]["train"]
    assert (about["left_out"], about["utterances"], about["without_speech"]) == ({}, 24, 1)
    refused = {"refuse_empty_transcripts": True}
    message = r"train0 \(.*train0\.wav\): .* is empty; complete it .* or set data\.on_bad_example to skip"
    with pytest.raises(DataError, match=message):
        make_task(data, tmp_path / "case", data=refused)
    task = make_task(data, tmp_path / "case", data={"on_bad_example": "skip", **refused})
    assert task.prepared.about["statistics"]["train"]["left_out"] == {"utterances that can't be used": 1}
    ((name, reason),) = (one.values() for one in left_out(tmp_path / "case"))
    assert Path(name).stem == "train0"
    assert "is empty" in reason
    assert len(task.dataset("train").lengths) == 23


def test_an_unlabelled_line_is_counted(corpus: Path, tmp_path: Path):
    """It doesn't say what is spoken, as a segment of a conversation may not; nothing about it is wrong."""
    task = make_task(lines(corpus, tmp_path / "c", text=None), tmp_path / "case")
    assert task.prepared.about["statistics"]["train"]["left_out"] == {"utterances without a text": 1}
    assert left_out(tmp_path / "case") == [{"name": "train0", "reason": "it has no text"}]
    segments = [{"start": 0, "end": 0.1, "speaker": "a", "text": "ba"}, {"start": 0.1, "end": 0.2, "text": " "}]
    whole = {"text": None, "speaker": None, "segments": segments}
    task = make_task(lines(corpus, tmp_path / "d", **whole), tmp_path / "other")
    assert task.prepared.about["statistics"]["train"]["left_out"] == {"utterances without a text": 1}
    assert len(task.dataset("train").lengths) == 24
    nothing = lines(corpus, tmp_path / "e", text=None, speaker=None)
    assert len(make_task(nothing, tmp_path / "third").dataset("train").lengths) == 23


def test_audio_that_is_missing_or_unreadable_is_named(corpus: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"train\.jsonl:1: .*nowhere\.wav"):
        make_task(lines(corpus, tmp_path / "c", audio="nowhere.wav"), tmp_path / "case")
    (tmp_path / "c" / "nowhere.wav").write_bytes(b"RIFF no")
    with pytest.raises(DataError, match=r"train\.jsonl:1: .*nowhere\.wav"):
        make_task(tmp_path / "c", tmp_path / "case")


@pytest.mark.parametrize("is_there", [False, True])
def test_audio_that_is_missing_or_unreadable_is_skipped_and_listed(
    is_there: bool, corpus: Path, vaak: Any, tmp_path: Path
):
    data = lines(corpus, tmp_path / "c", audio="nowhere.wav")
    if is_there:
        (data / "nowhere.wav").write_bytes(b"RIFF no")
    task = make_task(data, tmp_path / "case", data={"on_bad_example": "skip"})
    assert len(task.dataset("train").lengths) == 23
    assert task.prepared.about["statistics"]["train"]["left_out"] == {"utterances that can't be used": 1}
    (listed,) = left_out(tmp_path / "case")
    assert listed["name"] == "nowhere.wav"
    assert "train.jsonl:1: " in listed["reason"]
    (tmp_path / "check.yml").write_text(yaml_text(tiny_listener.options(data)))
    code, out, err = vaak("data", "check", tmp_path / "check.yml")
    assert code == 2, err
    assert "train.jsonl:1: " in out


def test_another_recording_is_prepared_again_in_a_shared_folder(corpus: Path, tmp_path: Path):
    data = shutil.copytree(corpus, tmp_path / "c")
    shared = {"cache_dir": str(tmp_path / "shared")}
    before = make_task(data, tmp_path / "a", data=shared).dataset("train").utterances.durations[0]
    samples, rate = soundfile.read(data / "train0.wav")
    soundfile.write(data / "train0.wav", samples[: len(samples) // 2], rate)
    after = make_task(data, tmp_path / "b", data=shared).dataset("train").utterances.durations[0]
    assert after == pytest.approx(before / 2)


def test_nothing_usable_says_why(corpus: Path, tmp_path: Path):
    shutil.copytree(corpus, tmp_path / "c")
    (tmp_path / "c" / "train.jsonl").write_text('{"audio": "train0.wav", "text": "", "speaker": "a"}\n')
    with pytest.raises(DataError, match=r"train is empty: no dataset has a usable utterance: train0 .*text is empty"):
        make_task(tmp_path / "c", tmp_path / "case", data={"on_bad_example": "skip", "refuse_empty_transcripts": True})


def test_a_table_is_read_and_a_missing_column_named(corpus: Path, tmp_path: Path):
    shutil.copytree(corpus, tmp_path / "c")
    entries = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    rows = [f"{one['audio']},{one['text']},{one['accent']}" for one in entries]
    (tmp_path / "c" / "train.csv").write_text("path,sentence,accent\n" + "\n".join(rows) + "\n")
    options = tiny_listener.options(tmp_path / "c")
    options["datasets"][0] |= {"train": [f"{tmp_path}/c/train.csv"], "columns": {"audio": "path", "text": "sentence"}}
    options["datasets"] = [{**options["datasets"][0], "valid": [], "test": []}]

    def prepared(columns: dict[str, str]) -> Any:
        options["datasets"][0]["columns"] = columns
        (tmp_path / "case.yml").write_text(yaml_text(options))
        experiment: Any = load([tmp_path / "case.yml"]).experiment
        task = WhisperTask(experiment, tmp_path / "run", tmp_path)
        task.prepare()
        return task

    (tmp_path / "run").mkdir()
    statistics = prepared({"audio": "path", "text": "sentence"}).prepared.about["statistics"]
    assert sum(about["utterances"] for about in statistics.values()) == 24
    assert set(statistics["train"]["groups"]) == {"high", "low"}
    with pytest.raises(
        DataError, match=r"train\.csv:2: columns: there is no column 'words'.*; expected one of path, sentence, accent"
    ):
        prepared({"audio": "path", "text": "words"})
    with pytest.raises(DataError, match=r"train\.csv:\d: the key audio is missing.*; there are path, sentence, accent"):
        prepared({})
    message = r"train\.csv:2: the column text is missing, the transcript; there are path, sentence, accent \(columns\)"
    for on_bad_example in ("fail", "skip"):
        options["data"]["on_bad_example"] = on_bad_example
        with pytest.raises(DataError, match=message):
            prepared({"audio": "path"})


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_split_without_the_label_of_groups_is_named(
    split: str, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Train, validation and test have the same label, whichever of them has it."""
    data = shutil.copytree(corpus, tmp_path / "c")
    lines = (data / f"{split}.jsonl").read_text().splitlines()
    entries = [{name: one for name, one in json.loads(line).items() if name != "accent"} for line in lines]
    (data / f"{split}.jsonl").write_text("".join(json.dumps({**one, "group": "g"}) + "\n" for one in entries))
    about = make_task(data, tmp_path / "case").prepared.about["statistics"]
    assert {one["group"] for one in about.values()} == {"accent"}
    assert list(about[split]["groups"]) == ["unlabelled"]
    assert f"{split}: no utterance has the label accent, by which other splits are grouped" in caplog.text
    assert len([one for one in caplog.records if "no utterance has the label" in one.message]) == 1
    with pytest.raises(DataError, match=rf"data\.group: no utterance of {split} has a label 'accent'"):
        make_task(data, tmp_path / "asked", data={"group": "accent"})


@pytest.mark.slow
def test_gradients_of_gate_and_experts_are_those_of_differences(
    corpus: Path, whisper_folder: Path, vaak: Any, tmp_path: Path
):
    experts = {"num_experts": 3, "top_k": 2, "rank": 2, "targets": ["q_proj", "fc1"], "gate_width": 8}
    model = {"base": str(whisper_folder), "experts": {**experts, "balancing_bias": 0.01}}
    options = tiny_listener.options(corpus, model=model, training={"loss": {"auxiliary": {"load_balancing": 0.1}}})
    (tmp_path / "case.yml").write_text(yaml_text(options))
    code, out, err = vaak("check-gradients", tmp_path / "case.yml", "--json")
    assert code == 0, out + err
    checked = json.dumps(json.loads(out))
    assert all(name in checked for name in ("gate.layers.3.weight", "encoder.layers.0.fc1.lora_b", "q_proj.lora_a"))


@pytest.mark.parametrize(
    ("base", "language", "message"),
    [
        ("whisper", "fr", "data.language: the base doesn't know 'fr'; it knows en, hi"),
        ("empty", "en", "has no weights; expected model.safetensors and config.json"),
        ("vaak-nobody/no-whisper", "en", "the Hugging Face Hub has no such model or can't be reached"),
    ],
)
def test_a_base_that_cannot_be_used_is_said_before_training(
    base: str, language: str, message: str, corpus: Path, whisper_folder: Path, vaak: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    place = {"whisper": str(whisper_folder), "empty": str(tmp_path / "empty")}.get(base, base)
    options = tiny_listener.options(corpus, model={"base": place}, data={"language": language})
    (tmp_path / "case.yml").write_text(yaml_text(options))
    code, out, err = vaak("train", tmp_path / "case.yml", f"run_dir={tmp_path / 'run'}")
    assert (code, message in err.splitlines()[-1], "Traceback" in out + err) == (2, True, False), err


@pytest.mark.parametrize("head", ["tied", "its own"])
def test_a_base_is_fine_tuned_and_found_in_its_checkpoints(
    head: str, corpus: Path, whisper_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    weights = shutil.copytree(whisper_folder, tmp_path / "base") / "model.safetensors"
    if head == "its own":
        tensors = load_file(weights)
        # The configuration says that it is the embedding.
        tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"].flip(0)
        save_file(tensors, weights, {"format": "pt"})
    model = {"base": str(tmp_path / "base"), "lora": {"rank": 2}}
    run = tiny_listener.train(corpus, tmp_path / "run", "training.max_steps=2", model=model)
    assert ("its files have another one, which is used" in capsys.readouterr().err) == (head == "its own")
    found = open_run(run)
    shutil.rmtree(tmp_path / "base")
    alone = open_run(run)
    for (name, one), other in zip(found.model.named_parameters(), alone.model.parameters(), strict=True):
        assert one.equal(other), name
    trained = {name.split(".")[-3] for name, value in alone.model.named_parameters() if value.requires_grad}
    assert trained == {"lora_A", "lora_B"}
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UserError, match=r"model\.base: no such folder"):
        alone.task.model()


def test_a_check_of_data_keeps_nothing_of_what_it_has_read(corpus: Path, tmp_path: Path):
    file = tmp_path / "case.yml"
    file.write_text(yaml_text(tiny_listener.options(corpus)))
    with prepared_task(load([file]), checking=True) as task:
        dataset: Any = task.dataset("train")
        assert all(one.reason is None for one in read_examples(dataset, "train", 1))
        assert dataset._cache.num_bytes == 0
    # Training does keep them.
    trained = make_task(corpus, tmp_path / "trained").dataset("train")
    trained.example(0, np.random.default_rng(0))
    assert trained._cache.num_bytes > 0
