"""A tiny voice, trained: its figures, its files, and what it says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import tiny_voice
from vaak.runs.open_run import open_run
from vaak.tasks.tts import predict
from vaak.tasks.tts.predict import MOST_WORDS, divided
from vaak.tasks.vocoding import griffin_lim


def records(run: Path, kind: str) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_losses_are_logged_apart_and_fall(voice_run: Path):
    first, *_, last = records(voice_run, "step")
    for name in ("mel", "duration", "stop"):
        assert last[name] < first[name]
    assert last["loss"] == pytest.approx(sum(last[name] for name in ("mel", "duration", "stop")), rel=1e-4)
    evaluation = records(voice_run, "evaluation")[-1]
    parts = sum(evaluation[f"val_{name}"] for name in ("mel", "duration", "stop"))
    assert evaluation["val_loss"] == pytest.approx(parts, rel=1e-5)
    assert evaluation["val_duration_error_ms"] < 30


def test_samples_are_in_the_run(voice_run: Path):
    samples, rate = soundfile.read(voice_run / "sample-1.wav")
    assert rate == tiny_voice.RATE
    assert len(samples) > 0.3 * rate


def test_a_run_speaks_where_its_corpus_is_gone(voice_run: Path, tmp_path: Path):
    """The phoneme processor, the speakers and the normalisation are the run's own."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(voice_run, moved, ignore=shutil.ignore_patterns("train", "valid", "test"))
    here, there = (open_run(run) for run in (voice_run, moved))
    first, second = (next(iter(run.task.predict(run.model, ["She saw me."]))) for run in (here, there))
    np.testing.assert_array_equal(first.samples, second.samples)
    assert first.sentences[0].symbols[0] == "sil"


def test_a_sentence_sounds_alike_alone_and_in_a_text(voice_run: Path):
    opened = open_run(voice_run)
    speaker = opened.task.speaker(opened.model)
    both, alone = speaker.speech("He saw me. She may go."), speaker.speech("She may go.")
    np.testing.assert_array_equal(both.sentences[1].samples, alone.samples)
    pause = round(0.2 * tiny_voice.RATE)
    assert len(both.samples) == sum(len(sentence.samples) for sentence in both.sentences) + pause


def test_predictions_have_no_samples_in_text_or_json(vaak, voice_run: Path):
    code, out, err = vaak("predict", voice_run, "He saw me. She may go.", "--json")
    assert code == 0, err
    about = json.loads(out)
    assert [sentence["text"] for sentence in about["sentences"]] == ["He saw me.", "She may go."]
    pause = 0.2
    spoken = sum(sum(sentence["durations"]) for sentence in about["sentences"])
    assert about["duration"] == pytest.approx(spoken + pause, abs=0.02)
    for sentence in about["sentences"]:
        assert len(sentence["symbols"]) == len(sentence["durations"]) == len(sentence["pitch"])
    code, out, _ = vaak("predict", voice_run, "He saw me.")
    assert re.fullmatch(r"He saw me\. \(\d\.\d s, real-time factor \d+\.\d\d\)\n", out)


def test_an_evaluation_opens_its_vocoder_once(voice_run: Path, monkeypatch: pytest.MonkeyPatch):
    opened = open_run(voice_run, overrides=["data.speaking.vocoder=somewhere", "data.evaluation=2"])
    mel, vocoders = opened.task.audio.mel, []

    def opening(run: str, *_: Any) -> Any:
        vocoders.append(run)
        return griffin_lim(mel, 2)

    monkeypatch.setattr(predict, "trained_vocoder", opening)
    meters = opened.task.meters("valid")
    dataset = opened.task.dataset("valid")
    rows = [[dataset.example(index, np.random.default_rng(0))] for index in (0, 1)]
    with torch.no_grad():
        meters.update(opened.model, dataset.collate(rows))
    assert meters.pictures()
    assert meters.audio()
    assert vocoders == ["somewhere"]


def test_checkpoints_elsewhere_speak_without_their_run(tmp_path: Path):
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    overrides = ("training.max_steps=1", f"training.checkpoint.save_dir={tmp_path / 'saved'}")
    run = tiny_voice.train(corpus, tmp_path / "run", *overrides)
    shutil.rmtree(run)
    shutil.rmtree(corpus)
    opened = open_run(tmp_path / "saved" / "voice")
    assert len(opened.task.speaker(opened.model).speech("He saw me.").samples)


def test_evaluation_on_another_corpus_keeps_what_the_run_has_learned(voice_run: Path, tmp_path: Path, vaak):
    other = tiny_voice.write_voice(tmp_path / "other", seed=5)
    datasets = json.dumps([tiny_voice.make_dataset_from(other)])
    code, out, err = vaak("eval", voice_run, f"datasets={datasets}", "--split", "test", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He came. She went!", ["He came.", "She went!"]),
        ("one", ["one"]),
        ("He came... ?", ["He came..."]),
        ('"Go!" he said.', ['"Go!"', "he said."]),
    ],
)
def test_texts_are_divided_at_sentences(text: str, expected: list[str]):
    assert divided(text) == expected


def test_long_sentences_are_divided_at_commas_or_between_words():
    phrases = ["word " * 35 + "last," for _ in range(3)]
    found = divided(" ".join(phrases))
    assert [len(part.split()) for part in found] == [36, 36, 36]
    assert [len(part.split()) for part in divided("word " * 150)] == [MOST_WORDS, MOST_WORDS, 30]


def test_an_evaluation_speaks_and_compares_with_the_recordings(voice_run: Path):
    from vaak.runs.evaluate import evaluate_run

    plain = evaluate_run(voice_run, [], [], ["valid"])
    report = evaluate_run(voice_run, [], ["data.evaluation=3"], ["valid"])
    metrics, protocol = report["metrics"], report["protocol"]["valid"]
    assert {name: metrics[name] for name in plain["metrics"]} == plain["metrics"]
    assert set(metrics) - set(plain["metrics"]) == {
        f"val_{name}" for name in ("mcd_db", "f0_rmse_hz", "f0_rmse_cents", "voicing_error", "real_time_factor")
    }
    assert protocol["spoken"] == "3 utterances"
    assert "cepstra 1 to 24" in protocol["speech"]
    assert 0 < metrics["val_mcd_db"] < 30
    assert 0 <= metrics["val_voicing_error"] <= 1
    assert (
        evaluate_run(voice_run, [], ["data.evaluation=2"], ["valid"])["metrics"]["val_mcd_db"] != metrics["val_mcd_db"]
    )


LINES = ("वह २ बार आया।", "मेरी meeting 10:30 बजे है।", "नमस्ते, दुनिया!", "राम घर गया।")


def test_a_voice_of_another_language_is_trained_and_speaks_it(vaak: Any, tmp_path: Path) -> None:
    """Durations are learned; the run knows its language, and says in one line what it can't read."""
    rng = np.random.default_rng(0)
    for split, number in tiny_voice.NUM_UTTERANCES.items():
        cuts = []
        for index in range(number):
            path = tmp_path / f"{split}{index}.wav"
            soundfile.write(path, 0.1 * rng.standard_normal(2 * tiny_voice.RATE), tiny_voice.RATE)
            cuts.append(tiny_voice.cut(f"{split}{index}", path, LINES[index % len(LINES)], []))
        tiny_voice.write_cuts(tmp_path / f"{split}.jsonl", cuts)
    data = {"front_end": {"language": "hi"}, "samples": ["नमस्ते।"]}
    steps = ("training.max_steps=2", "training.validation.interval=2")
    run = tiny_voice.train(tmp_path, tmp_path / "run", *steps, model={"durations": "learned"}, data=data)
    code, out, err = vaak("speak", run, "₹25 की चाय। Good morning!", "--output", tmp_path / "said.wav")
    assert code == 0, out + err
    assert soundfile.info(tmp_path / "said.wav").duration > 0.1
    opened = open_run(run, device="cpu")
    assert opened.task.prepared.processor.config.language == "hi"
    assert opened.task.prepared.processor.normalise("₹25") == "पच्चीस रुपये"
    code, _, err = vaak("speak", run, "☃ नमस्ते", "--output", tmp_path / "not.wav", "--on-unspeakable", "error")
    assert (code, "☃ can't be read" in err) == (2, True), err
