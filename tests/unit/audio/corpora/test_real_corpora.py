"""The real corpora, where they are on disk, load without changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import read_segments
from vaak.audio.cuts.sources import CutSource
from vaak.audio.cuts.store import write_cuts

AUDIO = AudioConfig()
WHOLE: dict[str, Any] = {"train_fraction": 1, "valid_fraction": 0}


def test_ami_excerpts_as_a_folder_a_manifest_and_by_patterns(vaak_data: Callable[[str], Path], tmp_path: Path):
    folder = vaak_data("diarization")
    asked = {
        "folder": DatasetConfig(name="ami", type="folder", train=(str(folder),), **WHOLE),
        "manifest": DatasetConfig(name="ami", type="json", train=(str(folder / "manifest.jsonl"),), **WHOLE),
    }
    found = {
        name: {cut.id: cut for cut in AudioCorpus(dataset, AUDIO).cuts("train")} for name, dataset in asked.items()
    }
    assert len(found["folder"]) == 11
    assert {n: read_segments(c) for n, c in found["folder"].items()} == {
        n: read_segments(c) for n, c in found["manifest"].items()
    }
    patterns: dict[str, Any] = {"train": (str(folder / "audio" / "trn*"),), "valid": (str(folder / "audio" / "dev*"),)}
    there = AudioCorpus(DatasetConfig(name="ami", type="folder", **patterns), AUDIO)
    assert [len(list(there.cuts(split))) for split in there.splits] == [9, 2]
    assert abs(there.statistics["valid"].speech_seconds - 42.59) < 0.01
    source = CutSource(write_cuts(tmp_path, there.cuts("valid")), AUDIO)
    audio = source.load(0, np.random.default_rng(0))
    assert (audio.duration, audio.uem, {s.speaker for s in audio.segments}) == (
        30.0,
        ((0.0, 30.0),),
        {"MEE009", "MEE012"},
    )


def test_read_speech_as_it_is(vaak_data: Callable[[str], Path]):
    folder = vaak_data("read_speech")
    manifest, pool = (str(folder / f"{name}.jsonl") for name in ("manifest", "speaker_pool"))
    own = AudioCorpus(
        DatasetConfig(name="read", type="json", train=(manifest,), test=(manifest,), valid_fraction=0), AUDIO
    )
    assert [len(list(own.cuts(split))) for split in own.splits] == [62, 10]
    by_speaker = AudioCorpus(DatasetConfig(name="pool", type="json", train=(pool, manifest), split_by="speaker"), AUDIO)
    speakers = {
        split: {s.speaker for cut in by_speaker.cuts(split) for s in cut.supervisions} for split in by_speaker.splits
    }
    assert sum(map(len, speakers.values())) == len(set().union(*speakers.values())) == 179
    assert all(len(names) >= 8 for names in speakers.values())
