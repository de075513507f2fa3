"""What a task declares about its configuration, as one ``TaskSpec``. Nothing else in ``config`` knows a task."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vaak.config.base import Open, Section
from vaak.config.resolve.global_config import Sides
from vaak.config.training import TrainingConfig

FindingKind = Literal["impossible", "impossible if given", "no effect", "remark"]


@dataclass(frozen=True)
class CheckFinding:
    """What a check reports about one option, by its dotted key.

    ``impossible`` ends the load. ``impossible if given`` does so only where the user gave the option, whose default
    otherwise yields. ``no effect`` and ``remark`` are warnings for who gave it; an option without effect is left out of
    resolved configurations.
    """

    kind: FindingKind
    key: str
    message: str


def impossible(key: str, message: str) -> CheckFinding:
    return CheckFinding("impossible", key, message)


def impossible_if_given(key: str, message: str) -> CheckFinding:
    return CheckFinding("impossible if given", key, message)


def no_effect(key: str, message: str) -> CheckFinding:
    return CheckFinding("no effect", key, message)


def unread_input(key: str, value: Any, message: str) -> CheckFinding:
    """An error where a file or model is named (``value``) that would not be read; else the option has no effect."""
    return impossible_if_given(key, f"{message}; leave it out") if value else no_effect(key, message)


def remark(key: str, message: str) -> CheckFinding:
    return CheckFinding("remark", key, message)


def _no_findings(experiment: Any) -> Iterable[CheckFinding]:
    return ()


def _none_refused(experiment: Any) -> Mapping[str, str]:
    return {}


def only_length(experiment: Any) -> Mapping[str, str]:
    """The measures of difficulty that data have not whose examples are compared by their lengths only."""
    return dict.fromkeys(("lexical", "morphology"), "examples of this task are compared by length only")


@dataclass(frozen=True)
class TaskSpec:
    """The types of a task's sections, its defaults and other names, and its own checks.

    task
        Where its class is, as ``module:Name``; a task of a user's own may leave it out, since the class holds the spec.
    model, data, training
        Types of these sections; with ``Open``, any key is accepted.
    audio, corpus
        Types of ``global_config`` and of an item of ``datasets``, for a task that reads audio.
    defaults
        Values below everything that the user gives, as nested sections.
    aliases
        Other dotted keys → ours.
    shared, sides
        Sections of the model that stand for others (``vaak.config.resolve.global_config``).
    recognised_by, also_recognised_by
        Keys, and ``key=value``, by which a YAML without ``task:`` is recognized as this task's; the latter only count
        where the former point to no task, or to several.
    short_names
        Classes by short name, under the dotted keys that they may stand at.
    used_by_models
        Keys of classes that using a trained model executes, not only training it.
    length_unit
        What the lengths of examples count, and so which budget a bucketed batch may have.
    metrics
        The figures that evaluations in training may give in an experiment of this task, with the prefix of their split;
        a name that ends in ``/`` stands for all that begin with it. None: unknown.
    losses
        Those of Vaak's main losses that fit what the models predict, by short name; None: any may.
    auxiliary_losses
        The task's own auxiliary losses, by the names that ``training.loss.auxiliary`` weighs; None: unknown.
    refused_batching
        Types of ``training.batching`` that the task's data can't have, each with the reason.
    has_logits
        Whether its models choose between classes, so that one can learn from another (``distillation``).
    has_class_weights
        Whether classes may have weights in the cross-entropy (``training.loss.main.weight``).
    refused_difficulties
        Measures of ``training.curriculum`` that the data of an experiment don't have, each with the reason.
    num_parameters
        About how many parameters the model of an experiment has; None: unknown.
    checks
        Finds options that exclude each other or have no effect, in an experiment of this task.
    """

    task: str | None = None
    model: type[Section] | type[Open] = Open
    data: type[Section] | type[Open] = Open
    training: type[TrainingConfig] = TrainingConfig
    audio: type[Section] | None = None
    corpus: type[Section] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sides: Mapping[str, str] = field(default_factory=dict)
    recognised_by: tuple[str, ...] = ()
    also_recognised_by: tuple[str, ...] = ()
    short_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    used_by_models: tuple[str, ...] = ()
    length_unit: Literal["tokens", "seconds"] | None = None
    metrics: Callable[[Any], Iterable[str]] | None = None
    losses: Callable[[Any], Iterable[str]] | None = None
    auxiliary_losses: tuple[str, ...] | None = None
    refused_batching: Mapping[str, str] = field(default_factory=dict)
    has_logits: bool = True
    has_class_weights: bool = False
    refused_difficulties: Callable[[Any], Mapping[str, str]] = _none_refused
    num_parameters: Callable[[Any], int] | None = None
    checks: Callable[[Any], Iterable[CheckFinding]] = _no_findings

    @property
    def stand_ins(self) -> Sides:
        """Which sections of the model stand for others."""
        return Sides(self.shared, self.sides)


def load_name(reference: str) -> Any:
    """The object that ``package.module:Name`` names.

    >>> load_name("vaak.config.task_spec:TaskSpec") is TaskSpec
    True
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
