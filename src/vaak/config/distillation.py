"""Options of distillation: a model that learns what another predicts. Imports no torch."""

from __future__ import annotations

from typing import ClassVar

from vaak.config.base import ResumeClass, Section, option


class HiddenConfig(Section):
    """A module of the student whose output learns to be that of a module of the teacher."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    student: str = option("Name of the student's module, as in vaak model show; its output is (row, time, width).")
    teacher: str = option("Name of the teacher's module; where its output is wider or narrower, a matrix is learned.")
    weight: float = option("Weight of the mean squared difference.", 1.0, gt=0, resume="other numbers")


class DistillationConfig(Section):
    """What is learned of a teacher: alpha · T² · KL(teacher, student) + (1 - alpha) · the task's own loss."""

    bare: ClassVar[str | None] = "teacher"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    teacher: str = option("The teacher: a run of the same task, or a checkpoint of it.", resume="free")
    temperature: float = option("T: logits of both are divided by it.", 4.0, gt=0)
    alpha: float = option("Weight of what the teacher predicts; the rest is that of the labels.", 0.7, ge=0, le=1)
    hidden: tuple[HiddenConfig, ...] = option("Modules whose outputs are learned as well.", (), resume="refused")
    stored_gib: float = option(
        "Largest size, in GiB, of the teacher's stored predictions; above, it predicts in every step.", 2.0, ge=0
    )
