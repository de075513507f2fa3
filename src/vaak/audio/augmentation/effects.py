"""Effects on speech: another speed, a room, noise, a codec. Each is a function of samples and a generator.

Speed     pitch changes with it, as on a tape. Source: Ko et al. 2015, "Audio Augmentation for Speech Recognition"
Codecs    libsndfile encodes and decodes in memory: mulaw, alaw (8 kHz; ITU-T G.711 (1988)), opus, mp3, vorbis; and
          FFmpeg's libopus, where PyAV is installed: opus_fast, the same bit rates in two fifths of the time
Rooms     a random box: first reflections by the image-source method, after at most 50 ms decaying noise of their power,
          so a response costs a millisecond, however long; walls follow Eyring's formula, and the reverberation time
          measured (-5 to -35 dB) is within 10 % of that requested from 0.15 s on, within 20 % below.
          Source: Allen and Berkley 1979, "Image method for efficiently simulating small-room acoustics"; the tail:
          Lehmann and Johansson 2010, "Diffuse reverberation model for efficient image-source simulation …"
Noise     coloured, babble of voices, or from files, at a level relative to the active parts of speech
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.core.errors import DataError, MissingPackageError, UserError, optional_import

if TYPE_CHECKING:
    from vaak.audio.config import NoiseConfig


def at_speed(samples: np.ndarray, factor: float) -> np.ndarray:
    """``samples`` (time,), ``factor`` times as fast and as high: (round(time / factor),), float32.

    What was at second ``t`` is at ``t / factor``. Frequencies above half the rate are filtered out.
    """
    samples = np.asarray(samples, dtype=np.float32)
    num_samples = round(len(samples) / factor)
    faster = resampled(samples, factor, 1.0)[:num_samples]
    return np.pad(faster, (0, num_samples - len(faster)))


def resampled(samples: np.ndarray, rate: float, new_rate: float) -> np.ndarray:
    """``samples`` (time,) resampled from one rate in Hz to another, without delay; the length is right to a sample."""
    if rate == new_rate or not len(samples):
        return samples
    with optional_import("resampling requires soxr", "audio"):
        import soxr
    resampled: np.ndarray = soxr.resample(samples, rate, new_rate)
    return resampled


# libsndfile's container and coding of each codec.
CODINGS = {
    "mulaw": ("WAV", "ULAW"),
    "alaw": ("WAV", "ALAW"),
    "opus": ("OGG", "OPUS"),
    "vorbis": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
# The sampling rates in Hz at which a codec works; audio at another rate goes through the next higher one.
RATES = {
    "mulaw": (8000,),
    "alaw": (8000,),
    "opus": OPUS_RATES,
    "opus_fast": OPUS_RATES,
    "vorbis": (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000),
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
}
# Shorter audio is coded with silence after it: libsndfile can't read the shortest Opus files.
LEAST_SECONDS = 0.1
# libsndfile's compression level: 0 is the best quality, 1 the smallest file.
COARSENESS = (0.7, 0.99)


# The least of libopus at which it still tells speech from music, and so chooses the codings that it chooses at its
# usual 9: below, those of 16 to 45 kbit/s are other ones, with less distortion.
OPUS_COMPLEXITY = 7
# What libopus decodes to in FFmpeg, whatever the rate of its input.
OPUS_DECODED_RATE = 48000
# Of a second.
OPUS_FRAMES = 50


def coded(samples: np.ndarray, sampling_rate: int, codec: str, rng: np.random.Generator) -> np.ndarray:
    """``samples`` (time,) after ``codec``, of the same length, float32. The quality is random.

    Raises UserError if the installed libraries lack the codec.
    """
    coarseness = rng.uniform(*COARSENESS)
    if not len(samples):
        return samples
    rate = next((rate for rate in RATES[codec] if rate >= sampling_rate), RATES[codec][-1])
    # Codecs clip at ±1, so scale louder audio down for them, and back up afterwards.
    loudness = np.float32(max(1.0, float(np.abs(samples).max())))
    carried = resampled(samples / loudness, sampling_rate, rate)
    carried = np.pad(carried, (0, max(0, round(LEAST_SECONDS * rate) - len(carried))))
    if codec == "opus_fast":
        decoded = _coded_by_libopus(carried, rate, coarseness)
    else:
        decoded = _coded_by_libsndfile(carried, rate, codec, coarseness)
    # Encoders pad to whole blocks and resampling rounds: restore the length.
    restored = resampled(decoded, rate, sampling_rate)[: len(samples)] * loudness
    return np.pad(restored, (0, len(samples) - len(restored))).astype(np.float32, copy=False)


def _coded_by_libsndfile(samples: np.ndarray, rate: int, codec: str, coarseness: float) -> np.ndarray:
    with optional_import("codecs require soundfile", "audio"):
        import soundfile
    container, coding = CODINGS[codec]
    if not soundfile.check_format(container, coding):
        raise UserError(
            f"libsndfile {soundfile.__libsndfile_version__} lacks the codec {codec}: pip install -U soundfile, or "
            "remove it from augmentation.codecs"
        )
    companded = codec in ("mulaw", "alaw")
    # From 16 bits, as in G.711: given floats, libsndfile rounds by half a step.
    if companded:
        samples = np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)
    memory, level = io.BytesIO(), None if companded else coarseness
    with soundfile.SoundFile(memory, "w", rate, 1, coding, format=container, compression_level=level) as file:
        # Write second by second: libsndfile crashes the process on half an hour of Vorbis at once.
        for first in range(0, len(samples), rate):
            file.write(samples[first : first + rate])
    memory.seek(0)
    decoded: np.ndarray = soundfile.read(memory, dtype="float32")[0]
    return decoded


def _coded_by_libopus(samples: np.ndarray, rate: int, coarseness: float) -> np.ndarray:
    """``samples`` at one of ``OPUS_RATES``, coded frame by frame, without a container around them."""
    with optional_import("the codec opus_fast requires PyAV", "m4a"):
        import av
    try:
        encoder: Any = av.CodecContext.create("libopus", "w")
        decoder: Any = av.CodecContext.create("libopus", "r")
    except av.FFmpegError as error:
        raise MissingPackageError(
            "this PyAV's FFmpeg lacks the codec opus_fast (libopus): pip install -U av, or write opus in "
            "augmentation.codecs"
        ) from error
    encoder.sample_rate, encoder.layout, encoder.format = rate, "mono", "flt"
    # The bit rate that libsndfile makes of its compression level.
    encoder.bit_rate = round(6000 + 250000 * (1 - coarseness))
    encoder.options = {"compression_level": str(OPUS_COMPLEXITY)}
    encoder.open()
    # It gives 16 bits otherwise.
    decoder.options, decoder.extradata = {"request_sample_fmt": "flt"}, encoder.extradata
    size = rate // OPUS_FRAMES
    # Whole frames, and one more for what the encoder looks ahead.
    padded = np.pad(samples.astype(np.float32, copy=False), (0, -len(samples) % size + size))
    packets = []
    for first in range(0, len(padded), size):
        frame = av.AudioFrame.from_ndarray(padded[None, first : first + size], format="flt", layout="mono")
        frame.sample_rate, frame.pts = rate, first
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    decoded = np.concatenate([frame.to_ndarray()[0] for packet in packets for frame in decoder.decode(packet)])
    if decoded.dtype == np.int16:
        # Of an FFmpeg whose decoder has no choice.
        decoded = decoded / np.float32(32768)
    # There is nothing above half of ``rate``: the encoder has never had it.
    return np.ascontiguousarray(decoded[:: OPUS_DECODED_RATE // rate])


# Metres per second.
SPEED_OF_SOUND = 343.0
# Length, width and height in metres.
SMALLEST_ROOM = (3.0, 3.0, 2.4)
LARGEST_ROOM = (8.0, 7.0, 3.5)
# Metres from the walls to the nearest voice or microphone.
FROM_WALLS = 0.5
# Metres from the microphone to the nearest voice.
FROM_MICROPHONE = 0.5
# Images up to here at most, the noise of the tail after it; rooms of this size mix within 15 ms.
EARLY_SECONDS = 0.05
# As a part of the reverberation time, at most: later images of a box decay more slowly than Eyring's formula says.
EARLY_PART = 1 / 6
# Samples on each side of an image's arrival.
HALF_SINC = 16


class Placement(NamedTuple):
    """A voice and a microphone in a room of ``size`` (length, width, height), in metres from one of its corners."""

    size: np.ndarray
    microphone: np.ndarray
    voice: np.ndarray

    @property
    def distance(self) -> float:
        return float(np.linalg.norm(self.voice - self.microphone))


def room_responses(num_sources: int, sampling_rate: int, t60: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Impulse responses ``(t60 * sampling_rate,)`` of a random room, one microphone and ``num_sources`` voices.

    They are float32; ``t60`` is the reverberation time in seconds. The direct sound is at sample 0 with amplitude 1, so
    speech keeps its time. Differs: a wall inverts the sign, so that images don't add up to a rumble at 0 Hz,
    which Allen and Berkley filter out.
    """
    size = rng.uniform(SMALLEST_ROOM, LARGEST_ROOM)
    microphone = rng.uniform(FROM_WALLS, size - FROM_WALLS)
    voices: list[np.ndarray] = []
    while len(voices) < num_sources:
        voice = rng.uniform(FROM_WALLS, size - FROM_WALLS)
        if np.linalg.norm(voice - microphone) >= FROM_MICROPHONE:
            voices.append(voice)
    return [_response(Placement(size, microphone, voice), t60, sampling_rate, rng) for voice in voices]


def reverberated(samples: np.ndarray, response: np.ndarray) -> np.ndarray:
    """``samples`` (time,) with the reverberation of ``response``, cut to the same length, float32.

    Their level stays about the same: the response is scaled to energy 1. Otherwise a voice far from the microphone, of
    which more comes from the walls than directly, would be louder.
    """
    from scipy import fft

    if not len(samples):
        return samples
    response = response / np.sqrt(np.sum(np.square(response)))
    size = fft.next_fast_len(len(samples) + len(response) - 1, real=True)
    spectrum = fft.rfft(samples, size) * fft.rfft(response, size)
    return np.asarray(fft.irfft(spectrum, size)[: len(samples)], dtype=np.float32)


def reflection(size: np.ndarray, t60: float) -> float:
    """The fraction of the amplitude that each wall reflects, for a box of ``size`` in metres, by Eyring's formula.

    Source: Eyring 1930, "Reverberation time in 'dead' rooms".
    """
    length, width, height = size
    volume, surface = np.prod(size), 2 * (length * width + width * height + height * length)
    return float(np.exp(-12 * np.log(10) * volume / (SPEED_OF_SOUND * surface * t60)))


def _response(placement: Placement, t60: float, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return the response of one voice: its images up to a time, then noise of the power that they would have."""
    early_seconds = min(EARLY_SECONDS, EARLY_PART * t60)
    response = np.zeros(max(round(t60 * sampling_rate), 1))
    early = min(max(round(early_seconds * sampling_rate), 1), len(response))
    # The direct sound is at sample 0 with amplitude 1: delays and amplitudes of images are relative to it.
    distances, walls = images(placement, placement.distance + early_seconds * SPEED_OF_SOUND)
    amplitudes = (-reflection(placement.size, t60)) ** walls * placement.distance / distances
    # an impulse for each image, at a sample or between two, by a windowed sinc (Peterson 1986, "Simulating the
    # response of multiple microphones to a single acoustic source in a reverberant room")
    delays = (distances - placement.distance) / SPEED_OF_SOUND * sampling_rate
    taps = np.round(delays).astype(int)[:, None] + np.arange(-HALF_SINC, HALF_SINC + 1)
    apart = taps - delays[:, None]
    values = np.sinc(apart) * (0.5 + 0.5 * np.cos(np.pi * apart / (HALF_SINC + 1))) * amplitudes[:, None]
    inside = (taps >= 0) & (taps < early)
    response[:early] += np.bincount(taps[inside], values[inside], minlength=early)
    times = np.arange(early, len(response)) / sampling_rate + placement.distance / SPEED_OF_SOUND
    # At time t, 4πc³t²/V images arrive per second, each attenuated by distance and by 60 dB per ``t60``. Their signs
    # are taken as random, so their powers add up.
    images_per_sample = 4 * np.pi * SPEED_OF_SOUND**3 * times**2 / (np.prod(placement.size) * sampling_rate)
    power_of_image = (placement.distance / (SPEED_OF_SOUND * times)) ** 2 * 10 ** (-6 * times / t60)
    response[early:] = np.sqrt(images_per_sample * power_of_image) * rng.standard_normal(len(times))
    return response.astype(np.float32)


def images(placement: Placement, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Distance in metres and number of walls of each image of the voice within ``reach`` metres, itself included."""
    squares, walls = np.zeros(1), np.zeros(1, dtype=int)
    for size, ear, mouth in zip(placement.size, placement.microphone, placement.voice, strict=True):
        rounds = np.arange(-int(reach / (2 * size)) - 1, int(reach / (2 * size)) + 2)
        offsets = np.concatenate([2 * rounds * size + mouth - ear, 2 * rounds * size - mouth - ear])
        met = np.concatenate([2 * np.abs(rounds), np.abs(2 * rounds - 1)])
        squares = np.add.outer(squares, offsets**2).ravel()
        walls = np.add.outer(walls, met).ravel()
        # Prune after each axis: sums of squares only grow, so most images are gone before the next axis multiplies
        # them.
        near = squares <= reach**2
        squares, walls = squares[near], walls[near]
    return np.sqrt(squares), walls


# Coloured noise is flat below: a slope down to 0 Hz would put all power at inaudible frequencies.
FLAT_BELOW = 50 / 16000
# Samples: 20 ms at 16 kHz.
ACTIVE_BLOCK = 320
# A block is active if it is less than this below the loudest one.
ACTIVE_DECIBELS = 30
# Fewer voices are talkers that a listener can follow; more sound like noise.
BABBLE_VOICES = (3, 7)
SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph"}


def coloured_noise(num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Noise ``(num_samples,)`` of power 1 whose power falls as ``frequency ** -slope``, float32.

    The slope is drawn between 0 (white) and 2 (brown).
    """
    from scipy import fft

    slope = rng.uniform(0, 2)
    size = fft.next_fast_len(max(num_samples, 2), real=True)
    bins = size // 2 + 1
    spectrum = rng.standard_normal(2 * bins, dtype=np.float32).view(np.complex64)
    frequencies = np.maximum(np.arange(bins) / size, FLAT_BELOW)
    spectrum *= (frequencies ** (-slope / 2)).astype(np.float32)
    spectrum[0] = 0
    return _to_unit_power(fft.irfft(spectrum, size)[:num_samples])


def babble(voices: Callable[[], np.ndarray], num_samples: int, num_voices: int, rng: np.random.Generator) -> np.ndarray:
    """Several voices at once ``(num_samples,)``, of power 1, float32.

    ``voices()`` gives the samples of another utterance. All voices are equally loud; each starts at a random place
    and is repeated if it is short.
    """
    total = np.zeros(num_samples, dtype=np.float32)
    for _ in range(num_voices):
        voice = voices()
        level = np.sqrt(active_power(voice))
        if level > 0:
            total += _loop(voice, int(rng.integers(len(voice))), num_samples) / level
    return _to_unit_power(total)


def file_noise(folder: str | Path, num_samples: int, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random section ``(num_samples,)`` of a random recording of ``folder``, at its original level, float32.

    Recordings are searched recursively; a short one is repeated. Raises DataError, naming the file.
    """
    paths = _recordings(str(folder))
    path, place = paths[int(rng.integers(len(paths)))], rng.random()
    with AudioFile(path, sampling_rate) as file:
        first = int(place * max(file.num_samples - num_samples + 1, 1))
        samples = file.samples(first, first + num_samples)
    return _loop(samples, int(place * len(samples)) if len(samples) < num_samples else 0, num_samples)


def drawn_noise(
    config: NoiseConfig,
    num_samples: int,
    sampling_rate: int,
    rng: np.random.Generator,
    voices: Callable[[], np.ndarray] | None = None,
) -> np.ndarray:
    """Noise ``(num_samples,)`` of the type in ``config``; babble is made of ``voices``.

    ``voices`` gives samples ``(time,)`` of one speaker, another one each time; ``sampling_rate`` in Hz is that of the
    result, and ``rng`` draws all that is random.
    """
    if config.type == "coloured":
        return coloured_noise(num_samples, rng)
    if config.type == "files":
        # Checked by the config.
        assert config.folder is not None
        return file_noise(config.folder, num_samples, sampling_rate, rng)
    if voices is None:
        raise UserError("noise of type babble requires utterances of single speakers; use coloured or files here")
    return babble(voices, num_samples, int(rng.integers(*BABBLE_VOICES, endpoint=True)), rng)


def at_snr(speech: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """``speech`` (time,) plus ``noise`` (time,) at a signal-to-noise ratio of ``snr_db``, float32.

    The power of speech is that of its active parts, so pauses don't make the noise quieter. Silence gets no noise.
    """
    noise_power = float(np.mean(np.square(noise, dtype=np.float64))) if len(noise) else 0.0
    if noise_power == 0:
        return np.asarray(speech, dtype=np.float32)
    gain = np.sqrt(active_power(speech) / noise_power) * 10 ** (-snr_db / 20)
    return np.asarray(speech + np.float32(gain) * noise, dtype=np.float32)


def active_power(samples: np.ndarray) -> float:
    """Mean square over the blocks within 30 dB of the loudest; 0 of silence.

    Differs: an active level as in ITU-T P.56 (2011), with blocks instead of an envelope.
    """
    if not len(samples):
        return 0.0
    blocks = np.add.reduceat(np.square(samples, dtype=np.float64), np.arange(0, len(samples), ACTIVE_BLOCK))
    sizes = np.full(len(blocks), ACTIVE_BLOCK)
    sizes[-1] = len(samples) - ACTIVE_BLOCK * (len(blocks) - 1)
    powers = blocks / sizes
    active = powers >= powers.max() * 10 ** (-ACTIVE_DECIBELS / 10)
    return float(blocks[active].sum() / sizes[active].sum())


def _to_unit_power(samples: np.ndarray) -> np.ndarray:
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
    return np.asarray(samples / level if level > 0 else samples, dtype=np.float32)


def _loop(samples: np.ndarray, first: int, num_samples: int) -> np.ndarray:
    """``num_samples`` of them from ``first`` on, repeated."""
    if first + num_samples <= len(samples):
        return samples[first : first + num_samples]
    return np.resize(np.roll(samples, -first), num_samples)


@lru_cache(maxsize=8)
def _recordings(folder: str) -> tuple[Path, ...]:
    """Return the recordings of a folder, searched recursively, sorted."""
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise DataError(f"{folder}: no recordings of noise here (looked for {', '.join(sorted(SUFFIXES))})")
    return tuple(found)
