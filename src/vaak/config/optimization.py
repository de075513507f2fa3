"""Optimizer, schedule and clipping: the options of how weights are updated."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vaak.config.base import ResumeClass, Section, option

SCHEDULES_THAT_END_LOW = ("linear", "cosine", "cosine_restarts", "wsd", "polynomial", "one_cycle", "plateau")


Beta = Annotated[float, Field(ge=0, lt=1)]


class ParameterGroupConfig(Section):
    """Parameters whose names match a regular expression; the first group that matches wins."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    match: str = option("Regular expression searched in the parameter's name.")
    lr_scale: float = option("Multiplies the learning rate.", 1.0, ge=0)
    weight_decay: float | None = option("Replaces the weight decay; null keeps it.", None, ge=0)


class OptimizerConfig(Section):
    """How weights are updated."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    type: Literal["adamw", "adam", "sgd", "adafactor", "lion", "muon"] = option(
        "The update rule.", "adamw", resume="refused"
    )
    lr: float = option("Peak learning rate; for muon, the matrices' rate.", 1e-3, gt=0)
    weight_decay: float = option(
        "Weight decay of matrices, decoupled save in adam and sgd; norms and biases get none.", 0.01, ge=0
    )
    betas: tuple[Beta, Beta] = option(
        "Decay of the moments' running averages.", (0.9, 0.999), only_for=("adamw", "adam", "lion", "muon")
    )
    eps: float = option("Added to the denominator.", 1e-8, gt=0, only_for=("adamw", "adam", "muon"))
    momentum: float = option(
        "Momentum of sgd and of muon's matrices.", 0.95, ge=0, lt=1, only_for=("sgd", "muon"), resume_switch="refused"
    )
    nesterov: bool = option("Nesterov momentum.", True, only_for=("sgd", "muon"))
    adamw_lr: float | None = option(
        "Muon: the rate of embeddings, norms and heads, which AdamW updates; null is a third of lr.",
        None,
        only_for=("muon",),
        gt=0,
    )
    layer_decay: float = option("Each layer below the top has its rate multiplied by this.", 1.0, gt=0, le=1)
    groups: tuple[ParameterGroupConfig, ...] = option("Rates and decay of parameters chosen by name.", ())
    fused: bool | None = option(
        "Fused kernels; null uses them where they exist.", None, only_for=("adamw", "adam", "sgd")
    )


class SchedulerConfig(Section):
    """The learning rate as a function of the step."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    type: Literal[
        "constant",
        "linear",
        "cosine",
        "cosine_restarts",
        "wsd",
        "polynomial",
        "inverse_sqrt",
        "one_cycle",
        "plateau",
    ] = option("Shape of the schedule; plateau is the one that remembers.", "constant")
    warmup_steps: int = option("Steps of linear warm-up from zero.", 0, ge=0)
    warmup_ratio: float | None = option("Warm-up as a part of all steps, in place of warmup_steps.", None, ge=0, lt=1)
    min_lr: float = option("Where the rate ends.", 0.0, ge=0, only_for=SCHEDULES_THAT_END_LOW)
    decay_ratio: float = option(
        "wsd: the last part of all steps, in which the rate falls.", 0.2, gt=0, le=1, only_for=("wsd",)
    )
    power: float = option("polynomial: the exponent.", 1.0, gt=0, only_for=("polynomial",))
    first_cycle_steps: int | None = option(
        "cosine_restarts: length of the first cycle (T_0); null is a tenth of all steps.",
        None,
        gt=0,
        only_for=("cosine_restarts",),
    )
    cycle_growth: int = option(
        "cosine_restarts: each cycle is this many times the one before (T_mult).",
        1,
        ge=1,
        only_for=("cosine_restarts",),
    )
    peak_at: float = option(
        "one_cycle: the part of all steps at which the rate peaks.", 0.3, gt=0, lt=1, only_for=("one_cycle",)
    )
    initial_div: float = option("one_cycle: peak rate over initial rate.", 25.0, gt=1, only_for=("one_cycle",))
    factor: float = option("plateau: the rate is multiplied by this.", 0.1, gt=0, lt=1, only_for=("plateau",))
    patience: int = option(
        "plateau: evaluations without improvement before the rate falls.", 5, ge=0, only_for=("plateau",)
    )
    metric: str = option("plateau: the metric watched.", "val_loss", only_for=("plateau",))
    mode: Literal["min", "max"] = option("plateau: whether lower or higher is better.", "min", only_for=("plateau",))


class GradientClippingConfig(Section):
    """Bounds on the gradient of a whole step."""

    bare: ClassVar[str | None] = "norm"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    norm: float | None = option("Largest 2-norm of all gradients together; null leaves it.", 1.0, gt=0)
    value: float | None = option("Largest absolute value of any gradient; null leaves it.", None, gt=0)
