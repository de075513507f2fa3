"""Features of audio: log-mel filter banks, cepstral coefficients, log spectra. The extractors are Lhotse's.

Those of type mel, for speech synthesis, are ``vaak.audio.features.mel``'s: all below about windows holds for them,
except how they are cut and mirrored.

Samples are within ±1, as everywhere in Lhotse and Vaak. Kaldi's recipes take 16-bit numbers: their log powers are
2 ln 32768 = 20.8 higher (log magnitudes 10.4), and only very quiet frames meet the floor of the mel filters, which is
1.2e-7 on either scale (``energy_floor`` is that of the energy alone).

Windows are cut here, as Kaldi cuts them, and all windows of many recordings go through the extractor together: so no
recording is padded, its features don't depend on which others came along, and those of a long one can be made piece by
piece.

::

    snip_edges: false            audio mirrored at its ends, a frame for every whole shift (half a one counts)
        ┆‹──┼─────window────›┆
        │ 0 │ 1 │ 2 │ 3 │ 4 │    frame t is around (t + 0.5) * frame_shift seconds
    snip_edges: true             only whole windows
        ‹──────window──────›     frame t is around t * frame_shift + frame_length / 2 seconds

Differs: from Lhotse, where it isn't as Kaldi: energy with mfcc and liftering of 0 crash there; audio shorter than a
window too; the blackman window is periodic there; ``norm_filters`` does nothing there; dither is drawn from torch's own
generator there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaak.audio.augmentation.pipeline import masked_on_device
from vaak.audio.config import AudioConfig, to_samples
from vaak.audio.features.mel import MelSpectrogram, compute_energy
from vaak.audio.features.pitch import fundamental_frequency
from vaak.config.base import from_options
from vaak.core.errors import UserError, optional_import

FRAMES_AT_ONCE = {"cpu": 1000}
"""How many frames are computed at once, by type of device; their windows and spectra take about 10 kB each."""
MORE_FRAMES_AT_ONCE = 50_000
FEWEST_FRAMES = 16
"""Products of smaller matrices round in other ways, even from process to process: silence is added to fewer frames."""
LHOTSE_OPTIONS = (
    "sampling_rate",
    "round_to_power_of_two",
    "remove_dc_offset",
    "preemph_coeff",
    "window_type",
    "energy_floor",
    "raw_energy",
    "use_fft_mag",
)


def count_dims(config: AudioConfig) -> int:
    """Return how many numbers features have in a frame, which needs no tensor."""
    if config.feature_type == "spectrogram":
        length = to_samples(config.frame_length, config.sampling_rate)
        return (1 << (length - 1).bit_length() if config.round_to_power_of_two else length) // 2 + 1
    if config.feature_type == "mfcc":
        return config.num_ceps
    if config.mel is not None:
        return config.num_mel_bins + 2 * (config.pitch is not None)
    return config.num_mel_bins + config.use_energy


class Features:
    """Turns samples ``(time,)``, float32 within ±1, into features ``(frame, dims)``, float32.

    One channel ``(1, time)`` and whole numbers of 16 or 32 bits are understood too.
    """

    def __init__(self, config: AudioConfig | None = None, device: str = "cpu", **options: Any) -> None:
        """``config`` has the options; without it they are given by name (``feature_type="mfcc"``).

        Raises UserError if one is wrong, and if Lhotse isn't installed.
        """
        if config is None:
            config = from_options(AudioConfig, options, "features")
        elif options:
            raise UserError(f"{', '.join(options)}: give options by name or a config, not both")
        self.config, self.device = config, torch.device(device)
        self._shift = to_samples(config.frame_shift, config.sampling_rate)
        if config.mel is not None:
            # Windows of mel are as long as the FFT; the window function is padded to it.
            self._length = config.mel.n_fft
            self._layer: Any = MelSpectrogram(config.mel).to(self.device)
        else:
            self._length = to_samples(config.frame_length, config.sampling_rate)
            self._layer = _lhotse_layer(config, self._length, self._shift).to(self.device, torch.float32)
        self.frames_at_once = FRAMES_AT_ONCE.get(self.device.type, MORE_FRAMES_AT_ONCE)

    @property
    def dims(self) -> int:
        """Numbers in a frame."""
        return count_dims(self.config)

    @property
    def frame_shift(self) -> float:
        """Seconds from one frame to the next: the option's, in whole samples."""
        return self._shift / self.config.sampling_rate

    def num_frames(self, num_samples: int) -> int:
        """Return the number of frames in this many samples."""
        if self.config.mel is not None:
            return self.config.mel.num_frames(num_samples)
        if not self.config.snip_edges:
            return (num_samples + self._shift // 2) // self._shift
        return 0 if num_samples < self._length else 1 + (num_samples - self._length) // self._shift

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        return self.batch([samples])[0]

    def batch(self, samples: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the features of each recording, made together on the device in bounded memory.

        Raises UserError for samples of several channels, or of a kind whose scale isn't known.
        """
        samples = [one_channel(one) for one in samples]
        found = [np.empty((self.num_frames(len(one)), self.dims), np.float32) for one in samples]
        for stretches in _packed([len(frames) for frames in found], self.frames_at_once):
            padded = []
            for index, first, last in stretches:
                padded.append(self.read_section(first, last, len(samples[index]), partial(_part, samples[index])))
            rows = self.frame_rows(padded)
            place = 0
            for index, first, last in stretches:
                # With pitch, rows lack the last column: F0 needs the whole recording and is filled in below.
                found[index][first:last, : rows.shape[1]] = rows[place : place + last - first]
                place += last - first
        if self.config.mel is not None and self.config.pitch is not None:
            for frames, one in zip(found, samples, strict=True):
                frames[:, -1] = fundamental_frequency(one, self.config.mel, self.config.pitch)
        return found

    def extract_section(self, samples: np.ndarray) -> np.ndarray:
        """The samples of a recording's windows, mirrored at its ends where they are beyond; none if it has no frame.

        Raises UserError as ``batch`` does.
        """
        samples = one_channel(samples)
        num_frames = self.num_frames(len(samples))
        if not num_frames:
            return np.zeros(0, np.float32)
        return self.read_section(0, num_frames, len(samples), partial(_part, samples))

    def num_windows(self, num_samples: int) -> int:
        """Return the number of whole windows, which are frames, in a section of ``num_samples``."""
        return max(0, 1 + (num_samples - self._length) // self._shift)

    def num_samples(self, num_windows: int) -> int:
        """Return the length of a section of ``num_windows``."""
        return (num_windows - 1) * self._shift + self._length

    def pieces(
        self, read: Callable[[int, int], np.ndarray], num_samples: int, frames_per_piece: int = 60_000
    ) -> Iterator[np.ndarray]:
        """Yield the features of one recording of any length in consecutive pieces, equal to those of the whole.

        ``read(first, last)`` gives these samples of it; pieces overlap in a part of a window. Raises ValueError with
        ``pitch``: F0 depends on the whole recording.
        """
        if self.config.pitch is not None:
            raise ValueError("F0 can't be computed in pieces; compute the features of the whole recording")
        num_frames = self.num_frames(num_samples)
        at_once = min(frames_per_piece, self.frames_at_once)
        for start in range(0, num_frames, frames_per_piece):
            rows = []
            for first in range(start, min(start + frames_per_piece, num_frames), at_once):
                last = min(first + at_once, start + frames_per_piece, num_frames)
                rows.append(self.frame_rows([self.read_section(first, last, num_samples, read)]))
            yield np.concatenate(rows)

    def span(self, frame: int) -> tuple[int, int]:
        """Return the samples that a frame's window has, from the first to the one after the last."""
        # Window i is centred on sample i · shift (mel, as in librosa), or on the middle of shift i (Kaldi).
        if self.config.mel is not None:
            offset = -(self._length // 2)
        else:
            offset = 0 if self.config.snip_edges else self._shift // 2 - self._length // 2
        begin = frame * self._shift + offset
        return begin, begin + self._length

    def read_section(
        self, first: int, last: int, num_samples: int, read: Callable[[int, int], np.ndarray]
    ) -> np.ndarray:
        """The samples of the windows of frames ``first`` to ``last``, of which ``read`` gives those of the recording.

        What is beyond the ``num_samples`` of the recording is mirrored, again and again where it is longer.
        """
        begin, end = self.span(first)[0], self.span(last - 1)[1]
        missing = max(-begin, 0), max(end - num_samples, 0)
        # Read what is mirrored, too: without the last sample itself, it begins one further inside.
        least, beyond = max(min(begin, 2 * num_samples - 1 - end), 0), min(max(end, 1 - begin), num_samples)
        part = np.asarray(read(least, beyond), np.float32)
        if any(missing):
            part = np.pad(part, missing, mode="symmetric" if self.config.mel is None else "reflect")
        skipped = max(begin - least, 0)
        return part[skipped : skipped + end - begin]

    @torch.inference_mode()
    def frame_rows(self, padded: Sequence[np.ndarray]) -> np.ndarray:
        """Features ``(frame, dims)`` of sections of samples with whole windows, one section after another."""
        together = torch.from_numpy(np.concatenate(padded)).to(self.device)
        stretches = together.split([len(samples) for samples in padded])
        windows = torch.cat([samples.unfold(0, self._length, self._shift) for samples in stretches])
        num_frames = len(windows)
        if num_frames < FEWEST_FRAMES:
            windows = torch.cat([windows, windows.new_zeros(FEWEST_FRAMES - num_frames, self._length)])
        return self._features_of_windows(windows)[:num_frames].cpu().numpy()

    @torch.no_grad()
    def of_sections(self, samples: Tensor, num_frames: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return the features ``(row, frame, dims)`` of sections ``(row, time)``, on their device, up to rounding.

        Sections are those of ``extract_section``, padded on the right; ``num_frames`` ``(row,)`` are real, and 0 is
        in the others. ``masks`` are those of ``vaak.audio.augmentation.pipeline.masked_on_device``.
        """
        number = self.num_windows(samples.shape[1])
        if not number:
            return samples.new_zeros(len(samples), 0, self.dims)
        windows = samples.float().unfold(1, self._length, self._shift)
        at_once = max(1, self.frames_at_once // len(samples))
        parts = windows.split(at_once, 1)
        features = torch.cat(
            [self._features_of_windows(one.flatten(0, 1)).unflatten(0, one.shape[:2]) for one in parts], 1
        )
        # Features of padding aren't 0 but the logarithm's floor.
        is_real = torch.arange(number, device=samples.device) < num_frames[:, None]
        features = features.masked_fill(~is_real[..., None], 0.0)
        return features if masks is None else masked_on_device(features, masks, num_frames)

    def _features_of_windows(self, windows: Tensor) -> Tensor:
        """Return the features ``(frame, dims)`` of windows ``(frame, time)``."""
        if self.config.mel is not None:
            spectra = self._layer.spectra(windows)
            mel: Tensor = self._layer.to_mel(self._layer.strengths(spectra))
            if self.config.pitch is not None:
                # F0 will follow the energies.
                mel = torch.cat([mel, compute_energy(spectra)[:, None]], dim=1)
            return mel
        with torch.autocast(self.device.type, enabled=False):
            # Private methods, because Lhotse's public ones would cut the windows themselves.
            windows, energy = self._layer.wav2win._forward_strided(windows[None])
            rows: Tensor = self._layer._forward_strided(windows, None)
        # As in Kaldi: energy is prepended to filter banks, and replaces the first value of other features.
        if energy is not None and self.config.feature_type == "fbank":
            rows = torch.cat([energy[..., None], rows], dim=-1)
        elif energy is not None:
            rows[..., 0] = energy
        return rows[0]


class FeatureStream:
    """The features of one recording while it comes, equal to those of the whole.

    Raises ValueError with ``pitch``: F0 depends on the whole recording.
    """

    def __init__(self, features: Features) -> None:
        if features.config.pitch is not None:
            raise ValueError("F0 can't be computed while audio comes")
        self.features = features
        self._num_frames = self._first = 0
        """Frames that were given; the number of the first sample that is kept."""
        self._kept = np.zeros(0, np.float32)

    def read(self, samples: np.ndarray, *, is_last: bool = False) -> np.ndarray:
        """Return the frames ``(frame, dims)`` whose windows further samples ``(time,)`` complete; the rest at the end.

        The last windows are mirrored at the recording's end, so they aren't known before.
        """
        self._kept = np.concatenate((self._kept, samples.astype(np.float32)))
        features, first, num_samples = self.features, self._num_frames, self._first + len(self._kept)
        last = features.num_frames(num_samples)
        while not is_last and last > first and features.span(last - 1)[1] > num_samples:
            last -= 1
        if last <= first:
            return np.zeros((0, features.dims), np.float32)
        rows = features.frame_rows([features.read_section(first, last, num_samples, self._samples)])
        self._num_frames = last
        # A window at the end mirrors at most as many samples as it has.
        begin, end = features.span(last)
        unused = max(0, begin - (end - begin) - self._first)
        self._kept, self._first = self._kept[unused:], self._first + unused
        return rows

    def _samples(self, first: int, last: int) -> np.ndarray:
        return self._kept[first - self._first : last - self._first]


class FeaturesOnDevice:
    """Features of batches on any device; pickles without its state on devices."""

    def __init__(self, config: AudioConfig) -> None:
        self.config = config
        self._by_device: dict[torch.device, Features] = {}

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return ``(row, frame, dims)`` of a batch's ``samples``, ``num_frames`` and, where it has them, ``masks``.

        They are what ``Features.of_sections`` takes.
        """
        samples = tensors["samples"]
        if samples.device not in self._by_device:
            self._by_device[samples.device] = Features(self.config, device=str(samples.device))
        extract = self._by_device[samples.device]
        return extract.of_sections(samples, tensors["num_frames"], tensors.get("masks"))

    def __reduce__(self) -> tuple[Any, ...]:
        return FeaturesOnDevice, (self.config,)


def one_channel(samples: np.ndarray) -> np.ndarray:
    """Samples ``(time,)`` within ±1, float32 or float64, of one channel of floats, or of whole numbers.

    Raises UserError for anything else.
    """
    samples = np.asarray(samples)
    if samples.ndim == 2 and len(samples) == 1:
        samples = samples[0]
    if samples.ndim != 1:
        raise UserError(f"features: samples have the shape {samples.shape}; expected (time,), one channel")
    if samples.dtype in (np.int16, np.int32):
        return samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    if samples.dtype.kind != "f":
        raise UserError(f"features: samples are {samples.dtype}; expected float32 within ±1, int16 or int32")
    return samples


def dithered(samples: np.ndarray, dither: float, rng: np.random.Generator) -> np.ndarray:
    """Return the samples ``(time,)`` with Gaussian noise of this standard deviation; 0 draws nothing.

    Differs: Kaldi draws noise for each window; here, as in Lhotse, windows that overlap see the same noise.
    """
    if not dither:
        return samples
    noisy: np.ndarray = samples + np.float32(dither) * rng.standard_normal(len(samples), np.float32)
    return noisy


def _part(samples: np.ndarray, first: int, last: int) -> np.ndarray:
    return samples[first:last]


def _packed(lengths: Sequence[int], most: int) -> Iterator[list[tuple[int, int, int]]]:
    """Stretches (recording, first frame, last frame) of all recordings, in groups of ``most`` frames or fewer.

    >>> list(_packed([2, 5], 3))
    [[(0, 0, 2), (1, 0, 1)], [(1, 1, 4)], [(1, 4, 5)]]
    """
    group: list[tuple[int, int, int]] = []
    left = most
    for index, length in enumerate(lengths):
        first = 0
        while first < length:
            # A recording may be cut anywhere: frames don't depend on those next to them.
            last = min(length, first + left)
            group.append((index, first, last))
            left -= last - first
            first = last
            if not left:
                yield group
                group, left = [], most
    if group:
        yield group


def _lhotse_layer(config: AudioConfig, window_length: int, window_shift: int) -> Any:
    """Lhotse's extractor, fixed where it differs from Kaldi: see the top of this file."""
    with optional_import("audio features require lhotse", "audio"):
        from lhotse.features.kaldi import layers
    options: dict[str, Any] = {name: getattr(config, name) for name in LHOTSE_OPTIONS}
    # Lhotse rounds down: half a sample more keeps what rounding took from a whole number.
    options["frame_length"] = (window_length + 0.5) / config.sampling_rate
    options["frame_shift"] = (window_shift + 0.5) / config.sampling_rate
    if config.feature_type != "spectrogram":
        options |= {"low_freq": config.low_freq, "high_freq": config.high_freq, "num_filters": config.num_mel_bins}
    if config.feature_type == "mfcc":
        # 1 lifts nothing: the sine of whole multiples of π.
        lifter = config.cepstral_lifter or 1
        options |= {"num_ceps": config.num_ceps, "cepstral_lifter": lifter}
    name = {"fbank": "Wav2LogFilterBank", "mfcc": "Wav2MFCC", "spectrogram": "Wav2LogSpec"}[config.feature_type]
    with warnings.catch_warnings():
        # NumPy's, about Lhotse's mel scale.
        warnings.simplefilter("ignore", DeprecationWarning)
        layer = getattr(layers, name)(**options, use_energy=False)
    # We put it where it belongs.
    layer.wav2win.return_log_energy = config.use_energy
    if config.window_type == "blackman":
        layer.wav2win._window.data = torch.blackman_window(window_length, periodic=False)
    if config.norm_filters and config.feature_type != "spectrogram":
        filters = layer._fb.data
        layer._fb.data = filters / filters.sum(0).clamp(min=torch.finfo(torch.float32).tiny)
    return layer.eval()
