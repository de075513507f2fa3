"""Reverberation: the first reflections by the image-source method, then a diffuse tail.

The room is a random box; each wall reflects the same fraction of the sound, by Eyring's formula for the requested
reverberation time. A reflection is an image of the source beyond the walls: it arrives later by its distance, weaker by
its distance and by the walls on its way. After at most 50 ms the images are dense enough for decaying noise of the
same power to replace them, so a response costs a millisecond, however long it is. The reverberation time
measured on a response (its remaining energy, from -5 to -35 dB) is within 10 % of the requested one from 0.15 s on, and
within 20 % below.

Source: Allen and Berkley 1979, "Image method for efficiently simulating small-room acoustics"; the tail: Lehmann and
Johansson 2010, "Diffuse reverberation model for efficient image-source simulation of room impulse responses".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SPEED_OF_SOUND = 343.0  # metres a second
SMALLEST_ROOM = (3.0, 3.0, 2.4)  # metres
LARGEST_ROOM = (8.0, 7.0, 3.5)
FROM_WALLS = 0.5  # metres from the walls to the nearest voice or microphone
FROM_MICROPHONE = 0.5  # metres from the microphone to the nearest voice
EARLY_SECONDS = 0.05  # images up to here at most, the tail beyond; rooms of this size mix within 15 ms
EARLY_PART = 1 / 6  # of the reverberation time, at most: later images of a box decay more slowly than Eyring says
HALF_SINC = 16  # samples on each side of an image's arrival


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
    places = [_place(size, microphone, rng) for _ in range(num_sources)]
    return [_response(Placement(size, microphone, place), t60, sampling_rate, rng) for place in places]


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


def _place(size: np.ndarray, microphone: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random place away from the walls and from the microphone."""
    while True:
        place = rng.uniform(FROM_WALLS, size - FROM_WALLS)
        if np.linalg.norm(place - microphone) >= FROM_MICROPHONE:
            return place


def reflection(size: np.ndarray, t60: float) -> float:
    """The fraction of the amplitude that each wall reflects, for a box of ``size`` in metres, by Eyring's formula.

    Source: Eyring 1930, "Reverberation time in 'dead' rooms".
    """
    length, width, height = size
    volume, surface = np.prod(size), 2 * (length * width + width * height + height * length)
    return float(np.exp(-12 * np.log(10) * volume / (SPEED_OF_SOUND * surface * t60)))


def _response(placement: Placement, t60: float, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
    """The response of one voice: its images up to a time, then noise of the power that they would have."""
    early_seconds = min(EARLY_SECONDS, EARLY_PART * t60)
    response = np.zeros(max(round(t60 * sampling_rate), 1))
    early = min(max(round(early_seconds * sampling_rate), 1), len(response))
    distances, walls = images(placement, placement.distance + early_seconds * SPEED_OF_SOUND)
    amplitudes = (-reflection(placement.size, t60)) ** walls * placement.distance / distances
    _add_arrivals(response[:early], (distances - placement.distance) / SPEED_OF_SOUND * sampling_rate, amplitudes)

    times = np.arange(early, len(response)) / sampling_rate + placement.distance / SPEED_OF_SOUND
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
        near = squares <= reach**2
        squares, walls = squares[near], walls[near]
    return np.sqrt(squares), walls


def _add_arrivals(response: np.ndarray, delays: np.ndarray, amplitudes: np.ndarray) -> None:
    """Adds to ``response`` an impulse at each delay, in samples and between them, by a windowed sinc.

    Source: Peterson 1986, "Simulating the response of multiple microphones to a single acoustic source in a
    reverberant room".
    """
    nearest = np.round(delays).astype(int)
    taps = nearest[:, None] + np.arange(-HALF_SINC, HALF_SINC + 1)
    apart = taps - delays[:, None]
    values = np.sinc(apart) * (0.5 + 0.5 * np.cos(np.pi * apart / (HALF_SINC + 1))) * amplitudes[:, None]
    inside = (taps >= 0) & (taps < len(response))
    response += np.bincount(taps[inside], values[inside], minlength=len(response))
