"""A label whose times can't be read, are negative or go backwards cost its recording, its file or the whole run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.recordings import BAD_LABELS
from vaak.audio.formats.annotation_lines import read_ctm, read_rttm, read_uem
from vaak.core.errors import DataError

Options = dict[str, Any]
GOOD = [(0.25, 0.75), (1.0, 1.5)]


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def folder_of(folder: Path) -> Options:
    return {"type": "folder", "train": (str(folder),)}


def rttm(folder: Path) -> tuple[Options, list[str]]:
    times = ("0.25 0.5", "0,5 0.5", "-1 0.5", "1 -0.5", "nan 1", "1.0 0.5")
    path = write(folder / "a.rttm", *(f"SPEAKER a 1 {one} <NA> <NA> ann <NA> <NA>" for one in times))
    return folder_of(folder), [f"{path}:{number}" for number in (2, 3, 4, 5)]


def rttm_of_a_line(folder: Path) -> tuple[Options, list[str]]:
    _, places = rttm(folder)
    manifest = write(folder / "a.jsonl", json.dumps({"audio": "a.wav", "rttm": "a.rttm"}))
    return {"type": "json", "train": (str(manifest),)}, places


def segments(folder: Path) -> tuple[Options, list[str]]:
    times = [(0.25, 0.75), ("x", 1), (-0.5, 1), (1.2, 1.0), (None, 1), (1.0, 1.5)]
    own = [{"start": start, "end": end, "speaker": "ann", "text": "so"} for start, end in times]
    path = write(folder / "a.jsonl", json.dumps({"audio": "a.wav", "segments": own}))
    return {"type": "json", "train": (str(path),)}, [f"{path}:1, segment {number}" for number in (2, 3, 4, 5)]


def kaldi(folder: Path) -> tuple[Options, list[str]]:
    part = folder / "train"
    path = write(part / "segments", "u0 a 0.25 0.75", "u1 a x 1", "u2 a -1 1", "u3 a 1.2 1.0", "u4 a 1.0 1.5")
    write(part / "wav.scp", "a a.wav")
    write(part / "utt2spk", *(f"u{number} ann" for number in range(5)))
    write(part / "text", *(f"u{number} so" for number in range(5)))
    return {"type": "kaldi", "corpus_dir": str(folder)}, [f"{path}:{number}" for number in (2, 3, 4)]


def kaldi_with_rttm(folder: Path) -> tuple[Options, list[str]]:
    _, places = rttm(folder / "train") if (folder / "train").mkdir() is None else ({}, [])
    (folder / "train" / "a.rttm").rename(folder / "train" / "rttm")
    write(folder / "train" / "wav.scp", "a a.wav")
    places = [place.replace("a.rttm", "rttm") for place in places]
    return {"type": "kaldi", "corpus_dir": str(folder)}, places


def textgrid(folder: Path) -> tuple[Options, list[str]]:
    rows = [("0.25", "0.75"), ("abc", "1"), ("-0.5", "1"), ("1.2", "1.0"), ("1.0", "1.5")]
    short = [line for start, end in rows for line in (start, end, '"so"')]
    head = ('File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", "2", "<exists>", "1")
    path = write(folder / "a.TextGrid", *head, '"IntervalTier"', '"ann"', "0", "2", "5", *short)
    return folder_of(folder), [f"{path}:{13 + 3 * number}" for number in (1, 2, 3)]


def srt(folder: Path) -> tuple[Options, list[str]]:
    times = ("00:00:00,250 --> 00:00:00,750", "00:00:0x,5 --> 00:00:01,0", "00:00:01,5 --> 00:00:01,000")
    cues = [f"{n}\n{one}\nso\n" for n, one in enumerate((*times, "00:00:01,000 --> 00:00:01,500"), 1)]
    path = write(folder / "a.srt", *cues)
    return {"type": "transcripts", "corpus_dir": str(folder)}, [f"{path}:6", f"{path}:10"]


def vtt(folder: Path) -> tuple[Options, list[str]]:
    cues = ("00:00.250 --> 00:00.750\nso\n", "later --> 00:01.000\nit\n", "00:01.000 --> 00:01.500\nis\n")
    path = write(folder / "a.vtt", "WEBVTT\n", *cues)
    return {"type": "transcripts", "corpus_dir": str(folder)}, [f"{path}:6"]


def eaf(folder: Path) -> tuple[Options, list[str]]:
    slots = {"t1": "250", "t2": "750", "t3": None, "t4": "1200", "t5": "1000", "t6": "1500"}
    times = "".join(
        f'<TIME_SLOT TIME_SLOT_ID="{key}"' + (f' TIME_VALUE="{value}"/>' if value else "/>")
        for key, value in slots.items()
    )
    pairs = {"a1": ("t1", "t2"), "a2": ("t2", "t3"), "a3": ("t4", "t5"), "a4": ("t5", "t6")}
    own = "".join(
        f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="{name}" TIME_SLOT_REF1="{first}" TIME_SLOT_REF2="{last}">'
        "<ANNOTATION_VALUE>so</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION>"
        for name, (first, last) in pairs.items()
    )
    text = (
        f"<ANNOTATION_DOCUMENT><TIME_ORDER>{times}</TIME_ORDER>"
        f'<TIER TIER_ID="ann" LINGUISTIC_TYPE_REF="x">{own}</TIER></ANNOTATION_DOCUMENT>'
    )
    path = write(folder / "a.eaf", text)
    return {"type": "transcripts", "corpus_dir": str(folder)}, [f"{path}, tier ann, a2", f"{path}, tier ann, a3"]


WRITERS: tuple[Callable[[Path], tuple[Options, list[str]]], ...] = (
    *(rttm, rttm_of_a_line, segments, kaldi, kaldi_with_rttm, textgrid, srt, vtt, eaf),
)


def read(options: Options) -> tuple[list[Any], Any]:
    dataset = DatasetConfig(name="data", train_fraction=1.0, valid_fraction=0.0, **options)
    corpus = AudioCorpus(dataset, AudioConfig())
    return list(corpus.cuts("train")), corpus.statistics["train"]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_bad_time_costs_its_label_which_is_counted_and_named(
    write: Callable[[Path], tuple[Options, list[str]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_audio(tmp_path / "a.wav", 2.0)
    options, places = write(tmp_path)
    caplog.set_level(logging.WARNING, "vaak")
    [cut], statistics = read(options)
    assert sorted((one.start, one.end) for one in cut.supervisions) == GOOD
    assert statistics.remarks[BAD_LABELS] == len(places)
    for place in places:
        assert any(message.startswith(f"{place}: left out: a label") for message in caplog.messages), place


def test_a_bad_word_or_region_costs_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_audio(tmp_path / "a.wav", 2.0)
    write(tmp_path / "a.rttm", "SPEAKER a 1 0.2 1.6 <NA> <NA> ann <NA> <NA>")
    words = write(tmp_path / "a.ctm", "a 1 0.25 0.5 so", "a 1 x 0.5 bad", "a 1 0.9 0 short", "a 1 1.0 0.5 it")
    regions = write(tmp_path / "a.uem", "a 1 0 1", "a 1 x 1", "a 1 1.5 1.2", "a 1 1 2", "a 1 5 6")
    [cut], statistics = read(folder_of(tmp_path))
    assert [one.symbol for one in cut.supervisions[0].alignment["word"]] == ["so", "it"]
    assert cut.custom["uem"] == [[0.0, 1.0], [1.0, 2.0]]
    assert statistics.remarks[BAD_LABELS] == 5
    for place in (f"{words}:2", f"{words}:3", f"{regions}:2", f"{regions}:3", f"{regions}:5"):
        assert any(message.startswith(f"{place}: left out: ") for message in caplog.messages), place


@pytest.mark.parametrize("kind", ["ctm", "list"])
def test_a_bad_word_of_an_alignment_costs_itself(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_audio(tmp_path / "a.wav", 2.0)
    write(tmp_path / "a.ctm", "a 1 0.25 0.5 so", "a 1 x 0.5 bad", "a 1 0.9 0 short", "a 1 1.0 0.5 it")
    rows = [[0.25, 0.75, "so"], ["x", 1, "bad"], [0.9, 0.9, "short"], [1.0, 1.5, "it"], [1.5, 1.5, ""]]
    own: Options = {"ctm": "a.ctm"} if kind == "ctm" else {"alignment": {"word": rows}}
    manifest = write(tmp_path / "a.jsonl", json.dumps({"audio": "a.wav", "text": "so it", **own}))
    [cut], statistics = read({"type": "json", "train": (str(manifest),)})
    assert [one.symbol for one in cut.supervisions[0].alignment["word"] if one.symbol] == ["so", "it"]
    assert statistics.remarks[BAD_LABELS] == 2
    assert sum("left out: " in message for message in caplog.messages) == 2


def test_speech_is_not_taken_for_silence_where_no_time_can_be_read(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 2.0)
    path = write(tmp_path / "a.rttm", *["SPEAKER a 1 0,5 0,5 <NA> <NA> ann <NA> <NA>"] * 3)
    with pytest.raises(DataError, match=r"a\.rttm:1: the start is '0,5', which is not a finite number \(no label of a"):
        read(folder_of(tmp_path))
    with pytest.raises(DataError, match=f"{path}:1: the start is '0,5'"):
        read_rttm(path)


def test_scorers_read_strictly(tmp_path: Path):
    with pytest.raises(DataError, match=r"a\.rttm:1: the start is -1 s, which is negative"):
        read_rttm(write(tmp_path / "a.rttm", "SPEAKER a 1 -1 2 <NA> <NA> ann <NA> <NA>"))
    with pytest.raises(DataError, match=r"a\.ctm:1: the duration is 'x', which is not a finite number"):
        read_ctm(write(tmp_path / "a.ctm", "a 1 0 x so"))
    with pytest.raises(DataError, match=r"a\.uem:1: this part ends at 1\.0 s, but begins at 2\.0 s"):
        read_uem(write(tmp_path / "a.uem", "a 1 2 1"))
