"""A label of no length, or outside of its cut, ended a run in a raw AssertionError, or cost its whole recording."""

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
from vaak.audio.cuts.recordings import BAD_LABELS, split_utterances
from vaak.audio.formats.alignments import Interval, write_textgrid

LABELS = [(0.25, 0.75, "ann"), (0.5, 0.5, "bea"), (1.0, 1.5, "bea"), (7.0, 8.0, "ann")]
"""In a recording of two seconds: the second has no length, the last is outside of it."""
Options = dict[str, Any]


def write_lines(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def recording(folder: Path) -> dict[str, Any]:
    write_audio(folder / "a.wav", 2.0)
    source = {"type": "file", "channels": [0], "source": str(folder / "a.wav")}
    return {"id": "a", "sources": [source], "sampling_rate": 16000, "num_samples": 32000, "duration": 2.0}


def supervisions() -> list[dict[str, Any]]:
    about = {"recording_id": "a", "channel": 0, "text": "so"}
    return [
        {"id": f"s{number}", "start": start, "duration": end - start, "speaker": speaker, **about}
        for number, (start, end, speaker) in enumerate(LABELS)
    ]


def cuts(folder: Path) -> tuple[Options, list[str]]:
    cut = {"id": "a", "start": 0, "duration": 2.0, "channel": 0, "type": "MonoCut", "recording": recording(folder)}
    path = write_lines(folder / "cuts.jsonl", [{**cut, "supervisions": supervisions()}])
    return {"type": "cuts", "train": (str(path),)}, [f"{path}:1, supervision s1", f"{path}:1, supervision s3"]


def manifests(folder: Path) -> tuple[Options, list[str]]:
    recordings = write_lines(folder / "recordings.jsonl", [recording(folder)])
    path = write_lines(folder / "supervisions.jsonl", supervisions())
    return {"type": "cuts", "train": (str(recordings), str(path))}, [f"{path}:2", f"{path}:4"]


def segments(folder: Path) -> tuple[Options, list[str]]:
    write_audio(folder / "a.wav", 2.0)
    own = [{"start": start, "end": end, "speaker": speaker, "text": "so"} for start, end, speaker in LABELS]
    path = write_lines(folder / "a.jsonl", [{"audio": "a.wav", "segments": own}])
    return {"type": "json", "train": (str(path),)}, [f"{path}:1, segment 2", f"{path}:1, segment 4"]


def write_rttm(folder: Path) -> Path:
    lines = [f"SPEAKER a 1 {start} {end - start} <NA> <NA> {speaker} <NA> <NA>\n" for start, end, speaker in LABELS]
    (folder / "a.rttm").write_text("".join(lines))
    return folder / "a.rttm"


def rttm_of_a_line(folder: Path) -> tuple[Options, list[str]]:
    write_audio(folder / "a.wav", 2.0)
    path = write_rttm(folder)
    manifest = write_lines(folder / "a.jsonl", [{"audio": "a.wav", "rttm": "a.rttm"}])
    return {"type": "json", "train": (str(manifest),)}, [f"{path}:2", f"{path}:4"]


def rttm_in_a_folder(folder: Path) -> tuple[Options, list[str]]:
    write_audio(folder / "a.wav", 2.0)
    path = write_rttm(folder)
    return {"type": "folder", "train": (str(folder),)}, [f"{path}:2", f"{path}:4"]


def textgrid(folder: Path) -> tuple[Options, list[str]]:
    write_audio(folder / "a.wav", 2.0)
    tiers = {
        "ann": [Interval(0.25, 0.75, "so"), Interval(7.0, 8.0, "out")],
        "marks": [Interval(0.5, 0.5, "click")],
        "bea": [Interval(1.0, 1.5, "so")],
    }
    write_textgrid(folder / "a.TextGrid", tiers, 9.0)
    lines = (folder / "a.TextGrid").read_text().split("\n")
    places = [
        next(number for number, line in enumerate(lines, 1) if start in line)
        for start in ("mark = 0.5", "number = 0.5", "xmin = 7")
        if any(start in line for line in lines)
    ]
    return {"type": "folder", "train": (str(folder),)}, [f"{folder / 'a.TextGrid'}:{place}" for place in places]


def kaldi(folder: Path) -> tuple[Options, list[str]]:
    (folder / "train").mkdir()
    write_audio(folder / "a.wav", 2.0)
    own = [f"u{number} a {start} {end}\n" for number, (start, end, _) in enumerate(LABELS)]
    (folder / "train" / "wav.scp").write_text("a a.wav\n")
    (folder / "train" / "segments").write_text("".join(own))
    (folder / "train" / "utt2spk").write_text("".join(f"u{n} {one[2]}\n" for n, one in enumerate(LABELS)))
    (folder / "train" / "text").write_text("".join(f"u{n} so\n" for n in range(len(LABELS))))
    path = folder / "train" / "segments"
    return {"type": "kaldi", "corpus_dir": str(folder)}, [f"{path}:2", f"{path}:4"]


WRITERS: tuple[Callable[[Path], tuple[Options, list[str]]], ...] = (
    *(cuts, manifests, segments, rttm_of_a_line, rttm_in_a_folder, textgrid, kaldi),
)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_bad_label_costs_itself_is_counted_and_named(
    write: Callable[[Path], tuple[Options, list[str]]], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    options, places = write(tmp_path)
    caplog.set_level(logging.WARNING, "vaak")
    dataset = DatasetConfig(name="data", train_fraction=1.0, valid_fraction=0.0, **options)
    corpus = AudioCorpus(dataset, AudioConfig())
    [cut] = corpus.cuts("train")
    found = sorted((one.start, one.end, one.speaker) for one in cut.supervisions)
    assert found == [(0.25, 0.75, "ann"), (1.0, 1.5, "bea")]
    assert len(list(split_utterances(cut))) == 2
    assert corpus.statistics["train"].remarks[BAD_LABELS] == 2
    assert len(places) == 2
    for place, what in zip(places, ("has no length", "is outside of its recording (2.00 s)"), strict=True):
        assert any(message.startswith(f"{place}: left out: ") and what in message for message in caplog.messages)
    for _ in corpus.cuts("train"):  # counted each time, named once
        pass
    assert sum("left out: " in message for message in caplog.messages) == 2


def test_of_many_bad_labels_the_first_are_named_and_all_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "vaak")
    write_audio(tmp_path / "a.wav", 2.0)
    lines = ["SPEAKER a 1 0 1 <NA> <NA> ann <NA> <NA>\n", *["SPEAKER a 1 1 0 <NA> <NA> ann <NA> <NA>\n"] * 100]
    (tmp_path / "a.rttm").write_text("".join(lines))
    corpus = AudioCorpus(
        DatasetConfig(name="data", type="folder", train=(str(tmp_path),), train_fraction=1.0, valid_fraction=0.0),
        AudioConfig(),
    )
    [_] = corpus.cuts("train")
    assert corpus.statistics["train"].remarks[BAD_LABELS] == 100
    assert len(caplog.messages) == 21
    assert "further labels of this file are left out" in caplog.messages[-1]
