"""Speech from text: phonemes to mel spectrograms to audio."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

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
METRICS = (
    Metric("duration_error_ms", unit="ms"),
    Metric("mcd_db", unit="dB"),
    Metric("f0_rmse_hz", unit="Hz"),
    Metric("f0_rmse_cents", unit="cents"),
    Metric("real_time_factor"),
    Metric("wer", percent=True, errors="words"),
    *(Metric(name, percent=True) for name in ("voicing_error", "skipped_words", "repeated_words")),
    *(Metric(f"recorded_{name}", percent=True) for name in ("wer", "skipped_words", "repeated_words")),
)
