"""A tiny CTC recogniser refuses texts longer than its frames, and writes the same from files and in onnxruntime."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch

import tiny_listener
import tiny_runs
from vaak.audio.audio_file import AudioFile
from vaak.audio.formats.alignments import read_alignment
from vaak.audio.segments import PAUSE_LABEL
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError, UserError
from vaak.nn.config import ConformerConfig
from vaak.nn.conformer import Conformer
from vaak.nn.ctc import collapse
from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import ctc_beam_search
from vaak.runs.open_run import open_run
from vaak.runs.start import train as train_run
from vaak.runs.use import require_format
from vaak.tasks.asr.ctc.data import padded_features
from vaak.tasks.asr.ctc.task import CtcTask
from vaak.tasks.asr.data import AsrExample
from vaak.tasks.asr.predict import make_hotwords
from vaak.tasks.asr.whisper.task import WhisperTask

SIZES = {"d_model": 48, "num_layers": 1, "num_heads": 2, "kernel_size": 5, "dropout": 0.0}
MODEL = {"architecture": "ctc", "conformer": SIZES}


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, trained to its end; tests don't change it."""
    options = ("training.max_steps=100", "training.optimizer.lr=0.01")
    return tiny_listener.train(corpus, tmp_path_factory.mktemp("run") / "ctc", *options, model=MODEL)


def make_task(corpus: Path, folder: Path, **more: Any) -> CtcTask:
    """A task, prepared."""
    folder.mkdir(exist_ok=True)
    (folder / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, **{"model": MODEL, **more})))
    experiment: Any = load([folder / "case.yml"]).experiment
    task: Any = task_class("asr")(experiment, folder, folder)
    assert isinstance(task, CtcTask)
    task.prepare()
    return task


def with_a_dense_text(corpus: Path, folder: Path) -> Path:
    """A copy of the corpus whose first utterance, of 0.25 s or 7 frames, has 8 letters, three times two equal ones."""
    shutil.copytree(corpus, folder)
    first, *rest = (folder / "train.jsonl").read_text().splitlines()
    (folder / "train.jsonl").write_text("\n".join([json.dumps({**json.loads(first), "text": "aabbccdd"}), *rest]))
    return folder


def test_tokens_that_do_not_fit_the_frames_are_named_and_left_out_or_refused(corpus: Path, tmp_path: Path):
    data = with_a_dense_text(corpus, tmp_path / "data")
    task = make_task(data, tmp_path / "drops")
    (listed,) = (tmp_path / "drops" / "prepared" / "train" / "left_out.jsonl").read_text().splitlines()
    reason = "8 tokens, which need 12 frames of the encoder (a blank between equal ones) of 7"
    assert json.loads(listed) == {"name": "train0", "reason": reason}
    about = task.prepared.about["statistics"]["train"]
    assert about["left_out"] == {"utterances with more tokens than the encoder has frames for": 1}
    with pytest.raises(DataError, match=r"train0.* has 8 tokens, which need 12 frames .*; set data\.too_long"):
        make_task(data, tmp_path / "fails", data={"too_long": "fail"})


def test_audio_is_not_sped_up_where_its_tokens_would_not_fit(corpus: Path, tmp_path: Path):
    model = {**MODEL, "conformer": {**SIZES, "subsampling": 8}}
    task = make_task(corpus, tmp_path / "case", model=model, data={"augmentation": {"speed": [2.0]}})
    dataset = task.dataset("train")
    words = {index: len(dataset.example(index, np.random.default_rng(0)).text.split()) for index in range(3)}
    frames = {index: dataset.example(index, np.random.default_rng(0)).features.shape[1] for index in range(3)}
    assert words == {0: 1, 1: 2, 2: 3}
    assert frames == {0: 13, 1: 50, 2: 75}, "two letters fit two frames of the encoder, five don't fit four"


def test_what_is_padding_changes_no_frame_of_a_conformer():
    torch.manual_seed(0)
    model = Conformer(ConformerConfig(**SIZES), 6).double().eval()
    rows = [torch.randn(length, 6, dtype=torch.float64) for length in (21, 40, 4)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=7.0)
    together, lengths = model(padded, torch.tensor([21, 40, 4]))
    assert lengths.tolist() == [6, 10, 1]
    for row, encoded, length in zip(rows, together, lengths, strict=True):
        alone, _ = model(row[None], torch.tensor([len(row)]))
        torch.testing.assert_close(alone[0], encoded[:length])


def test_it_learns_and_says_the_same_in_an_evaluation_and_of_files(run: Path, corpus: Path):
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["val_wer"] < 0.5
    opened = open_run(run)
    files = [corpus / f"valid{index}.wav" for index in range(6)]
    texts = {found.name: found.text for found in opened.task.predict(opened.model, files)}
    expected = dict(line.split(" (reference")[0].split(": ") for line in opened.task.samples(opened.model))
    assert len(expected) == 5
    agreeing = [texts[name] == text for name, text in expected.items()]
    assert sum(agreeing) >= 4, "windows leave out silence at the ends"


def test_a_beam_search_with_an_ngram_says_what_the_ngram_likes(run: Path, corpus: Path, tmp_path: Path):
    opened, words = open_run(run), tmp_path / "words.arpa"
    words.write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-9\t<s>\n-0.1\t</s>\n-0.1\tmi\n-0.1\tsu\n\n\\end\\\n", encoding="utf-8"
    )
    task: Any = opened.task
    features = [task.dataset("test").example(index, np.random.default_rng(0)).features for index in range(4)]
    greedy, wide = (task.transcriber(opened.model, **one).texts(features) for one in ({}, {"method": "beam"}))
    assert sum(one == other for one, other in zip(greedy, wide, strict=True)) >= 3
    liked = task.transcriber(opened.model, method="beam", beam_size=50, ngram=str(words), alpha=5.0).texts(features)
    others = [sum(word not in ("mi", "su") for text in texts for word in text.split()) for texts in (wide, liked)]
    assert others[1] < others[0]
    with pytest.raises(DataError, match=r"none\.arpa: this n-gram model can't be read"):
        task.transcriber(opened.model, method="beam", ngram=str(tmp_path / "none.arpa")).texts(features)


def test_hotwords_without_tokens_are_named(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task = make_task(corpus, tmp_path / "case", data={"tokenizer": {"type": "wordpiece"}})
    vocabulary = task.prepared.vocabulary
    with caplog.at_level("WARNING", "vaak"):
        found = make_hotwords(vocabulary, ("日本", "So-mi!", "só"), 3.0)
    assert found is not None
    assert found.score(vocabulary.encode("su so mi")) == pytest.approx(3.0)
    assert make_hotwords(vocabulary, ("日本",), 3.0) is None
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-2] == "data.decoding.hotwords: 2 of 3 left out, which the model's tokens can't write: 日本, só"


def test_hotwords_are_preferred(run: Path, corpus: Path, tmp_path: Path, vaak: Any):
    opened, names = open_run(run), tmp_path / "names.txt"
    task: Any = opened.task
    features = [task.dataset("test").example(index, np.random.default_rng(0)).features for index in range(4)]

    def transcribe(**options: Any) -> list[str]:
        texts: list[str] = task.transcriber(opened.model, method="beam", beam_size=50, **options).texts(features)
        return texts

    usual = transcribe()
    said = {word for text in usual for word in text.split()}
    missed = next(word for word in ("mi", "su", "ma", "so", "mo", "sa") if word not in said)
    names.write_text(f"{missed.upper()}\t60\n\n", encoding="utf-8")
    liked = transcribe(hotwords=str(names), hotword_weight=1.0)
    assert any(missed in text.split() for text in liked)
    audio = str(corpus / "valid0.wav")
    code, _, errors = vaak("transcribe", str(run), audio, "--hotwords", str(names))
    assert code == 2
    assert (
        "data.decoding.hotwords: a CTC model reads them only in a beam search; give data.decoding.method=beam" in errors
    )
    code, _, errors = vaak("transcribe", str(run), audio, "--method", "beam", "--hotwords", f"{names}, {missed}")
    assert (code, errors) == (0, "")
    names.write_text("so\tmuch\n", encoding="utf-8")
    code, _, errors = vaak("transcribe", str(run), audio, "--method", "beam", "--hotwords", str(names))
    assert code == 2
    assert "names.txt:1: expected a weight above 0 after the tab, found 'much'" in errors


@pytest.mark.slow
def test_the_weights_of_an_ngram_model_are_tuned_and_then_used(run: Path, vaak: Any, tmp_path: Path):
    words, own = tmp_path / "words.arpa", tmp_path / "run"
    shutil.copytree(run, own, symlinks=True)
    words.write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-9\t<s>\n-0.1\t</s>\n-0.1\tmi\n-0.1\tsu\n\n\\end\\\n", encoding="utf-8"
    )
    wrong = ("data.decoding.alpha=3", "data.decoding.beam_size=8")  # nothing but mi and su is said
    code, out, errors = vaak("tune", str(own), f"data.decoding.ngram={words}", *wrong, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(out)
    assert found["utterances"] == 6
    assert found["after"]["wer"] < found["before"]["wer"]
    assert found["decoding"]["method"] == "beam"
    assert found["decoding"]["ngram"] == str(words.resolve()), "the run is used in other folders, too"
    report = json.loads(vaak("eval", str(own), "--split", "valid", "--json")[1])
    metrics = report.get("metrics", report)
    assert metrics["valid_wer" if "valid_wer" in metrics else "val_wer"] == pytest.approx(found["after"]["wer"])
    code, _, errors = vaak("tune", str(run))
    assert (code, errors) == (
        2,
        "vaak tune weighs the language model of a CTC run: give data.decoding.ngram=WORDS.arpa or "
        "data.decoding.lm=RUN\n",
    )


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.4, 1.5)])
def test_a_beam_that_holds_all_finds_the_best_of_all_by_a_run(tiny_run: Path, alpha: float, beta: float):
    """The score of each text is its probability by all of its paths, times that of all of its tokens by the run."""
    opened = open_run(tiny_run, device="cpu")
    task, pieces = cast("Any", opened.task), ("", "a", "b", " ")

    def log_probability(text: str) -> float:
        ids = [task.tokenizer.bos_id, *task.tokenizer.encode(text), task.tokenizer.eos_id]
        with torch.no_grad():
            scores = opened.model.eval()(torch.tensor([ids[:-1]])).double().log_softmax(-1)[0]
        return float(scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].sum())

    scores = np.random.default_rng(1).normal(size=(5, 4))
    frames = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    sums: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(4), repeat=5):
        ids = tuple(collapse(path, 0))
        total = sum(frame[token] for frame, token in zip(frames, path, strict=True))
        sums[ids] = float(np.logaddexp(sums.get(ids, -np.inf), total))
    words = {ids: "".join(pieces[one] for one in ids).split() for ids in sums}
    bonus = {text: log_probability(text) for text in {" ".join(one) for one in words.values()}}
    expected = {ids: sums[ids] + alpha * bonus[" ".join(words[ids])] + beta * len(words[ids]) for ids in sums}
    found = ctc_beam_search(frames, CtcBeam(pieces, 0, 5000, task.words(opened.model), alpha, beta))
    assert len(found) == len(expected) > 100
    assert found[0][1] == max(expected, key=lambda ids: expected[ids])
    assert {ids: pytest.approx(score, abs=1e-4) for score, ids in found} == expected


def test_words_beyond_what_a_language_model_reads_are_scored_after_the_last_ones(tiny_run: Path):
    task: Any = open_run(tiny_run, device="cpu").task
    model = open_run(tiny_run, device="cpu").model
    words, said = task.words(model), tuple("abcdefgh"[at % 8] * 3 for at in range(40))
    assert len(task.tokenizer.encode(" ".join(said))) > 2 * task.data.max_length
    last = words.score(said[:-1], said[-1])
    ids = [task.tokenizer.bos_id, *task.tokenizer.encode(" ".join(said))]
    count = len(ids) - 1 - len(task.tokenizer.encode(" ".join(said[:-1])))
    rows = torch.tensor([ids[-task.data.max_length - 1 :]])
    with torch.no_grad():
        scores = model.eval()(rows[:, :-1]).log_softmax(-1)[0, -count:]
    assert last == pytest.approx(float(scores.gather(1, rows[0, -count:, None]).sum()), abs=1e-4)


@pytest.mark.slow
def test_the_weights_of_a_run_are_tuned_and_then_used(
    run: Path, corpus: Path, vaak: Any, tmp_path: Path, voice_run: Path
):
    texts, own, lm = tmp_path / "corpus.txt", tmp_path / "run", tmp_path / "lm"
    rng = np.random.default_rng(0)
    texts.write_text("".join(" ".join(rng.choice(["mi", "su"], 1 + at % 3)) + "\n" for at in range(200)))
    shutil.copytree(run, own, symlinks=True)
    (tmp_path / "lm.yml").write_text(tiny_runs.MODEL_AND_DATA.replace("corpus.txt", str(texts)))
    train_run(load([tmp_path / "lm.yml"], [f"run_dir={lm}", "training.max_steps=40", "training.device=cpu"]))
    wrong = ("data.decoding.alpha=3", "data.decoding.beam_size=4")  # nothing but mi and su is said
    code, out, _ = vaak("tune", str(own), f"data.decoding.lm={lm}", *wrong, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["after"]["wer"] < found["before"]["wer"]
    assert found["decoding"]["lm"] == str(lm.resolve())
    report = json.loads(vaak("eval", str(own), "--split", "valid", "--json")[1])
    metrics = report.get("metrics", report)
    assert metrics["valid_wer" if "valid_wer" in metrics else "val_wer"] == pytest.approx(found["after"]["wer"])
    file = str(corpus / "test0.wav")
    # Without pruning, so that a heavy weight reaches tokens that the recogniser takes for impossible.
    beam = ("--method", "beam", "--beam-size", "50", "--token-min-logp", "null", "--beam-threshold", "null")
    plain = vaak("transcribe", str(run), file, *beam)
    assert vaak("transcribe", str(run), file, *beam, "--lm", str(lm), "--alpha", "0") == plain
    assert vaak("transcribe", str(run), file, *beam, "--lm", str(lm), "--alpha", "8") != plain
    for name, message in (
        (tmp_path / "none", "data.decoding.lm: no run .*none.*"),
        (
            voice_run,
            ".* is a run of task tts; data.decoding.lm requires a run of task lm with .*",
        ),
    ):
        code, out, errors = vaak("transcribe", str(run), file, "--method", "beam", "--lm", str(name))
        assert (code, out) == (2, "")
        assert re.fullmatch(f"{message}\n", errors)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tuple[str, float, float]]]:
    """A recording of eight lines, its text in upper case, and each word with its times."""
    folder, rng = tmp_path_factory.mktemp("talk"), np.random.default_rng(5)
    parts, words, lines, at = list[np.ndarray](), list[tuple[str, float, float]](), list[str](), 0.0
    for number in range(8):
        said = [str(word) for word in rng.choice(list(tiny_listener.WORDS), 1 + number % 3)]
        lines.append(" ".join(said).upper())
        for place, word in enumerate(said):
            words.append((word.upper(), at + 0.25 * place + 0.05, at + 0.25 * place + 0.25))
        pause = 1e-3 * rng.standard_normal(round(0.3 * tiny_listener.RATE))
        parts += [tiny_listener.make_samples(said, "low", rng), pause]
        at += 0.25 * len(said) + 0.3
    soundfile.write(folder / "talk.wav", np.concatenate(parts), tiny_listener.RATE)
    (folder / "talk.txt").write_text("\n".join(lines) + "\n\n")
    return folder / "talk.wav", folder / "talk.txt", words


def test_words_are_found_where_they_are_said(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, tmp_path: Path
):
    audio, text, words = talk
    code, out, errors = vaak("align", str(run), str(audio), str(text))
    assert (code, errors) == (0, "")
    found = [line.split() for line in out.splitlines()]
    assert [row[4] for row in found] == [word for word, _, _ in words]
    starts, durations = (np.array([float(row[column]) for row in found]) for column in (2, 3))
    expected = np.array([times for _, *times in words])
    assert np.median(np.abs(starts - expected[:, 0])) < 0.08, "two of the encoder's frames"
    assert np.median(np.abs(starts + durations - expected[:, 1])) < 0.08
    assert (np.diff(starts) > 0).all()
    folder = tmp_path / "aligned"
    assert vaak("align", str(run), str(audio), str(text), "--format", "textgrid", "-o", str(folder))[0] == 0
    read = [one for one in read_alignment(folder / "talk.TextGrid")["word"] if one.text]
    assert [one.text for one in read] == [word for word, _, _ in words]
    assert [one.start for one in read] == pytest.approx(starts, abs=1e-3)
    code, out, _ = vaak("align", str(run), str(audio), str(text), "--format", "srt")
    assert out.split("\n\n")[1].splitlines()[2] == text.read_text().splitlines()[1]


def test_an_option_without_effect_is_reported(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, caplog: pytest.LogCaptureFixture
):
    plain = vaak("transcribe", str(run), str(talk[0]))
    assert not [record for record in caplog.records if "data.decoding" in record.message]
    assert vaak("transcribe", str(run), str(talk[0]), "--language", "hi")[:2] == plain[:2]
    assert [
        record for record in caplog.records if "data.decoding.language: model.architecture is ctc" in record.message
    ]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_words_of_a_transcript_have_times_and_confidences(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, method: str
):
    audio, _, words = talk
    plain = json.loads(vaak("transcribe", str(run), str(audio), "--method", method, "--json")[1])
    found = vaak("transcribe", str(run), str(audio), "--method", method, "--timestamps", "word", "--json")
    assert (found[0], found[2]) == (0, "")
    about = json.loads(found[1])
    assert about["text"] == plain["text"], "times change no text"
    assert "words" not in plain["segments"][0]
    said = [word for segment in about["segments"] for word in segment["words"]]
    assert [word["text"] for word in said] == about["text"].split()
    assert all(0 <= word["probability"] <= 1 and word["end"] >= word["start"] for word in said)
    for segment in about["segments"]:
        times = [time for word in segment["words"] for time in (word["start"], word["end"])]
        assert times == sorted(times)
    right, wrong = list[float](), list[float]()
    for word in said:
        true, start, end = min(words, key=lambda one: abs(one[1] + one[2] - word["start"] - word["end"]))
        (right if true.lower() == word["text"].lower() else wrong).append(word["probability"])
        if true.lower() == word["text"].lower():
            assert max(abs(start - word["start"]), abs(end - word["end"])) < 0.2
    assert len(right) >= 5
    if wrong:
        assert np.mean(wrong) < np.mean(right), "it is surer of the right ones"


def test_words_that_are_not_said_take_no_time(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, tmp_path: Path
):
    """Two dashes in a row, as in a book, overlapped each other and the next word, which no TextGrid can have."""
    audio, text, words = talk
    dashes = tmp_path / "dashes.txt"
    dashes.write_text("".join(f"— {line} — —\n" for line in text.read_text().splitlines() if line))
    assert vaak("align", str(run), str(audio), str(dashes), "--format", "textgrid", "-o", str(tmp_path))[0] == 0
    read = [one.text for one in read_alignment(tmp_path / "talk.TextGrid")["word"] if one.text]
    assert read == [word for word, _, _ in words]
    lines = [json.loads(vaak("align", str(run), str(audio), str(one), "--json")[1])["lines"] for one in (text, dashes)]
    for plain, dashed in zip(*lines, strict=True):
        assert all(plain[name] == dashed[name] for name in ("start", "end", "confidence"))


def test_recordings_of_one_name_are_not_written_over_each_other(run: Path, talk: Any, vaak: Any, tmp_path: Path):
    for folder in ("one", "two"):
        (tmp_path / "audio" / folder).mkdir(parents=True)
        shutil.copy(talk[0], tmp_path / "audio" / folder)
    audio, texts, aligned = (str(tmp_path / name) for name in ("audio", "texts", "aligned"))
    code, out, errors = vaak("align", str(run), audio, str(talk[1].parent), "-o", aligned)
    assert (code, out) == (2, "")
    assert "'talk.txt' could be 'one/talk.wav', 'two/talk.wav'" in errors
    for folder in ("one", "two"):
        (tmp_path / "texts" / folder).mkdir(parents=True)
        shutil.copy(talk[1], tmp_path / "texts" / folder)
    assert vaak("align", str(run), audio, texts, "-o", aligned)[0] == 0
    assert vaak("transcribe", str(run), audio, "-o", aligned)[0] == 0
    written = sorted(path.name for path in (tmp_path / "aligned").iterdir())
    assert written == ["one-talk.ctm", "one-talk.txt", "two-talk.ctm", "two-talk.txt"]
    assert (tmp_path / "aligned" / "one-talk.ctm").read_text().startswith("one-talk 1 ")
    (tmp_path / "audio" / "bad.wav").write_bytes(b"RIFF, not audio")
    code, out, errors = vaak("predict", str(run), audio, "--json")
    assert (code, [json.loads(line)["name"] for line in out.splitlines()]) == (2, ["one-talk", "two-talk"])
    assert "bad.wav: this is not audio" in errors
    assert errors.endswith("2 of 3 recordings predicted; left out: 1\n")
    code, _, errors = vaak("align", str(run), audio, texts, "-o", aligned)
    assert code == 2
    assert errors.endswith("2 of 3 recordings aligned; left out: 1\n")
    (tmp_path / "texts" / "notes.txt").write_text("nobody says it")
    (tmp_path / "audio" / "notes.docx").write_bytes(b"PK")
    code, out, _ = vaak("data", "segment", str(run), audio, texts, "-o", str(tmp_path / "train.jsonl"), "--json")
    about = json.loads(out)
    assert (code, about["recordings"], about["texts_left_out"]) == (2, 2, ["notes.txt"])
    assert [one["reason"] for one in about["failed"]] == [f"{audio}/bad.wav: no text {texts}/bad.txt"]
    assert about["files"] == [{"where": audio, "read": 3, "left_out": {}, "other_files": {".docx": 1}}]


def test_a_wrong_text_is_less_sure_and_one_that_cannot_be_is_an_error(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, tmp_path: Path
):
    audio, text, _ = talk
    wrong = tmp_path / "wrong.txt"
    lines = text.read_text().splitlines()
    wrong.write_text("\n".join(lines[::-1]) + "\n")
    sure = []
    for one in (text, wrong):
        found = json.loads(vaak("align", str(run), str(audio), str(one), "--json")[1])
        sure.append(np.mean([line["confidence"] for line in found["lines"]]))
    assert sure[0] > 1.5 * sure[1]
    wrong.write_text("ba " * 500)
    code, out, errors = vaak("align", str(run), str(audio), str(wrong))
    assert (code, out) == (2, "")
    assert "talk.wav: the text has 1499 tokens, which need" in errors
    wrong.write_text("...\n")
    assert "no word that the model can write" in vaak("align", str(run), str(audio), str(wrong))[2]


def test_a_recording_and_its_text_become_utterances_to_train_on(
    run: Path, talk: tuple[Path, Path, list[tuple[str, float, float]]], vaak: Any, tmp_path: Path
):
    audio, text, words = talk
    lines = [line for line in text.read_text().splitlines() if line]
    part = tmp_path / "part.txt"  # the recording begins and ends with what isn't in the text
    part.write_text("\n".join([*lines[2:6], "—"]) + "\n")  # and a line that nobody says
    shutil.copy(audio, tmp_path / "talk.wav")
    manifest = tmp_path / "train.jsonl"
    arguments = [str(run), str(tmp_path / "talk.wav"), str(part), "-o", str(manifest), "--min-confidence", "0"]
    code, _, errors = vaak("data", "segment", *arguments)
    assert (code, errors) == (0, "")
    entries = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert [one["text"] for one in entries] == lines[2:6]
    begins = [words[sum(len(line.split()) for line in lines[:number])][1] for number in range(2, 6)]
    assert np.median(np.abs(np.array([one["offset"] for one in entries]) - begins)) < 0.12
    assert {one["audio"] for one in entries} == {"talk.wav"}
    for split in ("valid", "test"):
        shutil.copy(manifest, tmp_path / f"{split}.jsonl")
    task = make_task(tmp_path, tmp_path / "case", data={"max_duration": 2.0})
    assert len(task.dataset("train").utterances) == 4
    assert vaak("data", "segment", *arguments, "--max-duration", "0.5")[0] == 0
    shorter = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert max(one["duration"] for one in shorter) <= 0.5
    assert " ".join(one["text"] for one in shorter).split() == " ".join(lines[2:6]).split()
    assert vaak("data", "segment", *arguments[:-1], "1")[0] == 2


@pytest.mark.slow
def test_onnxruntime_gives_the_same_text(run: Path, corpus: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    opened = open_run(run)
    task: Any = opened.task
    task.export_onnx(opened.model, tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "ctc.onnx")
    dataset, rng = task.dataset("valid"), np.random.default_rng(0)
    features = [dataset.example(index, rng).features for index in range(6)]
    rows, lengths = padded_features(features)
    log_probs, frames = session.run(None, {"features": rows.numpy(), "feature_lengths": lengths.numpy()})
    about = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    log_probs[..., about["never"]] = -np.inf
    found = [
        task.prepared.vocabulary.decode(collapse(row[:number].argmax(-1).tolist(), about["pad"]))
        for row, number in zip(log_probs, frames, strict=True)
    ]
    assert found == task.transcriber(opened.model).texts(features)
    assert any(found)
    assert set(task.refused_exports()) == {"hf", "mixture", "peft", "ct2"}


def texts_by_onnxruntime(model: Path, task: Any, files: list[Path]) -> list[str]:
    """What a network for sherpa-onnx finds in Vaak's own features: the most probable token of each frame."""
    import onnxruntime

    session, vocabulary, found = onnxruntime.InferenceSession(model), task.prepared.vocabulary, []
    for file in files:
        with AudioFile(file, 16_000, "mix") as audio:
            features = task.features(audio.read(0.0, audio.duration)).T[None]
        log_probs, _ = session.run(None, {"x": features, "x_lens": np.array([features.shape[1]])})
        found.append(vocabulary.decode(collapse(log_probs[0].argmax(-1).tolist(), vocabulary.ids.pad)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["character", "bpe"])
def test_sherpa_onnx_gives_the_same_text(tokenizer: str, run: Path, corpus: Path, vaak: Any, tmp_path: Path):
    """With its own features, of the same samples."""
    sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="sherpa-onnx isn't installed")
    if tokenizer == "bpe":
        options = ("training.max_steps=100", "training.optimizer.lr=0.01")
        data = {"tokenizer": {"type": "bpe", "vocab_size": 300}}
        run = tiny_listener.train(corpus, tmp_path / "bpe", *options, model=MODEL, data=data)
    opened, folder = open_run(run, device="cpu"), tmp_path / "out"
    code, _, err = vaak("export", run, "--format", "sherpa-onnx", "--quantization", "int8", "--output", folder)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "model.int8.onnx",
        "model.onnx",
        "tokens.txt",
    ]
    assert (folder / "model.int8.onnx").stat().st_size < 0.7 * (folder / "model.onnx").stat().st_size
    files = sorted([*corpus.glob("test*.wav"), *corpus.glob("valid*.wav")])
    task: Any = opened.task
    expected = {"model.onnx": [task.transcriber(opened.model).transcribe(file).text for file in files]}
    assert len(set(expected["model.onnx"])) > 4
    # sums of 8 bits aren't those of 32, nor the same on each processor: onnxruntime says what they are on this one
    expected["model.int8.onnx"] = texts_by_onnxruntime(folder / "model.int8.onnx", task, files)
    code_in_card = (folder / "README.md").read_text().split("```python")[1].split("```")[0]
    for name in ("model.onnx", "model.int8.onnx"):
        recogniser = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(
            str(folder / name), str(folder / "tokens.txt"), sample_rate=16_000, feature_dim=40
        )
        found = []
        for file in files:
            stream = recogniser.create_stream()
            with AudioFile(file, 16_000, "mix") as audio:
                stream.accept_waveform(16_000, audio.read(0.0, audio.duration))
            recogniser.decode_stream(stream)
            found.append(stream.result.text.strip())
        assert found == expected[name], name
    said = 'from_zipformer_ctc(\n    "out/model.onnx", "out/tokens.txt", sample_rate=16000, feature_dim=40'
    assert said in code_in_card


def test_features_that_sherpa_onnx_has_not_are_named(corpus: Path, tmp_path: Path):
    task = make_task(corpus, tmp_path / "run")
    assert task.own is not None
    task.own = task.own._replace(audio=task.audio.model_copy(update={"low_freq": 60.0}))
    with pytest.raises(
        UserError, match=r"^--format sherpa-onnx: sherpa-onnx has .* global_config\.low_freq 20\.0, not"
    ):
        require_format(task, "sherpa-onnx")


@pytest.mark.parametrize(
    "augmentation",
    [None, {"spec_augment": {}}, {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {"time_mask": 0.1}}],
    ids=["plain", "masked", "changed"],
)
def test_features_made_on_the_device_are_those_of_the_loader(corpus: Path, tmp_path: Path, augmentation: Any):
    """Up to rounding, with the same draws, also of an utterance without a frame; other splits have the loader's."""
    tasks = [
        make_task(corpus, tmp_path / where, data={"features_on": where, "augmentation": augmentation})
        for where in ("loader", "device")
    ]
    batches, draws = [], []
    for task in tasks:
        dataset, rng = task.dataset("train"), np.random.default_rng(3)
        examples = [dataset.example(index, rng) for index in range(8)]
        short = AsrExample("short", "", "all", dataset.features(np.zeros(50, np.float32)), np.ones(1, np.int64), True)
        batches.append(dataset.collate([[one] for one in (*examples, short if augmentation is None else examples[0])]))
        draws.append(rng.random())
    of_loader, made = batches
    assert draws[0] == draws[1]
    assert "features" not in made.tensors
    found, expected = tasks[1].compute_features(made), of_loader["features"]
    torch.testing.assert_close(found[:8], expected[:8], rtol=0, atol=1e-5)
    if augmentation is not None:
        assert len({tuple(masks) for masks in made["masks"].flatten(1).tolist()}) > 4, "each row has its own"
    _, alone = made.split(2)  # another number of rows, with the same padding
    torch.testing.assert_close(tasks[1].compute_features(alone)[:3], expected[5:8], rtol=0, atol=1e-5)
    for name in set(of_loader.tensors) - {"features"}:
        assert torch.equal(made[name], of_loader[name]), name
    assert {name: ones.tolist() for name, ones in made.counts.items()} == {
        name: ones.tolist() for name, ones in of_loader.counts.items()
    }
    model: Any = tasks[0].model().eval()
    logits = [task.logits(model, batch)["token"] for task, batch in zip(tasks, batches, strict=True)]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-3)
    valid = tasks[1].dataset("valid")
    assert "features" in valid.collate([[valid.example(0, rng)]]).tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.experts={}", "model.experts"),
        ("training.loss.label_smoothing=0.1", "whose loss has no smoothing"),
        ("training.loss.auxiliary={z_loss: 0.1}", "has no such loss"),
        ("global_config={feature_type: mel, num_mel_bins: 80}", "mel is for speech synthesis"),
        ("model.conformer.kernel_size=4", "must be odd"),
    ],
)
def test_what_ctc_has_not_is_one_line(corpus: Path, tmp_path: Path, change: str, message: str):
    (tmp_path / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, model=MODEL)))
    with pytest.raises(UserError, match=message):
        load([tmp_path / "case.yml"], [change])


def letters(text: str) -> str:
    return " ".join("".join(one if one.isalpha() or one == "'" else " " for one in text.lower()).split())


@pytest.mark.slow
def test_words_of_read_speech_are_found_where_mfa_finds_them(
    vaak_data: Callable[[str], Path], vaak: Any, tmp_path: Path
):
    """Of 26 clips of LJ Speech, by a model that learned their letters, and no time, in 400 steps."""
    data, lines = vaak_data("ljspeech_mini"), list[str]()
    for row in (data / "metadata.csv").read_text().splitlines():
        name, _, text = row.split("|")
        if (data / "wavs" / f"{name}.wav").exists():
            lines.append(json.dumps({"audio": str(data / "wavs" / f"{name}.wav"), "text": letters(text)}))
            (tmp_path / f"{name}.txt").write_text(text + "\n")
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    options = {
        "task": "asr",
        "run_dir": str(tmp_path / "run"),
        "datasets": [
            {"name": "lj", "type": "json", "train": [str(tmp_path / "train.jsonl")], "audio_root": [str(data)]}
            | {"train_fraction": 0.95, "valid_fraction": 0.05}
        ],
        "data": {"tokenizer": {"type": "character"}},
        "model": {"architecture": "ctc", "conformer": {"d_model": 96, "num_layers": 2, "dropout": 0.0}},
        "training": {
            "max_steps": 400,
            "batch_size": 6,
            "optimizer": {"type": "muon", "lr": 1e-2, "adamw_lr": 2e-3},
            "scheduler": {"type": "linear", "warmup_steps": 30},
            "validation": {"interval": 200},
        },
    }
    (tmp_path / "lj.yml").write_text(yaml_text(options))
    assert vaak("train", str(tmp_path / "lj.yml"))[0] == 0
    arguments = [str(tmp_path / "run"), str(data / "wavs"), str(tmp_path), "--format", "textgrid", "-o"]
    assert vaak("align", *arguments, str(tmp_path / "aligned"))[0] == 0
    errors = list[tuple[float, float]]()
    for path in (tmp_path / "aligned").iterdir():
        ours, theirs = (
            [one for one in read_alignment(file)["word"] if letters(one.text) and one.text != PAUSE_LABEL]
            for file in (path, data / "TextGrid" / "LJSpeech" / path.name)
        )
        spelled = [[letters(one.text) for one in words] for words in (ours, theirs)]
        for block in difflib.SequenceMatcher(None, spelled[0], spelled[1], autojunk=False).get_matching_blocks():
            pairs = zip(ours[block.a : block.a + block.size], theirs[block.b :], strict=False)
            errors += [(one.start - other.start, one.end - other.end) for one, other in pairs]
    assert len(errors) > 400
    starts, ends = 1000 * np.median(np.abs(errors), axis=0)
    print(f"{len(errors)} words: median errors of starts {starts:.0f} ms, of ends {ends:.0f} ms")
    assert starts <= 40
    assert ends <= 40


def test_the_class_of_a_task_follows_from_its_experiment_and_makes_only_itself(corpus: Path, tmp_path: Path) -> None:
    """``WhisperTask(experiment)`` gave a CtcTask, whatever class was asked for."""
    (tmp_path / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, model=MODEL)))
    experiment: Any = load([tmp_path / "case.yml"]).experiment
    assert type(task_class("asr")(experiment, tmp_path, tmp_path)) is CtcTask
    assert type(WhisperTask(experiment, tmp_path, tmp_path)) is WhisperTask
    whisper = experiment.model_copy(update={"model": experiment.model.model_copy(update={"architecture": "whisper"})})
    assert type(task_class("asr")(whisper, tmp_path, tmp_path)) is WhisperTask
