"""Conversations in a folder: all descriptions of them agree, and an interrupted simulation continues."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet
from lhotse.qa import validate

from folders import contents
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import read_segments
from vaak.audio.formats.annotation_lines import read_rttm
from vaak.audio.segments import LabelledAudio, Segment
from vaak.audio.simulation.folder import require_room, write_conversations
from vaak.core.errors import UserError
from vaak.core.storage.lock import locked

RATE = 8000


class Tones:
    """An audio source of drawn lengths, levels and segments."""

    speakers: tuple[str, ...] = ("A", "B")

    def __init__(self, number: int = 5, level: float = 0.3, fingerprint: str = "tones") -> None:
        self.durations = np.full(number, 2.0)
        self.level, self.fingerprint = level, fingerprint
        self.loaded: list[int] = []

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        self.loaded.append(index)
        samples = (self.level * rng.standard_normal(int(rng.integers(RATE, 2 * RATE)))).astype(np.float32)
        times = np.sort(rng.uniform(0, len(samples) / RATE, 4)).tolist()
        segments = (Segment(times[0], times[2], "A"), Segment(times[1], times[3], "B"))
        return LabelledAudio(self.describe(index), samples, RATE, segments)

    def describe(self, index: int) -> str:
        return f"tone-{index}"


class Interrupted(Tones):
    """Stops at the third."""

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        if index == 2:
            raise KeyboardInterrupt
        return super().load(index, rng)


def test_audio_manifest_rttm_and_cuts_agree(tmp_path: Path) -> None:
    source = Tones()
    written = write_conversations(source, tmp_path, seed=1)
    lines = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().splitlines()]
    assert [line["audio"] for line in lines] == [f"tone-{index}.flac" for index in range(5)]
    assert (written.number, written.new) == (5, 5)
    assert written.seconds == pytest.approx(sum(line["duration"] for line in lines))
    rttm = read_rttm(tmp_path / "reference.rttm")
    cuts = CutSet.from_jsonl(tmp_path / "cuts.jsonl").to_eager()
    for line, cut in zip(lines, cuts, strict=True):
        samples, rate = soundfile.read(tmp_path / line["audio"])
        assert (rate, len(samples) / rate) == (RATE, line["duration"])
        validate(cut, read_data=True)
        assert cut.duration == line["duration"]
        said = [Segment(**segment) for segment in line["segments"]]
        assert rttm[cut.id] == said
        assert list(read_segments(cut)) == said


@pytest.mark.parametrize(
    "options",
    [
        {"type": "folder", "corpus_dir": "{}"},
        {"type": "json", "train": ["{}/manifest.jsonl"]},
        {"type": "cuts", "train": ["{}/cuts.jsonl"]},
    ],
    ids=lambda options: options["type"],
)
def test_datasets_read_what_was_written(options: dict, tmp_path: Path) -> None:
    write_conversations(Tones(), tmp_path, seed=1)
    filled = json.loads(json.dumps(options).replace("{}", str(tmp_path)))
    dataset = DatasetConfig.model_validate({"name": "again", **filled, "train_fraction": 1.0, "valid_fraction": 0.0})
    corpus = AudioCorpus(dataset, AudioConfig(sampling_rate=RATE, high_freq=0))
    found = {cut.id: list(read_segments(cut)) for cut in corpus.cuts("train")}
    assert found == read_rttm(tmp_path / "reference.rttm")
    assert not corpus.statistics["train"].remarks


def test_the_same_seed_gives_the_same_bits_and_another_others(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_conversations(Tones(), tmp_path / name, seed=seed)
    assert contents(tmp_path / "one") == contents(tmp_path / "same")
    one, other = contents(tmp_path / "one"), contents(tmp_path / "other")
    assert all(one[f"tone-{index}.flac"] != other[f"tone-{index}.flac"] for index in range(5))


def test_what_was_interrupted_goes_on(tmp_path: Path) -> None:
    write_conversations(Tones(), tmp_path / "whole", seed=1)
    folder = tmp_path / "halves"
    with pytest.raises(KeyboardInterrupt):
        write_conversations(Interrupted(), folder, seed=1)
    with open(folder / "manifest.jsonl", "ab") as manifest:  # as a killed process leaves it
        manifest.write(b'{"audio": "tone-2.flac", "dura')
    (folder / ".tone-2.flac.999.tmp").write_bytes(b"half")
    source = Tones()
    written = write_conversations(source, folder, seed=1)
    assert source.loaded == [2, 3, 4]
    assert (written.number, written.new) == (5, 3)
    assert contents(folder) == contents(tmp_path / "whole")
    again = Tones()
    assert write_conversations(again, folder, seed=1).new == 0
    assert again.loaded == []
    assert contents(folder) == contents(tmp_path / "whole")


def test_progress_counts_all_conversations(tmp_path: Path) -> None:
    told: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        write_conversations(Interrupted(), tmp_path, seed=1, advance=told.append)
    assert sum(told) == 2
    told.clear()
    write_conversations(Tones(), tmp_path, seed=1, advance=told.append)
    assert sum(told) == 5


def test_what_is_too_loud_is_made_softer_not_clipped(tmp_path: Path) -> None:
    write_conversations(Tones(1, level=0.01), tmp_path / "soft", seed=1)
    write_conversations(Tones(1, level=2.0), tmp_path / "loud", seed=1)
    soft, loud = (soundfile.read(tmp_path / name / "tone-0.flac")[0] for name in ("soft", "loud"))
    assert np.abs(loud).max() == pytest.approx(0.99, abs=1e-3)
    assert np.corrcoef(soft, loud)[0, 1] > 0.9999
    assert np.abs(soft).max() < 0.1, "what isn't too loud keeps its level"


def test_silence_and_no_segments_are_written(tmp_path: Path) -> None:
    class Silence(Tones):
        def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
            return LabelledAudio("silence", np.zeros(100, np.float32), RATE)

    write_conversations(Silence(1), tmp_path, seed=1)
    assert (tmp_path / "reference.rttm").read_text() == ""
    assert CutSet.from_jsonl(tmp_path / "cuts.jsonl").to_eager()[0].supervisions == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    write_conversations(Tones(), tmp_path / "a", seed=1)
    before = contents(tmp_path / "a")
    for source, seed in ((Tones(fingerprint="others"), 1), (Tones(), 2), (Tones(6), 1)):
        with pytest.raises(UserError, match="a contains conversations made with other options"):
            write_conversations(source, tmp_path / "a", seed=seed)
    assert contents(tmp_path / "a") == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    for demand in (require_room, lambda folder: write_conversations(Tones(), folder, seed=1)):
        with pytest.raises(UserError, match="b contains other files"):
            demand(tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match=r"can't be written to .*thesis\.txt"):
        write_conversations(Tones(), tmp_path / "b" / "thesis.txt", seed=1)


def test_room_is_asked_for_before_anything_is_made(tmp_path: Path) -> None:
    require_room(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for wrong in ("file", "file/folder", "x" * 300):
        with pytest.raises(UserError, match="conversations can't be written to"):
            require_room(tmp_path / wrong)
    write_conversations(Tones(), tmp_path / "begun", seed=1)
    before = contents(tmp_path / "begun")
    require_room(tmp_path / "begun")
    assert contents(tmp_path / "begun") == before


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    with locked(tmp_path / ".lock"), pytest.raises(UserError, match="another process is writing"):
        write_conversations(Tones(), tmp_path, seed=1)
