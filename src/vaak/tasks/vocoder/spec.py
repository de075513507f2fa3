"""The specification of the vocoder task. Imports no torch."""

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import TaskSpec, only_length
from vaak.tasks.vocoder.checks import checks, losses, metrics, num_parameters
from vaak.tasks.vocoder.config import ALIASES, DEFAULTS, LOSSES, VocoderDataConfig, VocoderModelConfig

SPEC = TaskSpec(
    task="vaak.tasks.vocoder.task:VocoderTask",
    model=VocoderModelConfig,
    data=VocoderDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    losses=losses,
    auxiliary_losses=LOSSES,
    refused_batching={
        "stratified": "crops have no classes to keep in proportion; expected fixed",
        "packed": "crops can't be put together in a row; expected fixed",
    },
    has_logits=False,
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    checks=checks,
)
