"""The options of mel spectrograms and of pitch for speech synthesis. Imports no torch."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import model_validator

from vaak.config.base import ResumeClass, Section, option

MOST_SAMPLES = 1 << 20
"""The longest window that is taken for one."""
REPLACED_BY_MEL = (
    *("sampling_rate", "num_mel_bins", "frame_length", "frame_shift", "round_to_power_of_two", "remove_dc_offset"),
    *("preemph_coeff", "window_type", "snip_edges", "energy_floor", "raw_energy", "use_energy", "use_fft_mag"),
    *("low_freq", "high_freq", "norm_filters", "num_ceps", "cepstral_lifter"),
)
"""Options of ``AudioConfig`` that feature_type mel doesn't read, or that follow from the options of ``mel``."""


class MelConfig(Section):
    """Mel spectrograms for speech synthesis. Lengths are in samples; the defaults are usual for LJSpeech and HiFi-GAN.

    Frame ``t`` is centred at sample ``t * hop_length``; audio is mirrored at its ends.
    """

    resume_class: ClassVar[ResumeClass | None] = "refused"

    sampling_rate: int = option("Sampling rate in Hz.", 22050, gt=0, le=10_000_000)
    n_fft: int = option("Length of the FFT, in samples; an even number.", 1024, ge=4, le=MOST_SAMPLES, multiple_of=2)
    hop_length: int = option("Samples between frames.", 256, gt=0, le=MOST_SAMPLES)
    win_length: int = option("Length of the Hann window, in samples, centred in the FFT.", 1024, ge=2)
    n_mels: int = option("Number of mel filters.", 80, gt=0, le=65_536)
    f_min: float = option("Lowest frequency of the filters, in Hz.", 0.0, ge=0)
    f_max: float | None = option("Highest frequency, in Hz; null is half the sampling rate.", 8000.0, gt=0)
    scale: Literal["slaney", "htk"] = option(
        "slaney: linear up to 1 kHz, then logarithmic (librosa); htk: logarithmic.", "slaney"
    )
    norm: Literal["slaney", "none"] = option("slaney: filters of equal area; none: of equal height.", "slaney")
    spectrum: Literal["magnitude", "power"] = option("The values that the filters add up.", "magnitude")
    log: Literal["natural", "base10", "none"] = option("The logarithm of the result.", "natural")
    floor: float = option("Minimum before the logarithm.", 1e-5, gt=0)

    @property
    def nyquist(self) -> float:
        """The highest frequency of the filters, in Hz."""
        return self.sampling_rate / 2 if self.f_max is None else self.f_max

    @property
    def frame_shift(self) -> float:
        """Seconds between frames."""
        return self.hop_length / self.sampling_rate

    @property
    def num_bins(self) -> int:
        """Frequencies of the linear spectrum."""
        return self.n_fft // 2 + 1

    def num_frames(self, num_samples: int) -> int:
        """Return the number of frames of this many samples.

        >>> MelConfig().num_frames(22050), MelConfig().num_frames(255), MelConfig().num_frames(0)
        (87, 1, 0)
        """
        return 1 + num_samples // self.hop_length if num_samples else 0

    def edges(self) -> list[float]:
        """Frequencies in Hz: filter ``m`` begins, peaks and ends at ``m``, ``m + 1`` and ``m + 2``."""
        lowest, highest = (self.to_mel(frequency) for frequency in (self.f_min, self.nyquist))
        step = (highest - lowest) / (self.n_mels + 1)
        return [self.to_hz(lowest + step * number) for number in range(self.n_mels + 2)]

    def to_mel(self, frequency: float) -> float:
        """Return a frequency in Hz on the mel scale.

        Sources: Slaney 1998, "Auditory Toolbox"; Young et al. 2006, "The HTK Book", section 5.4.

        >>> MelConfig().to_mel(1000), round(MelConfig(scale="htk").to_mel(1000))
        (15.0, 1000)
        """
        if self.scale == "htk":
            return 2595 * math.log10(1 + frequency / 700)
        return 3 * frequency / 200 if frequency < 1000 else 15 + 27 * math.log(frequency / 1000) / math.log(6.4)

    def to_hz(self, mel: float) -> float:
        """Return the inverse of ``to_mel``."""
        if self.scale == "htk":
            return 700 * (10 ** (mel / 2595) - 1)
        return 200 * mel / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    @model_validator(mode="after")
    def _sizes_fit(self) -> MelConfig:
        if self.win_length > self.n_fft:
            raise ValueError(f"win_length ({self.win_length}) is more than n_fft ({self.n_fft})")
        if self.hop_length > self.win_length:
            raise ValueError(f"hop_length ({self.hop_length}) is more than win_length ({self.win_length})")
        if not self.f_min < self.nyquist <= self.sampling_rate / 2:
            raise ValueError(
                f"f_min ({self.f_min}) to f_max ({self.nyquist}) is not a valid frequency range up to half of "
                f"sampling_rate ({self.sampling_rate / 2})"
            )
        edges, width = self.edges(), self.sampling_rate / self.n_fft
        # A filter is empty if the first bin above its lower edge already reaches its upper edge.
        empty = sum(math.floor(low / width) + 1 >= high / width for low, high in zip(edges, edges[2:], strict=False))
        if empty:
            raise ValueError(
                f"{empty} of {self.n_mels} mel filters (n_mels) are too narrow to have a frequency of the FFT; "
                f"n_fft ({self.n_fft}) must be greater, or n_mels smaller"
            )
        return self


class PitchConfig(Section):
    """Fundamental frequency (F0) and voicing."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    f0_min: float = option("Lowest F0, in Hz.", 65.0, ge=20)
    f0_max: float = option("Highest F0, in Hz.", 500.0, le=2000)
    voicing: float = option(
        "Aperiodicity up to which a frame is voiced, from 0 to 1: higher values give more voiced frames.",
        0.5,
        gt=0,
        lt=1,
    )

    @model_validator(mode="after")
    def _range_rises(self) -> PitchConfig:
        if self.f0_max < 2 * self.f0_min:
            raise ValueError(f"f0_max ({self.f0_max}) is less than an octave above f0_min ({self.f0_min})")
        return self
