"""A label whose times can't be read, are negative or go backwards cost its recording, its file or the whole run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downloaded
from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.recordings import BAD_LABELS
from vaak.audio.formats.alignments import read_alignment
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
    path = write(part / "segments", "u0 a 0.25 0.75", "u1 a x 1", "u2 a -1 1", "u3 a 1.2 1.0", "u4 a 1.0 1.5", "u5 a 1")
    write(part / "wav.scp", "a a.wav")
    write(part / "utt2spk", *(f"u{number} ann" for number in range(5)))
    write(part / "text", *(f"u{number} so" for number in range(5)))
    return {"type": "kaldi", "corpus_dir": str(folder)}, [f"{path}:{number}" for number in (2, 3, 4, 6)]


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


def rttm_with_bad_lines(folder: Path) -> tuple[Options, list[str]]:
    lines = (
        "SPEAKER a 1 0.25 0.5 <NA> <NA> ann <NA> <NA>",
        "SPEAKER a 1 0.5",
        "SPEAKER a 1 0.5 0.5 <NA> <NA> Speaker 2",
        "SPEAKER my call 1 0.5 0.5 <NA> <NA> ann <NA> <NA>",
        "SPEKER a 1 0.5 0.5 <NA> <NA> ann <NA> <NA>",
        "SPEAKER a 1 0.5 0.5 <NA> <NA> <NA> <NA> <NA>",
        "SPEAKER <NA> 1 0.5 0.5 <NA> <NA> ann <NA> <NA>",
        "SPEAKER",
        "SPEAKER a 1 1.0 0.5 <NA> <NA> ann <NA> <NA>",
    )
    path = write(folder / "a.rttm", *lines)
    return folder_of(folder), [f"{path}:{number}" for number in range(2, 9)]


def recording_of_lhotse(folder: Path) -> dict[str, Any]:
    source = {"type": "file", "channels": [0], "source": str(folder / "a.wav")}
    return {"id": "a", "sources": [source], "sampling_rate": 16000, "num_samples": 32000, "duration": 2.0}


def supervisions() -> list[Any]:
    """As Python writes them: NaN isn't JSON, but every reader in Python accepts it."""
    times = [(0.25, 0.5), ("1,5", 0.5), (None, 0.5), (0.5, float("nan")), (1.0, 0.5)]
    about = {"recording_id": "a", "channel": 0, "text": "so", "speaker": "ann"}
    own = [{"id": f"s{number}", "start": start, "duration": end, **about} for number, (start, end) in enumerate(times)]
    return [*own[:4], {"id": "s9", "start": 0.5, **about}, own[4]]


def cuts_of_lhotse(folder: Path) -> tuple[Options, list[str]]:
    cut = {"id": "a", "start": 0, "duration": 2.0, "channel": 0, "type": "MonoCut"}
    labels = [*supervisions(), "so"]
    line = json.dumps({**cut, "recording": recording_of_lhotse(folder), "supervisions": labels})
    path = write(folder / "cuts.jsonl", line)
    names = ("s1", "s2", "s3", "s9", "7")
    return {"type": "cuts", "train": (str(path),)}, [f"{path}:1, supervision {name}" for name in names]


def manifests_of_lhotse(folder: Path) -> tuple[Options, list[str]]:
    recordings = write(folder / "recordings.jsonl", json.dumps(recording_of_lhotse(folder)))
    path = write(folder / "supervisions.jsonl", *map(json.dumps, supervisions()))
    return {"type": "cuts", "train": (str(recordings), str(path))}, [f"{path}:{number}" for number in (2, 3, 4, 5)]


WRITERS: tuple[Callable[[Path], tuple[Options, list[str]]], ...] = (
    *(rttm, rttm_of_a_line, segments, kaldi, kaldi_with_rttm, textgrid, srt, vtt, eaf),
    *(rttm_with_bad_lines, cuts_of_lhotse, manifests_of_lhotse),
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
    good = ("a 1 0.25 0.5 so", "a 1 1.0 0.5 it")
    words = write(
        tmp_path / "a.ctm", good[0], "a 1 x 0.5 bad", "a 1 0.9 0 short", good[1], "a 1 0.9", "a 1 0.9 0.1 bad sure"
    )
    regions = write(tmp_path / "a.uem", "a 1 0 1", "a 1 x 1", "a 1 1.5 1.2", "a 1 1 2", "a 1 5 6", "a 1 2")
    [cut], statistics = read(folder_of(tmp_path))
    assert [one.symbol for one in cut.supervisions[0].alignment["word"]] == ["so", "it"]
    assert cut.custom["uem"] == [[0.0, 1.0], [1.0, 2.0]]
    assert statistics.remarks[BAD_LABELS] == 8
    places = [f"{words}:{number}" for number in (2, 3, 5, 6)] + [f"{regions}:{number}" for number in (2, 3, 5, 6)]
    for place in places:
        assert any(message.startswith(f"{place}: left out: ") for message in caplog.messages), place


@pytest.mark.parametrize("kind", ["ctm", "list"])
def test_a_bad_word_of_an_alignment_costs_itself(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_audio(tmp_path / "a.wav", 2.0)
    write(tmp_path / "a.ctm", "a 1 0.25 0.5 so", "a 1 x 0.5 bad", "a 1 0.9 0 short", "a 1 1.0 0.5 it")
    rows = [[0.25, 0.75, "so"], ["x", 1, "bad"], [0.9, 0.9, "short"], [1.0, 1.5, "it"], [1.5, 1.5, ""], [1.6, "x"]]
    own: Options = {"ctm": "a.ctm"} if kind == "ctm" else {"alignment": {"word": rows}}
    manifest = write(tmp_path / "a.jsonl", json.dumps({"audio": "a.wav", "text": "so it", **own}))
    [cut], statistics = read({"type": "json", "train": (str(manifest),)})
    assert [one.symbol for one in cut.supervisions[0].alignment["word"] if one.symbol] == ["so", "it"]
    expected = 2 if kind == "ctm" else 3
    assert statistics.remarks[BAD_LABELS] == expected
    assert sum("left out: " in message for message in caplog.messages) == expected


def test_intervals_that_overlap_cost_as_few_labels_as_can_be(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """One that lasts to the end of the file, where its aligner lost its way, isn't kept in place of all others."""
    write_audio(tmp_path / "a.wav", 2.0)
    rows = [(0.0, 0.5, "so"), (0.5, 2.0, "lost"), (0.6, 1.0, "it"), (0.8, 1.2, "late"), (1.0, 1.5, "is")]
    path = tmp_path / "a.TextGrid"
    head = ('File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", "2", "<exists>", "1")
    lines = [line for start, end, text in rows for line in (str(start), str(end), f'"{text}"')]
    write(path, *head, '"IntervalTier"', '"words"', "0", "2", "5", *lines)
    manifest = write(tmp_path / "a.jsonl", json.dumps({"audio": "a.wav", "text": "so", "textgrid": "a.TextGrid"}))
    for options in ({"type": "json", "train": (str(manifest),)}, folder_of(tmp_path)):
        [cut], statistics = read(options)
        assert [one.symbol for one in cut.supervisions[0].alignment["word"]] == ["so", "it", "is"]
        assert statistics.remarks[BAD_LABELS] == 2
    for place, text in ((f"{path}:16", "lost"), (f"{path}:22", "late")):
        assert any(f"{place}: left out: " in message and text in message for message in caplog.messages), place
    with pytest.raises(DataError, match=r"begins at 0\.8 s, before the last one ends"):
        read_alignment(path)


def test_words_of_a_supervision_without_times_cost_themselves(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 2.0)
    cut = {"id": "a", "start": 0, "duration": 2.0, "channel": 0, "type": "MonoCut"}
    words = [["so", 0.25, 0.5], ["bad", "1,5", 0.2], ["it", 1.0, 0.5, 0.9], ["is", None, 0.1], ["no"]]
    label = {"id": "s", "recording_id": "a", "start": 0, "duration": 2.0, "alignment": {"word": words}}
    line = {**cut, "recording": recording_of_lhotse(tmp_path), "supervisions": [label]}
    path = write(tmp_path / "cuts.jsonl", json.dumps(line))
    [found], statistics = read({"type": "cuts", "train": (str(path),)})
    assert [one.symbol for one in found.supervisions[0].alignment["word"]] == ["so", "it"]
    assert statistics.remarks[BAD_LABELS] == 3


def test_a_segment_of_ami_without_times_costs_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    downloaded.ami(tmp_path)
    [path] = tmp_path.rglob("ES2002a.A.segments.xml")
    bad = ('"1,2" transcriber_end="1.3"', '"1.5"', '"1.4" transcriber_end="1.3"')
    more = "".join(f'<segment nite:id="x{n}" transcriber_start={one}/>\n' for n, one in enumerate(bad))
    path.write_text(path.read_text().replace("</nite:root>", f"\n{more}</nite:root>"))
    corpus = AudioCorpus(DatasetConfig(name="data", type="ami", corpus_dir=str(tmp_path)), AudioConfig())
    [cut] = corpus.cuts("train")
    assert len(cut.supervisions) == 4
    assert corpus.statistics["train"].remarks[BAD_LABELS] == 3
    for number in range(3):
        assert any(one.startswith(f"{path}:{3 + number}, segment x{number}: left out") for one in caplog.messages)


@pytest.mark.parametrize("write", [cuts_of_lhotse, manifests_of_lhotse])
def test_speech_of_lhotse_is_not_taken_for_silence(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_audio(tmp_path / "a.wav", 2.0)
    monkeypatch.setattr(f"{__name__}.supervisions", lambda own=supervisions: own()[1:3])
    options, places = write(tmp_path)
    with pytest.raises(
        DataError, match=f"{places[0].partition(',')[0].rpartition(':')[0]}.*start is '1,5'.*no label of"
    ):
        read(options)


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
