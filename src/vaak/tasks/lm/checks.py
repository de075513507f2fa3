"""Options of a language model that don't go together, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.task_spec import CheckFinding, impossible
from vaak.nn.checks import stack_findings
from vaak.tasks.lm.config import LanguageModelConfig, LanguageModelDataConfig


def checks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    model: LanguageModelConfig = experiment.model
    data: LanguageModelDataConfig = experiment.data
    yield from stack_findings("model", model, is_encoder=model.model_type == "encoder")
    curriculum = experiment.training.curriculum
    if curriculum is not None and curriculum.difficulty == "length" and data.layout == "stream":
        yield impossible(
            "training.curriculum.difficulty",
            "windows of a stream are all equally long; expected lexical or morphology, or data.layout: document",
        )
