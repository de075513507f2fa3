"""The specification of the language-model task. Imports no torch."""

from vaak.config.tasks import TaskSpec
from vaak.tasks.lm.checks import checks, metrics, num_parameters, refused_difficulties
from vaak.tasks.lm.config import ALIASES, DEFAULTS, SHARED, SIDES, LanguageModelConfig, LanguageModelDataConfig
from vaak.text.config import NO_CLASSES, losses_of_tokens

SPEC = TaskSpec(
    task="vaak.tasks.lm.task:LanguageModelTask",
    model=LanguageModelConfig,
    data=LanguageModelDataConfig,
    used_by_models=("data.tokenizer",),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    metrics=metrics,
    losses=losses_of_tokens,
    auxiliary_losses=("norm_reg",),
    refused_batching=NO_CLASSES,
    refused_difficulties=refused_difficulties,
    num_parameters=num_parameters,
    checks=checks,
)
