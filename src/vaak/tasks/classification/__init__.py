"""Text classification: labelled texts in, a model that labels texts out (README.md)."""

from vaak.config.tasks import RecognisedBy
from vaak.core.metrics import Metric

RECOGNISED_BY = RecognisedBy(
    own=(
        "model.architecture",
        "model.pretrained_model",
        "model.num_labels",
        "model.embed_size",
        "model.filter_sizes",
        "model.pooling",
        "data.augmentation.enabled",
        "data.augmentation.techniques",
        "data.corpus.label_columns",
        "data.corpus.label_column",
        "data.label_column",
    ),
)
METRICS = (
    *(Metric(name, percent=True, higher=True) for name in ("accuracy", "macro_f1", "weighted_f1", "auroc")),
    Metric("micro_f1", percent=True, higher=True, same_as="accuracy"),
    *(Metric(name, percent=True) for name in ("ece", "fpr95")),
)
