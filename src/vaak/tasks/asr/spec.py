"""The specification of the speech recognition task. Imports no torch."""

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import TaskSpec, only_length
from vaak.tasks.asr.checks import LOAD_BALANCING, checks, metrics, num_parameters
from vaak.tasks.asr.config import ALIASES, DEFAULTS, AsrDataConfig, AsrModelConfig
from vaak.text.config import losses_of_tokens

SPEC = TaskSpec(
    task="vaak.tasks.asr.task:AsrTask",
    model=AsrModelConfig,
    data=AsrDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    losses=losses_of_tokens,
    auxiliary_losses=(LOAD_BALANCING,),
    refused_batching={"packed": "utterances can't be put together in a row; expected fixed, bucketed or stratified"},
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    checks=checks,
)
