"""Recordings without speech: a transcript that is given as empty is learned, one that is missing isn't."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, Recording, SupervisionSegment

import tiny_listener
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.recordings import is_without_speech
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError
from vaak.runs.open_run import open_run

NUM_SILENT = {"train": 8, "valid": 3}
CONFORMER = {"d_model": 48, "num_layers": 1, "num_heads": 2, "kernel_size": 5, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "whisper": {
        "scratch": {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_heads": 2,
            "max_target_length": 16,
            "dropout": 0.0,
        }
    },
    "ctc": {"architecture": "ctc", "conformer": CONFORMER},
}
TEXTS = {"a": "so it is", "b": "", "c": None, "d": "is it so"}
"""Transcripts: ``b`` has no speech, and that of ``c`` is unknown."""


def wav_bytes(kind: str = "WAV") -> bytes:
    content = io.BytesIO()
    soundfile.write(content, np.random.default_rng(0).normal(0, 0.1, 4000), 16000, format=kind)
    return content.getvalue()


def write_audio(folder: Path, names: str = "abcd", kind: str = "wav") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.{kind}").write_bytes(wav_bytes(kind.upper()))


def write_lines(folder: Path, name: str = "train.jsonl", audio: str = "audio") -> dict[str, Any]:
    write_audio(folder)
    lines = ({audio: f"{one}.wav", **({} if text is None else {"text": text})} for one, text in TEXTS.items())
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"type": "json", "train": [str(folder / name)]}


def write_table(folder: Path, delimiter: str, ending: str) -> dict[str, Any]:
    """In a table, nothing is missing: a cell is empty."""
    write_audio(folder, "abd")
    rows = [("audio", "text"), *((f"{one}.wav", text) for one, text in TEXTS.items() if text is not None)]
    (folder / f"train.{ending}").write_text("".join(delimiter.join(row) + "\n" for row in rows))
    return {"type": "json", "train": [str(folder / f"train.{ending}")]}


def write_list(folder: Path, delimiter: str) -> dict[str, Any]:
    write_audio(folder / "wavs")
    lines = (f"{one}{delimiter}{text}".rstrip(" ") for one, text in TEXTS.items() if text is not None)
    (folder / "transcripts.txt").write_text("\n".join(lines) + "\n")
    return {"type": "transcripts", "corpus_dir": str(folder)}


def write_texts(folder: Path) -> dict[str, Any]:
    write_audio(folder)
    for name, text in TEXTS.items():
        if text is not None:
            (folder / f"{name}.txt").write_text(text)
    return {"type": "transcripts", "corpus_dir": str(folder)}


def write_kaldi(folder: Path) -> dict[str, Any]:
    write_audio(folder / "wavs")
    (folder / "train").mkdir()
    (folder / "train" / "wav.scp").write_text("".join(f"{one} wavs/{one}.wav\n" for one in TEXTS))
    (folder / "train" / "utt2spk").write_text("".join(f"{one} {one}\n" for one in TEXTS))
    said = "".join(f"{one} {text}\n" for one, text in TEXTS.items() if text is not None)
    (folder / "train" / "text").write_text(said)
    return {"type": "kaldi", "corpus_dir": str(folder)}


def write_ljspeech(folder: Path) -> dict[str, Any]:
    write_audio(folder / "wavs", "abd")
    rows = (f"{one}|{text}|{text}\n" for one, text in TEXTS.items() if text is not None)
    (folder / "metadata.csv").write_text("".join(rows))
    return {"type": "ljspeech", "corpus_dir": str(folder)}


def write_cuts(folder: Path) -> dict[str, Any]:
    write_audio(folder)
    cuts = []
    for name, text in TEXTS.items():
        recording = Recording.from_file(folder / f"{name}.wav")
        cut = recording.to_cut()
        cut.supervisions = [SupervisionSegment(name, recording.id, 0.0, cut.duration, text=text)]
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl")
    return {"type": "cuts", "train": [str(folder / "cuts.jsonl")]}


def write_parquet(folder: Path) -> dict[str, Any]:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    audio = [{"bytes": wav_bytes(), "path": None} for _ in TEXTS]
    parquet.write_table(pyarrow.table({"audio": audio, "text": list(TEXTS.values())}), folder / "train-0.parquet")
    return {"type": "parquet", "corpus_dir": str(folder)}


def write_shards(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    with tarfile.open(folder / "train-0.tar", "w") as archive:
        for name, text in TEXTS.items():
            members = {f"{name}.wav": wav_bytes()} | ({} if text is None else {f"{name}.txt": text.encode()})
            for member, content in members.items():
                about = tarfile.TarInfo(member)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    return {"type": "webdataset", "corpus_dir": str(folder)}


def write_librispeech(folder: Path) -> dict[str, Any]:
    place = folder / "train-clean" / "1" / "2"
    write_audio(place, "abd", "flac")
    said = "".join(f"{one} {text}\n" for one, text in TEXTS.items() if text is not None)
    (place / "1-2.trans.txt").write_text(said)
    return {"type": "librispeech", "corpus_dir": str(folder)}


def write_voxpopuli(folder: Path) -> dict[str, Any]:
    write_audio(folder / "en" / "2009", "abd", "ogg")
    rows = [
        ("id", "raw_text", "normalized_text"),
        *((one, "", text or "") for one, text in TEXTS.items() if one != "c"),
    ]
    (folder / "en" / "asr_train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return {"type": "voxpopuli", "corpus_dir": str(folder / "en")}


def write_nemo(folder: Path) -> dict[str, Any]:
    write_lines(folder, "train_manifest.json", "audio_filepath")
    return {"type": "nemo", "corpus_dir": str(folder)}


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "JSON lines": write_lines,
    "CSV": lambda folder: write_table(folder, ",", "csv"),
    "TSV": lambda folder: write_table(folder, "\t", "tsv"),
    "list with tabs": lambda folder: write_list(folder, "\t"),
    "list with bars": lambda folder: write_list(folder, "|"),
    "list with blanks": lambda folder: write_list(folder, " "),
    "texts": write_texts,
    "Kaldi": write_kaldi,
    "LJ Speech": write_ljspeech,
    "Lhotse": write_cuts,
    "Parquet": write_parquet,
    "WebDataset": write_shards,
    "LibriSpeech": write_librispeech,
    "VoxPopuli": write_voxpopuli,
    "NeMo": write_nemo,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_transcript_is_read_and_a_missing_one_is_not(kind: str, tmp_path: Path):
    options = {"name": "d", "split_by": "recording", **KINDS[kind](tmp_path / "data")}
    corpus = AudioCorpus(DatasetConfig(**options), AudioConfig())
    corpus.require_text()
    found = [cut for split in corpus.splits for cut in read_all(corpus, split)]
    silent = [cut for cut in found if is_without_speech(cut, cut)]
    assert len(silent) == 1
    assert silent[0].duration == 0.25
    said = {label.text for cut in found for label in cut.supervisions if label.text}
    assert said == {"so it is", "is it so"}


def read_all(corpus: AudioCorpus, split: str) -> list[Any]:
    """The cuts of a split that may be empty, of so few recordings."""
    found: list[Any] = []
    with contextlib.suppress(DataError):
        found += corpus.cuts(split)
    return found


@pytest.fixture(scope="module")
def quiet(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of tones, and recordings of noise with empty transcripts."""
    folder = shutil.copytree(corpus, tmp_path_factory.mktemp("quiet") / "tones")
    rng = np.random.default_rng(3)
    for split, number in NUM_SILENT.items():
        lines = (folder / f"{split}.jsonl").read_text()
        for index in range(number):
            name = f"{split}-noise{index}.wav"
            samples = 10.0 ** rng.uniform(-3, -1.5) * rng.standard_normal(round(0.6 * tiny_listener.RATE))
            soundfile.write(folder / name, samples, tiny_listener.RATE)
            lines += json.dumps({"audio": name, "text": "", "accent": "low"}) + "\n"
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="module", params=MODELS)
def run(request: pytest.FixtureRequest, quiet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each architecture, trained to its end; tests don't change it."""
    folder = tmp_path_factory.mktemp("run") / request.param
    rates = ("training.max_steps=80", "training.optimizer.lr=0.01")
    return tiny_listener.train(quiet, folder, *rates, model=MODELS[request.param])


def prepared_task(folder: Path, data: Path, name: str, **more: Any) -> Any:
    folder.mkdir(exist_ok=True)
    file = folder / "case.yml"
    file.write_text(yaml_text(tiny_listener.options(data, model=MODELS[name], **more)))
    experiment: Any = load([file]).experiment
    task: Any = task_class("asr")(experiment, folder, folder)
    task.prepare()
    return task


def test_what_is_not_said_is_learned_counted_and_reported(
    run: Path, vaak: Any, quiet: Path, capfd: pytest.CaptureFixture[str]
):
    log = (run / "train.log").read_text()
    assert "train: the transcripts of 8 of 32 utterances are given as empty: they are recordings without speech" in log
    code, out, _ = vaak("eval", run, "--split", "valid", "--json")
    report = json.loads(out)
    metrics = report["metrics"]
    assert code == 0
    assert metrics["val_without_speech"] == NUM_SILENT["valid"]
    assert metrics["val_hallucinated_words"] == 0
    line = "val_hallucinated_words: hallucinated words: 0 in 3 recordings without speech"
    assert report["counts"] == [line]
    _, out, _ = vaak("eval", run, "--split", "valid")
    assert line in out
    assert np.isfinite(metrics["val_loss"])
    opened: Any = open_run(run)
    noise = [quiet / f"valid-noise{index}.wav" for index in range(3)]
    assert [one.text for one in opened.task.predict(opened.model, noise)] == ["", "", ""]


def test_words_heard_in_silence_are_errors_of_the_words_that_there_are(
    vaak: Any, quiet: Path, corpus: Path, tmp_path: Path
):
    """A recogniser that has never heard a recording without speech; the denominator is that of those with words."""
    run = tiny_listener.train(corpus, tmp_path / "run", "training.max_steps=30", model=MODELS["whisper"])
    _, out, _ = vaak("eval", run, "--split", "valid", "--json")
    with_words = json.loads(out)["metrics"]
    lines = (quiet / "valid.jsonl").read_text().splitlines()
    number = sum(len(json.loads(line)["text"].split()) for line in lines)
    _, out, _ = vaak("eval", run, "--split", "valid", "--json", "--data", quiet / "valid.jsonl")
    both = json.loads(out)["metrics"]
    heard = both["val_hallucinated_words"]
    assert heard > 0, "it writes something to all that it hears"
    assert both["val_wer"] == pytest.approx(with_words["val_wer"] + heard / number)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_silence_alone_has_a_loss(name: str, quiet: Path, tmp_path: Path):
    task = prepared_task(tmp_path, quiet, name)
    dataset = task.dataset("train")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(dataset.lengths))]
    silent = [[one] for one in examples if not one.text]
    assert len(silent) == NUM_SILENT["train"]
    batch = dataset.collate(silent)
    model = task.model()
    (term,) = task.losses(model, batch).values()
    assert batch.counts["token"].tolist() == [1] * len(silent)
    term.total.backward()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)
    assert term.total.item() > 0


@pytest.mark.parametrize("name", MODELS)
def test_batches_of_speech_have_the_same_numbers_as_ever(name: str, corpus: Path, tmp_path: Path):
    task = prepared_task(tmp_path, corpus, name)
    dataset = task.dataset("train")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(8)]
    counts = dataset.collate([[one] for one in examples]).counts["token"].tolist()
    assert counts == [len(one.ids) + (name == "whisper") for one in examples]


def test_training_without_any_word_is_refused(corpus: Path, tmp_path: Path):
    shutil.copytree(corpus, tmp_path / "c")
    (tmp_path / "c" / "train.jsonl").write_text('{"audio": "train0.wav", "text": "", "speaker": "a"}\n')
    with pytest.raises(DataError, match="all transcripts of train are empty: a model needs some words to learn"):
        prepared_task(tmp_path / "case", tmp_path / "c", "ctc")
