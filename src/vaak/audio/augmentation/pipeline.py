"""Augmentation of training audio, in the order of the real world: speed, room, noise, codec, volume; SpecAugment.

Nothing is clipped: samples may exceed ±1, which features allow. Each part has a separate random generator, so disabling
one doesn't change the draws of the others. Features are masked by SpecAugment.

Source: Park et al. 2019, "SpecAugment: A Simple Data Augmentation Method for Automatic Speech Recognition", section 2.
Differs: no time warping; what is masked becomes the mean of the features instead of zero, which their features have as
mean; a width may reach its limit; widths are seconds for time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vaak.audio.augmentation.effects import at_snr, at_speed, coded, drawn_noise, reverberated, room_responses
from vaak.audio.config import AugmentationConfig, SpecAugmentConfig
from vaak.audio.segments import AudioSource, Interval, LabelledAudio, Segment
from vaak.core.costs import time_part
from vaak.core.random_keys import Purpose, draw_key

Voices = Callable[[np.random.Generator], np.ndarray]
"""Gives the samples ``(time,)`` of a random utterance of another speaker, at the same rate."""
PARTS = ("speed", "room", "noise", "codec", "volume")


def augmented(
    audio: LabelledAudio, config: AugmentationConfig, rng: np.random.Generator, voices: Voices | None = None
) -> LabelledAudio:
    """``audio`` augmented by ``config``; its segments, uem and alignment follow the speed.

    Noise of type babble requires ``voices``. All speakers are at one place of a random room. ``spec_augment`` is
    applied to features, not here.
    """
    # A single draw, whatever is enabled, so the caller's later draws don't depend on these options.
    key = int(rng.integers(2**63))
    speed, reverb, noise, codec, volume = (
        np.random.default_rng(draw_key(Purpose.AUGMENTATION, key, name)) for name in PARTS
    )
    with time_part("speed"):
        audio = _change_speed(audio, config, speed)
    samples, rate, room = audio.samples, audio.sampling_rate, config.room
    if room is not None and reverb.random() < room.probability:
        with time_part("room"):
            [response] = room_responses(1, rate, reverb.uniform(*room.t60), reverb)
            samples = reverberated(samples, response)
    if config.noise is not None and noise.random() < config.noise.probability:
        with time_part("noise"):
            snr = noise.uniform(*config.noise.snr)
            others = None if voices is None else lambda: voices(noise)
            samples = at_snr(samples, drawn_noise(config.noise, len(samples), rate, noise, others), snr)
    if config.codecs and codec.random() < config.codec_probability:
        name = config.codecs[int(codec.integers(len(config.codecs)))]
        with time_part(f"codec {name}"):
            samples = coded(samples, rate, name, codec)
    if config.volume is not None:
        samples = samples * np.float32(10 ** (volume.uniform(*config.volume) / 20))
    return replace(audio, samples=samples)


def longest_factor(config: AugmentationConfig) -> float:
    """Return the factor by which audio can become longer, to half a sample."""
    return max((1 / factor for factor in config.speed), default=1.0)


def make_voices(source: AudioSource) -> Voices:
    """Voices for babble: random sections of speech of random examples of ``source``."""
    return functools.partial(_voice, source)


def _voice(source: AudioSource, rng: np.random.Generator) -> np.ndarray:
    audio = source.load(int(rng.integers(len(source.durations))), rng)
    if not audio.segments:
        return audio.samples[:0]
    start, end, _ = audio.segments[int(rng.integers(len(audio.segments)))]
    return audio.samples[round(start * audio.sampling_rate) : round(end * audio.sampling_rate)]


def _change_speed(audio: LabelledAudio, config: AugmentationConfig, rng: np.random.Generator) -> LabelledAudio:
    factor = float(rng.choice(config.speed)) if config.speed else 1.0
    if factor == 1:
        return audio
    faster = replace(audio, samples=at_speed(audio.samples, factor))

    def moved(start: float, end: float) -> tuple[float, float]:
        # The audio is rounded to whole samples, so it may end slightly before its last segment.
        return start / factor, min(end / factor, faster.duration)

    segments = tuple(Segment(*moved(start, end), speaker) for start, end, speaker in audio.segments)
    uem = None if audio.uem is None else tuple(moved(start, end) for start, end in audio.uem)
    alignment = audio.alignment
    if alignment is not None:
        alignment = {
            tier: tuple(Interval(start / factor, end / factor, text) for start, end, text in intervals)
            for tier, intervals in alignment.items()
        }
    return replace(faster, segments=segments, uem=uem, alignment=alignment)


def masked(features: np.ndarray, config: SpecAugmentConfig, frame_shift: float, rng: np.random.Generator) -> np.ndarray:
    """Return a copy of the features ``(frame, bin)`` with random bands and intervals set to the mean of all."""
    found = features.copy()
    masks = drawn_masks(features.shape, config, frame_shift, rng)
    if len(masks):
        mean = features.mean(dtype=np.float64)
        for first_frame, last_frame, first_bin, last_bin in masks:
            found[first_frame:last_frame, first_bin:last_bin] = mean
    return found


def drawn_masks(
    shape: tuple[int, ...], config: SpecAugmentConfig, frame_shift: float, rng: np.random.Generator
) -> np.ndarray:
    """Where features of ``shape`` (frames, bins) are masked: ``(mask, 4)``, first and last frame, first and last bin.

    Each width is drawn uniformly from 0 to its limit, then its place. "Last" is the one after it.
    """
    num_frames, num_bins = shape
    found: list[tuple[int, int, int, int]] = []
    if rng.random() < config.probability and num_frames and num_bins:
        for _ in range(config.num_frequency_masks):
            found.append((0, num_frames, *_drawn(config.frequency_mask, num_bins, rng)))
        for _ in range(config.num_time_masks):
            found.append((*_drawn(round(config.time_mask / frame_shift), num_frames, rng), 0, num_bins))
    return np.array(found, np.int64).reshape(-1, 4)


def masked_on_device(features: Tensor, masks: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Features ``(row, frame, bin)`` with each row's ``masks`` ``(row, mask, 4)`` set to the mean of the row.

    That is a mean over ``lengths`` ``(row,)`` frames, after which there are zeros; over all where they are left out.
    """
    _, num_frames, num_bins = features.shape
    frames, bins = (torch.arange(size, device=features.device) for size in (num_frames, num_bins))
    first_frame, last_frame, first_bin, last_bin = masks[..., None].unbind(2)
    in_time = (frames >= first_frame) & (frames < last_frame)
    in_band = (bins >= first_bin) & (bins < last_bin)
    is_masked = (in_time[..., None] & in_band[:, :, None]).any(1)
    if lengths is None:
        return torch.where(is_masked, features.mean((1, 2), keepdim=True), features)
    means = features.sum((1, 2)) / (lengths * num_bins).clamp(min=1)
    return torch.where(is_masked, means[:, None, None], features)


def padded_masks(masks: Sequence[np.ndarray]) -> np.ndarray:
    """Return the masks of several rows, each ``(mask, 4)``, as ``(row, mask, 4)``, padded with empty masks."""
    most = max(map(len, masks))
    return np.stack([np.pad(one, ((0, most - len(one)), (0, 0))) for one in masks])


def _drawn(widest: int, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the first and last index of a random interval within ``length``."""
    width = int(rng.integers(0, min(widest, length), endpoint=True))
    first = int(rng.integers(0, length - width, endpoint=True))
    return first, first + width
