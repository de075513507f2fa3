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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vaak.config.components import did_you_mean
from vaak.config.training import TrainingConfig
from vaak.config.yaml.fields import SectionType, get_annotation, get_section, spell_out
from vaak.config.yaml.tree import Node, Problem, copy_tree, find, put, split_key, take


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


def options_in(section: str, sides: SectionShortcuts, experiment: SectionType) -> dict[str, list[str]]:
    """The options that a section may hold, each with the dotted names of what it stands for."""
    options: dict[str, list[str]] = {}
    for target in sides.targets[section]:
        kind: SectionType | None = experiment
        for key in split_key(target):
            kind = get_section(get_annotation(kind, key))
        for name in kind.model_fields if kind else ():
            options.setdefault(name, []).append(f"{target}.{name}")
    return options


def model_type_given(layers: Sequence[Node]) -> Node | None:
    """The type of model that the last layer which has one gives."""
    paths = (("model_type",), ("model", "model_type"))
    given = [node for layer in layers for path in paths if (node := find(layer, path)) is not None]
    return given[-1] if given else None


def take_section_shortcuts(layers: Sequence[Node], sides: SectionShortcuts, default: str | None) -> Iterator[Problem]:
    """Remove the sections of sides that the model lacks, and report them; ``default`` is its type if none is given."""
    given = model_type_given(layers)
    model_type = given.value if given is not None else default
    for side, section in sides.own.items():
        if side == model_type:
            continue
        for layer in layers:
            node = take(layer, split_key(section))
            if node is not None and isinstance(model_type, str) and model_type in sides.own:
                message = f"model.model_type is {model_type}, which has no {side}; leave the section out"
                yield Problem(node.place, section, message)


def spread(layer: Node, section: str, options: Mapping[str, list[str]]) -> Iterator[Problem]:
    """Copy a section's options to all they stand for that the layer doesn't set itself; yields mistakes."""
    node = take(layer, split_key(section))
    if node is None:
        return
    if not node.is_mapping:
        yield Problem(node.place, section, "expected a section of keys, or leave it out")
        return
    for key, child in node.value.items():
        if key not in options:
            yield Problem(child.place, f"{section}.{key}", f"unknown key{did_you_mean(key, options)}")
        for name in options.get(key, ()):
            if find(layer, split_key(name)) is None:
                # Errors name the option as the user wrote it, not each of those that it stands for.
                place = replace(child.place, key=f"{section}.{key}") if child.place else None
                put(layer, split_key(name), Node(copy_tree(child).value, place))


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
_FLAG_NAMES = {"fp16": {True: "fp16", False: "no"}, "bf16": {True: "bf16", False: "no"}}


def flat_names(experiment: SectionType) -> dict[str, str]:
    """The names of ``training:``, which are understood at the top level too."""
    training = get_section(get_annotation(experiment, "training")) or TrainingConfig
    return {name: f"training.{name}" for name in training.model_fields}


def option_aliases(of_task: Mapping[str, str]) -> dict[str, str]:
    """Every alias of one option, dotted, with its canonical name; ``of_task`` are the task's own."""
    inside = {f"training.{alias}": name for alias, name in LOOP_OPTIONS.items()}
    return {**LOOP_OPTIONS, **inside, **ELSEWHERE, **of_task}


def canonical(
    layer: Node, experiment: SectionType, of_task: Mapping[str, str], sides: SectionShortcuts
) -> tuple[Node, list[Problem]]:
    """Return the layer with canonical option names and bare values spelled out, and options given twice."""
    mover = _Mover(layer)
    for alias, name in flat_names(experiment).items():
        mover.move(alias, name)
    # before aliases are moved, since they lead into sections, and after it, since they may be a section's bare value
    mover.layer = spell_out(mover.layer, experiment)
    for prefix in ("", "training."):
        mover.join_precision_flags(prefix)
    for alias, name in {**option_aliases(of_task), **sides.aliases(of_task)}.items():
        mover.move(alias, name)
    schedule = find(mover.layer, ("training", "scheduler", "type"))
    if schedule is not None and isinstance(schedule.value, str):
        schedule.value = SCHEDULER_CLASSES.get(schedule.value, schedule.value)
    for section in sides.own.values():
        for option, names in options_in(section, sides, experiment).items():
            mover.move(f"{section}.{option}", names[0])
    for section in sides.targets:
        mover.problems += spread(mover.layer, section, options_in(section, sides, experiment))
    return spell_out(mover.layer, experiment), mover.problems


class _Mover:
    """Moves nodes of one layer from an alias to the canonical name."""

    def __init__(self, layer: Node) -> None:
        self.layer = layer
        self.problems: list[Problem] = []
        self.spelled: dict[str, str] = {}

    def move(self, alias: str, name: str) -> None:
        node = take(self.layer, split_key(alias))
        if node is None:
            return
        node = self._convert_value(alias, node)
        there = find(self.layer, split_key(name))
        if there is not None:
            if alias in MAY_REPEAT and there.value == node.value:
                return
            other = self.spelled.get(name, name)
            message = f"the same option as {other} at {there.place}; give one of them"
            self.problems.append(Problem(node.place, alias, message))
            return
        in_the_way = put(self.layer, split_key(name), node)
        if in_the_way is not None:
            message = f"sets {name}, but its section is not a mapping at {in_the_way.place}"
            self.problems.append(Problem(node.place, alias, message))
            return
        self.spelled[name] = alias
        if alias == "training.eval_knobs.max_duration" and node.value is not None:
            # the universal pipeline turns dynamic bucketing on by the duration alone
            path = ("training", "batching", "type")
            if find(self.layer, path) is None:
                put(self.layer, path, Node("bucketed", node.place))

    def join_precision_flags(self, prefix: str) -> None:
        """Keep the true one of ``fp16`` and ``bf16`` in one file."""
        paths = [split_key(prefix + flag) for flag in ("fp16", "bf16")]
        nodes = [find(self.layer, path) for path in paths]
        if any(node is None for node in nodes):
            return
        values = [node.value for node in nodes if node is not None]
        if values.count(True) < 2:
            take(self.layer, paths[1] if values[0] is True else paths[0])

    def _convert_value(self, alias: str, node: Node) -> Node:
        """``fp16: true`` is ``mixed_precision: fp16``."""
        names = _FLAG_NAMES.get(alias.rpartition(".")[2])
        if names is None:
            return node
        if not isinstance(node.value, bool):
            self.problems.append(Problem(node.place, alias, f"is {node.value!r}; expected true or false"))
            return Node("no", node.place)
        return Node(names[node.value], node.place)
