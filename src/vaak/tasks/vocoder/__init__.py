"""Audio from mel spectrograms, by a network that is trained with discriminators."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=("model.discriminators", "data.crop_frames"),
    reads_audio=True,
)
METRICS = tuple(
    Metric(name.format(kind))
    for name in ("{}_distance", "griffin_lim_{}_distance", "{}_vs_griffin_lim")
    for kind in ("mel", "spectral")
)
