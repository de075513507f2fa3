"""What a corpus knows about an utterance reaches its example: text, speaker, language, words, phones and pauses."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lhotse import MonoCut

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import UNALIGNED, AudioCorpus
from vaak.audio.corpora.folders import UNLABELLED_FILES
from vaak.audio.cuts.reading import read_segments
from vaak.audio.cuts.sources import CutSource
from vaak.audio.cuts.store import write_cuts
from vaak.audio.formats.alignments import Interval, write_textgrid
from vaak.audio.segments import LabelledAudio, Segment
from vaak.core.errors import DataError
from vaak.core.storage.files import compute_fingerprint
from vaak.runs.prepared import Recipe
from vaak.tasks.speech_task import recipe

PHONES = [Interval(0, 0.25, ""), Interval(0.25, 0.5, "s"), Interval(0.5, 1, "ow"), Interval(1, 2, "")]
WORDS = [Interval(0, 0.25, ""), Interval(0.25, 1, "so"), Interval(1, 2, "")]
ALIGNMENT = {"word": tuple(WORDS), "phone": tuple(PHONES)}
WHOLE: dict[str, Any] = {"train_fraction": 1, "valid_fraction": 0}


def examples(dataset: DatasetConfig, folder: Path) -> dict[str, LabelledAudio]:
    """All training examples by name, after writing and reading the store."""
    corpus = AudioCorpus(dataset, AudioConfig())
    source = CutSource(write_cuts(folder / "store", corpus.cuts("train")), AudioConfig())
    found = [source.load(index, np.random.default_rng()) for index in range(len(source.durations))]
    return {one.name: one for one in found}


def manifest(folder: Path, *lines: dict[str, Any], **options: Any) -> DatasetConfig:
    (folder / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return DatasetConfig(name="d", type="json", train=(str(folder / "m.jsonl"),), **WHOLE, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_audio(tmp_path / "a.wav", 2.0)
    write_textgrid(tmp_path / "a.TextGrid", {"words": WORDS, "phones": PHONES}, 2.0)
    (tmp_path / "a.ctm").write_text("a 1 0.25 0.75 so\n")
    (tmp_path / "a.json").write_text(json.dumps({"word": WORDS, "phone": PHONES}))
    return tmp_path


def test_every_way_of_a_manifest(folder: Path):
    utterance = {"audio": "a.wav", "text": "So!", "speaker": "Ann", "language": "en"}
    dataset = manifest(
        folder,
        {**utterance, "id": "textgrid", "textgrid": "a.TextGrid"},
        {**utterance, "id": "file", "alignment": "a.json"},
        {**utterance, "id": "phones", "alignment": PHONES},
        {**utterance, "id": "object", "alignment": {"word": WORDS, "phone": PHONES}},
        {**utterance, "id": "ctm", "ctm": "a.ctm"},
        {"audio": "a.wav", "id": "untold", "alignment": "a.TextGrid"},
        {**utterance, "id": "section", "offset": 0.5, "duration": 1.0, "alignment": [[0, 0.5, "ow"]]},
        {
            "audio": "a.wav",
            "id": "segments",
            "segments": [{"start": 0, "end": 0.6, "speaker": "A"}, {"start": 1, "end": 2, "speaker": "B"}],
            "textgrid": "a.TextGrid",
        },
    )
    found = examples(dataset, folder)
    for name in ("textgrid", "file", "object"):
        one = found[name]
        assert (one.text, one.speaker, one.language, one.alignment) == ("So!", "Ann", "en", ALIGNMENT)
    assert found["phones"].alignment == {"phone": tuple(PHONES)}
    assert found["ctm"].alignment == {"word": (WORDS[1],)}
    assert (found["untold"].text, found["untold"].speaker, found["untold"].language) == ("so", "unknown", None)
    assert found["section"].alignment == {"phone": (Interval(0, 0.5, "ow"),)}
    assert found["segments"].alignment == {"word": (WORDS[0], WORDS[2]), "phone": (*PHONES[:2], PHONES[3])}
    assert found["segments"].speaker is None


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "two": ({"ctm": "a.ctm", "textgrid": "a.TextGrid"}, "ctm and textgrid are alignments; give one of them"),
    "offset": ({"ctm": "a.ctm", "offset": 0.5}, "times of ctm start at the beginning of the file, so offset can't"),
    "kind": ({"ctm": "a.TextGrid"}, r"ctm is a\.TextGrid; expected a file that ends with \.ctm"),
    "missing": ({"textgrid": "b.TextGrid"}, r".*b\.TextGrid: can't be read: No such file"),
    "outside": ({"alignment": "../a.json"}, r"\.\./a\.json is outside of the folder"),
    "row": ({"alignment": [[0, 1]]}, r"\[0, 1\] is not of the form \[start, end, symbol\]"),
    "number": ({"alignment": 3}, r"an alignment is a list of \[start, end, symbol\], not a int"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_manifest_by_line(folder: Path, fault: str):
    entry, message = FAULTS[fault]
    dataset = manifest(folder, {"audio": "a.wav", "text": "so", **entry})
    with pytest.raises(DataError, match=rf"m\.jsonl:1: {message}") as raised:
        list(AudioCorpus(dataset, AudioConfig()).cuts("train"))
    assert "\n" not in str(raised.value)


def test_a_folder_of_audio_and_textgrids_of_an_aligner(tmp_path: Path):
    for name in ("a", "b", "c"):
        write_audio(tmp_path / "wavs" / f"{name}.wav", 2.0)
    (tmp_path / "TextGrid").mkdir()
    write_textgrid(tmp_path / "TextGrid" / "a.TextGrid", {"words": WORDS, "phones": PHONES}, 2.0)
    write_textgrid(tmp_path / "TextGrid" / "b.TextGrid", {"Ann - words": WORDS, "Ann - phones": PHONES}, 2.0)
    several = {"Ann - words": WORDS, "Ben - words": WORDS}
    write_textgrid(tmp_path / "TextGrid" / "c.TextGrid", several, 2.0)
    for train in (str(tmp_path), str(tmp_path / "wavs" / "*.wav")):
        dataset = DatasetConfig(name="d", type="folder", train=(train,), **WHOLE)
        found = examples(dataset, tmp_path)
        assert {name: one.speaker for name, one in found.items()} == {"a": "unknown", "b": "Ann"}
        for one in found.values():
            assert (one.text, one.alignment) == ("so", ALIGNMENT)
        corpus = AudioCorpus(dataset, AudioConfig())
        assert [read_segments(cut)[0][:2] for cut in corpus.cuts("train")] == [(0, 2), (0, 2)]
        assert corpus.statistics["train"].dropped == {UNLABELLED_FILES: 1}


def test_pauses_are_no_speech_of_a_speakers_tier(tmp_path: Path):
    """Empty intervals were always dropped there; nothing about such recordings changes."""
    write_audio(tmp_path / "a.wav", 2.0)
    tiers = {"Ann": [Interval(0, 0.5, ""), Interval(0.5, 1.5, "so")], "Ann - words": [*WORDS[:2], Interval(1, 1.4, "")]}
    write_textgrid(tmp_path / "a.TextGrid", tiers, 2.0)
    found = examples(DatasetConfig(name="d", type="folder", train=(str(tmp_path),), **WHOLE), tmp_path)["a"]
    assert found.segments == (Segment(0.5, 1.5, "Ann"),)
    assert found.alignment == {"word": (WORDS[1],)}


@pytest.mark.parametrize("ending", ["TextGrid", "ctm", "json"])
def test_a_folder_of_alignments_for_any_corpus(folder: Path, tmp_path_factory: pytest.TempPathFactory, ending: str):
    other = tmp_path_factory.mktemp("aligned")
    (other / "speaker").mkdir()
    (folder / f"a.{ending}").rename(other / "speaker" / f"a.{ending}")
    lines = {"audio": "a.wav", "text": "So!", "speaker": "Ann"}, {"audio": "a.wav", "id": "b", "speaker": "Ann"}
    dataset = manifest(folder, *lines, alignments=str(other))
    found = examples(dataset, folder)
    assert (found["a"].text, found["a"].speaker) == ("So!", "Ann")
    assert found["a"].alignment == ({"word": (WORDS[1],)} if ending == "ctm" else ALIGNMENT)
    corpus = AudioCorpus(dataset, AudioConfig())
    list(corpus.cuts("train"))
    assert corpus.statistics["train"].remarks == {UNALIGNED: 1}
    assert other / "speaker" / f"a.{ending}" in corpus.files


@pytest.mark.parametrize("ending", ["TextGrid", "ctm", "json"])
def test_a_folder_of_alignments_for_a_folder_of_plain_audio(folder: Path, tmp_path: Path, ending: str):
    """As the aligner arranges both: CORPUS/ann/a.wav and ALIGNED/ann/a.TextGrid."""
    audio, aligned = tmp_path / "corpus" / "ann", tmp_path / "aligned" / "ann"
    for name in ("a", "b"):
        write_audio(audio / f"{name}.wav", 2.0)
    aligned.mkdir(parents=True)
    (folder / f"a.{ending}").rename(aligned / f"a.{ending}")
    options: dict[str, Any] = {"train": (str(audio.parent),), "alignments": str(aligned.parent), **WHOLE}
    dataset = DatasetConfig(name="d", type="folder", **options)
    found = examples(dataset, tmp_path)
    assert {name: one.text for name, one in found.items()} == {"a": "so"}
    assert found["a"].alignment == ({"word": (WORDS[1],)} if ending == "ctm" else ALIGNMENT)
    corpus = AudioCorpus(dataset, AudioConfig())
    list(corpus.cuts("train"))
    assert corpus.statistics["train"].dropped == {UNLABELLED_FILES: 1}


def test_alignments_named_after_the_recording_count_from_its_start(folder: Path, tmp_path: Path):
    cut = AudioCorpus(manifest(folder, {"audio": "a.wav", "speaker": "A"}), AudioConfig()).cuts("train")
    [whole] = cut
    assert isinstance(whole, MonoCut)
    part = whole.truncate(offset=0.5, duration=1.0, preserve_id=False)
    part.id, part.supervisions[0].duration = "section", 1.0
    part.recording.id = "a"
    (folder / "cuts.jsonl").write_text(json.dumps(part.to_dict()) + "\n")
    (tmp_path / "only").mkdir()
    (folder / "a.TextGrid").rename(tmp_path / "only" / "a.TextGrid")
    train = (str(folder / "cuts.jsonl"),)
    dataset = DatasetConfig(name="d", type="cuts", train=train, alignments=str(tmp_path / "only"), **WHOLE)
    found = examples(dataset, folder)["section"]
    assert found.alignment == {
        "word": (Interval(0, 0.5, "so"), Interval(0.5, 1, "")),
        "phone": (Interval(0, 0.5, "ow"), Interval(0.5, 1, "")),
    }


def test_faults_of_a_folder_of_alignments(folder: Path, tmp_path: Path):
    line = {"audio": "a.wav", "speaker": "A"}
    with pytest.raises(DataError, match="datasets, d, alignments: no such folder: nowhere"):
        AudioCorpus(manifest(folder, line, alignments="nowhere"), AudioConfig())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"datasets, d, alignments: no files in .*empty end with \.TextGrid"):
        AudioCorpus(manifest(folder, line, alignments=str(tmp_path / "empty")), AudioConfig())
    with pytest.raises(DataError, match=r"a is also in .*; keep one of them"):
        AudioCorpus(manifest(folder, line, alignments=str(folder)), AudioConfig())


def test_voices_are_aligned_exactly(tmp_path: Path):
    dataset = DatasetConfig(name="voices", type="voices", num_voices=2, num_sentences=1, output_dir=str(tmp_path))
    found = examples(dataset.model_copy(update=WHOLE), tmp_path)
    assert len(found) == 2
    for one in found.values():
        assert one.alignment is not None
        assert one.text
        assert (one.language, one.speaker) == ("English", one.name[:9])
        phones = one.alignment["phone"]
        assert all(first.end <= second.start + 1e-6 for first, second in pairwise(phones))
        assert one.segments[0][:2] == pytest.approx((phones[0].start, phones[-1].end), abs=1e-4)
        assert len(one.alignment["word"]) > 2


def test_the_fingerprint_of_corpora_without_alignments_is_what_it_was(folder: Path):
    def mark(dataset: DatasetConfig) -> str:
        made: Recipe = recipe((dataset,), AudioConfig())
        return compute_fingerprint(made.options)

    plain = DatasetConfig(name="d", type="json", train=("m.jsonl",))
    assert mark(plain) == "ab948baafd7e4f9f"
    assert mark(plain.model_copy(update={"alignments": "x"})) != mark(plain)


def test_ljspeech_with_its_textgrids(vaak_data: Callable[[str], Path], tmp_path: Path):
    found = examples(
        DatasetConfig(name="lj", type="folder", train=(str(vaak_data("ljspeech_mini")),), **WHOLE), tmp_path
    )
    assert len(found) == 26
    one = found["LJ001-0002"]
    assert one.text == "in being comparatively modern"
    assert one.alignment is not None
    assert [len(one.alignment[tier]) for tier in ("word", "phone")] == [5, 25]
    assert one.alignment["phone"][0] == Interval(0.0, 0.08, "IH1")
    for example in found.values():
        assert example.alignment is not None
        for tier in example.alignment.values():
            assert tier[0].start == 0
            assert tier[-1].end == pytest.approx(example.duration, abs=1e-3)
