"""The specification of the text-to-speech task. Imports no torch."""

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import TaskSpec, only_length
from vaak.tasks.tts.checks import LOSSES, checks, losses, metrics, num_parameters
from vaak.tasks.tts.config import ALIASES, DEFAULTS, SHARED, TtsDataConfig, TtsModelConfig

SPEC = TaskSpec(
    task="vaak.tasks.tts.task:TtsTask",
    model=TtsModelConfig,
    data=TtsDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    metrics=metrics,
    losses=losses,
    auxiliary_losses=LOSSES,
    refused_batching={
        "stratified": "utterances have no classes to keep in proportion; expected fixed or bucketed",
        "packed": "utterances can't be put together in a row; expected bucketed",
    },
    has_logits=False,
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    checks=checks,
)
