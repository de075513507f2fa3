"""Lhotse's manifests: cuts, or recordings with supervisions; any path that Lhotse writes, and no commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from lhotse import CutSet, MonoCut, Recording, RecordingSet, SupervisionSegment, SupervisionSet
from lhotse.audio import AudioSource

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.lhotse_manifests import LABELLED_THROUGHOUT, WITHOUT_RECORDING, WITHOUT_SUPERVISIONS
from vaak.audio.cuts.reading import NO_TIMES, lacks_times, read_cut
from vaak.audio.cuts.store import write_cuts
from vaak.core.errors import DataError


def corpus(*train: Path, **options) -> AudioCorpus:
    options = {"train_fraction": 1, "valid_fraction": 0, **options}
    return AudioCorpus(DatasetConfig(name="d", type="cuts", train=tuple(map(str, train)), **options), AudioConfig())


def recording(folder: Path, name: str, seconds: float = 1.0) -> Recording:
    write_audio(folder / f"{name}.wav", seconds, 8000)
    return Recording.from_file(folder / f"{name}.wav")


def said(recording_id: str, start: float, speaker: str = "A") -> SupervisionSegment:
    return SupervisionSegment(f"{recording_id}-{start}", recording_id, start, 0.25, speaker=speaker)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_recordings_and_supervisions_in_any_order(tmp_path: Path, ending: str):
    recordings = [recording(tmp_path, name) for name in ("b", "a", "c")]
    supervisions = [said("a", 0), said("b", 0.5), said("a", 0.5, "B"), said("b", 0), said("absent", 0)]
    RecordingSet.from_recordings(recordings).to_file(tmp_path / f"d_recordings_all.{ending}")
    SupervisionSet.from_segments(supervisions).to_file(tmp_path / f"d_supervisions_all.{ending}")
    there = corpus(tmp_path / f"d_recordings_all.{ending}", tmp_path / f"d_supervisions_all.{ending}")
    cuts = list(there.cuts("train"))
    assert [(cut.id, sorted(s.start for s in cut.supervisions)) for cut in cuts] == [("b", [0, 0.5]), ("a", [0, 0.5])]
    assert there.statistics["train"].dropped == {WITHOUT_SUPERVISIONS: 1, WITHOUT_RECORDING: 1}
    assert {cut.id for cut in corpus(tmp_path).cuts("train")} == {"a", "b"}
    assert len(there.files) == 2


def test_ready_made_cuts_of_every_kind_come_back_from_a_store(tmp_path: Path):
    write_audio(tmp_path / "stereo.wav", 1, 8000, channels=2)
    mono, stereo = recording(tmp_path, "a").to_cut(), Recording.from_file(tmp_path / "stereo.wav").to_cut()
    mono.supervisions = [said("a", 0.5)]
    cuts = [
        mono,
        stereo,
        mono.truncate(duration=0.5).with_id("x"),
        mono.mix(mono.with_id("y"), 0.25).with_id("m"),
        mono.perturb_speed(1.1).with_id("s"),
    ]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    store = write_cuts(tmp_path / "store", corpus(tmp_path / "cuts.jsonl.gz").cuts("train"))
    assert [cut.id for cut in store] == [cut.id for cut in cuts]
    for cut in store:
        audio = read_cut(cut, AudioConfig(sampling_rate=8000, high_freq=0))
        assert len(audio.samples) == cut.num_samples
    assert [len(cut.supervisions) for cut in store] == [1, 0, 0, 2, 1]


def test_a_recordings_cuts_stay_together(tmp_path: Path):
    cuts = [
        cut.with_id(f"{name}-{number}")
        for name in "abcdefghij"
        for number, cut in enumerate(CutSet.from_cuts([recording(tmp_path, name).to_cut()]).cut_into_windows(0.25))
    ]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl")
    there = corpus(tmp_path / "cuts.jsonl", train_fraction=0.5, valid_fraction=0.5)
    found = {split: {cut.recording_id for cut in there.cuts(split)} for split in ("train", "valid")}
    assert not found["train"] & found["valid"]
    assert len(found["train"] | found["valid"]) == 10


def test_relative_paths_are_lhotses_or_seen_from_the_manifest(tmp_path: Path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    write_audio(here / "audio" / "a.wav", 1, 8000)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    cut = Recording.from_file("audio/a.wav").to_cut()
    CutSet.from_cuts([cut]).to_file(elsewhere / "cuts.jsonl")
    CutSet.from_cuts([cut]).to_file(here / "cuts.jsonl")
    absolute = str(here / "audio" / "a.wav")
    assert next(corpus(elsewhere / "cuts.jsonl").cuts("train")).recording.sources[0].source == absolute
    monkeypatch.chdir(tmp_path)
    assert next(corpus(here / "cuts.jsonl").cuts("train")).recording.sources[0].source == absolute
    with pytest.raises(DataError, match=r"cuts\.jsonl:1: the audio of recording a is missing: audio/a\.wav"):
        list(corpus(elsewhere / "cuts.jsonl").cuts("train"))


def test_commands_and_addresses_are_refused(tmp_path: Path):
    for kind in ("command", "url"):
        made = Recording("r", [AudioSource(kind, [0], f"touch {tmp_path}/was_run")], 8000, 8000, 1.0)
        CutSet.from_cuts([made.to_cut()]).to_file(tmp_path / "cuts.jsonl")
        with pytest.raises(DataError, match=rf"cuts\.jsonl:1: its audio comes from a {kind}, which is refused"):
            list(corpus(tmp_path / "cuts.jsonl").cuts("train"))
    assert not (tmp_path / "was_run").exists()


def test_faults_are_clear_lines(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    good = CutSet.from_cuts([recording(tmp_path, "a").to_cut()])
    good.to_file(tmp_path / "good.jsonl")
    line = (tmp_path / "good.jsonl").read_text()
    for content, message in {
        "": r"m\.jsonl: this manifest is empty",
        "{}\n": r"m\.jsonl: this is not a Lhotse manifest of cuts",
        '{"id": "s", "recording_id": "r", "start": 0, "duration": 1}\n': "give a manifest of cuts, or those",
    }.items():
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            corpus(path)
    for content, message in {
        line + "{\n": r"m\.jsonl:2: this is not JSON",
        line + '{"type": "MonoCut", "nonsense": 1}\n': r"m\.jsonl:2: Lhotse can't read this line: ",
        line * 2: "train has two cuts with the name a",
    }.items():
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            list(corpus(path).cuts("train"))
    path.write_text(line)
    with pytest.raises(DataError, match="is named twice, in train and in test; name it once"):
        corpus(path, test=(str(path),))
    CutSet.from_cuts([MonoCut("c", 0, 1, 0)]).to_file(path)
    with pytest.raises(DataError, match=r"m\.jsonl:1: cut c has no recording"):
        list(corpus(path).cuts("train"))


def test_only_a_mark_says_that_a_label_has_no_times(tmp_path: Path):
    """A human's label may be as long as its cut, with a text or without; such a one with a text is reported."""
    cuts = []
    for name, length, text, custom in (
        ("said", 1.0, "so it is", None),
        ("turn", 1.0, None, None),
        ("timed", 0.9, "so it is", {"source": "x"}),
        ("marked", 1.0, "so it is", {NO_TIMES: True}),
    ):
        cut = recording(tmp_path, name).to_cut()
        cut.supervisions = [SupervisionSegment(name, name, 0.0, length, speaker="A", text=text, custom=custom)]
        cuts.append(cut)
    cuts.append(cuts[3].with_id("both").mix(cuts[3].with_id("again"), 0.5).with_id("mixed"))
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl")
    there = corpus(tmp_path / "cuts.jsonl")
    found = {cut.id: lacks_times(cut) for cut in there.cuts("train")}
    assert found == {"said": False, "turn": False, "timed": False, "marked": True, "mixed": False}
    assert there.statistics["train"].remarks == {LABELLED_THROUGHOUT: 1}
