"""Speech from text: phonemes to mel spectrograms to audio."""

from vaak.config.tasks import RecognisedBy

RECOGNISED_BY = RecognisedBy(
    own=(
        "data.front_end",
        "data.speaking",
        "model.durations",
        "model.duration_predictor",
        "global_config.mel",
        "global_config.feature_type=mel",
    ),
    reads_audio=True,
)
