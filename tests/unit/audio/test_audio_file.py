"""Windows of files: the same samples in whichever window they are read, any rate and channels, and clear errors."""

from __future__ import annotations

import contextlib
import itertools
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given
from hypothesis import strategies as st

from tiny_audio import noise, write_audio
from vaak.audio.audio_file import AudioFile, FromStart, read_header, samples_in
from vaak.core.errors import DataError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    path = tmp_path_factory.mktemp("audio") / "a.flac"
    return path, write_audio(path, 7.3)[:, 0]


@given(st.lists(st.integers(0, round(7.3 * 16000)), max_size=6))
def test_pieces_are_the_whole_at_the_same_rate(file, cuts: list[int]):
    path, samples = file
    places = [0, *sorted(cuts), len(samples)]
    with AudioFile(path, 16000) as audio:
        pieces = [audio.samples(first, last) for first, last in itertools.pairwise(places)]
    np.testing.assert_array_equal(np.concatenate(pieces), samples)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_other_rates_are_resampled_and_windows_agree_to_the_bit(tmp_path: Path, rate: int):
    samples = write_audio(tmp_path / "a.wav", 5.37, rate)[:, 0]
    with AudioFile(tmp_path / "a.wav", 16000) as audio:
        whole = audio.read(0, 99)
        assert audio.num_samples == len(whole) == round(len(samples) * 16000 / rate)
        np.testing.assert_allclose(whole, soxr.resample(samples, rate, 16000), atol=1e-6)
        for first, last in ((0, 5), (31990, 32010), (17, 70000), (80000, 10**9)):
            np.testing.assert_array_equal(audio.samples(first, last), whole[first:last])


@given(num_samples=st.integers(1, 3000), rate=st.sampled_from([8000, 11025, 44100, 48000, 16001]))
def test_the_number_of_samples_is_known_without_reading(tmp_path_factory, num_samples: int, rate: int):
    path = tmp_path_factory.mktemp("n") / "a.wav"
    soundfile.write(path, noise(num_samples), rate)
    with AudioFile(path, 16000) as audio:
        assert len(audio.read(0, 10)) == audio.num_samples
        assert audio.duration == num_samples / rate


def test_channels_are_mixed_or_the_first_or_those_asked_for(tmp_path: Path):
    samples = write_audio(tmp_path / "a.wav", 0.05, 16000, channels=3)
    expected: dict[Any, np.ndarray] = {
        "mix": samples.mean(1),
        "first": samples[:, 0],
        (1, 2): samples[:, 1:].mean(1),
        (2,): samples[:, 2],
    }
    for channels, wanted in expected.items():
        with AudioFile(tmp_path / "a.wav", 16000, channels) as audio:
            np.testing.assert_allclose(audio.read(0, 1), wanted, atol=1e-7)
    with pytest.raises(DataError, match=r"a\.wav: no channel 3; the file has 3"):
        AudioFile(tmp_path / "a.wav", 16000, (3,))


@pytest.mark.parametrize(
    ("name", "how"), [("a.mp3", {}), ("a.ogg", {}), ("a.opus", {"format": "OGG", "subtype": "OPUS"})]
)
def test_coded_formats_are_read_from_any_place(tmp_path: Path, name: str, how: dict[str, Any]):
    write_audio(tmp_path / name, 4, 16000, **how)
    with AudioFile(tmp_path / name, 16000) as audio:
        whole = audio.read(0, 4)
        for start, end in ((2.5, 3.5), (0.1, 1.2), (3.9, 9.0)):
            wanted = whole[samples_in(start, 16000) : samples_in(end, 16000)]
            np.testing.assert_allclose(audio.read(start, end), wanted, atol=1e-6)


def test_nothing_is_outside_of_a_file_and_50_ms_are_read(tmp_path: Path):
    samples = write_audio(tmp_path / "short.wav", 0.05)[:, 0]
    with AudioFile(tmp_path / "short.wav", 16000) as audio:
        np.testing.assert_array_equal(audio.read(-3, 3), samples)
        assert len(audio.read(0.05, 1)) == len(audio.read(0.03, 0.02)) == 0


def damaged(folder: Path, fault: str) -> Path:
    """A file with a fault."""
    path = folder / "bad.flac"
    if fault == "empty":
        path.write_bytes(b"")
    elif fault == "other":
        path.write_bytes(b"<html>not found</html>" * 100)
    elif fault == "folder":
        path.mkdir()
    elif fault == "no samples":
        soundfile.write(path, np.zeros(0), 16000, format="WAV")
    elif fault == "cut short":
        write_audio(path, 5)
        path.write_bytes(path.read_bytes()[:60000])
    elif fault == "NaN":
        soundfile.write(path, np.array([0, 0.5, np.nan, 0.5], np.float32), 1000, format="WAV", subtype="FLOAT")
    elif fault == "infinite":
        soundfile.write(path, np.array([0, np.inf], np.float32), 1000, format="WAV", subtype="FLOAT")
    return path


FAULTS = {
    "missing": "can't be read: No such file or directory",
    "folder": "can't be read: Is a directory",
    "empty": r"the file is empty \(0 bytes\); download it again or remove it",
    "other": r"this is not audio that libsndfile can read \(Format not recognised\); convert it to FLAC or WAV",
    "no samples": "this file holds no samples",
    "cut short": r"its header says 80,000 samples \(5\.000 s\), but there are [\d,]+ \([\d.]+ s\): it is truncated",
    "NaN": r"the sample at 0\.002 s is nan, not a number; fix the file",
    "infinite": r"the sample at 0\.001 s is inf, not a number",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_clear_line_with_the_name_of_the_file(tmp_path: Path, fault: str):
    path = damaged(tmp_path, fault)
    with pytest.raises(DataError, match=rf"^.*bad\.flac: {FAULTS[fault]}") as raised, AudioFile(path, 1000) as audio:
        audio.read(0, 99)
    assert "\n" not in str(raised.value)


def test_a_truncated_mp3_whose_header_promises_more_is_noticed(tmp_path: Path):
    write_audio(tmp_path / "a.mp3", 10)
    content = (tmp_path / "a.mp3").read_bytes()
    (tmp_path / "a.mp3").write_bytes(content[: len(content) // 2])
    with pytest.raises(
        DataError, match=r"says 160,000 samples \(10\.000 s\), but there are .* \([45]\.\d+ s\): it is tr"
    ):
        read_header(tmp_path / "a.mp3")


def test_a_truncated_wav_is_noticed(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 2)
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[: len(whole) // 2])
    refusal = r"a\.wav: its header says 32,000 samples \(2\.000 s\), but there are 15,989 \(0\.999 s\): it is truncated"
    with pytest.raises(DataError, match=refusal):
        read_header(tmp_path / "a.wav")


@pytest.mark.parametrize("promise", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_from_a_pipe_promises_too_much_and_is_read(tmp_path: Path, promise: int):
    write_audio(tmp_path / "a.wav", 2)
    whole = (tmp_path / "a.wav").read_bytes()
    place = whole.index(b"data") + 4
    (tmp_path / "a.wav").write_bytes(whole[:place] + struct.pack("<I", promise) + whole[place + 4 :])
    assert read_header(tmp_path / "a.wav").duration == 2


def test_chunks_before_and_behind_the_samples_are_passed_over(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 2)
    whole = (tmp_path / "a.wav").read_bytes()
    chunk = b"LIST" + struct.pack("<I", 3) + b"odd" + b"\0"
    content = whole[12:36] + chunk + whole[whole.index(b"data") :] + chunk
    (tmp_path / "a.wav").write_bytes(b"RIFF" + struct.pack("<I", len(content) + 4) + b"WAVE" + content)
    assert read_header(tmp_path / "a.wav").duration == 2


WINDOWS_OF_THREE_HOURS = """
import resource, sys
import numpy as np, soundfile
from vaak.audio.audio_file import AudioFile
with soundfile.SoundFile(sys.argv[1], "w", 44100, 2, subtype="PCM_16") as file:
    for _ in range(180):
        file.write(np.zeros((44100 * 60, 2), np.float32))
with AudioFile(sys.argv[1], 16000) as audio:
    audio.read(0, 60)  # libraries are loaded, and a window
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert audio.duration == 10800
    for start in range(0, 10800, 600):
        assert len(audio.read(start, start + 60)) == 960000
    assert len(audio.read(10799, 10860)) == 16000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_three_hours_are_read_in_the_memory_of_a_window(tmp_path: Path):
    asked = [sys.executable, "-c", WINDOWS_OF_THREE_HOURS, str(tmp_path / "long.flac")]
    grown = int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert grown < 20_000  # KiB; all of it would be 690,000


COMPRESSED: dict[str, dict[str, Any]] = {
    "a.ogg": {"format": "OGG", "subtype": "VORBIS"},
    "a.opus": {"format": "OGG", "subtype": "OPUS"},
    "a.mp3": {},
    "gsm.wav": {"subtype": "GSM610"},
    "adpcm.wav": {"subtype": "IMA_ADPCM"},
}


@pytest.mark.parametrize("wanted", [16000, 22050])
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_sample_is_the_same_wherever_a_read_begins(name: str, wanted: int, tmp_path: Path):
    write_audio(tmp_path / name, 7.0, **COMPRESSED[name])
    with AudioFile(tmp_path / name, wanted) as file:
        whole = file.samples(0, file.num_samples)
    decoded = soundfile.read(tmp_path / name, dtype="float32")[0]
    if wanted == 16000:
        np.testing.assert_allclose(whole, decoded, rtol=0, atol=1e-7)
    windows = [(5000, 9000), (1000, 3000), (60000, 61000), (30000, 90000), (29999, 30001)]
    with AudioFile(tmp_path / name, wanted) as file:
        for first, last in windows:
            np.testing.assert_array_equal(file.samples(first, last), whole[first:last])
    for first, last in windows:
        with AudioFile(tmp_path / name, wanted) as file:
            np.testing.assert_array_equal(file.samples(first, last), whole[first:last])


def test_a_long_compressed_file_is_decoded_in_bounded_memory(tmp_path: Path, monkeypatch, caplog):
    write_audio(tmp_path / "a.ogg", 12.0, format="OGG", subtype="VORBIS")
    whole = soundfile.read(tmp_path / "a.ogg", dtype="float32")[0]
    monkeypatch.setattr("vaak.audio.audio_file.PIECE", 4000)
    monkeypatch.setattr("vaak.audio.audio_file.KEPT_SAMPLES", 20000)
    monkeypatch.setattr("vaak.audio.audio_file.LONG_WAY", 5)
    with contextlib.closing(FromStart(tmp_path / "a.ogg", lambda frames: frames.mean(1))) as reader:
        for first in [*range(0, 170000, 8000), 9000]:  # forward, in windows that overlap, and back again
            np.testing.assert_array_equal(reader.read(first, first + 16000), whole[first : first + 16000])
            assert reader.last - reader.first <= 20000 + 4000
        assert not caplog.records
        reader.read(150000, 160000)
    assert "decoded from its beginning" in caplog.text
    assert "convert long recordings to FLAC" in caplog.text


@pytest.mark.parametrize("name", ["a.mp3", "gsm.wav"])
def test_a_compressed_file_that_lacks_a_few_milliseconds_is_read_and_said(name: str, tmp_path: Path, caplog):
    write_audio(tmp_path / name, 7.0, **COMPRESSED[name])
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(0.999 * len(content))])
    with AudioFile(tmp_path / name, 16000) as file:
        assert 7.0 - 0.025 < file.duration < 7.0
        assert len(file.read(0.0, 7.0)) == file.num_samples
    assert f"{name}: its header says 112,000 samples (7.000 s), but there are 111," in caplog.text


@pytest.mark.parametrize("part", [0.99, 0.9, 0.3])
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_truncated_compressed_file_is_noticed(name: str, part: float, tmp_path: Path):
    write_audio(tmp_path / name, 7.0, **COMPRESSED[name])
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError, match=rf"{name}: .*truncated"), AudioFile(tmp_path / name, 16000) as file:
        file.read(0.0, 7.0)


def test_ogg_with_something_after_it_is_whole(tmp_path: Path):
    write_audio(tmp_path / "a.ogg", 3.0, format="OGG", subtype="VORBIS")
    content = (tmp_path / "a.ogg").read_bytes()
    (tmp_path / "a.ogg").write_bytes(content + b"TAG" + bytes(125))
    with AudioFile(tmp_path / "a.ogg", 16000) as file:
        assert len(file.read(0.0, 3.0)) == 48000
