"""Speaker diarization: who spoke when."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=(
        "datasets",
        "global_config",
        "model.model_type=encoder",
        "model.front_end",
        "model.preset=sa_eend",
        "data.inference",
        "data.scoring",
        "data.augmentation.speed",
        "data.augmentation.volume",
        "data.augmentation.noise",
        "data.augmentation.room",
        "data.augmentation.codecs",
        "data.augmentation.codec_probability",
        "data.augmentation.spec_augment",
    ),
    shared=("training.eval_knobs",),
    reads_audio=True,
)
METRICS = (
    Metric("frame_accuracy", percent=True, higher=True),
    Metric("der", percent=True, errors="seconds of speech", grouped_by="speakers"),
    *(Metric(name, percent=True) for name in ("miss", "false_alarm", "confusion", "jer", "speaker_ceiling")),
    Metric("speaker_error"),
)
