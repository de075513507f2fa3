"""Optimizer, schedule and clipping: the options of how weights are updated, and the table of the update rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from vaak.config.base import ExtensibleSection, ResumeClass, Section, open_type, option, users_options

SCHEDULES = (
    "constant",
    "linear",
    "cosine",
    "cosine_restarts",
    "wsd",
    "polynomial",
    "inverse_sqrt",
    "one_cycle",
    "plateau",
)
SCHEDULES_THAT_END_LOW = ("linear", "cosine", "cosine_restarts", "wsd", "polynomial", "one_cycle", "plateau")

Shape = Sequence[int]


@dataclass(frozen=True)
class UpdateCondition:
    """A property of the machine that the bits of a rule's updates depend on, besides the options.

    It is stored with checkpoints under ``name``, and compared between processes and runs. ``value`` names a function of
    the device that gives it as text. ``meaning`` says what a change does; ``advice`` is for machines that differ.
    """

    name: str
    value: str
    meaning: str
    advice: str


@dataclass(frozen=True)
class UpdateRule:
    """One of Vaak's optimizers: all that differs from rule to rule.

    ``builder`` names a function ``(parameters, config) -> optimizers``. ``reads`` are the options that only some rules
    read. ``keeps(shape, is_hidden_matrix, config)`` is how many numbers the rule keeps for a parameter.
    ``condition`` is what its bits depend on in a machine, if anything.
    """

    builder: str
    reads: tuple[str, ...]
    keeps: Callable[[Shape, bool, OptimizerConfig], int]
    condition: UpdateCondition | None = None


def two_moments(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    """Return a mean of the gradients and one of their squares, as AdamW keeps them."""
    return 2 * math.prod(shape)


def _one_moment(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    return math.prod(shape)


def _momentum(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    return math.prod(shape) if config.momentum > 0 else 0


def _rows_and_columns(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    """Return the second moments of rows and of columns; those of a vector in full."""
    number = math.prod(shape)
    return number // shape[-1] + number // shape[-2] if len(shape) > 1 else number


def _one_of_matrices(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    """Count the numbers of state: one moment for matrices between hidden layers, AdamW's two for all else."""
    return (1 if is_hidden_matrix else 2) * math.prod(shape)


BLOCK_SIZE = 256
"""Numbers of a moment in 8 bits that share a scale."""


def has_8bit_moments(shape: Shape, is_hidden_matrix: bool) -> bool:
    """Return whether adamw_8bit keeps a parameter's moments in 8 bits: weights, but no vectors, embeddings, heads."""
    return is_hidden_matrix or len(shape) > 2


def _moments_in_8_bits(shape: Shape, is_hidden_matrix: bool, config: OptimizerConfig) -> int:
    """Two codes of a byte for each number, and two scales for each block of them."""
    number = math.prod(shape)
    if not has_8bit_moments(shape, is_hidden_matrix):
        return 2 * number
    return -(-2 * number // 4) + 2 * -(-number // BLOCK_SIZE)


_BUILDERS = "vaak.engine.optim.optimizers"

UPDATE_RULES: dict[str, UpdateRule] = {
    "adamw": UpdateRule(f"{_BUILDERS}:adamw", ("betas", "eps", "fused"), two_moments),
    "adam": UpdateRule(f"{_BUILDERS}:adam", ("betas", "eps", "fused"), two_moments),
    "sgd": UpdateRule(f"{_BUILDERS}:sgd", ("momentum", "nesterov", "fused"), _momentum),
    "adafactor": UpdateRule(f"{_BUILDERS}:adafactor", (), _rows_and_columns),
    "lion": UpdateRule(f"{_BUILDERS}:lion", ("betas",), _one_moment),
    "muon": UpdateRule(
        "vaak.engine.optim.muon:muon",
        ("betas", "eps", "momentum", "nesterov", "adamw_lr"),
        _one_of_matrices,
        UpdateCondition(
            "muon",
            "vaak.engine.optim.muon:muon_precision",
            "it orthogonalises in fp32 on a CPU without instructions for bf16",
            "use processors that all multiply bf16 in hardware, or that all don't, or another optimizer",
        ),
    ),
    "adamw_8bit": UpdateRule("vaak.engine.optim.adamw_8bit:adamw_8bit", ("betas", "eps", "fused"), _moments_in_8_bits),
}
"""Vaak's optimizers by their names for training.optimizer.type."""


UPDATE_CONDITIONS = {one.condition.name: one.condition for one in UPDATE_RULES.values() if one.condition is not None}
"""Conditions of all rules, by name."""


def rules_reading(name: str) -> tuple[str, ...]:
    """Return the update rules that read an option."""
    return tuple(rule for rule, entry in UPDATE_RULES.items() if name in entry.reads)


Beta = Annotated[float, Field(ge=0, lt=1)]


class ParameterGroupConfig(Section):
    """Parameters whose names match a regular expression; the first group that matches wins."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    match: str = option("Regular expression searched in the parameter's name.")
    lr_scale: float = option("Multiplies the learning rate.", 1.0, ge=0)
    weight_decay: float | None = option("Replaces the weight decay; null keeps it.", None, ge=0)


class OptimizerConfig(ExtensibleSection):
    """How weights are updated."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"
    key: ClassVar[str] = "training.optimizer"
    own_types: ClassVar[tuple[str, ...]] = tuple(UPDATE_RULES)

    type: Annotated[str, open_type(tuple(UPDATE_RULES))] = option("The update rule.", "adamw", resume="refused")
    lr: float = option("Peak learning rate; for muon, the matrices' rate.", 1e-3, gt=0)
    weight_decay: float = option(
        "Weight decay of matrices, decoupled except in adam and sgd; norms and biases get none.", 0.01, ge=0
    )
    betas: tuple[Beta, Beta] = option(
        "Decay of the moments' running averages.", (0.9, 0.999), only_for=rules_reading("betas")
    )
    eps: float = option("Added to the denominator.", 1e-8, gt=0, only_for=rules_reading("eps"))
    momentum: float = option(
        "Momentum of sgd and of muon's matrices.",
        0.95,
        ge=0,
        lt=1,
        only_for=rules_reading("momentum"),
        resume_switch="refused",
    )
    nesterov: bool = option("Nesterov momentum.", True, only_for=rules_reading("nesterov"))
    adamw_lr: float | None = option(
        "Muon: the rate of embeddings, norms and heads, which AdamW updates; null is a third of lr.",
        None,
        only_for=rules_reading("adamw_lr"),
        gt=0,
    )
    layer_decay: float = option(
        "Layer-wise decay: the rate is multiplied by this for each layer below the top.", 1.0, gt=0, le=1
    )
    groups: tuple[ParameterGroupConfig, ...] = option("Rates and decay of parameters chosen by name.", ())
    fused: bool | None = option(
        "Fused kernels; null uses them where they exist.", None, only_for=rules_reading("fused")
    )
    options: dict[str, Any] = users_options()


class SchedulerConfig(ExtensibleSection):
    """The learning rate as a function of the step."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"
    key: ClassVar[str] = "training.scheduler"
    own_types: ClassVar[tuple[str, ...]] = SCHEDULES

    type: Annotated[str, open_type(SCHEDULES)] = option(
        "The learning-rate schedule; only plateau has state.", "constant"
    )
    warmup_steps: int = option("Steps of linear warm-up from zero.", 0, ge=0)
    warmup_ratio: float | None = option(
        "Warm-up as a fraction of all steps, instead of warmup_steps.", None, ge=0, lt=1
    )
    long_warmup: Literal["refuse", "shorten"] = option(
        "If warmup_steps exceed the steps of training: refuse, or shorten them to a tenth of training. Default: "
        "shorten if the data or the length of training override the file that has warmup_steps.",
        "refuse",
        resume="free",
    )
    min_lr: float = option("The final learning rate.", 0.0, ge=0, only_for=SCHEDULES_THAT_END_LOW)
    decay_ratio: float = option(
        "wsd: fraction of all steps, at the end, over which the rate decays.", 0.2, gt=0, le=1, only_for=("wsd",)
    )
    power: float = option("polynomial: the exponent.", 1.0, gt=0, only_for=("polynomial",))
    first_cycle_steps: int | None = option(
        "cosine_restarts: length of the first cycle (T_0); null is a tenth of all steps.",
        None,
        gt=0,
        only_for=("cosine_restarts",),
    )
    first_cycle_epochs: int | None = option(
        "cosine_restarts: the same in epochs.", None, gt=0, only_for=("cosine_restarts",)
    )
    cycle_growth: int = option(
        "cosine_restarts: each cycle is this many times the one before (T_mult).",
        1,
        ge=1,
        only_for=("cosine_restarts",),
    )
    peak_at: float = option(
        "one_cycle: the fraction of all steps at which the rate peaks.", 0.3, gt=0, lt=1, only_for=("one_cycle",)
    )
    initial_div: float = option("one_cycle: peak rate over initial rate.", 25.0, gt=1, only_for=("one_cycle",))
    factor: float = option("plateau: the rate is multiplied by this.", 0.1, gt=0, lt=1, only_for=("plateau",))
    patience: int = option(
        "plateau: evaluations without improvement before the rate falls.", 5, ge=0, only_for=("plateau",)
    )
    metric: str = option("plateau: the metric to watch.", "val_loss", only_for=("plateau",))
    mode: Literal["min", "max"] = option("plateau: whether lower or higher is better.", "min", only_for=("plateau",))
    options: dict[str, Any] = users_options()


class GradientClippingConfig(Section):
    """Bounds on the gradient of a whole step."""

    bare: ClassVar[str | None] = "norm"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    norm: float | None = option("Clips the 2-norm of all gradients together to this; null doesn't clip.", 1.0, gt=0)
    value: float | None = option("Clips the absolute value of each gradient to this; null doesn't clip.", None, gt=0)
