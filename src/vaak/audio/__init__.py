"""Speech comes in: waveforms, cuts, features, annotations, simulated conversations, synthesised voices.

To use alone: ``vaak.audio.Features``, ``vaak.audio.MelSpectrogram``, ``vaak.audio.simulate``, ``vaak.audio.der``.
"""

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak.audio.config import AudioConfig
    from vaak.audio.features.extractors import Features
    from vaak.audio.features.mel import MelSpectrogram
    from vaak.audio.labelled import LabelledAudio, Segment
    from vaak.audio.mel_config import MelConfig
    from vaak.audio.scoring.rates import der
    from vaak.audio.simulation.simulate import simulate

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
        "LabelledAudio": "vaak.audio.labelled",
        "MelConfig": "vaak.audio.mel_config",
        "MelSpectrogram": "vaak.audio.features.mel",
        "Segment": "vaak.audio.labelled",
        "der": "vaak.audio.scoring.rates",
        "simulate": "vaak.audio.simulation.simulate",
    },
)
