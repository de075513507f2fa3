"""Speech recognition: a transformer that listens and writes, and mixtures of experts on it (README.md)."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=("model.base", "model.scratch", "model.lora", "model.experts", "whisper_model", "data.normaliser"),
    reads_audio=True,
)
METRICS = (
    Metric("accuracy", percent=True, higher=True),
    *(Metric(name, percent=True, errors="words") for name in ("wer", "expert_wer")),
    Metric("cer", percent=True, errors="characters"),
    Metric("hallucinated_words", is_whole=True, among="without_speech", title="hallucinated words"),
    Metric("without_speech", higher=None, is_whole=True, title="recordings without speech"),
    *(Metric(name, higher=None) for name in ("routing_entropy", "expert_use", "expert_weight")),
    *(Metric(name) for name in ("dead_experts", "load_balancing")),
)
