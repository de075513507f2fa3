"""Every benchmark runs at its smallest size, to its last table, with tiny trained runs where it needs any."""

from __future__ import annotations

import argparse
import gzip
import importlib
import itertools
import json
import math
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import tiny_bases
import tiny_bert
import tiny_listener
import tiny_speaker_encoder
import tiny_voice
from tiny_diarizer import RATE, voice
from tiny_whisper import write_whisper

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIBRARIES = {"arms", "racing"}
"""Modules that engine.py starts and imports."""

ALONE = {
    "asr": (
        "--width 64 --layers 1 --vocab 300 --seconds 0.5 --rows 2 --tokens 3 --experts 2 --rounds 1",
        "transformers",
    ),
    "attention": ("--lengths 64 --rounds 1 --heads 1 --head-width 8 --threads 1 --arms SDPA linear", "| 64 |"),
    "audio": ("--quick --workers 0", "| 20,000 |"),
    "checkpoint": ("--steps 9 --preset tiny", "stall / step"),
    "classification": ("--width 32 --layers 1 --batch 4 --steps 2 --rounds 1", "| LoRA |"),
    "comparison": ("--experiments 2 --samples 10", "corrected t-test"),
    "cross_entropy": ("--sizes 16x4x40 --rounds 1", "| 16x4x40, bf16 | chunked, z_loss |"),
    "decoding": ("--width 64 --layers 1 --vocab 300 --rows 1 --tokens 2 --rounds 1", "transformers"),
    "detokenizing": ("--tokens 8 --rounds 1", "as they come"),
    "engine": ("--rounds 1 --sizes micro --arms Vaak", "by the checkpoint's place in its epoch"),
    "exports": ("--width 32 --layers 1 --seconds 0.5 --rounds 1", "CTC"),
    "favor": ("--head-width 8 --draws 4 --features 16", "16"),
    "gpu": ("--rounds 1 --threads 1 --minutes 0", "Vaak, fp32, 16 at once"),
    "loading": ("--seconds 5 --examples 40000", "| 9 to 19 | opus_fast |"),
    "features": ("--seconds 1 --total 2 --rounds 1", "mfcc"),
    "launches": ("classification/quickstart", "| classification/quickstart | "),
    "plans": ("2000", "stratified-curriculum"),
    "profiling": ("--rounds 1 --steps-factor 0.02", "| small |"),
    "qlora_memory": ("asr 128 1", "asr, read as kept: "),
    "recomputing": ("--layers 2 --width 16 --rows 2 --tokens 8 --rounds 1", "| adamw_8bit | "),
    "ranks": ("--ranks 1 2 --rounds 1 --steps 30 --exact --strategies zero1 fsdp", "64 ranks, 1e9 parameters"),
    "request_cost": ("--requests 20 --rounds 1", "ms a request"),
    "scoring": ("--hours 0.01 --rounds 1", "pyannote"),
    "startup": ("1", "data prepared before"),
    "step_parts": ("--rounds 1 --windows 1", "(not in a part)"),
    "tts": ("--rounds 1", "profiler: "),
    "whole_files": (
        "--runs 2 --steps 9 --utterances 40 --megabytes 0.05",
        "| tokenizer, trained on 5,000,000 characters | 0.05 MB |",
    ),
}
"""Arguments of the smallest size, and text of the last table, for benchmarks that make their data."""
QUICK = {"comparison"}


def run_benchmark(name: str, *arguments: object, **variables: str) -> str:
    """Return what a benchmark says, once it has ended well."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ALONE]
)
def test_it_runs(name: str):
    arguments, in_the_last_table = ALONE[name]
    said = run_benchmark(name, *arguments.split())
    assert in_the_last_table in said
    assert "**Failed**" not in said


@pytest.mark.slow
def test_a_small_model_starts_no_more_operators_in_a_step_than_this():
    """Half of those that a step had when they were first counted, 827 and 693."""
    at_most = {"tts/quickstart": 413, "diarization/quickstart": 346}
    said = run_benchmark("launches", *at_most)
    for recipe, number in at_most.items():
        [found] = re.findall(rf"\| {recipe} \|.* (\d+) \|", said)
        assert int(found) <= number, said


@pytest.mark.slow
def test_muon_together_has_the_bits_of_one_by_one():
    said = run_benchmark("step_parts", "--muon", "2x16", "--rounds", 4)
    assert "12 matrices, 4 updates" in said
    assert "the same bits" in said


@pytest.mark.slow
def test_a_snapshot_is_copied_in_both_ways():
    said = run_benchmark("gpu", "--parts", "snapshot")
    ways = ("staged in pieces", "page-locked at once")
    for way, time_of_it in itertools.product(ways, ("first", "second")):
        assert f"| {way} | {time_of_it} | 0." in said


def write_trace(folder: Path, events: list[dict[str, object]]) -> Path:
    path = folder / "steps-5-to-6-rank-0.json.gz"
    with gzip.open(path, "wt") as stream:
        json.dump({"traceEvents": events}, stream)
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module gpu.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu")


def test_a_gpu_works_while_any_of_its_operations_does(gpu: Any, tmp_path: Path):
    spans = (("kernel", 0, 10), ("kernel", 5, 10), ("gpu_memcpy", 6, 2), ("kernel", 30, 5), ("cpu_op", 0, 99))
    events: list[dict[str, object]] = [{"cat": kind, "ts": begin, "dur": dur} for kind, begin, dur in spans]
    trace = write_trace(tmp_path, [*events, {"cat": "kernel", "ph": "s"}])
    assert gpu.read_trace(trace, "cuda") == (20 / 1e6 / 2, 4 / 2)
    assert gpu.read_trace(trace, "cpu") == (99 / 1e6 / 2, 1 / 2)


def test_a_part_that_takes_too_long_is_ended_and_what_it_found_is_written(gpu: Any, tmp_path: Path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    card = gpu.Card(argparse.Namespace(page=page, json=figures), tmp_path)

    def work_too_long() -> None:
        with gpu.limited(card, 0.1), card.rows("one") as rows:
            rows.append(["found"])
            card.figures["one"] = 1
            time.sleep(5)

    with pytest.raises(TimeoutError, match="ended after"):
        work_too_long()
    assert "| found |" in page.read_text(encoding="utf-8")
    assert json.loads(figures.read_text()) == {"one": 1}


def test_all_are_tried():
    """A new benchmark is tried, too: by a row of ALONE, or by a test that gives it what it needs."""
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    tried = ALONE.keys() | LIBRARIES | {"text_normalisation"}  # the last by the test of the normaliser
    missing = {path.stem for path in BENCHMARKS.glob("*.py")} - tried
    assert {name for name in missing if not any(test.startswith(name) for test in tests)} == set()


@pytest.mark.slow
def test_ctc_search():
    pytest.importorskip("pyctcdecode", reason="what it is compared with isn't installed")
    said = run_benchmark("ctc_search", "--rounds", 1, "--beams", 4, "--frames", 20)
    assert "| noisy | 4 | 20 |" in said


def test_probabilities_of_the_n_grams_that_ctc_search_writes_add_up_to_one(tmp_path: Path):
    from vaak.text.ngram import Ngram

    write_arpa = runpy.run_path(str(BENCHMARKS / "ctc_search.py"), run_name="ctc_search")["write_arpa"]
    write_arpa([["a", "b"], ["a", "c"], ["b", "b", "a"]], tmp_path / "words.arpa")
    model = Ngram(tmp_path / "words.arpa")
    for history in ((), ("a",), ("a", "b"), ("b", "b"), ("c",), ("unheard",)):
        state = model.begin()
        for word in history:
            [(_, state)] = model.read([(state, word)])
        scores = [score for score, _ in model.read([(state, word) for word in ("a", "b", "c", "</s>", "unheard")])]
        assert sum(map(math.exp, scores)) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_recognising():
    pytest.importorskip("faster_whisper", reason="what it is compared with isn't installed")
    weights = Path(os.environ.get("VAAK_WEIGHTS", "nowhere")) / "whisper-tiny.en"
    manifest = Path(os.environ.get("VAAK_DATA", "nowhere")) / "read_speech" / "manifest.jsonl"
    if not weights.is_dir() or not manifest.is_file():
        pytest.skip("VAAK_WEIGHTS or VAAK_DATA is not set: there is no Whisper, or no speech")
    said = run_benchmark("recognising", weights, manifest, "--clips", 1, "--rounds", 1)
    assert "| Vaak, int8 |" in said


@pytest.mark.slow
def test_words(tmp_path: Path):
    """Of a recogniser by CTC that writes letters by chance."""
    tiny_listener.write_listener(tmp_path / "tones")
    base = tiny_bases.CTC["wav2vec2"](tmp_path / "base")
    given = (base, tmp_path / "tones" / "test.jsonl")
    said = run_benchmark("words", "hotwords", *given, "--letters", 2, "--weights", 4, "--beam", 3)
    assert "| beam of 3 | 4 |" in said
    assert "| recordings | words | wrong | AUC |" in run_benchmark("words", "confidences", *given)


def test_digit_strings(tmp_path: Path):
    lines = []
    for number in range(12):
        name = f"{number}.wav"
        soundfile.write(tmp_path / name, np.sin(np.arange(2000) * (0.1 + number / 50)), 8000)
        split = "train" if number < 8 else "test"
        lines.append({"audio": name, "text": f"digit{number}", "speaker": "one", "split": split})
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = run_benchmark("digit_strings", tmp_path, tmp_path / "made")
    made = [json.loads(line) for line in (tmp_path / "made" / "train.jsonl").read_text().splitlines()]
    assert f"{len(made)} recordings to train on" in said
    words = [word for line in made for word in line["text"].split()]
    assert sorted(words) == sorted(3 * [f"digit{number}" for number in range(8)])
    assert sum(not line["text"] for line in made) == 40


@pytest.mark.slow
def test_live(tmp_path: Path):
    weights = Path(os.environ.get("VAAK_WEIGHTS", "nowhere")) / "whisper-tiny.en"
    folder = Path(os.environ.get("VAAK_DATA", "nowhere")) / "read_speech"
    if not weights.is_dir() or not folder.is_dir():
        pytest.skip("VAAK_WEIGHTS or VAAK_DATA is not set: there is no Whisper whose words have times, or no speech")
    first = json.loads((folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[0])
    (tmp_path / "text.txt").write_text(first["text"], encoding="utf-8")
    said = run_benchmark("live", weights, folder / first["audio"], tmp_path / "text.txt")
    assert "settled words that the final text has otherwise:" in said


def test_tokenising(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a cat sat\nकुत्ता आया\n", encoding="utf-8")
    said = run_benchmark("tokenising", text, "--characters", 200, "--vocab", 270, "--rounds", 1)
    assert "| Vaak, encoded, checked, written |" in said


@pytest.mark.slow
def test_translation_baselines(tmp_path: Path):
    pairs = [{"en": f"the {word}", "hi": f"वह {word}"} for word in ("cat", "dog", "cow", "hen")]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    assert "pairs" in run_benchmark("translation_baselines", "--train", file, "--test", file, "--rounds", 1)


@pytest.mark.slow
def test_diarization_baselines(made_recordings: Path):
    said = run_benchmark("diarization_baselines", made_recordings / "test")
    assert "3 recordings" in said


@pytest.mark.slow
def test_long_recordings(made_recordings: Path, diarizer_run: Path):
    said = run_benchmark(
        "long_recordings", made_recordings / "test", f"tiny={diarizer_run}", "--windows", 4, "--threads", 1
    )
    assert "| tiny | 4 |" in said


@pytest.mark.slow
def test_joining(made_recordings: Path, tmp_path: Path):
    encoder = tiny_speaker_encoder.save_onnx(tmp_path / "encoder.onnx", ("row", "sample"), 1)
    options = ("window=4", f"speaker_encoder={encoder}", "clustering=agglomerative|vbx")
    kinds = ("none", "drop", "swap", "split", "merge")
    said = run_benchmark("joining", made_recordings / "test", "--errors", *kinds, "--share", 0.5, "--options", *options)
    rows = [line.split(" | ") for line in said.splitlines() if "clustering=" in line]
    assert [row[0] for row in rows] == [f"| {kind}" for kind in kinds for _ in range(2)]
    oracle = [float(row[2]) for row in rows[::2]]
    assert oracle[0] < 5 < min(oracle[1:]), "the reference but for the shortest turns, and errors of each kind"


def test_second_simulator(tmp_path: Path):
    rng, lines = np.random.default_rng(0), []
    for speaker in (0, 1):
        soundfile.write(tmp_path / f"{speaker}.wav", voice(speaker, RATE, rng), RATE)
        lines.append(json.dumps({"speaker": f"s{speaker}", "audio": f"{speaker}.wav"}) + "\n")
    (tmp_path / "utterances.jsonl").write_text("".join(lines))
    made = tmp_path / "made"
    options = ("--number", 1, "--labels", "energy", "--utterances-per-speaker", 1, 2)
    said = run_benchmark("second_simulator", made, "--utterances", tmp_path / "utterances.jsonl", *options)
    assert said.startswith("1 conversations")
    assert (made / "rttm" / "conversation-0000.rttm").read_text().startswith("SPEAKER conversation-0000 1 ")


@pytest.mark.slow
def test_recognisers(tmp_path: Path):
    tiny_listener.write_listener(tmp_path / "corpus")
    run = tiny_listener.train(tmp_path / "corpus", tmp_path / "run", "training.max_steps=2")
    said = run_benchmark("recognisers", run, f"first={run}", f"second={run}")
    assert said.startswith("4 utterances")
    assert "| second | " in said


@pytest.mark.slow
def test_clinc(tmp_path: Path):
    """On made texts in the corpus' layout."""
    folder = tmp_path / "classification" / "clinc150"
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test", "out_of_scope"):
        words = ("odd",) if split == "out_of_scope" else ("pay", "call")
        rows = [
            {"text": f"{word} {split} {number}", "label": word, "domain": f"{word}ing"}
            for word in words
            for number in range(6)
        ]
        (folder / f"{split}.json").write_text(json.dumps(rows))
    options = ("--folder", tmp_path / "runs", "training.epochs=1", "--only", "cnn", "small")
    said = run_benchmark("clinc", *options, VAAK_DATA=str(tmp_path))
    assert "| TextCNN, a quarter as wide | " in said


@pytest.mark.slow
def test_few_texts(tmp_path: Path):
    """On made texts of as many intents as it draws."""
    labels = [f"intent{number}" for number in range(15)]
    for split in ("train", "valid"):
        rows = [{"text": f"{label} {split} {number}", "label": label} for label in labels for number in range(3)]
        (tmp_path / f"{split}.json").write_text(json.dumps(rows))
    encoder = tiny_bert.write_bert(tmp_path / "bert", [*labels, "train", "valid", "0", "1", "2"])
    options = ("--numbers", 2, "--seeds", 1, "--max-length", 12)
    said = run_benchmark("few_texts", encoder, tmp_path, *options)
    assert "2 texts of each of 15 intents: " in said
    assert "embeddings + logistic regression " in said


@pytest.mark.slow
def test_pretrained(tmp_path: Path):
    """On made texts and a made encoder: each trial once, the best on test, its export as transformers reads it."""
    intents, corpus = tmp_path / "classification" / "clinc150", ("pay", "call", "stop")
    intents.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        rows = [{"text": f"{word} {split} {number}", "label": word} for word in corpus for number in range(4)]
        (intents / f"{split}.json").write_text(json.dumps(rows))
    tiny_bert.write_bert(tmp_path / "minilm", [*corpus, "train", "valid", "test", "0", "1", "2", "3"], 64)
    options = ("--weights", tmp_path, "--data", tmp_path, "--folder", tmp_path / "runs", "--only", "minilm")
    trials = (*options, "--seeds", 1, "--ways", "frozen", "--rates", "1e-3", "1e-2")
    said = run_benchmark("pretrained", "rates", "proof", *trials)
    assert "| 0.01 | " in said
    assert "| 12 of 12 equal |" in said
    lines = (tmp_path / "runs" / "rates.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert len(list((tmp_path / "runs" / "runs").iterdir())) == 1, "the worse one is deleted"
    run_benchmark("pretrained", "rates", *trials)
    assert (tmp_path / "runs" / "rates.jsonl").read_text().splitlines() == lines, "recorded rates aren't trained again"


@pytest.mark.slow
def test_atypical(tmp_path: Path):
    """On tones as recordings, and a made Whisper: every system of the table is trained and compared."""
    folder, rng = tmp_path / "speech_digits", np.random.default_rng(0)
    (folder / "recordings").mkdir(parents=True)
    rows = []
    for name in itertools.product(tiny_listener.WORDS, ("ann", "bob"), range(12)):
        about = "_".join(map(str, name))
        samples = tiny_listener.make_samples([name[0]], "low", rng)
        soundfile.write(folder / "recordings" / f"{about}.flac", samples, tiny_listener.RATE)
        rows.append({"id": about, "audio": f"recordings/{about}.flac", "text": name[0], "speaker": name[1]})
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = write_whisper(tmp_path / "whisper")
    small = ("--seeds", 1, "--each", 3, 1, 2, "--epochs", 1, 1)
    said = run_benchmark("atypical", "--base", base, "--data", tmp_path, "--folder", tmp_path / "runs", *small)
    assert "10 utterances, 1 seeds; WER" in said
    assert "| the mixture | " in said


@pytest.mark.slow
def test_tts_proofs(voice_run: Path, tmp_path: Path):
    pytest.importorskip("pocketsphinx")
    assert "real-time factor" in run_benchmark("tts_proofs", "unseen", voice_run, "--utterances", 1)
    said = run_benchmark("tts_proofs", "seen", voice_run, voice_run, "--utterances", 1)
    assert "ends of " in said
    tiny_voice.write_ljspeech(tmp_path, number=1)
    assert "wer" in run_benchmark("tts_proofs", "copied", tmp_path)


@pytest.mark.slow
def test_serving(tmp_path: Path, tiny_run: Path, voice_run: Path):
    tiny_listener.write_listener(tmp_path / "words")
    run = tiny_listener.train(tmp_path / "words", tmp_path / "run", "training.max_steps=2")
    audio = sorted((tmp_path / "words").rglob("*.wav"))[0].parent
    texts = tmp_path / "texts.txt"
    texts.write_text("aba abo.\nabi aba.\n", encoding="utf-8")
    for model, inputs, together in ((run, audio, 1), (tiny_run, texts, 2), (voice_run, texts, 1)):
        options = ("--clients", 2, "--repeat", 1, "--rounds", 1, "--together", together)
        said = run_benchmark("serving", model, inputs, *options)
        equal = 2 * together
        ratios = rf"^ratio [\d.]+ by processor time .*\nratio at equal batch, {equal} inputs at a time: [\d.]+"
        assert re.search(rf"{ratios} .*\nprocessor: .*\nlatency p50 [\d.]+ s", said, re.MULTILINE)
