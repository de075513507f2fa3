"""The options of training on several tasks. Imports no torch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, field_validator

from vaak.config.base import Place, ResumeClass, Section, option
from vaak.config.experiment import Experiment
from vaak.config.inner import InnerExperiment, make_experiment

DEFAULTS: dict[str, Any] = {
    "training": {
        "epochs": 5,
        "batch_size": 32,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "adamw", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
    },
}

ALIASES: dict[str, str] = {
    "tasks": "data.tasks",
    "sampling": "data.sampling",
    "shared": "model.shared",
    "loss_weights": "model.loss_weights",
}

GRAMMAR_SENTENCES = {"type": "grammar", "num_sentences": 2000}
EMBEDDED: dict[str, dict[str, Any]] = {
    "rules": {
        "task": "classification",
        "model": {"d_model": 128, "num_layers": 2, "num_heads": 4},
        "data": {"corpus": GRAMMAR_SENTENCES, "max_length": 32},
    },
    "words": {
        "task": "lm",
        "model": {"model_type": "encoder", "d_model": 128, "num_layers": 2, "num_heads": 4},
        "data": {
            "corpus": GRAMMAR_SENTENCES,
            "tokenizer": {"type": "byte_level", "vocab_size": 1000},
            "max_length": 32,
        },
    },
}
"""The tasks where none are given: the rule of grammar that a sentence shows, and its masked words."""


class MultiTaskConfig(Section):
    """The models of the tasks, and what they have in common."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    shared: tuple[str | dict[str, str], ...] = option(
        "Modules that the tasks share, by their names in each task's model (transformer); where these differ, by "
        "task ({intent: transformer.stack, words: stack}). The first task's module replaces the others'. Empty: a "
        "model for each task.",
        (),
    )
    loss_weights: dict[str, NonNegativeFloat] | Literal["uncertainty"] = option(
        "Weight of each task's loss, by task (default: 1); or uncertainty, to learn the weights.", {}
    )


class SamplingConfig(Section):
    """How often each task is trained on."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["proportional", "temperature", "annealed"] = option(
        "A task's share of an epoch follows its number of microbatches n: proportional: n; temperature: n^(1/T); "
        "annealed: n^a, where a falls from 1 in the first epoch to 0.2 in the last.",
        "proportional",
    )
    temperature: float = option(
        "T: 1 is proportional; the higher, the more equal.", 2.0, gt=0, only_for=("temperature",)
    )
    epochs: int | None = option(
        "annealed: number of epochs over which the exponent falls; null is training.epochs.",
        None,
        gt=0,
        only_for=("annealed",),
    )


class MultiTaskDataConfig(Section):
    """The tasks, each with its data."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    tasks: dict[str, InnerExperiment] = option(
        "The tasks by name: each a YAML of another task, its sections (task, model, data, training.loss), or sections "
        "over a file (extends). Empty: two on embedded data.",
        {},
    )
    sampling: SamplingConfig = option("How often each task is trained on.", SamplingConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "Fail on an example that can't be read, or skip it; the tasks' own option isn't used.",
        "fail",
        resume="other numbers",
    )

    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs, for tasks that don't give one; null is RUN/tasks/NAME/prepared.",
        None,
        resume="free",
    )

    @field_validator("tasks")
    @classmethod
    def _names_are_plain(cls, tasks: dict[str, InnerExperiment]) -> dict[str, InnerExperiment]:
        wrong = [name for name in tasks if not name.isidentifier()]
        if wrong:
            raise ValueError(f"{wrong[0]!r} can't name a task: a name may contain only letters, digits and underscores")
        return tasks

    @cached_property
    def inner_experiments(self) -> dict[str, Experiment[Any, Any]]:
        """The experiment of each task; none if one can't be read, which has been reported.

        Raises UserError for a task that isn't known.
        """
        values = {name: task.model_dump(mode="json") for name, task in self.tasks.items()} or EMBEDDED
        return {name: make_experiment(own) for name, own in values.items()} if all(values.values()) else {}

    @property
    def draws_features(self) -> bool:
        """Whether any layer of a task draws random features."""
        return any(getattr(one.model, "draws_features", False) for one in self.inner_experiments.values())


MultiTaskExperiment = Experiment[MultiTaskConfig, MultiTaskDataConfig]
