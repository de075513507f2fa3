"""The configuration of a whole run: task, model, data, training, teacher and run directory."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, cast

from pydantic import ValidationInfo, field_validator
from typing_extensions import TypeVar

from vaak.config.base import FolderPath, ResumeClass, Section, SourceOrName, option
from vaak.config.tasks import TaskSpec, load_spec
from vaak.config.training import TrainingConfig


class HiddenConfig(Section):
    """A module of the student whose output learns to be that of a module of the teacher."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    student: str = option("Name of the student's module, as in vaak model show; its output is (row, time, width).")
    teacher: str = option("Name of the teacher's module; where its output is wider or narrower, a matrix is learned.")
    weight: float = option("Weight of the mean squared difference.", 1.0, gt=0, resume="other numbers")


class DistillationConfig(Section):
    """Distillation from a teacher: alpha · T² · KL(teacher, student) + (1 - alpha) · the task's own loss."""

    bare: ClassVar[str | None] = "teacher"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    teacher: SourceOrName = option("The teacher: a run of the same task, or a checkpoint of it.", resume="free")
    temperature: float = option("T: the logits of both are divided by it.", 4.0, gt=0)
    alpha: float = option("Weight of the teacher's predictions; the labels have the rest.", 0.7, ge=0, le=1)
    hidden: tuple[HiddenConfig, ...] = option("Modules whose outputs are learned as well.", (), resume="refused")
    stored_gib: float = option(
        "Largest size, in GiB, of the teacher's stored predictions; above, it predicts in every step.", 2.0, ge=0
    )


LONGEST_NAME_BYTES = 255
"""The longest name of a folder on every common file system."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
Model = TypeVar("Model")
Data = TypeVar("Data")
Audio = TypeVar("Audio", default=dict[str, Any])
Corpus = TypeVar("Corpus", default=Any)
Training = TypeVar("Training", bound=TrainingConfig, default=TrainingConfig)


class WandbConfig(Section):
    """Where Weights & Biases keeps the run; it is used when training.logging.wandb is true."""

    bare: ClassVar[str | None] = "project"
    resume_class: ClassVar[ResumeClass | None] = "free"

    project: str = option("Name of the project.", "vaak")
    entity: str | None = option("User or team; null is your default.", None)
    name: str | None = option("Name of the run there; null is this run's name.", None)
    tags: tuple[str, ...] = option("Labels of the run.", ())
    notes: str | None = option("A longer description.", None)
    checkpoints: Literal["none", "best", "all"] = option("Which checkpoints are uploaded as artifacts.", "none")
    mode: Literal["online", "offline", "disabled"] | None = option("null leaves it to WANDB_MODE.", None)


class Experiment(Section, Generic[Model, Data, Audio, Corpus, Training]):
    """A validated configuration; ``Experiment[LanguageModelConfig, LanguageModelDataConfig]`` for a task's types.

    ``reference`` finds the task from anywhere: it is ``task``, with the whole path of a user's file.
    """

    reference: ClassVar[str]

    task: str = option("Task to train.", resume="refused")
    name: str = option(
        "Name of the run and of its folder; default: the name of the YAML file.", pattern=r"^[^/\\]+$", resume="free"
    )
    run_dir: FolderPath = option("Folder of the run; default: runs/NAME.", resume="free")
    model: Model = option("The network.")
    global_config: Audio = option("Features of all audio datasets.", {}, validate_default=True, resume="refused")
    datasets: tuple[Corpus, ...] = option("Audio datasets.", (), resume="refused")
    data: Data = option("The data.")
    training: Training = option("The loop.", {}, validate_default=True)
    distillation: DistillationConfig | None = option(
        "A teacher to learn from; null: none.", None, resume="other numbers"
    )
    wandb: WandbConfig = option("Weights & Biases.", WandbConfig())

    @field_validator("name", "run_dir")
    @classmethod
    def _has_no_control_characters(cls, value: str | Path, info: ValidationInfo) -> str | Path:
        # run_dir may come from the name: where that is wrong, its own error is enough.
        named = info.field_name == "name" or "name" in info.data
        if named and _CONTROL.search(str(value)):
            raise ValueError(
                f"is {json.dumps(str(value))}; a folder name can't contain a newline or another control character"
            )
        return value

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if name in (".", ".."):
            raise ValueError(f"is {name}, which can't name a new folder; give another name=")
        size = len(name.encode())
        if size > LONGEST_NAME_BYTES:
            raise ValueError(
                f"takes {size} bytes in UTF-8, and a folder name may have at most {LONGEST_NAME_BYTES}; shorten it"
            )
        return name

    @property
    def skips_bad_examples(self) -> bool:
        """Whether an example that can't be read is left out and counted; else it ends the run."""
        return getattr(self.data, "on_bad_example", "fail") == "skip"

    @property
    def spec(self) -> TaskSpec:
        return load_spec(self.reference)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by task, since the class is made when it is first asked for."""
        return _restored, (self.reference, dict(self))


def _restored(task: str, fields: dict[str, Any]) -> Experiment[Any, Any]:
    return experiment_type(task).model_construct(**fields)


def experiment_type(task: str | None) -> type[Experiment[Any, Any]]:
    """Return the experiment whose sections have the types of a task (``load_spec``); of no known task, any types."""
    if task is None:
        return Experiment[Any, Any]
    spec = load_spec(task)
    return _make_type(task, (spec.model, spec.data, spec.audio or dict[str, Any], spec.corpus or Any, spec.training))


@cache
def _make_type(task: str, types: tuple[Any, ...]) -> type[Experiment[Any, Any]]:
    generic = Experiment.__class_getitem__(types)
    about = {"__module__": __name__, "__annotations__": {"reference": ClassVar[str]}, "reference": task}
    made: Any = type(generic)
    return cast("type[Experiment[Any, Any]]", made(generic.__name__, (generic,), about))
