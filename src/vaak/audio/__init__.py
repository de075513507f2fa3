"""Speech comes in: waveforms, cuts, features, annotations, simulated conversations, synthesised voices.

To use alone: ``vaak.audio.Features``, ``vaak.audio.MelSpectrogram``, ``vaak.audio.simulate``, ``vaak.audio.der``.
"""

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak.audio.config import AudioConfig
    from vaak.audio.features.extractors import Features
    from vaak.audio.features.mel import MelSpectrogram
    from vaak.audio.mel_config import MelConfig
    from vaak.audio.segments import LabelledAudio, Segment
    from vaak.audio.simulation.conversations import simulate
    from vaak.scoring.diarization_errors import der

__all__ = [
    "AudioConfig",
    "Features",
    "LabelledAudio",
    "MelConfig",
    "MelSpectrogram",
    "Segment",
    "der",
    "simulate",
]

__getattr__ = attributes(
    __name__,
    {
        "AudioConfig": "vaak.audio.config",
        "Features": "vaak.audio.features.extractors",
        "LabelledAudio": "vaak.audio.segments",
        "MelConfig": "vaak.audio.mel_config",
        "MelSpectrogram": "vaak.audio.features.mel",
        "Segment": "vaak.audio.segments",
        "der": "vaak.scoring.diarization_errors",
        "simulate": "vaak.audio.simulation.conversations",
    },
)
