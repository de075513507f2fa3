"""Examples as cuts of Lhotse, for label types that define ``__call__`` themselves."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import soundfile

from vaak.audio.segments import Segment

if TYPE_CHECKING:
    from lhotse import CutSet, MonoCut, SupervisionSegment


class CutExample(Protocol):
    """The source of a cut: the features of a recording or of a window of it, and who speaks when."""

    @property
    def name(self) -> str: ...

    @property
    def segments(self) -> tuple[Segment, ...]: ...

    @property
    def duration(self) -> float: ...

    @property
    def sampling_rate(self) -> int: ...

    @property
    def frame_shift(self) -> float | None: ...

    @property
    def audio(self) -> Callable[[], np.ndarray] | None: ...

    def load_features(self) -> np.ndarray: ...


def make_supervisions(example: CutExample) -> list[SupervisionSegment]:
    """Who speaks when, as supervisions of Lhotse, in seconds from the start of the example."""
    from lhotse import SupervisionSegment

    return [
        SupervisionSegment(f"{example.name}-{number}", example.name, start, end - start, 0, speaker=speaker)
        for number, (start, end, speaker) in enumerate(example.segments)
    ]


def make_cut(example: CutExample) -> MonoCut:
    """The example as a cut that begins at 0, with its features, and its audio where that was read, in memory.

    ``cut.example`` is the example itself, and ``cut.segments`` its segments.
    """
    from lhotse import Features, MonoCut, Recording
    from lhotse.audio import AudioSource

    frames, recording, duration = example.load_features(), None, example.duration
    features: Any = None
    if frames.size:
        stored = io.BytesIO()
        np.save(stored, frames, allow_pickle=False)
        features = Features(
            type="vaak",
            num_frames=len(frames),
            num_features=frames.shape[1],
            frame_shift=example.frame_shift or duration / len(frames),
            sampling_rate=example.sampling_rate,
            start=0.0,
            duration=duration,
            storage_type="memory_npy",
            storage_path="",
            storage_key=stored.getvalue(),
            recording_id=example.name,
            channels=0,
        )
    if example.audio is not None:
        samples, sound = np.asarray(example.audio(), dtype=np.float32), io.BytesIO()
        # Not in 16 bits, which would round and clip: a user's collator gets the samples that features were made of.
        soundfile.write(sound, samples, example.sampling_rate, format="WAV", subtype="FLOAT")
        source = AudioSource("memory", channels=[0], source=sound.getvalue())
        seconds = len(samples) / example.sampling_rate
        recording = Recording(example.name, [source], example.sampling_rate, len(samples), seconds)
        # Lhotse refuses a cut that ends after its recording, if only by less than a sample.
        duration = min(duration, seconds)
    return MonoCut(
        id=example.name,
        start=0.0,
        duration=duration,
        channel=0,
        supervisions=make_supervisions(example),
        features=features,
        recording=recording,
        custom={"example": example, "segments": example.segments},
    )


def make_cuts(examples: Iterable[CutExample]) -> CutSet:
    """The cuts of examples, in their order."""
    from lhotse import CutSet

    return CutSet.from_cuts(make_cut(example) for example in examples)
