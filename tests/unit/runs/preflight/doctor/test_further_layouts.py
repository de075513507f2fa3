"""Further layouts of speech: their splits, texts and speakers are found; texts that name no recording aren't taken for
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_speech import SECONDS, SPEAKERS, TEXTS, listed, wavs, write
from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.config.load import load
from vaak.runs.preflight.doctor.folder import survey_folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def splits(root: Path, name: str, texts: str, line: str, *, speaker: str = "") -> None:
    """Folders of splits, each with its recordings and their list."""
    for split, numbers in {"train": range(4), "dev": [4], "test": [5]}.items():
        rows = []
        for number in numbers:
            own = name.format(split=split, number=number, speaker=SPEAKERS[number % 2])
            write_audio(root / split / own, SECONDS, 16000, seed=number, format=Path(own).suffix[1:].upper())
            rows.append(line.format(name=Path(own).stem, file=own, text=TEXTS[number].replace(",", "")))
        write(root / split / texts, "".join(rows))


def timit(root: Path) -> None:
    for number, text in enumerate(TEXTS):
        folder = root / ("TEST" if number > 3 else "TRAIN") / "DR1" / f"FCJF{number}"
        write_audio(folder / "SA1.WAV", SECONDS, 16000, seed=number, format="WAV")
        write(folder / "SA1.TXT", f"0 46797 {text}\n")
        write(folder / "SA1.PHN", "0 3050 h#\n3050 4559 sh\n")


def filelists(root: Path) -> None:
    wavs(root / "wavs")
    rows = [f"wavs/{name}.wav|{text}\n" for name, text in zip("abcdef", TEXTS, strict=True)]
    write(root / "filelists" / "train.txt", "".join(rows[:4]))
    write(root / "filelists" / "val.txt", "".join(rows[4:]))


def next_to_audio(root: Path, ending: str, content: Callable[[str], str]) -> None:
    wavs(root)
    for name, text in zip("abcdef", TEXTS, strict=True):
        write(root / f"{name}{ending}", content(text))


ROLLING = """WEBVTT
Kind: captions

00:00:00.080 --> 00:00:01.500 align:start position:0%
{blank}
{first}<00:00:00.400><c> {second}</c>

00:00:01.500 --> 00:00:01.510 align:start position:0%
{first} {second}
{blank}

00:00:01.510 --> 00:00:02.900 align:start position:0%
{first} {second}
{third}<00:00:02.400><c> {fourth}</c>

"""


def rolling(text: str) -> str:
    first, second, third, *fourth = text.split()
    return ROLLING.format(blank=" ", first=first, second=second, third=third, fourth=" ".join(fourth))


OF_SPEAKERS = "".join(f"{name}|{name in 'ace'}|{text}\n" for name, text in zip("abcdef", TEXTS, strict=True))
WHOLE = {"train": 6}
SPLITS = {"train": 4, "valid": 1, "test": 1}
FURTHER: dict[str, tuple[Callable[[Path], object], str, dict[str, int], int]] = {
    "OpenSLR: a list without a header": (
        lambda root: listed(root, "{name}\t{text}", "line_index.tsv"),
        "transcripts",
        WHOLE,
        0,
    ),
    "MLS": (
        lambda root: splits(
            root / "mls_polish", "audio/1/2/{split}_{number}.flac", "transcripts.txt", "{name}\t{text}\n"
        ),
        "transcripts",
        SPLITS,
        0,
    ),
    "MUCS": (
        lambda root: splits(root, "audio/{split}_{number}.wav", "transcription.txt", "{name} {text}\n"),
        "transcripts",
        SPLITS,
        0,
    ),
    "audiofolder": (
        lambda root: splits(root, "{split}{number}.wav", "metadata.csv", "{name}.wav,{text}\n"),
        "transcripts",
        SPLITS,
        0,
    ),
    "CML-TTS": (
        lambda root: [
            splits(root / "cml", "audio/c{number}.wav", "x.lst", ""),
            *(
                write(
                    root / "cml" / f"{split}.csv",
                    "wav_filename|wav_filesize|transcript|client_id\n"
                    + "".join(f"{split}/audio/c{n}.wav|100|{TEXTS[n]}|{n % 2}\n" for n in numbers),
                )
                for split, numbers in {"train": range(4), "dev": [4], "test": [5]}.items()
            ),
        ],
        "json",
        SPLITS,
        2,
    ),
    "TIMIT": (timit, "transcripts", {"train": 4, "test": 2}, 0),
    "filelists": (filelists, "transcripts", {"train": 4, "valid": 2}, 0),
    "Piper, several speakers": (
        lambda root: [
            wavs(root / "wav"),
            write(
                root / "metadata.csv", "".join(f"{n}|{n in 'ace'}|{t}\n" for n, t in zip("abcdef", TEXTS, strict=True))
            ),
        ],
        "transcripts",
        WHOLE,
        2,
    ),
    "LJ Speech with speakers": (
        lambda root: [
            wavs(root / "wavs"),
            write(
                root / "metadata.csv", "".join(f"{n}|{n in 'ace'}|{t}\n" for n, t in zip("abcdef", TEXTS, strict=True))
            ),
        ],
        "transcripts",
        WHOLE,
        2,
    ),
    "Audacity": (
        lambda root: next_to_audio(root, ".txt", lambda text: f"0.100000\t2.900000\t{text}\n"),
        "transcripts",
        WHOLE,
        0,
    ),
    "WhisperX": (
        lambda root: next_to_audio(
            root,
            ".json",
            lambda text: json.dumps({"text": "no", "segments": [{"start": 0.1, "end": 2.9, "text": f" {text}"}]}),
        ),
        "transcripts",
        WHOLE,
        0,
    ),
    "CHiME": (
        lambda root: next_to_audio(
            root,
            ".json",
            lambda text: json.dumps(
                [{"start_time": "0:00:00.10", "end_time": "2.9", "words": text, "speaker": f"P{len(text) % 2}"}]
            ),
        ),
        "transcripts",
        WHOLE,
        2,
    ),
    "YouTube": (lambda root: next_to_audio(root, ".en.vtt", rolling), "transcripts", WHOLE, 0),
}
"""A writer, the kind that is found, the recordings of each split, and how many speakers are known."""


@pytest.mark.parametrize("name", FURTHER)
def test_further_layouts_have_their_splits_texts_and_speakers(name: str, tmp_path: Path, vaak: Any):
    make, kind, numbers, num_speakers = FURTHER[name]
    make(tmp_path / "data")
    [corpus] = survey_folder(tmp_path / "data")
    assert (corpus.kind, {split: one.num_entries for split, one in corpus.splits.items()}) == (kind, numbers)
    assert not any(one.broken or one.without_labels for one in corpus.splits.values())
    assert len(set().union(*(one.speakers for one in corpus.splits.values()))) == num_speakers
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in corpus.options.items()}
    reader = AudioCorpus(DatasetConfig(**{"name": "data", **plain}), AudioConfig()).reader
    cuts = [reading.cut for split in numbers for reading in reader.read(split) if reading.cut is not None]
    found = sorted(" ".join(label.text for label in cut.supervisions).replace(",", "") for cut in cuts)
    assert found == sorted(text.replace(",", "") for text in TEXTS)
    assert vaak("init", "--data", "data", "--hardware", "cpu")[0] == 0
    assert load(["begin.yml"]).experiment.task == "asr"


@pytest.mark.parametrize("name", ["scores.json", "list.txt"])
def test_texts_next_to_audio_that_they_do_not_name_are_trained_on_only_when_asked(name: str, tmp_path: Path, vaak: Any):
    wavs(tmp_path / "data" / "audio")
    rows = "".join(f"{json.dumps({'text': text}) if name.endswith('json') else text}\n" for text in TEXTS * 9)
    write(tmp_path / "data" / name, rows)
    code, _, errors = vaak("init", "--data", "data", "--hardware", "cpu")
    assert code == 2
    said = " ".join(errors.split())
    assert "no text for 6 of 6" in said
    assert "don't say which of the 6 recordings they belong to" in said
    assert "vaak init lm --data data" in said
    assert vaak("init", "lm", "--data", "data", "--hardware", "cpu")[0] == 0


def test_recordings_outside_of_splits_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    FURTHER["MUCS"][0](tmp_path / "data")
    write_audio(tmp_path / "data" / "more" / "x.wav", SECONDS, 16000)
    [corpus] = survey_folder(tmp_path / "data")
    assert {split: one.num_entries for split, one in corpus.splits.items()} == SPLITS
    assert "recordings in no folder of a split, left out:" in caplog.text
    assert "more/x.wav" in caplog.text


def test_textgrids_without_words_or_speakers_are_named(tmp_path: Path, vaak: Any):
    wavs(tmp_path / "data")
    grid = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 3
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 3
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 3
            text = "s"
"""
    for name in "abcdef":
        write(tmp_path / "data" / f"{name}.TextGrid", grid)
    said = " ".join(vaak("data", "check", "data")[1].split())
    assert "6 .TextGrid have no tier of words or of speakers, so nothing is read of them" in said
