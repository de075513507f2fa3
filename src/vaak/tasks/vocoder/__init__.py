"""Audio from mel spectrograms, by a network that is trained with discriminators."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=("model.discriminators", "data.crop_frames"),
    reads_audio=True,
)
