"""Built-in voices: they differ, their descriptions are true, and they are made once."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut
from lhotse.qa import validate

from folders import contents
from vaak.audio.config import DatasetConfig
from vaak.audio.corpora import voices
from vaak.audio.corpora.voices import LANGUAGES, VARIANTS, make_voices, utter, voice_cuts
from vaak.audio.espeak import EspeakSpeech, speak
from vaak.core.errors import UserError

NUM_VOICES, NUM_SENTENCES = 12, 6


def dataset(**options: object) -> DatasetConfig:
    small = {"num_voices": NUM_VOICES, "num_sentences": NUM_SENTENCES}
    return DatasetConfig.model_validate({"name": "voices", "type": "voices", **small, **options})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MonoCut]]:
    folder = tmp_path_factory.mktemp("voices")
    return folder, list(voice_cuts(dataset(), folder))


def make_samples(cut: MonoCut) -> np.ndarray:
    return soundfile.read(cut.recording.sources[0].source)[0]


def decibels(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(samples)) + 1e-12))


# ── voices ──


def test_voices_are_spread_and_no_two_alike() -> None:
    made = make_voices(184, seed=3)
    assert len({voice.name for voice in made}) == 184
    assert len({(voice.language, voice.variant) for voice in made}) == len(LANGUAGES) * len(VARIANTS) == 184
    few = make_voices(69, seed=3)
    for one, other in combinations(few, 2):
        if one.variant == other.variant:
            assert one.language != other.language
            assert abs(one.pitch - other.pitch) >= 8
    assert all(20 <= voice.pitch <= 90 and 140 <= voice.rate <= 210 for voice in few)
    assert max(v.size for v in few) / min(v.size for v in few) > 1.25


def test_voices_are_a_function_of_number_and_seed() -> None:
    assert make_voices(30, 1) == make_voices(30, 1)
    assert make_voices(30, 1) != make_voices(30, 2)


def test_every_variant_is_one_of_the_synthesiser_and_speaks() -> None:
    """espeak-ng takes an unknown variant for none, without a word."""
    import espeakng_loader

    there = os.listdir(Path(espeakng_loader.get_data_path()) / "voices" / "!v")
    assert set(VARIANTS) <= set(there)
    for voice in make_voices(len(VARIANTS), 0):
        spoken = utter(voice, "Good morning.")
        assert [word.label for word in spoken.words] == ["Good", "morning"]
        assert np.isfinite(spoken.samples).all()
        assert np.abs(spoken.samples).max() < 1


def median_pitch(samples: np.ndarray, sampling_rate: int = 16_000) -> float:
    """Hz, by autocorrelation over frames of 64 ms."""
    size, least, most = 1024, sampling_rate // 500, sampling_rate // 60
    found = []
    for start in range(0, len(samples) - size, 320):
        frame = samples[start : start + size] - samples[start : start + size].mean()
        if np.sqrt(np.mean(frame**2)) < 0.03:
            continue
        correlation = np.fft.irfft(np.abs(np.fft.rfft(frame, 4 * size)) ** 2)[:size]
        correlation = correlation / correlation[0] / (1 - np.arange(size) / size)
        best = least + int(np.argmax(correlation[least:most]))
        if correlation[best] > 0.6:
            found.append(sampling_rate / best)
    return float(np.median(found))


def timbre(samples: np.ndarray) -> np.ndarray:
    """Mean log spectrum of the loud frames in 64 bands, and six times the octave of the pitch."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, 512)[::160] * np.hanning(512)
    power = (np.abs(np.fft.rfft(frames))[:, :256] ** 2).reshape(len(frames), 64, 4).mean(2)
    bands = np.log(power[power.sum(1) > 0.1 * np.median(power.sum(1))] + 1e-6).mean(0)
    return np.append(bands - bands.mean(), 6 * np.log2(median_pitch(samples)))


@pytest.mark.slow
def test_a_voice_is_known_by_its_other_sentences(made: tuple[Path, list[MonoCut]]) -> None:
    """The nearest mean of half of each voice's sentences names the speaker of the other half; and pitches differ."""
    features = np.array([timbre(make_samples(cut)) for cut in made[1]]).reshape(NUM_VOICES, NUM_SENTENCES, -1)
    known, asked = np.split(features, 2, axis=1)
    spread = known.std(axis=1).mean(axis=0)
    distances = (((asked[:, :, None] - known.mean(axis=1)) / spread) ** 2).sum(-1)
    assert (distances.argmin(-1) == np.arange(NUM_VOICES)[:, None]).mean() > 0.9
    pitches = 2 ** (features[..., -1].mean(axis=1) / 6)
    assert pitches.max() / pitches.min() > 2


# ── their descriptions are true ──


def test_cuts_say_who_speaks_what_and_lhotse_takes_them(made: tuple[Path, list[MonoCut]]) -> None:
    cuts = made[1]
    assert len({cut.id for cut in cuts}) == len(cuts) == NUM_VOICES * NUM_SENTENCES
    assert {cut.supervisions[0].speaker for cut in cuts} == {voice.name for voice in make_voices(NUM_VOICES, 0)}
    for cut in cuts:
        validate(cut, read_data=True)
        supervision = cut.supervisions[0]
        words = " ".join(item.symbol for item in supervision.alignment["word"])
        assert words == supervision.text.rstrip(".?")
        info = soundfile.info(cut.recording.sources[0].source)
        assert (info.samplerate, info.subtype, info.frames) == (16_000, "PCM_16", cut.num_samples)


def test_alignments_fill_the_speech(made: tuple[Path, list[MonoCut]]) -> None:
    for cut in made[1]:
        supervision = cut.supervisions[0]
        for kind in ("word", "phone"):
            items = supervision.alignment[kind]
            assert items[0].start == supervision.start
            assert items[-1].end == pytest.approx(supervision.end)
            assert all(item.duration > 0 for item in items)
            assert all(a.end <= b.start + 2e-5 for a, b in pairwise(items))
        starts = {item.start for item in supervision.alignment["phone"]}
        assert {item.start for item in supervision.alignment["word"]} <= starts


def test_speech_is_where_the_cuts_say_and_at_one_level(made: tuple[Path, list[MonoCut]]) -> None:
    """Sound begins and ends with the supervision to some hundredths of a second, whatever the voice's size."""
    for cut in made[1]:
        samples, supervision = make_samples(cut), cut.supervisions[0]
        first, last = round(supervision.start * 16_000), round(supervision.end * 16_000)
        speech = decibels(samples[first:last])
        assert -28 < speech < -24
        assert decibels(samples[: first - 160]) < speech - 50
        assert decibels(samples[last + 800 :]) < speech - 20  # what an echo leaves
        assert decibels(samples[first : first + 2000]) > speech - 30
        assert decibels(samples[last - 2000 : last]) > speech - 30
        for item in supervision.alignment["word"]:
            assert decibels(samples[round(item.start * 16_000) : round(item.end * 16_000)]) > speech - 20, item


# ── made once ──


@pytest.mark.slow
def test_they_are_the_same_in_another_process_and_order(made: tuple[Path, list[MonoCut]], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vaak.audio.espeak import speak; "
        "from vaak.audio.config import DatasetConfig; from vaak.audio.corpora.voices import voice_cuts; "
        "speak('something before', 'en+f5'); "
        f"list(voice_cuts(DatasetConfig(name='v', type='voices', num_voices={NUM_VOICES}, "
        f"num_sentences={NUM_SENTENCES}), Path(sys.argv[1])))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert contents(tmp_path) == contents(made[0])


def test_they_are_made_once_and_the_same_in_another_order(made: tuple[Path, list[MonoCut]], tmp_path: Path) -> None:
    folder, cuts = made
    speak("something before", "en+f5")
    list(voice_cuts(dataset(), tmp_path))
    assert contents(tmp_path) == contents(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = list(voice_cuts(dataset(), folder))
    assert [cut.to_dict() for cut in again] == [cut.to_dict() for cut in cuts]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
def test_an_interrupted_making_goes_on(
    made: tuple[Path, list[MonoCut]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".voice-001-0123.999.tmp"
    left.mkdir()
    (left / "000.flac").write_bytes(b"half")
    said: list[str] = []

    def dying(voice: voices.Voice, text: str) -> EspeakSpeech:
        if len(said) == 15:
            raise KeyboardInterrupt
        said.append(voice.name)
        return utter(voice, text)

    monkeypatch.setattr(voices, "utter", dying)
    with pytest.raises(KeyboardInterrupt):
        list(voice_cuts(dataset(), tmp_path))
    whole = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert len(whole) == 2, "the third voice was not whole"
    monkeypatch.setattr(voices, "utter", lambda voice, text: said.append(voice.name) or utter(voice, text))
    list(voice_cuts(dataset(), tmp_path))
    assert len(said) == 15 + 10 * NUM_SENTENCES, "the two that were there are not spoken twice"
    assert contents(tmp_path) == contents(made[0])


def test_other_options_make_other_files_and_leave_these(tmp_path: Path) -> None:
    few = {"num_voices": 2, "num_sentences": 2}
    first = list(voice_cuts(dataset(**few), tmp_path))
    other = list(voice_cuts(dataset(**few, seed=1), tmp_path))
    assert {c.supervisions[0].text for c in first} != {c.supervisions[0].text for c in other}
    files = {cut.recording.sources[0].source for cut in first + other}
    assert len(files) == 8
    assert [c.to_dict() for c in voice_cuts(dataset(**few), tmp_path)] == [c.to_dict() for c in first]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"voices can't be written to .*file"):
        next(voice_cuts(dataset(), tmp_path / "file"))
