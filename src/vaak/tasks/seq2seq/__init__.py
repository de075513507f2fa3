"""Text from text: translation, and any other task that turns one sequence into another."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=(
        "model.model_type=encoder_decoder",
        "data.target_tokenizer",
        "data.max_source_length",
        "data.max_target_length",
        "data.decoding",
        "data.corpus.source_column",
        "data.corpus.target_column",
    ),
    shared=("model.encoder",),
)
METRICS = (
    *(Metric(name) for name in ("perplexity", "max_violation", "dead_experts")),
    *(Metric(name, percent=True, higher=True) for name in ("accuracy", "token_accuracy")),
    *(Metric(name, higher=True) for name in ("bleu", "chrf", "chrf_plus_plus")),
    Metric("sentence_chrf", higher=True, title="mean chrF of sentences"),
    Metric("expert_load", higher=None),
)
