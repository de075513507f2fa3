"""Other names of options: aliases, and options of a model that stand for more than the section they are written in.

An alias is a name of the original systems for one canonical name. ``model.global_config`` is for both sides of an
encoder–decoder:

    model.global_config.dropout ─┬─▶ model.encoder.dropout      unless the same file gives the side its own
                                 └─▶ model.decoder.dropout

A model of one side may be written in the same way: ``model.global_config`` and ``model.decoder`` then stand for
``model`` itself. All are replaced within each file, or on the command line, before files merge: so ``learning_rate`` in
one file replaces ``training.optimizer.lr`` of the file below it, and a later ``global_config`` sets both sides again.
In one file, a name and its alias are an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vaak.config.components import did_you_mean
from vaak.config.training import TrainingConfig
from vaak.config.yaml.fields import SectionType, get_annotation, get_section, get_value_annotation, spell_out
from vaak.config.yaml.tree import Placed, PlacedDict, Problem, copy_tree, entries, find, put, replace, split_key, take


@dataclass(frozen=True)
class SectionShortcuts:
    """Which sections of a task's model stand for others.

    ``shared`` has the sections that each of its options goes to; ``own``, for a model of one side, by its type the
    section that may stand for ``model``.
    """

    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> dict[str, tuple[str, ...]]:
        """Every such section with those it stands for."""
        return {**dict.fromkeys(self.own.values(), ("model",)), **self.shared}

    def aliases(self, of_task: Mapping[str, str]) -> dict[str, str]:
        """Other spellings inside these sections: the ones that hold where their options go."""
        return {
            f"{section}.{alias.removeprefix(f'{target}.')}": f"{section}.{name.removeprefix(f'{target}.')}"
            for section, targets in self.targets.items()
            for target in targets
            for alias, name in of_task.items()
            if alias.startswith(f"{target}.") and name.startswith(f"{target}.")
        }


def model_type_given(layers: Sequence[PlacedDict]) -> Placed | None:
    """Return the type of model that the last layer which has one gives."""
    paths = (("model_type",), ("model", "model_type"))
    given = [found for layer in layers for path in paths if (found := find(layer, path)) is not None]
    return given[-1] if given else None


LOOP_OPTIONS: dict[str, str] = {
    "learning_rate": "training.optimizer.lr",
    "weight_decay": "training.optimizer.weight_decay",
    "adam_epsilon": "training.optimizer.eps",
    "adam_beta1": "training.optimizer.betas.0",
    "adam_beta2": "training.optimizer.betas.1",
    "betas": "training.optimizer.betas",
    "eps": "training.optimizer.eps",
    "num_epochs": "training.epochs",
    "accumulation_steps": "training.gradient_accumulation_steps",
    "seed": "training.random_seed",
    "fp16": "training.mixed_precision",
    "bf16": "training.mixed_precision",
    "use_mixed_precision": "training.mixed_precision",
    "max_grad_norm": "training.gradient_clipping.norm",
    "max_norm": "training.gradient_clipping.norm",
    "scheduler_type": "training.scheduler.type",
    "warmup_steps": "training.scheduler.warmup_steps",
    "num_warmup_steps": "training.scheduler.warmup_steps",
    "label_smoothing": "training.loss.label_smoothing",
    "logging_steps": "training.logging.interval",
    "use_wandb": "training.logging.wandb",
    "eval_steps": "training.validation.interval",
    "eval_every_n_epochs": "training.validation.interval_epochs",
    "save_steps": "training.checkpoint.interval",
    "save_every_n_epochs": "training.checkpoint.interval_epochs",
    "save_total_limit": "training.checkpoint.save_total_limit",
    "checkpoint_dir": "training.checkpoint.save_dir",
    "resume": "training.checkpoint.resume",
    "early_stopping_patience": "training.early_stopping.patience",
    "early_stopping_threshold": "training.early_stopping.min_delta",
    "dataloader_num_workers": "training.performance.num_workers",
    "num_workers": "training.performance.num_workers",
    "pin_memory": "training.performance.pin_memory",
    "persistent_workers": "training.performance.persistent_workers",
    "multiprocessing_context": "training.performance.multiprocessing_context",
    "gradient_checkpointing": "training.performance.gradient_checkpointing",
    "enable_profiling": "training.profiling",
    "project_name": "wandb.project",
}
"""Accepted inside ``training:`` and, as in flat files, at the top level."""
ELSEWHERE: dict[str, str] = {
    "experiment_name": "name",
    "training.logging.wandb_project": "wandb.project",
    "training.logging.wandb_entity": "wandb.entity",
    "training.performance.activation_checkpointing": "training.performance.gradient_checkpointing",
    "training.eval_knobs.max_duration": "training.batching.max_duration",
    "model.global_config.batch_size": "training.batch_size",
    "training.scheduler.T_0": "training.scheduler.first_cycle_epochs",
    "training.scheduler.T_mult": "training.scheduler.cycle_growth",
    "training.scheduler.eta_min": "training.scheduler.min_lr",
}
MAY_REPEAT = frozenset({"model.global_config.batch_size"})
"""Spellings that the universal pipeline gives next to the canonical name: no error where the values are equal."""
SCHEDULER_CLASSES = {"CosineAnnealingWarmRestarts": "cosine_restarts"}
"""Schedules by the names of their classes in torch."""
PRECISION_FLAGS = ({"fp16", "bf16"}, {"training.fp16", "training.bf16"})
"""One file may have both of a pair; the true one counts."""


def flat_names(experiment: SectionType) -> dict[str, str]:
    """Return the names of ``training:``, which are understood at the top level too."""
    training = get_section(get_annotation(experiment, "training")) or TrainingConfig
    return {name: f"training.{name}" for name in training.model_fields}


def option_aliases(of_task: Mapping[str, str]) -> dict[str, str]:
    """Return every alias of one option, dotted, with its canonical name; ``of_task`` are the task's own."""
    inside = {f"training.{alias}": name for alias, name in LOOP_OPTIONS.items()}
    return {**LOOP_OPTIONS, **inside, **ELSEWHERE, **of_task}


class Spellings:
    """All names that a task's options have in files, in one table: ``names`` has each with all that it stands for.

    ``shared`` are those in sections that stand for others: they give way to what a file says of these themselves.
    """

    def __init__(self, experiment: SectionType, of_task: Mapping[str, str], sides: SectionShortcuts) -> None:
        """``of_task`` are the task's own aliases, and ``sides`` the sections of its model that stand for others."""
        self.experiment = experiment
        self.sides = sides
        inside = {f"{section}.{option}": names for section in sides.targets for option, names in self._inside(section)}
        own = tuple(f"{section}." for section in sides.own.values())
        self.shared = {alias for alias in inside if not alias.startswith(own)}
        # In the order in which they are replaced: an alias may stand in a section that is written at the top level.
        single = {**flat_names(experiment), **option_aliases(of_task), **sides.aliases(of_task)}
        self.names = {**{alias: [name] for alias, name in single.items()}, **inside}

    def find_annotation(self, name: str) -> Any:
        """Return the type of an option by its canonical name; Any where nothing is known."""
        annotation: Any = self.experiment
        for key in split_key(name):
            section = get_section(annotation)
            annotation = get_annotation(section, key) if section else get_value_annotation(annotation) or Any
        return annotation

    def _inside(self, section: str) -> Iterable[tuple[str, list[str]]]:
        """Return the options of a section that stands for others, each with its dotted names in all that have it."""
        options: dict[str, list[str]] = {}
        for target in self.sides.targets[section]:
            kind = get_section(self.find_annotation(target))
            for name in kind.model_fields if kind else ():
                options.setdefault(name, []).append(f"{target}.{name}")
        return options.items()


def canonical(layer: PlacedDict, spellings: Spellings, model_type: Any) -> tuple[PlacedDict, list[Problem]]:
    """Return the layer with canonical option names and bare values spelled out, and its mistakes: options given twice.

    ``model_type`` is that of the whole configuration, which lacks some of the sections of sides.
    """
    # Bare values first, since names lead into sections; a moved value is spelled out at its destination.
    mover = _Mover(spellings, spell_out(Placed(layer, layer.place), spellings.experiment).value)
    mover.take_missing_sides(model_type)
    for alias in spellings.names:
        given = take(mover.layer, split_key(alias))
        if given is not None:
            mover.move(alias, given)
    for section in spellings.sides.targets:
        left = take(mover.layer, split_key(section))
        if left is not None:
            mover.complain_of_rest(section, left)
    schedule = find(mover.layer, ("training", "scheduler", "type"))
    if schedule is not None and isinstance(schedule.value, str):
        replace(mover.layer, ("training", "scheduler", "type"), SCHEDULER_CLASSES.get(schedule.value, schedule.value))
    return mover.layer, mover.problems


@dataclass
class _Mover:
    """Moves values of one layer from other names to the canonical ones; ``spelled`` has what these were."""

    spellings: Spellings
    layer: PlacedDict
    problems: list[Problem] = field(default_factory=list)
    spelled: dict[str, str] = field(default_factory=dict)

    def take_missing_sides(self, model_type: Any) -> None:
        """Remove the sections of sides that the model lacks, and report them."""
        own = self.spellings.sides.own
        for side, section in own.items():
            given = take(self.layer, split_key(section)) if side != model_type else None
            if given is not None and isinstance(model_type, str) and model_type in own:
                message = f"model.model_type is {model_type}, which has no {side}; leave the section out"
                self.problems.append(Problem(given.place, section, message))

    def complain_of_rest(self, section: str, rest: Placed) -> None:
        """Report what a section that stands for others has beyond their options."""
        if not isinstance(rest.value, dict):
            message = "expected a section of keys, or leave it out"
            self.problems.append(Problem(rest.place, section, message))
            return
        known = [name.rpartition(".")[2] for name in self.spellings.names if name.rpartition(".")[0] == section]
        for key, child in entries(rest.value):
            message = f"unknown key{did_you_mean(key, known)}"
            self.problems.append(Problem(child.place, f"{section}.{key}", message))

    def move(self, alias: str, given: Placed) -> None:
        """Put an option that was given by an alias under all that this stands for."""
        value, place = self._convert_value(alias, given)
        if alias in self.spellings.shared and place is not None:
            # Errors name the option as the user wrote it, not each of those that it stands for.
            place = dataclasses.replace(place, key=alias)
        for name in self.spellings.names[alias]:
            one = spell_out(Placed(copy_tree(value), place), self.spellings.find_annotation(name))
            there = find(self.layer, split_key(name))
            if there is not None and self._is_settled(alias, one, name, there):
                continue
            in_the_way = put(self.layer, split_key(name), one)
            if in_the_way is None:
                self.spelled[name] = alias
            elif alias not in self.spellings.shared:
                message = f"sets {name}, but its section is not a mapping at {in_the_way.place}"
                self.problems.append(Problem(place, alias, message))
        if alias == "training.eval_knobs.max_duration" and value is not None:
            # the universal pipeline turns dynamic bucketing on by the duration alone
            path = ("training", "batching", "type")
            if find(self.layer, path) is None:
                put(self.layer, path, Placed("bucketed", place))

    def _is_settled(self, alias: str, given: Placed, name: str, there: Placed) -> bool:
        """Return whether an option that the layer already has stays; an error, except for options that may repeat."""
        other = self.spelled.get(name, name)
        if {alias, other} in PRECISION_FLAGS and "no" in (given.value, there.value):
            # Of fp16 and bf16, the true one counts.
            return bool(there.value != "no")
        may_repeat = alias in MAY_REPEAT and there.value == given.value
        if not may_repeat and alias not in self.spellings.shared:
            message = f"the same option as {other} at {there.place}; give one of them"
            self.problems.append(Problem(given.place, alias, message))
        return True

    def _convert_value(self, alias: str, given: Placed) -> Placed:
        """``fp16: true`` is ``mixed_precision: fp16``."""
        flag = alias.rpartition(".")[2]
        if flag not in ("fp16", "bf16"):
            return given
        if not isinstance(given.value, bool):
            self.problems.append(Problem(given.place, alias, f"is {given.value!r}; expected true or false"))
        return Placed(flag if given.value is True else "no", given.place)
