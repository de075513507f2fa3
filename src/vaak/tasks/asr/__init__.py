"""Speech recognition: a transformer that listens and writes, and mixtures of experts on it (README.md)."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=("model.base", "model.scratch", "model.lora", "model.experts", "whisper_model", "data.normaliser"),
    reads_audio=True,
)
