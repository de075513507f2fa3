"""Every container and codec that is read has the length and the start that FFmpeg gives it (by PyAV), and no header is
believed.

The files are written by PyAV, too, with a tone, noise and another tone, so that a bit rate that varies does.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from coded_audio import (
    SECONDS,
    TABLE,
    VBR,
    VORBIS_ORDER,
    WITHOUT_HEADER,
    Coded,
    decode,
    lag,
    sounds,
    write_coded,
)
from tiny_audio import noise, write_audio
from vaak.audio.audio_file import AudioFile, read_header
from vaak.audio.config import AudioConfig
from vaak.audio.containers.counting import count_contents
from vaak.audio.cuts.reading import read_cut
from vaak.audio.cuts.recordings import recording_cut
from vaak.core.errors import DataError

QUICK = {(8000, 1), (16000, 2), (44100, 1), (48000, 6)}
CASES = [
    pytest.param(name, rate, channels, marks=[] if (rate, channels) in QUICK else pytest.mark.slow)
    for name, coded in TABLE.items()
    for rate, channels in itertools.product(coded.rates, coded.channels)
]


@pytest.mark.parametrize(("name", "rate", "channels"), CASES)
def test_length_and_start_are_those_of_ffmpeg(name: str, rate: int, channels: int, tmp_path: Path):
    coded = TABLE[name]
    path = tmp_path / f"a.{coded.suffix}"
    write_coded(path, coded, rate, channels)
    expected, decoded_rate = decode(path)
    header = read_header(path)
    assert header.num_channels == len(expected) == channels
    assert header.difference == ""
    assert abs(header.duration - expected.shape[1] / decoded_rate) < 1 / min(header.sampling_rate, 48000)
    for channel in range(channels):
        column = VORBIS_ORDER[channel] if channels == 6 and coded.suffix == "opus" else channel
        with AudioFile(path, decoded_rate, (column,)) as file:
            found = file.samples(0, 10**9)
        assert abs(len(found) - expected.shape[1]) <= decoded_rate / header.sampling_rate
        assert lag(expected[channel], found) == 0
        if header.sampling_rate == decoded_rate:
            assert len(found) == expected.shape[1]
            if coded.codec != "libopus":  # whose decoders may differ
                np.testing.assert_allclose(found, expected[channel], atol=2e-4)


@pytest.mark.parametrize("name", ["webm, opus", "m4a"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path):
    """Browsers send recordings without an ending, and a video's sound is called .mp3."""
    coded = TABLE[name]
    write_coded(tmp_path / f"a.{coded.suffix}", coded, 16000, 1)
    expected = AudioFile(tmp_path / f"a.{coded.suffix}", 16000).read(0, 9)
    for other in ("blob", "a.mp3", "a.wav", "a.webm", "a.m4a"):
        (tmp_path / other).write_bytes((tmp_path / f"a.{coded.suffix}").read_bytes())
        np.testing.assert_array_equal(AudioFile(tmp_path / other, 16000).read(0, 9), expected)


SNDFILE: dict[str, dict[str, Any]] = {
    "vorbis": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3"},
    "flac": {"format": "FLAC", "subtype": "PCM_24"},
    "wav": {"format": "WAV", "subtype": "PCM_24"},
    "wavex": {"format": "WAVEX"},
    "rf64": {"format": "RF64"},
    "mu-law": {"format": "WAV", "subtype": "ULAW"},
    "adpcm": {"format": "WAV", "subtype": "IMA_ADPCM"},
    "w64": {"format": "W64"},
    "aiff": {"format": "AIFF"},
    "au": {"format": "AU"},
    "caf": {"format": "CAF"},
}


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16000, 2), (48000, 1), (44100, 2)])
@pytest.mark.parametrize("name", SNDFILE)
def test_what_libsndfile_wrote_has_the_length_and_start_of_ffmpeg(name: str, rate: int, channels: int, tmp_path: Path):
    if name == "opus" and rate == 44100:
        return  # Opus has no such rate
    seconds = 4.0 if name == "vorbis" else SECONDS  # FFmpeg doesn't cut off the end of a single page of Vorbis
    soundfile.write(tmp_path / "a", sounds(rate, channels, seconds).T, rate, **SNDFILE[name])
    expected, decoded_rate = decode(tmp_path / "a")
    with AudioFile(tmp_path / "a", decoded_rate, "first") as file:
        found = file.samples(0, 10**9)
    assert len(found) == expected.shape[1] or name in ("opus", "adpcm")
    assert abs(len(found) - expected.shape[1]) <= {"opus": decoded_rate / rate, "adpcm": 2048}.get(name, 0)
    assert lag(expected[0], found) == 0


def test_twelve_seconds_of_mp3_without_a_header_are_twelve_seconds(tmp_path: Path):
    coded = Coded("mp3", "libmp3lame", (16000,), (1,), VBR, WITHOUT_HEADER)
    write_coded(tmp_path / "a.mp3", coded, 16000, 1, seconds=12.0)
    assert read_header(tmp_path / "a.mp3").duration == pytest.approx(12.0, abs=0.1)


# WAV and its relatives: what a header may say, and what is there


def wav(tmp_path: Path, edit: Callable[[bytearray, int], bytes | bytearray], **how: Any) -> tuple[Path, np.ndarray]:
    """A WAV of a second at 16 kHz, changed by ``edit``, which gets the place of the samples."""
    samples = write_audio(tmp_path / "a.wav", 1.0, 16000, **how)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    (tmp_path / "b.wav").write_bytes(edit(content, content.index(b"data") + 8))
    return tmp_path / "b.wav", samples


def with_sizes(size: int) -> Callable[[bytearray, int], bytearray]:
    def edit(content: bytearray, start: int) -> bytearray:
        content[4:8] = struct.pack("<I", size if size else 0)
        content[start - 4 : start] = struct.pack("<I", size)
        return content

    return edit


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFF00])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_streamed_wav_is_read_to_its_end(size: int, channels: int, tmp_path: Path):
    path, samples = wav(tmp_path, with_sizes(size), channels=channels)
    assert read_header(path)[:3] == (16000, 16000, channels)
    assert decode(path)[0].shape == (channels, 16000)
    with AudioFile(path, 16000, "first") as file:
        np.testing.assert_allclose(file.samples(0, 10**9), samples[:, 0], atol=2**-15)


def test_a_wav_without_samples_and_with_notes_after_them_is_empty(tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.zeros(0), 16000)
    (tmp_path / "b.wav").write_bytes((tmp_path / "a.wav").read_bytes() + b"LIST" + struct.pack("<I", 4) + b"INFO")
    with pytest.raises(DataError, match="holds no samples"):
        read_header(tmp_path / "b.wav")


@pytest.mark.parametrize(("missing", "there"), [(1, 15999), (2, 15999), (10, 15995), (700, 15650)])
def test_a_wav_that_is_a_little_short_is_read_and_said(missing: int, there: int, tmp_path: Path, caplog):
    path, samples = wav(tmp_path, lambda content, start: content[:-missing])
    header = read_header(path)
    assert (header.said, header.num_samples) == (16000, there)
    with AudioFile(path, 16000) as file:
        np.testing.assert_allclose(file.samples(0, 10**9), samples[:there, 0], atol=2**-15)
    assert f"its header says 16,000 samples (1.000 s), but there are {there:,}" in caplog.text


def test_a_wav_of_which_more_is_missing_is_refused_with_both_numbers(tmp_path: Path):
    path, _ = wav(tmp_path, lambda content, start: content[:-1000])
    with pytest.raises(
        DataError, match=r"says 16,000 samples \(1\.000 s\), but there are 15,500 \(0\.969 s\): it is tr"
    ):
        read_header(path)


def rf64(content: bytearray, start: int, size: int) -> bytes:
    data = content[start:]
    extension = b"ds64" + struct.pack("<IQQQI", 28, len(content) + 28, size, size // 2, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + extension + content[12 : start - 4] + b"\xff\xff\xff\xff" + data


def test_rf64_is_read_by_its_own_length_and_without_one(tmp_path: Path):
    for size in (32000, 2**64 - 1, 0):
        path, samples = wav(tmp_path, functools.partial(rf64, size=size))
        with AudioFile(path, 16000) as file:
            np.testing.assert_allclose(file.samples(0, 10**9), samples[:, 0], atol=2**-15, err_msg=str(size))


def test_chunks_of_odd_length_are_passed_over_with_padding(tmp_path: Path):
    chunk = b"bext" + struct.pack("<I", 603) + bytes(603) + b"\0"
    path, _ = wav(tmp_path, lambda content, start: content[: start - 8] + chunk + content[start - 8 :])
    assert read_header(path).num_samples == 16000


@pytest.mark.parametrize("kind", ["W64", "AIFF", "AU", "CAF", "RF64", "RIFX"])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_other_files_of_samples_are_counted_and_one_cut_short_is_noticed(kind: str, subtype: str, tmp_path: Path):
    how = {"format": "WAV", "endian": "BIG"} if kind == "RIFX" else {"format": kind}
    soundfile.write(tmp_path / "a", noise(16000), 16000, subtype=subtype, **how)
    assert read_header(tmp_path / "a").num_samples == 16000
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(content[:-9000])
    if kind == "CAF":
        return  # libsndfile counts it
    with pytest.raises(DataError, match=r"says 16,000 samples \(1\.000 s\), but there are 1\d,\d+ "):
        read_header(tmp_path / "b")
    (tmp_path / "c").write_bytes(content[:-9])
    with AudioFile(tmp_path / "c", 16000) as file:
        assert len(file.samples(0, 10**9)) == file.num_samples < 16000


# FLAC, MP3, Ogg with headers that say something else


@pytest.mark.parametrize("said", [0, 1000, 2**36 - 1])
@pytest.mark.parametrize("channels", [1, 2])
def test_flac_has_as_many_samples_as_its_frames(said: int, channels: int, tmp_path: Path):
    samples = write_audio(tmp_path / "a.flac", 3.0, 16000, channels=channels)
    content = bytearray((tmp_path / "a.flac").read_bytes())
    packed = int.from_bytes(content[18:26], "big") >> 36 << 36 | said
    content[18:26] = packed.to_bytes(8, "big")
    (tmp_path / "a.flac").write_bytes(content)
    if said > 48000:
        with pytest.raises(
            DataError, match=r"header says 68,719,476,735 samples .*, but there are 48,000 \(3\.000 s\)"
        ):
            read_header(tmp_path / "a.flac")
        return
    assert (read_header(tmp_path / "a.flac").num_samples, count_contents(tmp_path / "a.flac").said) == (
        48000,
        said or None,
    )
    with AudioFile(tmp_path / "a.flac", 16000, "first") as file:
        np.testing.assert_allclose(file.samples(0, 10**9), samples[:, 0], atol=2**-15)


@pytest.mark.parametrize(("factor", "is_refused"), [(0.2, False), (0.9, False), (1.5, True)])
def test_frames_of_mp3_count_whatever_its_header_says(factor: float, is_refused: bool, tmp_path: Path, caplog):
    write_coded(tmp_path / "a.mp3", TABLE["mp3, bit rate varies"], 16000, 1)
    expected = decode(tmp_path / "a.mp3")[0].shape[1]
    content = bytearray((tmp_path / "a.mp3").read_bytes())
    place = next(content.index(name) + 8 for name in (b"Xing", b"Info") if name in content)
    number = struct.unpack(">I", content[place : place + 4])[0]
    content[place : place + 4] = struct.pack(">I", round(number * factor))
    (tmp_path / "b.mp3").write_bytes(content)
    if is_refused:
        with pytest.raises(DataError, match=r"its header says [\d,]+ samples .* it is truncated"):
            read_header(tmp_path / "b.mp3")
        return
    with AudioFile(tmp_path / "b.mp3", 16000) as file:
        found = file.samples(0, 10**9)
    assert expected <= len(found) < expected + 1152, "what the encoder added at the end isn't cut off"
    assert "its header says" in caplog.text


@pytest.mark.parametrize("before", [b"", b"ID3\4\0\0\0\0\2\0" + bytes(256), b"\0" * 700])
@pytest.mark.parametrize("after", [b"", b"TAG" + bytes(125), b"APETAGEX" + bytes(90)])
@pytest.mark.parametrize("name", ["mp3, bit rate varies, no header", "mp3, one bit rate"])
def test_tags_around_mp3_are_no_frames(name: str, before: bytes, after: bytes, tmp_path: Path):
    write_coded(tmp_path / "a.mp3", TABLE[name], 44100, 2)
    content = (tmp_path / "a.mp3").read_bytes()
    (tmp_path / "b.mp3").write_bytes(before + content + after)
    (tmp_path / "a.mp3").rename(tmp_path / "c.mp3")
    with AudioFile(tmp_path / "c.mp3", 44100) as whole, AudioFile(tmp_path / "b.mp3", 44100) as tagged:
        np.testing.assert_array_equal(tagged.samples(0, 10**9), whole.samples(0, 10**9))


def test_a_file_is_counted_once_as_long_as_it_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_coded(tmp_path / "a.mp3", TABLE["mp3, bit rate varies, no header"], 16000, 1)
    first = read_header(tmp_path / "a.mp3")
    monkeypatch.setattr("vaak.audio.containers.mpeg.count_frames", lambda *_: pytest.fail("it was counted again"))
    assert read_header(tmp_path / "a.mp3") == first
    with AudioFile(tmp_path / "a.mp3", 16000) as file:
        assert len(file.samples(0, 10**9)) == first.num_samples


def test_mixed_cuts_are_as_long_as_their_files(tmp_path: Path):
    write_coded(tmp_path / "a.mp3", TABLE["mp3, bit rate varies, no header"], 16000, 1)
    cut = recording_cut("a", tmp_path / "a.mp3", read_header(tmp_path / "a.mp3"))
    padded = cut.pad(duration=3.0)
    samples = read_cut(padded, AudioConfig(sampling_rate=16000)).samples
    assert np.abs(samples[: int(SECONDS * 16000)]).reshape(-1)[-16000 // 10 :].max() > 0.1, "the last tone is there"
