"""JSON lines that name audio: utterances, recordings with segments or RTTM; faults by file and line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.json_manifest import NOTHING_SAID
from vaak.audio.cuts.reading import NO_TIMES, get_text, lacks_times, read_cut, read_segments
from vaak.audio.cuts.recordings import A_LITTLE_BEYOND, OVERLAPPING
from vaak.audio.segments import Segment
from vaak.core.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_audio(tmp_path / "audio" / "a.flac", 2.0)
    write_audio(tmp_path / "b.wav", 1.0, 8000, channels=2)
    return tmp_path


def corpus(folder: Path, *lines: object, **options) -> AudioCorpus:
    path = folder / "manifest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"train": (str(path),), "train_fraction": 1, "valid_fraction": 0, **options}
    return AudioCorpus(DatasetConfig(name="d", type="json", **options), AudioConfig())


def test_utterances_and_recordings(folder: Path):
    (folder / "b.rttm").write_text("SPEAKER other 1 0 0.5 <NA> <NA> X\nSPEAKER other 1 0.25 0.5 <NA> <NA> X\n")
    (folder / "b.uem").write_text("other 1 0 0.75\n")
    segments = [
        {"start": 1, "end": 1.5, "speaker": 7, "text": "b"},
        {"start": 0, "end": 2.25, "speaker": "A", "text": "a"},
    ]
    there = corpus(
        folder,
        {
            "audio": "audio/a.flac",
            "speaker": 12,
            "text": "so it is",
            "gender": "F",
            "sampling_rate": 16000,
            "duration": 2.04,
        },
        {"id": "x", "audio": "audio/a.flac", "segments": segments, "other": [1]},
        {"uri": "y", "audio": "b.wav", "rttm": "b.rttm", "uem": "b.uem", "segments": 2},
        {"id": "z", "audio": "audio/a.flac", "offset": 0.5, "duration": 0.75, "text": "it"},
        {"id": "nothing", "audio": "b.wav"},
    )
    cuts = {cut.id: cut for cut in there.cuts("train")}
    assert {name: read_segments(cut) for name, cut in cuts.items()} == {
        "a": (Segment(0, 2, "12"),),
        "x": (Segment(0, 2, "A"), Segment(1, 1.5, "7")),
        "y": (Segment(0, 0.75, "X"),),
        "z": (Segment(0, 0.75, "unknown"),),
    }
    assert [get_text(cut) for cut in cuts.values()] == ["so it is", "a b", None, "it"]
    assert cuts["a"].supervisions[0].custom == {"gender": "F", NO_TIMES: True}
    assert cuts["y"].custom == {"uem": [[0, 0.75]]}
    whole, part = (read_cut(cuts[name], AudioConfig()).samples for name in ("a", "z"))
    assert (part == whole[8000:20000]).all()
    assert there.statistics["train"].dropped == {NOTHING_SAID: 1}
    assert there.statistics["train"].remarks == {OVERLAPPING: 1, A_LITTLE_BEYOND: 1}
    assert there.files == [folder / "manifest.jsonl"]


def test_a_silent_recording_has_an_empty_rttm_or_list(folder: Path):
    (folder / "b.rttm").write_text("")
    lines = {"audio": "b.wav", "rttm": "b.rttm"}, {"audio": "audio/a.flac", "segments": []}
    assert [read_segments(cut) for cut in corpus(folder, *lines).cuts("train")] == [(), ()]


def test_gz_and_blank_lines(folder: Path):
    with gzip.open(folder / "m.jsonl.gz", "wt") as file:
        file.write('\n{"audio": "b.wav", "speaker": "A"}\n\n')
    assert len(list(corpus(folder, train=(str(folder / "*.gz"),)).cuts("train"))) == 1
    content = (folder / "m.jsonl.gz").read_bytes()
    (folder / "m.jsonl.gz").write_bytes(content[:-12])
    with pytest.raises(DataError, match=r"m\.jsonl\.gz: this \.gz is damaged: Compressed file ended"):
        list(corpus(folder, train=(str(folder / "*.gz"),)).cuts("train"))


def test_a_manifest_of_several_splits_says_which_line_is_whose(folder: Path):
    lines = [
        {"id": name, "audio": "b.wav", "speaker": "A", "split": split}
        for name, split in zip("abc", ("train", "dev", "test"), strict=True)
    ]
    path = (str(folder / "manifest.jsonl"),)
    there = corpus(folder, *lines, valid=path, test=path)
    assert {split: [cut.id for cut in there.cuts(split)] for split in there.splits} == {
        "train": ["a"],
        "valid": ["b"],
        "test": ["c"],
    }
    alone = corpus(folder, *lines)
    assert [cut.id for cut in alone.cuts("train")] == ["a", "b", "c"]
    unsaid = corpus(folder, *lines, {"audio": "b.wav", "speaker": "A"}, test=path)
    with pytest.raises(
        DataError, match=r"manifest\.jsonl:4: several splits name this manifest, so each line needs a split"
    ):
        list(unsaid.cuts("train"))


def test_utterances_of_one_file_stay_together(folder: Path):
    lines = [
        {"id": f"{name}{n}", "audio": name, "offset": n / 10, "duration": 0.1, "speaker": "A"}
        for name in ("audio/a.flac", "b.wav")
        for n in range(9)
    ]
    there = corpus(folder, *lines, train_fraction=0.5, valid_fraction=0.5)
    found = {cut.id: split for split in there.splits for cut in there.cuts(split)}
    assert len(found) == 18
    for name in ("audio/a.flac", "b.wav"):
        assert len({split for cut, split in found.items() if cut.startswith(name)}) == 1


GOOD = {"audio": "b.wav", "speaker": "A"}
FAULTS = {
    "no JSON": ("{", "this is not JSON: "),
    "no object": ([1], "a line is an object, not a list"),
    "no audio": ({"speaker": "A"}, "the key audio is missing, the name of the file"),
    "missing": ({**GOOD, "audio": "c.wav"}, r".*c\.wav: can't be read: No such file or directory"),
    "empty file": ({**GOOD, "audio": "empty.wav"}, r".*empty\.wav: the file is empty"),
    "above": ({**GOOD, "audio": "../b.wav"}, r"\.\./b\.wav is outside of the folder of the manifest .* refused"),
    "absolute": (
        {**GOOD, "audio": "/b.wav"},
        r"/b\.wav is outside of the folder of the manifest .* refused; .*: audio_root: \[/\]",
    ),
    "link": ({**GOOD, "audio": "link.wav"}, r"link\.wav is a link to .*, outside of .* refused; .* audio_root: \["),
    "rttm above": ({"audio": "b.wav", "rttm": "../x.rttm"}, r"\.\./x\.rttm is outside"),
    "rate": ({**GOOD, "sampling_rate": 16000}, r".*b\.wav has 8000 Hz, but sampling_rate is 16000"),
    "cut short": ({**GOOD, "duration": 3}, r".*b\.wav lasts 1\.000 s, but the manifest says 3\.000 s: the file is"),
    "offset": ({**GOOD, "offset": 1.5}, r"offset 1\.5 s is beyond the end of .*b\.wav"),
    "no length": ({**GOOD, "duration": 0}, "duration is 0 s"),
    "negative": ({**GOOD, "offset": -1}, "offset is -1; expected a number, 0 or more"),
    "NaN": ('{"audio": "b.wav", "speaker": "A", "duration": NaN}', "duration is nan; expected a number"),
    "speaker": ({**GOOD, "speaker": ["A"]}, "speaker is a list; expected a text"),
    "segments": ({"audio": "b.wav", "segments": 3}, "segments is a int, not a list"),
    "no end": ({"audio": "b.wav", "segments": [{"start": 1}]}, r"a segment from 1\.0 to None"),
    "no segment": ({"audio": "b.wav", "segments": ["A"]}, "a segment is an object"),
    "beyond": (
        {"audio": "b.wav", "segments": [{"start": 2, "end": 3, "speaker": "A"}]},
        "most of its labels are beyond",
    ),
    "other rttm": ({"audio": "b.wav", "rttm": "two.rttm"}, r"two\.rttm has no recording b; it has x, y"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_by_file_and_line(folder: Path, tmp_path_factory, fault: str):
    line, message = FAULTS[fault]
    write_audio(outside := tmp_path_factory.mktemp("outside") / "b.wav", 1)
    os.symlink(outside, folder / "link.wav")
    (folder / "empty.wav").write_bytes(b"")
    (folder / "two.rttm").write_text("SPEAKER x 1 0 1 <NA> <NA> A\nSPEAKER y 1 0 1 <NA> <NA> A\n")
    there = corpus(folder)
    text = line if isinstance(line, str) else json.dumps(line)
    (folder / "manifest.jsonl").write_text(json.dumps({**GOOD, "id": "good"}) + "\n" + text + "\n")
    with pytest.raises(DataError, match=rf"manifest\.jsonl:2: {message}") as raised:
        list(there.cuts("train"))
    assert "\n" not in str(raised.value)


def test_two_of_one_name_an_empty_manifest_and_a_folder(folder: Path):
    with pytest.raises(DataError, match="train has two cuts with the name b; names must be unique"):
        list(corpus(folder, GOOD, GOOD).cuts("train"))
    with pytest.raises(DataError, match="datasets, d: train is empty: its files have no recordings"):
        list(corpus(folder).cuts("train"))
    with pytest.raises(DataError, match=r"is a folder; give its manifests, .*/\*\.jsonl"):
        corpus(folder, train=(str(folder),))
    there = corpus(folder, GOOD, train_fraction=0.01, valid_fraction=0.01)
    with pytest.raises(DataError, match="train is empty: no recording fell into it; give more recordings"):
        list(there.cuts("train"))


def test_links_within_the_folder_are_fine(folder: Path):
    os.symlink(folder / "b.wav", folder / "c.wav")
    assert len(list(corpus(folder, {**GOOD, "audio": "c.wav"}).cuts("train"))) == 1


def test_a_line_without_times_says_so_and_one_with_times_does_not(folder: Path):
    lines = [{"audio": "b.wav", "id": "told", "segments": [{"start": 0, "end": 1, "speaker": "A"}]},
             {"audio": "b.wav", "id": "whole", "speaker": "A"}]  # fmt: skip
    cuts = {cut.id: cut for cut in corpus(folder, *lines).cuts("train")}
    assert {name: lacks_times(cut) for name, cut in cuts.items()} == {"told": False, "whole": True}


BAD_LINES = {2: "{", 4: "[1]", 5: '{"audio": "b.wav", "speaker": "A", "text": \xff}'}


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_an_end_that_is_no_number_costs_its_row(tmp_path: Path, ending: str):
    for number in range(3):
        write_audio(tmp_path / f"{number}.wav", 1.0)
    rows = [{"audio": f"{number}.wav", "speaker": "A", "to": to} for number, to in enumerate(("0.5", "end", "0.75"))]
    lines = (
        ["audio,speaker,to", *(",".join(row.values()) for row in rows)] if ending == ".csv" else map(json.dumps, rows)
    )
    (tmp_path / f"a{ending}").write_text("\n".join(lines) + "\n")
    dataset = DatasetConfig(name="d", type="json", train=(str(tmp_path / f"a{ending}"),), columns={"end": "to"})
    found = list(AudioCorpus(dataset, AudioConfig()).reader.read("train"))
    assert [one.cut and one.cut.duration for one in found] == [0.5, None, 0.75]
    assert f"a{ending}:{3 if ending == '.csv' else 2}: to is 'end'; expected the end in seconds" in str(
        found[1].problem
    )


@pytest.mark.parametrize("kind", ["json", "nemo", "cuts", "recordings", "shared", "columns"])
def test_a_bad_line_costs_that_line(folder: Path, kind: str):
    """Each reader of JSON lines passes line 2 to ``data.on_bad_example: skip``; it used to raise for it."""
    from lhotse import Recording, SupervisionSegment

    recording = Recording.from_file(folder / "b.wav")
    cut = recording.to_cut()
    cut.supervisions = [SupervisionSegment("s", "b", 0, 1, channel=[0, 1], speaker="A", text="so")]
    lines = {
        "nemo": {"audio_filepath": "b.wav", "text": "so", "duration": 1},
        "cuts": cut.to_dict(),
        "recordings": recording.to_dict(),
        "columns": {"file": "b.wav", "speaker": "A"},
        "shared": {**GOOD, "split": "train"},
    }
    rows = [json.dumps(lines.get(kind, GOOD)).replace('"b"', f'"b{number}"') for number in (1, 3)]
    content = "\n".join([rows[0], BAD_LINES[2], rows[1], BAD_LINES[4], BAD_LINES[5]]).encode("latin-1")
    path = folder / "own" / "manifest.jsonl"
    path.parent.mkdir()
    path.write_bytes(content)
    options: dict[str, Any] = {
        "type": {"recordings": "cuts", "nemo": "nemo", "cuts": "cuts"}.get(kind, "json"),
        "train": (str(path),),
    }
    if kind == "recordings":
        said = SupervisionSegment("s", "b1", 0, 1, speaker="A", text="so").to_dict()
        (folder / "said.jsonl").write_text(json.dumps(said) + "\n{\n")
        options["train"] = (str(path), str(folder / "said.jsonl"))
    if kind == "shared":
        options["valid"] = (str(path),)
    if kind == "columns":
        options["columns"] = {"audio": "file"}
    options |= {"audio_root": (str(folder),)} | ({"corpus_dir": str(path.parent)} if kind == "nemo" else {})
    reader = AudioCorpus(DatasetConfig(name="d", **options), AudioConfig()).reader
    read = list(reader.read("train"))
    problems = [str(one.problem) for one in read if one.problem is not None]
    also = [str(folder / "said.jsonl:2")] * (kind == "recordings")
    assert [one.partition(": ")[0] for one in problems] == [*also, *(f"{path}:{number}" for number in BAD_LINES)]
    assert sum(one.cut is not None for one in read) == (1 if kind == "recordings" else 2)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_a_manifest_in_utf_16_is_read(folder: Path, encoding: str):
    path = folder / "manifest.jsonl"
    lines = [{"id": str(number), "audio": "b.wav", "speaker": "A", "text": "वह गया"} for number in range(2)]
    path.write_bytes("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(encoding))
    options = {"train": (str(path),), "train_fraction": 1, "valid_fraction": 0}
    there = AudioCorpus(DatasetConfig(name="d", type="json", **options), AudioConfig())
    assert [get_text(cut) for cut in there.cuts("train")] == ["वह गया"] * 2
