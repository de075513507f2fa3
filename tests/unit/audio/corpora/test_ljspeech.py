"""The layout of LJ Speech: texts, audio and TextGrids by name; splits by hash; faults by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_voice
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import get_text, merge_alignments, read_segments
from vaak.core.errors import DataError

AUDIO = AudioConfig(sampling_rate=tiny_voice.RATE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_voice.write_ljspeech(tmp_path / "corpus")


def corpus(folder: Path, **options) -> AudioCorpus:
    return AudioCorpus(DatasetConfig(name="ann", type="ljspeech", corpus_dir=str(folder), **options), AUDIO)


def only_train(folder: Path, **options) -> AudioCorpus:
    return corpus(folder, train_fraction=1.0, valid_fraction=0.0, **options)


def test_a_line_is_an_utterance_with_its_words_audio_and_alignment(folder: Path):
    cuts = list(only_train(folder).cuts("train"))
    lines = [line.split("|") for line in (folder / "metadata.csv").read_text().splitlines()]
    assert [(cut.id, get_text(cut)) for cut in cuts] == [(name, spoken) for name, _, spoken in lines]
    assert {segment.speaker for cut in cuts for segment in read_segments(cut)} == {"ann"}
    for cut in cuts:
        phones = (merge_alignments(cut) or {})["phone"]
        assert phones[0].text == ""  # a pause
        assert phones[-1].end == pytest.approx(cut.duration, abs=1e-3)


def test_splits_are_by_hash_so_further_lines_change_no_utterances_split(folder: Path):
    def splits(there: AudioCorpus) -> dict[str, str]:
        return {cut.id: split for split in there.splits for cut in there.cuts(split)}

    options = {"train_fraction": 0.5, "valid_fraction": 0.3}
    before = splits(corpus(folder, **options))
    assert len(before) == 12
    assert set(before.values()) == {"train", "valid", "test"}
    path = folder / "metadata.csv"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True)[3:])))
    after = splits(corpus(folder, **options))
    assert after == {name: split for name, split in before.items() if name in after}


def test_alignments_elsewhere_and_metadata_of_ones_own(folder: Path, tmp_path: Path):
    (folder / "TextGrid").rename(tmp_path / "mfa")
    lines = (folder / "metadata.csv").read_text().splitlines(keepends=True)
    (folder / "some.csv").write_text("".join(lines[:2]))
    assert all(merge_alignments(cut) is None for cut in corpus(folder).cuts("train"))
    [first, _] = corpus(folder, train=("some.csv",), valid=("metadata.csv",), alignments=str(tmp_path / "mfa")).cuts(
        "train"
    )
    assert "phone" in (merge_alignments(first) or {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"a0||", r"metadata\.csv:2: the text is empty"),
        (b"|He saw me.|He saw me.", r"metadata\.csv:2: the id is empty"),
        (b"a0", r"metadata\.csv:2: expected id\|text\|text in words, found 1 fields"),
        (b"a0|a|b|c", "found 4 fields"),
        (b"a99|He.|He.", r"metadata\.csv:2: .*wavs/a99\.wav: .*No such file"),
        (b"../../a0|He.|He.", r"metadata\.csv:2: .*outside"),
        (b"a0|caf\xe9|caf\xe9", r"metadata\.csv:2: byte 20 \(0xE9\) is not UTF-8"),
        (b"a1|He.|He.", "two cuts with the name a1"),
    ],
)
def test_a_bad_line_is_an_error_that_names_it_or_is_told_and_left_out(folder: Path, line: bytes, message: str):
    path = folder / "metadata.csv"
    path.write_bytes(b"a1|He saw me.\n" + line + b"\n\n  \r\na2|Go.|\r\n")
    with pytest.raises(DataError, match=message):
        list(only_train(folder).cuts("train"))
    there, told = only_train(folder), list[DataError]()
    there.on_bad = lambda error, name: told.append(error)
    assert [(cut.id, get_text(cut)) for cut in there.cuts("train")] == [("a1", "He saw me."), ("a2", "Go.")]
    assert len(told) == 1


def test_without_metadata_the_message_names_it(tmp_path: Path):
    with pytest.raises(DataError, match=r"no such file or folder: .*metadata\.csv"):
        corpus(tmp_path)


def test_prepare_writes_manifests_with_alignments(vaak, folder: Path, tmp_path: Path):
    code, out, err = vaak("data", "prepare", "ljspeech", folder, "--output", tmp_path / "manifests", "--json")
    assert code == 0, err
    parts = json.loads(out)
    assert sum(part["cuts"] for part in parts) == 12
    files: dict[str, Any] = {part["part"]: (part["file"],) for part in parts if part["cuts"]}
    again = AudioCorpus(DatasetConfig(name="again", type="cuts", **files), AUDIO).cuts("train")
    assert [(cut.id, get_text(cut), merge_alignments(cut)) for cut in again] == [
        (cut.id, get_text(cut), merge_alignments(cut)) for cut in corpus(folder).cuts("train")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone",), "no such file or folder: gone/metadata.csv"),
        (("corpus", "mic=sdm"), "ljspeech FOLDER takes no options, so mic=sdm is unexpected"),
        (("corpus", "--alignments", "gone"), "no such folder: gone"),
    ],
)
def test_prepare_with_mistakes_is_one_line(vaak, folder: Path, arguments, message: str, monkeypatch):
    monkeypatch.chdir(folder.parent)
    code, _, err = vaak("data", "prepare", "ljspeech", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_the_real_layout(vaak_data):
    folder = vaak_data("ljspeech_mini")
    there = corpus(folder)
    cuts = {split: list(there.cuts(split)) for split in there.splits}
    assert sum(map(len, cuts.values())) == 26
    assert all(cuts.values())
    for cut in cuts["train"]:
        alignment = merge_alignments(cut) or {}
        assert alignment["phone"][-1].end == pytest.approx(cut.duration, abs=0.02)
        assert get_text(cut)
