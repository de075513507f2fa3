"""Folders of audio and annotations: every layout, and what doesn't fit is told or counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.folders import NAMED_OTHERWISE, UNLABELLED_FILES, WITHOUT_AUDIO
from vaak.audio.cuts.reading import lacks_times, read_segments
from vaak.audio.cuts.recordings import A_LITTLE_BEYOND, BAD_LABELS, FAR_BEYOND, OVERLAPPING
from vaak.audio.formats.alignments import Interval, write_textgrid
from vaak.audio.segments import Segment
from vaak.core.errors import DataError


def corpus(*train: Path | str, **options: Any) -> AudioCorpus:
    given = {"train": tuple(map(str, train)), "train_fraction": 1, "valid_fraction": 0, **options}
    return AudioCorpus(DatasetConfig(name="d", type="folder", **given), AudioConfig())


def rttm(*rows: tuple[str, float, float, str]) -> str:
    return "".join(
        f"SPEAKER {name} 1 {start} {length} <NA> <NA> {who} <NA> <NA>\n" for name, start, length, who in rows
    )


def recordings(folder: Path, *names: str, seconds: float = 2.0) -> None:
    for name in names:
        write_audio(folder / name, seconds, 8000)


def test_audio_and_annotations_beside_each_other_or_in_folders(tmp_path: Path):
    for layout, places in {"flat": ("", "", ""), "folders": ("audio/", "rttm/", "uem/")}.items():
        folder = tmp_path / layout
        for place in places:
            (folder / place).mkdir(parents=True, exist_ok=True)
        recordings(folder / places[0], "a.wav", "b.flac")
        for name in "ab":
            (folder / places[1] / f"{name}.rttm").write_text(rttm((name, 0.5, 1, "A")))
        (folder / places[2] / "b.uem").write_text("b 1 0.25 1.5\n")
        asked: list[tuple[Path | str, ...]] = [(folder,), (f"{folder}/{places[0]}*.wav", f"{folder}/{places[0]}b.flac")]
        for train in asked:
            found = list((there := corpus(*train)).cuts("train"))
            assert [cut.id for cut in found] == ["a", "b"]
            assert [read_segments(cut) for cut in found] == [(Segment(0.5, 1.5, "A"),)] * 2
            assert [(cut.custom or {}).get("uem") for cut in found] == [None, [[0.25, 1.5]]]
            assert there.statistics["train"].dropped == {}
            assert {path.name for path in there.files} == {"a.wav", "b.flac", "a.rttm", "b.rttm", "b.uem"}


def test_one_rttm_of_all_and_the_recordings_own_before_it(tmp_path: Path):
    recordings(tmp_path, "a.wav", "ES1.Mix-Headset.wav")
    (tmp_path / "reference.rttm").write_text(rttm(("a", 0, 1, "A"), ("ES1", 0, 1, "B")))
    assert [cut.id for cut in corpus(tmp_path).cuts("train")] == ["ES1", "a"]
    (tmp_path / "a.rttm").write_text(rttm(("a", 0.5, 1, "C")))
    assert [read_segments(cut)[0].speaker for cut in corpus(tmp_path).cuts("train")] == ["B", "C"]
    (tmp_path / "hypothesis.rttm").write_text(rttm(("ES1", 0, 1, "D")))
    with pytest.raises(
        DataError, match=r"reference\.rttm: recording ES1 is also in .*hypothesis\.rttm; keep it in one"
    ):
        list(corpus(tmp_path).cuts("train"))


def test_what_does_not_fit_is_counted(tmp_path: Path):
    recordings(tmp_path, "a.wav", "b.wav", "c.wav", "silent.wav", "unlabelled.wav")
    rows = [("a", 0, 1, "A"), ("a", 0.5, 1, "A"), ("a", 0.5, 0, "A"), ("a", 0.5, 1.7, "B")]
    rows += [("b", 0, 1.8, "A"), ("b", 1.5, 1.5, "B"), ("c", 0, 2, "A"), ("absent", 0, 1, "A")]
    (tmp_path / "all.rttm").write_text(rttm(*rows))
    (tmp_path / "silent.rttm").write_text("")
    there = corpus(tmp_path)
    found = {cut.id: read_segments(cut) for cut in there.cuts("train")}
    assert found["a"] == (Segment(0, 1.5, "A"), Segment(0.5, 2, "B"))
    assert found["b"] == (Segment(0, 1.8, "A"), Segment(1.5, 2, "B"))
    assert found["silent"] == ()
    statistics = there.statistics["train"]
    assert statistics.dropped == {UNLABELLED_FILES: 1, WITHOUT_AUDIO: 1}
    assert statistics.remarks == {OVERLAPPING: 1, A_LITTLE_BEYOND: 1, FAR_BEYOND: 1, BAD_LABELS: 1}
    about = statistics.to_json()
    assert about["cuts"] == about["resampled"] == 4
    assert (about["seconds"], about["speech_seconds"], about["overlap_seconds"]) == (8, 6, 1.3)


def test_textgrids_speakers_words_and_phonemes_and_ctm(tmp_path: Path):
    recordings(tmp_path, "a.wav", "b.wav")
    tiers = {"Ann": [Interval(0, 1, "so it"), Interval(1.2, 1.9, "is")], "Ben": [Interval(0.5, 1.5, "yes")]}
    aligned = {"Ann - words": [Interval(0, 0.5, "so"), Interval(0.5, 1, "it")], "Ben - phones": [Interval(0.5, 1, "j")]}
    write_textgrid(tmp_path / "a.TextGrid", tiers | aligned, 2.0)
    (tmp_path / "b.rttm").write_text(rttm(("b", 0, 1, "A"), ("b", 1, 1, "B")))
    (tmp_path / "b.ctm").write_text("b 1 0.1 0.4 so\nb 1 0.6 0.3 it\nb 1 1.2 0.5 is\n")
    first, second = corpus(tmp_path).cuts("train")
    assert [(s.speaker, s.text) for s in first.supervisions] == [("Ann", "so it"), ("Ben", "yes"), ("Ann", "is")]
    words = {kind: [item.symbol for item in items] for kind, items in first.supervisions[0].alignment.items()}
    assert words == {"word": ["so", "it"]}
    assert list(first.supervisions[1].alignment) == ["phone"]
    assert [s.text for s in second.supervisions] == ["so it", "is"]
    assert second.supervisions[1].alignment["word"][0].end == pytest.approx(1.7)


def test_stereo_is_one_recording_of_two_channels(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 1, 8000, channels=2)
    (tmp_path / "a.rttm").write_text(rttm(("a", 0, 1, "A")))
    (cut,) = corpus(tmp_path).cuts("train")
    assert cut.num_channels == 2
    assert read_segments(cut) == (Segment(0, 1, "A"),)


def test_given_splits_and_names_in_a_corpus_folder(tmp_path: Path):
    recordings(tmp_path / "audio", "t1.wav", "t2.wav", "d1.wav")
    (tmp_path / "all.rttm").write_text(rttm(*((name, 0, 1, "A") for name in ("t1", "t2", "d1"))))
    options: dict[str, Any] = {
        "train": ("audio/t*.wav", "all.rttm"),
        "valid": ("audio/d*.wav", "*.rttm"),
        "corpus_dir": str(tmp_path),
    }
    there = AudioCorpus(DatasetConfig(name="d", type="folder", **options), AudioConfig())
    assert there.splits == ("train", "valid")
    assert [cut.id for split in there.splits for cut in there.cuts(split)] == ["t1", "t2", "d1"]
    assert not there.statistics["train"].dropped
    whole = AudioCorpus(DatasetConfig(name="d", type="folder", corpus_dir=str(tmp_path)), AudioConfig())
    assert whole.splits == ("train", "valid", "test")


def test_splits_made_here_do_not_move_when_recordings_are_added(tmp_path: Path):
    names = [f"r{number}" for number in range(30)]
    (tmp_path / "all.rttm").write_text(rttm(*((name, 0, 1, f"S{name[1:]}") for name in names)))
    options: dict[str, Any] = {"train_fraction": 0.5, "valid_fraction": 0.25}

    def splits(split_by: str) -> dict[str, str]:
        there = corpus(tmp_path, split_by=split_by, **options)
        return {cut.id: split for split in there.splits for cut in there.cuts(split)}

    recordings(tmp_path, *(f"{name}.wav" for name in names[:20]), seconds=1)
    before = {split_by: splits(split_by) for split_by in ("recording", "speaker")}
    recordings(tmp_path, *(f"{name}.wav" for name in names[20:]), seconds=1)
    for split_by, old in before.items():
        new = splits(split_by)
        assert set(new) == set(names)
        assert {name: new[name] for name in old} == old


def test_no_speaker_is_in_two_splits(tmp_path: Path):
    names = [f"r{number}" for number in range(24)]
    rows = [(name, 0, 1, f"S{number % 9}") for number, name in enumerate(names)]
    rows += [(name, 0, 1, f"S{number % 4}") for number, name in enumerate(names)]
    (tmp_path / "all.rttm").write_text(rttm(*rows))
    recordings(tmp_path, *(f"{name}.wav" for name in names), seconds=1)
    there = corpus(tmp_path, split_by="speaker", train_fraction=0.5, valid_fraction=0.2)
    speakers: dict[str, str] = {}
    cuts = 0
    for split in there.splits:
        for cut in there.cuts(split):
            cuts += 1
            for segment in read_segments(cut):
                assert speakers.setdefault(segment.speaker, split) == split
    assert cuts + sum(there.statistics["train"].dropped.values()) == 24


FAULTS = {
    "most beyond": r"a\.wav: most of its labels are beyond its end \(2\.00 s; they go to 9\.00 s\)",
    "uem beyond": r"a\.wav: the parts of its UEM are beyond its end",
    "zero bytes": r"a\.wav: the file is empty",
    "broken line": r"a\.rttm:1: SPEAKER requires at least 8 fields, this line has 4",
    "same name": r"a\.wav: .*a\.flac is recording a, too; rename one, or name one by a pattern",
    "nothing labelled": r"train is empty: everything was dropped \(1: audio files without RTTM or TextGrid\)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_clear_lines(tmp_path: Path, fault: str):
    recordings(tmp_path, "a.wav")
    (tmp_path / "a.rttm").write_text(
        rttm(("a", 0, 1, "A"), ("a", 5, 4, "A")) if fault == "most beyond" else rttm(("a", 0, 1, "A"))
    )
    if fault == "uem beyond":
        (tmp_path / "a.uem").write_text("a 1 3 4\n")
    elif fault == "zero bytes":
        (tmp_path / "a.wav").write_bytes(b"")
    elif fault == "broken line":
        (tmp_path / "a.rttm").write_text("SPEAKER a 1 x\n")
    elif fault == "same name":
        recordings(tmp_path, "a.flac")
    elif fault == "nothing labelled":
        (tmp_path / "a.rttm").unlink()
    with pytest.raises(DataError, match=FAULTS[fault]) as raised:
        list(corpus(tmp_path).cuts("train"))
    assert "\n" not in str(raised.value)


def test_what_is_not_there_is_told_at_once(tmp_path: Path):
    with pytest.raises(DataError, match=r"datasets, d, train: no such file or folder: .*nowhere"):
        corpus(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"datasets, d, train: nothing matches .*\*\.wav"):
        corpus(f"{tmp_path}/*.wav")
    (tmp_path / "a.rttm").write_text("")
    with pytest.raises(DataError, match=r"datasets, d, train \(type: folder\): no audio found"):
        corpus(tmp_path)
    with pytest.raises(DataError, match=r"datasets, d: train: give its files or folders \(type: folder\)"):
        corpus()
    recordings(tmp_path / "x", "a.wav")
    with pytest.raises(DataError, match=r"a\.wav is in train and in test; keep it in one"):
        corpus(tmp_path, test=(str(tmp_path / "x"),))
    with pytest.raises(DataError, match="is named twice, in train; name it once"):
        corpus(tmp_path, tmp_path)
    with pytest.raises(DataError, match="datasets, d: train: give its files"):
        list(corpus(test=(str(tmp_path),)).cuts("train"))
    with pytest.raises(DataError, match="datasets, d: unknown split 'dev'; expected one of train"):
        list(corpus(tmp_path).cuts("dev"))


def test_formats_that_can_not_be_read_are_counted_with_what_to_do(tmp_path: Path):
    """They used to be skipped silently. One with a converted file next to it isn't missing."""
    recordings(tmp_path, "a.wav", "done.flac")
    rows = [(name, 0.0, 1.0, "A") for name in ("a", "done", "b", "c", "d")]
    (tmp_path / "all.rttm").write_text(rttm(*rows))
    for name in ("b.m4a", "c.M4A", "d.wma", "done.m4a", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    there = corpus(tmp_path)
    assert [cut.id for cut in there.cuts("train")] == ["a", "done"]
    dropped = there.statistics["train"].dropped
    convert = f"convert them, such as: ffmpeg -i {tmp_path}/b.m4a {tmp_path}/b.flac"
    assert dropped[f"audio files in a format that can't be read (.m4a); {convert}"] == 2
    assert [number for reason, number in dropped.items() if "(.wma)" in reason] == [1]
    for path in (tmp_path / "a.wav", tmp_path / "done.flac"):
        path.unlink()
    with pytest.raises(
        DataError, match=r"train .*: no audio found \(.*\); there are 3 audio files .*\(\.m4a\); convert"
    ):
        corpus(tmp_path)


def test_one_segment_of_all_of_a_recording_has_times(tmp_path: Path):
    """An annotator said so; it became six segments of a detector of energy, in valid and test, too."""
    recordings(tmp_path, "a.wav", seconds=3.0)
    (tmp_path / "a.rttm").write_text(rttm(("a", 0.0, 3.0, "Ann")))
    [cut] = corpus(tmp_path).cuts("train")
    assert not lacks_times(cut)


def test_names_that_differ_only_in_how_they_are_written_are_one_recording(tmp_path: Path):
    recordings(tmp_path, "Call.wav", "board meeting.wav", "cafe\u0301.wav", "one.wav")
    said = rttm(("call", 0, 1, "A"), ("board_meeting", 0, 1, "A"), ("caf\u00e9", 0, 1, "A"), ("two", 0, 1, "A"))
    (tmp_path / "all.rttm").write_text(said)
    there = corpus(tmp_path)
    assert {cut.id for cut in there.cuts("train")} == {"board_meeting", "caf\u00e9", "call"}
    assert there.statistics["train"].dropped == {UNLABELLED_FILES: 1, WITHOUT_AUDIO: 1}
    assert there.statistics["train"].remarks == {NAMED_OTHERWISE: 3}


def test_what_is_left_out_is_named_and_other_files_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vaak.core.left_out.log.propagate", True)
    recordings(tmp_path, "a.wav", "b.wav", "c.wav", ".d.wav")
    (tmp_path / "a.rttm").write_text(rttm(("a", 0.5, 1, "A"), ("a", 1, 0, "A")))
    for name in ("notes.docx", "a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    there = corpus(tmp_path)
    assert [cut.id for cut in there.cuts("train")] == ["a"]
    contents = there.statistics["train"].contents()
    assert contents.describe("train") == f"train: 1 recording; left out: 2 {UNLABELLED_FILES} (b, c); 1 {BAD_LABELS}"
    assert [line for line in caplog.messages if "files are read" in line] == [
        f"{tmp_path}: 3 files are read; 1 file left out (hidden): .d.wav",
        f"{tmp_path}: 3 files are read; other files in this folder: 2 .txt, 1 .docx",
    ]
