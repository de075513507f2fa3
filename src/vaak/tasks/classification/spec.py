"""The specification of the classification task. Imports no torch."""

from vaak.config.tasks import TaskSpec, only_length
from vaak.tasks.classification.checks import checks, losses, metrics, num_parameters
from vaak.tasks.classification.config import ALIASES, DEFAULTS, ClassificationDataConfig, ClassifierConfig

SPEC = TaskSpec(
    task="vaak.tasks.classification.task:ClassificationTask",
    model=ClassifierConfig,
    data=ClassificationDataConfig,
    used_by_models=("data.tokenizer",),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    losses=losses,
    auxiliary_losses=(),
    has_class_weights=True,
    refused_batching={"packed": "a row is one text; expected fixed, bucketed or stratified"},
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    checks=checks,
)
