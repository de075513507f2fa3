"""A cut becomes labelled audio, with its span, channels and segments; contradictions to the manifest are reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, SupervisionSegment
from lhotse.audio import AudioSource

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.reading import read_cut, read_samples
from vaak.audio.segments import Segment
from vaak.core.errors import DataError

AUDIO = AudioConfig()


def said(start: float, duration: float, speaker: str | None = "A", text: str | None = None) -> SupervisionSegment:
    return SupervisionSegment(f"s{start}", "r", start, duration, channel=0, speaker=speaker, text=text)


def cut_of(path: Path, *supervisions: SupervisionSegment):
    cut = Recording.from_file(path).to_cut()
    cut.supervisions = list(supervisions)
    return cut


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_it_is_what_lhotse_reads(tmp_path: Path, rate: int):
    write_audio(tmp_path / "a.flac", 3.21, rate)
    for cut in (cut_of(tmp_path / "a.flac"), cut_of(tmp_path / "a.flac").truncate(offset=0.5, duration=1.7)):
        audio = read_cut(cut, AudioConfig(sampling_rate=rate))
        np.testing.assert_array_equal(audio.samples, cut.load_audio()[0])
        resampled = read_cut(cut, AUDIO)
        assert resampled.sampling_rate == 16000
        assert len(resampled.samples) == cut.resample(16000).num_samples


def test_segments_are_clipped_to_the_cut_and_merged_for_each_speaker(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 5)
    cut = cut_of(
        tmp_path / "a.wav",
        *(
            said(3, 9, "B", "last"),
            said(0.5, 1),
            said(1, 1, "A", "second"),
            said(6, 1, "C"),
            said(-1, 1.25, None, "first"),
        ),
    )
    audio = read_cut(cut, AUDIO)
    assert audio.segments == (Segment(0, 0.25, "unknown"), Segment(0.5, 2, "A"), Segment(3, 5, "B"))
    assert audio.text == "first second last"
    assert audio.uem is None
    cut.custom = {"uem": [[1.0, 2.0], [4.0, 99.0]]}
    assert read_cut(cut, AUDIO).uem == ((1.0, 2.0), (4.0, 5.0))


def test_channels_of_one_file_and_of_several(tmp_path: Path):
    stereo = write_audio(tmp_path / "stereo.wav", 0.4, channels=2)
    cut = cut_of(tmp_path / "stereo.wav")
    np.testing.assert_allclose(read_cut(cut, AUDIO).samples, stereo.mean(1), atol=1e-7)
    np.testing.assert_array_equal(read_cut(cut, AudioConfig(channels="first")).samples, stereo[:, 0])
    right = dataclasses.replace(cut.recording.to_cut(), channel=[1])
    np.testing.assert_array_equal(read_cut(right, AUDIO).samples, stereo[:, 1])
    mono = [write_audio(tmp_path / f"{name}.wav", 0.4, seed=seed)[:, 0] for seed, name in enumerate("abc")]
    sources = [AudioSource("file", [number], str(tmp_path / f"{name}.wav")) for number, name in enumerate("abc")]
    several = Recording("r", sources, 16000, 6400, 0.4).to_cut()
    np.testing.assert_allclose(read_cut(several, AUDIO).samples, np.mean(mono, 0), atol=1e-7)
    np.testing.assert_array_equal(read_cut(several, AudioConfig(channels="first")).samples, mono[0])
    missing = dataclasses.replace(several, channel=[0, 7])
    with pytest.raises(DataError, match="recording r has no channel 7; fix the manifest"):
        read_cut(missing, AUDIO)


def test_mixed_and_transformed_cuts_are_read_by_lhotse(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 1, seed=1)
    write_audio(tmp_path / "b.wav", 2, seed=2)
    first, second = cut_of(tmp_path / "a.wav", said(0, 1)), cut_of(tmp_path / "b.wav", said(0, 2, "B"))
    mixed = first.mix(second, offset_other_by=0.5)
    audio = read_cut(mixed, AUDIO)
    np.testing.assert_allclose(audio.samples, mixed.load_audio()[0], atol=1e-7)
    assert audio.segments == (Segment(0, 1, "A"), Segment(0.5, 2.5, "B"))
    faster = first.perturb_speed(1.25)
    assert len(read_cut(faster, AUDIO).samples) == faster.num_samples == 12800
    np.testing.assert_array_equal(read_samples(mixed, AUDIO, 100, 200), audio.samples[100:200])
    (tmp_path / "b.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.wav: the file is empty"):
        read_cut(mixed, AUDIO)


def test_a_file_that_is_not_what_its_manifest_says(tmp_path: Path):
    path = tmp_path / "a.wav"
    write_audio(path, 3)
    cut = cut_of(path)
    write_audio(path, 3, 8000)
    with pytest.raises(
        DataError, match=r"a\.wav: the file has 8000 Hz, but its manifest says 16000 Hz .*make the manifest"
    ):
        read_cut(cut, AUDIO)
    write_audio(path, 2)
    with pytest.raises(DataError, match=r"a\.wav: the file lasts 2\.000 s, but its manifest says 3\.000 s .*truncated"):
        read_cut(cut, AUDIO)
    with pytest.raises(DataError, match="it is truncated"):
        read_cut(cut.truncate(duration=1), AUDIO)


def test_a_rounding_of_the_length_is_silence(tmp_path: Path):
    samples = write_audio(tmp_path / "a.wav", 0.99)[:, 0]
    recording = dataclasses.replace(Recording.from_file(tmp_path / "a.wav"), num_samples=16000, duration=1.0)
    np.testing.assert_array_equal(read_cut(recording.to_cut(), AUDIO).samples, np.pad(samples, (0, 160)))


def test_a_manifest_runs_no_command(tmp_path: Path):
    source = AudioSource("command", [0], f"touch {tmp_path}/was_run")
    cut = Recording("r", [source], 16000, 16000, 1.0).to_cut()
    with pytest.raises(DataError, match="its audio comes from a command, which is refused"):
        read_cut(cut, AUDIO)
    with pytest.raises(DataError, match="refused"):
        read_cut(cut.perturb_speed(1.1), AUDIO)
    assert not list(tmp_path.iterdir())


def test_numbers_that_are_none_and_cuts_without_audio(tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.array([0, np.nan] * 800, np.float32), 16000, subtype="FLOAT")
    cut = cut_of(tmp_path / "a.wav")
    with pytest.raises(DataError, match=r"a\.wav: the sample at 0\.000 s is nan"):
        read_cut(cut, AUDIO)
    silence = CutSet.from_cuts([cut]).pad(duration=0.5)[0].tracks[1].cut
    assert not read_cut(silence, AUDIO).samples.any()
    with pytest.raises(DataError, match=r"cut .*: it has no recording"):
        read_cut(dataclasses.replace(cut, recording=None), AUDIO)
