"""``vaak init`` on very little data: what it writes can be read, split by split, or it says why there is nothing."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vaak.audio.config import AudioConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.preflight.doctor.devices import processor
from vaak.runs.preflight.doctor.folder import survey_folder
from vaak.runs.starter import starter
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.parallel import ParallelCorpus

NUMBERS = (2, 3, 5, 12, 60)


def table(folder: Path, rows: list[tuple[str, ...]]) -> None:
    folder.mkdir()
    with (folder / "data.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def texts(folder: Path, labels: list[str]) -> None:
    table(folder, [("text", "label"), *((f"sentence {n} is unlike others", one) for n, one in enumerate(labels))])


def recordings(folder: Path, number: int, speaks: str = "") -> None:
    """Recordings, each with its text, or with an RTTM file of two who speak."""
    folder.mkdir()
    for n in range(number):
        soundfile.write(folder / f"{n}.wav", np.zeros(16000) + 0.01, 16000)
        if speaks:
            lines = (f"SPEAKER {n} 1 {at / 2} 0.4 <NA> <NA> {who} <NA> <NA>\n" for at, who in enumerate(speaks))
            (folder / f"{n}.rttm").write_text("".join(lines))
        else:
            (folder / f"{n}.txt").write_text(f"sentence {n}")


def count_splits(folder: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The examples of each split of the data that the YAML for a folder describes, as training reads them."""
    monkeypatch.chdir(folder.parent)
    Path("made.yml").write_text(starter(survey_folder(folder), processor(), task), encoding="utf-8")
    loaded = load(["made.yml"])
    assert loaded.warnings == []
    experiment: Any = loaded.experiment
    return {split: found for corpus in open_corpora(experiment) for split, found in corpus}


def open_corpora(experiment: Any) -> Iterator[Iterator[tuple[str, list[Any]]]]:
    kinds = {"classification": LabelledCorpus, "seq2seq": ParallelCorpus}
    for dataset in experiment.datasets:
        audio = AudioCorpus(dataset, AudioConfig())
        yield ((split, list(audio.cuts(split))) for split in audio.splits)
    if experiment.datasets:
        return
    corpus: Any = kinds.get(experiment.task, CorpusBuilder)(experiment.data.corpus)
    yield ((split, list(corpus.read(split))) for split in corpus.splits)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("task", ["classification", "lm", "seq2seq", "asr", "tts", "diarization"])
def test_no_split_is_empty_however_few_there_are(task: str, number: int, tmp_path: Path, monkeypatch):
    folder = tmp_path / "few"
    if task in ("asr", "tts", "diarization"):
        recordings(folder, number, "ab" if task == "diarization" else "")
    elif task == "seq2seq":
        table(folder, [("en", "hi"), *((f"number {n} of them", f"क्रमांक {n} है") for n in range(number))])
    elif task == "lm":
        folder.mkdir()
        (folder / "a.txt").write_text("".join(f"line {n} is here\n" for n in range(number)))
    else:
        texts(folder, [f"label {n % 15 if number == 60 else n % 2}" for n in range(number)])
    if task == "classification" and number == 2:
        with pytest.raises(UserError, match=r"different texts: 2, labels: 2; none can be spared to evaluate on"):
            starter(survey_folder(folder), processor(), task)
        return
    found = count_splits(folder, task, monkeypatch)
    assert list(found) == ["train", "valid", "test"][: 2 if number <= 3 else 3]
    assert all(found.values())
    assert sum(map(len, found.values())) == number, "nothing is lost"


@pytest.mark.parametrize(
    "labels",
    [
        ["a"] * 150 + ["b"] * 20 + ["c"] * 3 + ["d", "e"],
        [f"label {n % 100}" for n in range(300)],
        [f"label {n}" for n in range(150)] + ["label 0"],
    ],
    ids=["long tail", "three of each", "one of each but one"],
)
def test_train_knows_each_label_that_is_evaluated(labels: list[str], tmp_path: Path, monkeypatch):
    texts(tmp_path / "few", labels)
    found = count_splits(tmp_path / "few", "classification", monkeypatch)
    assert {one.labels for one in found["train"]} == {((label,),) for label in labels}
    assert all(found.values())


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["a"] * 20, "all its texts have one label, 'a': there is nothing to tell apart"),
        ([f"label {n}" for n in range(250)], "different texts: 250, labels: 250; none can be spared to evaluate on"),
    ],
)
def test_labels_with_which_nothing_can_be_learned_are_told(labels: list[str], says: str, tmp_path: Path):
    texts(tmp_path / "few", labels)
    with pytest.raises(UserError, match=says):
        starter(survey_folder(tmp_path / "few"), processor(), "classification")


@pytest.mark.parametrize("task", ["asr", "tts", "diarization"])
def test_one_recording_alone_is_told(task: str, tmp_path: Path):
    recordings(tmp_path / "few", 1, "ab" if task == "diarization" else "")
    with pytest.raises(UserError, match="recordings: 1; none can be spared to evaluate on: give more, or a split"):
        starter(survey_folder(tmp_path / "few"), processor(), task)


@pytest.mark.parametrize("speakers", [4, 5, 6, 10, 30])
def test_conversations_are_simulated_of_two_speakers_in_each_split(speakers: int, tmp_path: Path, monkeypatch):
    recordings(folder := tmp_path / "few", 2 * speakers)
    rows = [{"audio": f"{n}.wav", "speaker": f"speaker {n // 2}"} for n in range(2 * speakers)]
    (folder / "all.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = count_splits(folder, "diarization", monkeypatch)
    who = {split: {one.supervisions[0].speaker for one in cuts} for split, cuts in found.items()}
    assert list(who) == ["train", "valid", "test"][: 2 if speakers < 6 else 3]
    assert min(map(len, who.values())) >= 2
    assert sum(map(len, who.values())) == speakers, "no speaker is in two splits"


def test_each_of_several_corpora_is_split_by_its_own_size(tmp_path: Path, monkeypatch):
    (folder := tmp_path / "both").mkdir()
    for name, number in (("one", 1), ("many", 30)):
        recordings(folder / name, number)
    monkeypatch.chdir(tmp_path)
    found = [*survey_folder(folder / "one"), *survey_folder(folder / "many")]
    Path("made.yml").write_text(starter(found, processor(), "asr"), encoding="utf-8")
    datasets: Any = load(["made.yml"]).experiment.datasets
    numbers = {one.name: (one.valid_examples, one.test_examples) for one in datasets}
    assert numbers == {"one": (0, 0), "many": (3, 3)}
