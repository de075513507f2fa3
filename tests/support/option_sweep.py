"""What a tiny run shows of its options: each is varied alone, and either something changes or somebody says why not.

A run is observed by all that it writes but what merely repeats its configuration: prepared data, records,
weights, optimizer, the words of its log, the names of its files, switches of torch, and figures of its use.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vaak.config.base import Section
from vaak.config.experiment import experiment_type
from vaak.config.fields import SectionType, allows_none, alternatives, item_of, section_of, types_reading
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import begun
from vaak.runs.start import train as train_run

Observed = dict[str, str]


def leaf_options(task: str) -> Iterator[tuple[str, Any, SectionType]]:
    """Every option of a task that isn't a section, by its dotted key, with its annotation and its section."""
    yield from _leaves(experiment_type(task), "")


def _leaves(section: SectionType, path: str) -> Iterator[tuple[str, Any, SectionType]]:
    for name, field in section.model_fields.items():
        key = f"{path}.{name}".lstrip(".")
        inner = section_of(field.annotation)
        item = section_of(item_of(field.annotation))
        if inner is not None and issubclass(inner, Section):
            yield from _leaves(inner, key)
        elif item is not None and issubclass(item, Section):
            yield from _leaves(item, f"{key}.0")
        else:
            yield key, field.annotation, section


def candidates(annotation: Any, present: Any, metadata: Sequence[Any]) -> list[Any]:
    """Values of an option's type that differ from the present one, the likeliest to be valid first."""
    found: list[Any] = []
    for kind in alternatives(annotation):
        if kind is bool:
            found.append(not present)
        elif typing.get_origin(kind) is typing.Literal:
            found += [choice for choice in typing.get_args(kind) if not isinstance(choice, bool)]
        elif kind is int and not isinstance(present, bool):
            now = present if isinstance(present, int) else 1
            found += [now + 1, 2 * now, now - 1, 3, 2, 1]
        elif kind is float:
            number = present if isinstance(present, int | float) else 0.1
            found += [number / 2, number + 0.25, 2 * number, 0.5, 2.0, 0.0]
    if allows_none(annotation) and present is not None:
        found.append(None)
    fitting = [value for value in found if value != present and all(_within(value, bound) for bound in metadata)]
    return list(dict.fromkeys(fitting))


def _within(value: Any, bound: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    return (
        value > getattr(bound, "gt", -math.inf)
        and value >= getattr(bound, "ge", -math.inf)
        and value < getattr(bound, "lt", math.inf)
        and value <= getattr(bound, "le", math.inf)
    )


def type_override(key: str, section: SectionType) -> list[str]:
    """The type that a section must have for an option to be read, where only some read it."""
    parent, _, name = key.rpartition(".")
    reading = [one for one in types_reading(section, name) if one != "of a user's class"]
    return [f"{parent}.type={reading[0]}"] if reading else []


def value_at(loaded: Any, key: str) -> Any:
    """The value of an option, None where its section isn't there."""
    here: Any = loaded.experiment
    for part in key.split("."):
        if isinstance(here, tuple):
            here = here[int(part)] if part.isdecimal() and int(part) < len(here) else None
        elif isinstance(here, dict):
            here = here.get(part)
        else:
            here = getattr(here, part, None)
    return here


def as_text(value: Any) -> str:
    return json.dumps(value)


class Sweep:
    """Runs of one task in a folder, the undisturbed ones made once for each set of circumstances."""

    def __init__(self, task: str, folder: Path, file: Path) -> None:
        self.task, self.folder, self.file = task, folder, file
        self.runs = 0
        self.undisturbed: dict[tuple[str, ...], Observed] = {}

    def load(self, overrides: Sequence[str]) -> Any:
        self.runs += 1
        run = self.folder / f"run{self.runs}"
        return load([self.file], [f"run_dir={run}", *overrides])

    def without(self, circumstances: tuple[str, ...]) -> Observed:
        """What a run in these circumstances shows."""
        if circumstances not in self.undisturbed:
            self.undisturbed[circumstances] = self.observe(self.load(circumstances))
        return self.undisturbed[circumstances]

    def effect(self, key: str, value: Any, circumstances: tuple[str, ...]) -> str | None:
        """What changes with an option, or who says that nothing does; None where it is silent.

        A refusal counts where it is about this option, and says more than that a value is out of bounds.
        """
        override = f"{key}={as_text(value)}"
        try:
            loaded = self.load([*circumstances, override])
        except UserError as error:
            return f"refused: {error}"
        about = [
            warning for warning in loaded.warnings if f": {key}: " in warning or f": {parent_of(key)}: " in warning
        ]
        if about:
            return f"said: {about[0]}"
        before = self.without(circumstances)
        try:
            after = self.observe(loaded)
        except UserError as error:
            return f"refused: {error}"
        changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        return f"changed: {', '.join(changed)}" if changed else None

    def observe(self, loaded: Any) -> Observed:
        """Train and use what is configured."""
        run = loaded.experiment.run_dir
        with _flags(), _fewer_words():
            train_run(loaded)
            flags = {
                "threads": torch.get_num_threads(),
                "tf32": torch.backends.cuda.matmul.allow_tf32,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }
            with begun(load([run / "config.yml"], ["training.checkpoint.resume=auto"])) as trainer:
                structure = repr(trainer.model) + repr([callback.__class__ for callback in trainer.callbacks])
                rates = [trainer.step.schedule(step) for step in range(1, 9)]
                plans = [
                    trainer.data.planner.plan(epoch).microbatch(place)
                    for epoch in range(3)
                    for place in range(min(4, len(trainer.data.planner.plan(epoch))))
                ]
        seen: Observed = {name: str(value) for name, value in flags.items()}
        seen |= {"structure": structure, "rates": str(rates), "plans": str(plans)}
        seen |= _records(run)
        seen["log"] = _words((run / "train.log").read_text(), run)
        seen["files"] = "\n".join(sorted(_file_name(path, run) for path in run.rglob("*") if path.is_file()))
        for path in sorted((run / "checkpoints").rglob("*.safetensors")):
            if not path.parent.is_symlink():
                seen[f"{path.parent.name}/{path.name}"] = _hash(path)
        for path in sorted((run / "prepared").rglob("*")):
            if path.is_file() and path.name not in ("prepared.json", ".lock"):
                seen[str(path.relative_to(run))] = _hash(path)
        with _fewer_words():
            opened = open_run(run, device="cpu")
            seen["samples"] = str(opened.task.samples(opened.model))
        return seen


def parent_of(key: str) -> str:
    return key.rpartition(".")[0]


def _records(run: Path) -> dict[str, str]:
    kinds: dict[str, list[str]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        clock = sorted(record.pop("clock", {}))
        kinds.setdefault(record["kind"], []).append(json.dumps({**record, "clock": clock}, sort_keys=True))
    return {f"records of {kind}": "\n".join(lines) for kind, lines in kinds.items()}


def _words(log_text: str, run: Path) -> str:
    """The log without times, numbers and the run's own folder."""
    return re.sub(r"[-\d.:,]+", "#", log_text.replace(str(run), "RUN").replace(run.name, "RUN"))


def _file_name(path: Path, run: Path) -> str:
    """A file's name; of what is written for trackers with its size, in place of what names it."""
    name = str(path.relative_to(run))
    if "tfevents" in name:
        return f"tensorboard: {path.stat().st_size}"
    return re.sub(r"[0-9a-f]{16,}", "#", name)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def _flags() -> Iterator[None]:
    """Restore what a run switches in torch."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


@contextlib.contextmanager
def _fewer_words() -> Iterator[None]:
    """Keep the console quiet; a run's own log has everything."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield
