"""The specification of the diarization task. Imports no torch."""

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.task_spec import TaskSpec
from vaak.tasks.diarization.checks import checks
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
    recognised_by=(
        "datasets",
        "global_config",
        "model.front_end",
        "model.preset=sa_eend",
        "data.inference",
        "data.scoring",
        "data.augmentation",
    ),
    also_recognised_by=("training.eval_knobs",),
    short_names={LABEL_TYPE: LABEL_TYPES},
    used_by_models=(LABEL_TYPE,),
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=SIDES,
    checks=checks,
)
