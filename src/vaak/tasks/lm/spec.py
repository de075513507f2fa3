"""The specification of the language-model task. Imports no torch."""

from vaak.config.task_spec import TaskSpec
from vaak.tasks.lm.checks import checks
from vaak.tasks.lm.config import ALIASES, DEFAULTS, SHARED, SIDES, LanguageModelConfig, LanguageModelDataConfig

SPEC = TaskSpec(
    task="vaak.tasks.lm.task:LanguageModelTask",
    model=LanguageModelConfig,
    data=LanguageModelDataConfig,
    recognised_by=("model.preset", "model.model_type=decoder", "model.model_type=encoder", "data.minimal_pairs"),
    also_recognised_by=("data.corpus", "data.tokenizer"),
    length_unit="tokens",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    checks=checks,
)
