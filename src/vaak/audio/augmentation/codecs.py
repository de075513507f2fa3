"""Codec distortion: speech is encoded and decoded in memory, by the codecs of libsndfile.

mulaw, alaw    the two laws of telephones, at 8 kHz: everything above 4 kHz is lost. Source: ITU-T G.711 (1988)
opus           of calls over the internet, from 11 to 82 kbit/s
mp3, vorbis    of files, at the low-quality end of their variable rates

Speech keeps its time. Samples beyond ±1 aren't clipped: such audio is coded at a lower level, then amplified again.
"""

from __future__ import annotations

import io
from types import ModuleType

import numpy as np

from vaak.audio.augmentation.speed import resampled
from vaak.core.errors import UserError, optional_import

CODINGS = {  # of libsndfile: container and coding
    "mulaw": ("WAV", "ULAW"),
    "alaw": ("WAV", "ALAW"),
    "opus": ("OGG", "OPUS"),
    "vorbis": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
RATES = {  # Hz that a codec works at; another rate goes through the next higher one
    "mulaw": (8000,),
    "alaw": (8000,),
    "opus": (8000, 12000, 16000, 24000, 48000),
    "vorbis": (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000),
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
}
LEAST_SECONDS = 0.1  # shorter audio is coded with silence after it: libsndfile can't read the shortest opus files
COARSENESS = (0.7, 0.99)  # libsndfile's compression level: 0 is the best quality, 1 the smallest file


def coded(samples: np.ndarray, sampling_rate: int, codec: str, rng: np.random.Generator) -> np.ndarray:
    """``samples`` (time,) after ``codec``, of the same length, float32. The quality is random.

    Raises UserError if the installed libsndfile lacks the codec.
    """
    coarseness = rng.uniform(*COARSENESS)
    if not len(samples):
        return samples
    soundfile = _soundfile_with(codec)
    rate = next((rate for rate in RATES[codec] if rate >= sampling_rate), RATES[codec][-1])
    loudness = np.float32(max(1.0, float(np.abs(samples).max())))
    decoded = _through(soundfile, resampled(samples / loudness, sampling_rate, rate), rate, codec, coarseness)
    restored = resampled(decoded, rate, sampling_rate)[: len(samples)] * loudness
    return np.pad(restored, (0, len(samples) - len(restored))).astype(np.float32, copy=False)


def _through(soundfile: ModuleType, samples: np.ndarray, rate: int, codec: str, coarseness: float) -> np.ndarray:
    """``samples`` ``(time,)`` within 1 and -1, encoded and decoded.

    ``rate`` in Hz is one that the ``codec`` takes; ``coarseness`` is libsndfile's compression level, from 0 (best
    quality) to 1 (smallest file), which the companding laws don't have. ``soundfile`` is the imported package.
    """
    samples = np.pad(samples, (0, max(0, round(LEAST_SECONDS * rate) - len(samples))))
    laws = codec in ("mulaw", "alaw")
    if laws:  # from 16 bits, as G.711 has it: of floats libsndfile rounds half a step away
        samples = np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)
    container, coding = CODINGS[codec]
    memory = io.BytesIO()
    level = None if laws else coarseness
    with soundfile.SoundFile(memory, "w", rate, 1, coding, format=container, compression_level=level) as file:
        for first in range(0, len(samples), rate):  # by seconds: libsndfile ends the process at half an hour of vorbis
            file.write(samples[first : first + rate])
    memory.seek(0)
    decoded: np.ndarray = soundfile.read(memory, dtype="float32")[0]
    return decoded


def _soundfile_with(codec: str) -> ModuleType:
    """soundfile, whose libsndfile has the codec."""
    with optional_import("codecs require soundfile", "audio"):
        import soundfile
    container, coding = CODINGS[codec]
    if not soundfile.check_format(container, coding):
        raise UserError(
            f"libsndfile {soundfile.__libsndfile_version__} lacks the codec {codec}: pip install -U soundfile, or "
            "remove it from augmentation.codecs"
        )
    module: ModuleType = soundfile
    return module
