"""The specification of the diarization task. Imports no torch."""

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import TaskSpec, only_length
from vaak.tasks.diarization.checks import checks, metrics, num_parameters
from vaak.tasks.diarization.config import (
    ALIASES,
    DEFAULTS,
    LABEL_TYPE,
    LABEL_TYPES,
    SHARED,
    SIDES,
    DiarizationDataConfig,
    DiarizationModelConfig,
    DiarizationTrainingConfig,
)

SPEC = TaskSpec(
    task="vaak.tasks.diarization.task:DiarizationTask",
    model=DiarizationModelConfig,
    data=DiarizationDataConfig,
    training=DiarizationTrainingConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    short_names={LABEL_TYPE: LABEL_TYPES},
    used_by_models=(LABEL_TYPE,),
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    metrics=metrics,
    auxiliary_losses=("clustering", "speaker", "attractor", "norm_reg"),
    refused_batching={
        "stratified": "recordings have no classes to keep in proportion; expected fixed or bucketed",
        "packed": "recordings can't be put together in a row; expected bucketed",
    },
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    checks=checks,
)
