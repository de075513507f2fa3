"""The specification of training on several tasks. Imports no torch."""

from vaak.config.tasks import TaskSpec
from vaak.tasks.multitask.checks import checks, metrics, num_parameters, refused_difficulties
from vaak.tasks.multitask.config import ALIASES, DEFAULTS, MultiTaskConfig, MultiTaskDataConfig

SPEC = TaskSpec(
    task="vaak.tasks.multitask.task:MultiTask",
    model=MultiTaskConfig,
    data=MultiTaskDataConfig,
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    auxiliary_losses=(),
    refused_batching={"packed": "rows of several tasks aren't packed; expected fixed, bucketed or stratified"},
    refused_difficulties=refused_difficulties,
    num_parameters=num_parameters,
    checks=checks,
)
