"""Channels are examined before they are averaged; anything odd is reported where they are read, and by
``vaak data check``, as is what headers and manifests say that isn't so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tiny_audio import noise
from vaak.audio.audio_file import AudioFile, read_header
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.findings import cut_findings
from vaak.audio.cuts.reading import read_cut
from vaak.audio.cuts.recordings import recording_cut
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.core.errors import DataError

RATE = 16000
SOUND = noise(3 * RATE)[:, 0]


def write(path: Path, *channels: np.ndarray, subtype: str = "FLOAT") -> Path:
    soundfile.write(path, np.stack(channels, axis=1), RATE, subtype=subtype)
    return path


def stored(folder: Path, path: Path, **changed: Any) -> CutStore:
    cut = recording_cut("a", path, read_header(path))
    cut.recording = dataclasses.replace(cut.recording, **changed)
    cut.duration = cut.recording.duration
    return write_cuts(folder / "store", [cut])


def findings(folder: Path, path: Path, **changed: Any) -> dict[str, str]:
    """Return the messages of ``data check`` by kind of finding."""
    store = stored(folder, path, **changed)
    return {one.kind: one.message for one in cut_findings(store, AudioConfig(sampling_rate=RATE))}


ZEROS = np.zeros_like(SOUND)
ODD = {
    "silent channel": ((SOUND, ZEROS), "channel 2 of 2 is silent, so the mean of all is -6 dB quieter"),
    "an offset in a channel": ((SOUND, ZEROS + 0.2), "channel 2 of 2 is silent"),
    "inverted": ((SOUND, -SOUND), "its 2 channels cancel: their mean has 0.0% of their power"),
    "inverted and quieter": ((SOUND, -0.9 * SOUND), "its 2 channels cancel: their mean has 0.3% of their power"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_channels_are_named_where_they_are_averaged(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    channels, expected = ODD[name]
    path = write(tmp_path / "a.wav", *channels)
    for _ in range(2):
        with AudioFile(path, RATE) as file:
            file.read(0, 3)
    assert [record.getMessage() for record in caplog.records if expected in record.getMessage()] != []
    assert len(caplog.records) == 1, "once for a file"
    caplog.clear()
    with AudioFile(path, RATE, "first") as file:
        file.read(0, 3)
    assert not caplog.records
    assert any(expected in message for message in findings(tmp_path, path).values())


@pytest.mark.parametrize("number", [2, 6])
def test_channels_that_differ_or_are_the_same_are_not_odd(number: int, tmp_path: Path, caplog):
    for channels in (noise(3 * RATE, number).T, [SOUND] * number):
        path = write(tmp_path / "a.wav", *channels)
        with AudioFile(path, RATE) as file:
            file.read(0, 3)
    assert not caplog.records
    assert findings(tmp_path, path) == {}


@pytest.mark.parametrize(
    ("scale", "bits"), [(32768, "16 bits, saved as floats; divide them by 32,768"), (128, "8 bits")]
)
def test_whole_numbers_saved_as_floats_are_refused_by_name(scale: int, bits: str, tmp_path: Path):
    path = write(tmp_path / "a.wav", SOUND / np.abs(SOUND).max() * 0.4 * scale)
    with pytest.raises(DataError, match=rf"a\.wav: a sample is [\d,]+, where 1 is full scale: .* {bits}"):
        read_cut(stored(tmp_path, path)[0], AudioConfig(sampling_rate=RATE))


def test_an_offset_is_no_sound_and_what_is_off_centre_or_too_loud_is_said(tmp_path: Path):
    assert findings(tmp_path, write(tmp_path / "a.wav", ZEROS + 0.1)) == {
        "silent": "all samples are about 0.100: an offset, without any sound; remove it, or record it again"
    }
    assert set(findings(tmp_path, write(tmp_path / "b.wav", SOUND + 0.2))) == {"offset"}
    assert "10.0" in findings(tmp_path, write(tmp_path / "c.wav", SOUND / SOUND.max() * 10))["loud"]
    assert findings(tmp_path, write(tmp_path / "d.wav", SOUND, subtype="PCM_16")) == {}


def test_what_a_header_or_a_manifest_says_is_compared_with_the_file(tmp_path: Path, caplog):
    path = write(tmp_path / "a.wav", SOUND, subtype="PCM_16")
    path.write_bytes(path.read_bytes()[:-20])
    expected = "its header says 48,000 samples (3.000 s), but there are 47,990 (2.999 s)"
    assert findings(tmp_path, path) == {"length": expected}
    shorter = {"duration": 2.0, "num_samples": 2 * RATE}
    whole = write(tmp_path / "b.wav", SOUND, SOUND, subtype="PCM_16")
    found = findings(tmp_path, whole, **shorter)
    assert found["length"].startswith("the file lasts 3.000 s, but its manifest says 2.000 s")
    read_cut(stored(tmp_path, whole, **shorter)[0], AudioConfig(sampling_rate=RATE))
    assert "b.wav: the file lasts 3.000 s, but its manifest says 2.000 s" in caplog.text
