"""Options whose values depend on the machine, or on the run that is resumed, settled before a run starts.

A run keeps what it started with, wherever it is resumed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vaak.config.load import Loaded
from vaak.config.tasks import value_at
from vaak.config.yaml.text import read_yaml
from vaak.config.yaml.tree import find
from vaak.engine.checkpoint.files import read_state, resolve_checkpoint
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.engine.distributed.launcher import (
    check_microbatches,
    multiplied_by,
    pick_device,
    precision_from_launcher,
    with_batches_per_process,
    world_size,
)
from vaak.engine.precision import precision_on
from vaak.runs.folder.directory import holds_a_run


def settle_batches_per_process(loaded: Loaded) -> Loaded:
    """Settle how many microbatches a step has: at first by the number of processes; a resume keeps it.

    Raises UserError if a process would have none.
    """
    experiment = loaded.experiment
    training = experiment.training
    if training.checkpoint.resume is not None and holds_a_run(experiment.run_dir):
        configuration = experiment.run_dir / "config.yml"
        path = ("training", "distributed", "processes_at_start")
        given = find(read_yaml(configuration), path) if configuration.exists() else None
        processes = None if given is None else given.value
        if isinstance(processes, int) and training.distributed.processes_at_start is None:
            training = multiplied_by(training, processes)
    else:
        training = with_batches_per_process(training, world_size())
    check_microbatches(training, world_size())
    return replace(loaded, experiment=experiment.model_copy(update={"training": training}))


def settle_precision(loaded: Loaded) -> Loaded:
    """Settle a precision that the YAML leaves open: accelerate's, else the one the run started with, else the device's.

    It is recorded with the run, which keeps it on other devices.
    """
    training = loaded.experiment.training
    begun = read_configuration(find_checkpoint_to_resume(loaded)).get("training", {})
    name: Any = precision_from_launcher(training.mixed_precision, "training.mixed_precision" in loaded.given)
    warnings = loaded.warnings
    if name == "auto":
        on_device = precision_on("auto", pick_device(training.device))
        name = begun.get("mixed_precision", on_device)
        if name != on_device:
            said = f"training.mixed_precision stays {name}, with which the run began; auto would be {on_device} here"
            warnings = [*warnings, said]
    tf32 = training.performance.tf32
    if tf32 is None:
        tf32 = begun.get("performance", {}).get("tf32")
    performance = training.performance.model_copy(update={"tf32": tf32})
    training = training.model_copy(update={"mixed_precision": name, "performance": performance})
    experiment = loaded.experiment.model_copy(update={"training": training})
    return replace(loaded, experiment=experiment, warnings=warnings)


def settle_by_device(loaded: Loaded) -> tuple[Loaded, list[str]]:
    """Settle options whose default depends on the device; also return a line about each."""
    experiment, spec, lines = loaded.experiment, loaded.experiment.spec, list[str]()
    begun = read_configuration(find_checkpoint_to_resume(loaded))
    device = pick_device(experiment.training.device).type
    before = spec.newer(partial(value_at, begun)) if begun else {}
    for key, (value, why) in spec.settles(experiment, device).items():
        section, name = key.split(".")
        kept = begun.get(section, {}).get(name, before.get(key))
        if kept is not None and kept != value:
            value, why = kept, "with which the run began"
        own = getattr(experiment, section).model_copy(update={name: value})
        experiment = experiment.model_copy(update={section: own})
        lines.append(f"{key}: auto is {value} here: {why}")
    return replace(loaded, experiment=experiment), lines


def find_checkpoint_to_resume(loaded: Loaded) -> Path | None:
    """Return the checkpoint that a run resumes from, if it is undamaged; None for a run that starts."""
    directory, source = loaded.experiment.run_dir, loaded.experiment.training.checkpoint.resume
    if source is None or source == "auto":
        newest = next(reversed(list_checkpoints(directory / "checkpoints")), None)
        return None if source is None else newest
    return resolve_checkpoint(Path(source))


def read_configuration(checkpoint: Path | None) -> dict[str, Any]:
    """Return the options that a checkpoint was written with; empty if there is none, or they can't be read."""
    if checkpoint is None:
        return {}
    try:
        return read_state(checkpoint).get("configuration") or {}
    except (OSError, ValueError):
        return {}
