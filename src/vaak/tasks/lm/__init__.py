"""Language models: a text corpus in, a model that continues text out."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=("model.preset", "model.model_type=decoder", "model.model_type=encoder", "data.minimal_pairs"),
    shared=("data.corpus", "data.tokenizer"),
)
METRICS = (
    *(Metric(name) for name in ("perplexity", "orpo", "cross_entropy", "max_violation", "dead_experts")),
    Metric("bits_per_byte", unit="bits"),
    *(Metric(name, percent=True, higher=True) for name in ("accuracy", "exact_match", "acc", "acc_norm")),
    *(Metric(name, higher=True) for name in ("margin", "chosen_reward")),
    *(Metric(name, higher=None) for name in ("rejected_reward", "expert_load")),
    Metric("pairs_accuracy", percent=True, higher=True, chance=0.5, counts="phenomena"),
)
