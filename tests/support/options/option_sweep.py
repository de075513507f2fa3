"""What a tiny run shows of its options: each is varied alone, and either something changes or somebody says why not.

A run is observed by all that it writes but what merely repeats its configuration: prepared data, records, weights,
optimizer, the words of its log, the names of its files, switches of torch, what it asks of torch, figures of its use,
and the error that ends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from option_situations import SITUATIONS, Terminal, noted, quiet, words_of
from vaak.config.base import ExtensibleSection, Section
from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.yaml.fields import (
    SectionType,
    allows_none,
    alternatives,
    applies,
    get_item_annotation,
    get_section,
    types_reading,
)
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import open_trainer

Observed = dict[str, str]
FINGERPRINT = "the fingerprint of prepared data"
"""Observed, and not an effect: it is there so that data that differ are never taken for one another."""
DIFFICULTY = "/difficulty-"
"""In the names of files that are measured of prepared data, which say themselves what they hold."""


def leaf_options(task: str) -> Iterator[tuple[str, Any, SectionType]]:
    """Every option of a task that isn't a section, by its dotted key, with its annotation and its section."""
    yield from _leaves(experiment_type(task), "")


def _leaves(section: SectionType, path: str) -> Iterator[tuple[str, Any, SectionType]]:
    for name, field in section.model_fields.items():
        key = f"{path}.{name}".lstrip(".")
        inner = get_section(field.annotation)
        item = get_section(get_item_annotation(field.annotation))
        if inner is not None and issubclass(inner, Section):
            yield from _leaves(inner, key)
        elif item is not None and issubclass(item, Section):
            yield from _leaves(item, f"{key}.0")
        else:
            yield key, field.annotation, section


def own_types(key: str, section: SectionType, present: Any) -> list[Any]:
    """The other types that a section may have, where the option says which it has."""
    if not (key.endswith(".type") and issubclass(section, ExtensibleSection)):
        return []
    return [one for one in section.own_types if one != present]


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


def type_override(key: str, section: SectionType, loaded: Any) -> list[str]:
    """The type that a section must have for an option to be read, where only some read it and it has another.

    ``loaded`` is None where the circumstances need that type, too.
    """
    parent, _, name = key.rpartition(".")
    if loaded is not None and applies(section, name, value_at(loaded, f"{parent}.type")):
        return []
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
    """Runs of one task in a folder, the undisturbed ones made once for each set of circumstances.

    Circumstances are overrides, in which OWN is a folder of the run alone, and situations (``@terminal``).
    """

    def __init__(self, task: str, folder: Path, file: Path) -> None:
        self.task, self.folder, self.file = task, folder, file
        self.runs = 0
        self.undisturbed: dict[tuple[str, ...], Observed] = {}

    def load(self, given: Sequence[str]) -> Any:
        """A configuration in circumstances, with a run directory that is new."""
        self.runs += 1
        run, own = self.folder / f"run{self.runs}", str(self.folder / f"own{self.runs}")
        overrides = [one.replace("OWN", own) for one in given if one not in SITUATIONS]
        return load([self.file], [f"run_dir={run}", *overrides], trust_code=True)

    def without(self, circumstances: tuple[str, ...]) -> Observed:
        """Return the observations of a run in these circumstances."""
        if circumstances not in self.undisturbed:
            self.undisturbed[circumstances] = self.observe(self.load(circumstances), circumstances)
        return self.undisturbed[circumstances]

    def effect(self, key: str, value: Any, circumstances: tuple[str, ...]) -> str | None:
        """Return what changes with an option, or which message says that nothing does; None if neither.

        A refusal counts where it names the option. Data that differ must have another fingerprint: by it, a cache
        knows them.
        """
        override = f"{key}={as_text(value)}"
        try:
            loaded = self.load([*circumstances, override])
        except UserError as error:
            return _refusal(key, str(error))
        about = [
            warning for warning in loaded.warnings if f": {key}: " in warning or f": {find_parent(key)}: " in warning
        ]
        if about:
            return f"said: {about[0]}"
        before, after = self.without(circumstances), self.observe(loaded, circumstances)
        if "error" in after and "error" not in before:
            return _refusal(key, after["error"])
        changed = differences(before, after)
        if any(name.startswith("prepared/") and DIFFICULTY not in name for name in changed):
            assert before.get(FINGERPRINT) != after.get(FINGERPRINT), f"{key} changes {changed} under one fingerprint"
        return f"changed: {', '.join(changed)}" if changed else None

    def observe(self, loaded: Any, circumstances: Sequence[str] = ()) -> Observed:
        """Train and use what is configured."""
        with contextlib.ExitStack() as stack:
            for name in SITUATIONS.keys() & set(circumstances):
                stack.enter_context(SITUATIONS[name]())
            stack.callback(torch.set_num_threads, torch.get_num_threads())  # other tests' runs compare bits
            console = Terminal() if "@terminal" in circumstances else io.StringIO()
            stack.enter_context(quiet(console))
            try:
                seen = _trained(loaded) | _used(loaded.experiment.run_dir)
            except UserError as error:
                seen = {"error": str(error)}
        return seen | {"console": _detect_kind(console.getvalue())} | self._place(loaded.experiment.run_dir)

    def _place(self, run: Path) -> Observed:
        """Where the run directory is, and whether what W&B keeps is there, too."""
        return {"place": "usual" if run.parent == self.folder else str(run), **_of_wandb(run)}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The names of what differs."""
    names = sorted({*before, *after} - {FINGERPRINT})
    return [name for name in names if before.get(name) != after.get(name)]


def _refusal(key: str, message: str) -> str | None:
    return f"refused: {message}" if key.rpartition(".")[2] in message else None


def _trained(loaded: Any) -> Observed:
    """Train a run and return everything observed meanwhile."""
    with noted() as asked, open_trainer(loaded) as trainer:
        trainer.fit()
        plans = [trainer.data.planner.plan(epoch) for epoch in range(3)]
        seen = {
            "structure": [trainer.model, [callback.__class__ for callback in trainer.callbacks]],
            "rates": [trainer.step.schedule(step) for step in range(1, 9)],
            "optimizers": trainer.state.optimizers,
            "plans": [plan.microbatch(place) for plan in plans for place in range(min(4, len(plan)))],
            "best": trainer.best.step,
            "threads": torch.get_num_threads(),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
    return {name: str(value) for name, value in {**seen, "asked of libraries": asked}.items()}


def _used(run: Path) -> Observed:
    """Return a trained run's records, log, files and weights, and the results of using it."""
    seen = _records(run)
    seen["log"] = _without_order((run / "train.log").read_text().replace(str(run), "RUN").replace(run.name, "RUN"))
    seen["files"] = "\n".join(sorted({_file_name(path, run) for path in run.rglob("*") if path.is_file()}))
    seen["links"] = "\n".join(sorted(path.name for path in run.iterdir() if path.is_symlink()))
    for path in sorted((run / "checkpoints").rglob("*.safetensors")):
        if not path.parent.is_symlink():
            seen[f"{path.parent.name}/{path.name}"] = _hash(path)
    seen[FINGERPRINT] = ""
    for folder in sorted({*run.glob("prepared"), *run.glob("tasks/*/prepared")}):  # with several tasks, of each
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in ("prepared.json", ".lock"):
                seen[f"prepared/{path.relative_to(run)}"] = _hash(path)
        seen[FINGERPRINT] += json.loads((folder / "prepared.json").read_text())["fingerprint"]
    opened = open_run(run, device="cpu", trust_code=True)
    with contextlib.suppress(UserError):  # where there is no test split
        seen["examples to test"] = str(len(opened.task.dataset("test").lengths))
    samples = str(opened.task.samples(opened.model)).replace(str(run), "RUN")
    seen["samples"] = re.sub(r"real-time factor [0-9.]+", "real-time factor #", samples)  # a matter of chance
    return seen | {path.name: _hash(path) for path in run.glob("sample-*.wav")}


def _without_order(log: str) -> str:
    """A log's words, sorted where time decides on the order.

    Checkpoints are written in a thread, and what takes longest comes first in parentheses.
    """
    lines = (
        re.sub(r"\(.*?\)", lambda list_: " ".join(sorted(list_[0][1:-1].split())), line) for line in log.splitlines()
    )
    return "\n".join(sorted(words_of(line) for line in lines))


def find_parent(key: str) -> str:
    return key.rpartition(".")[0]


def _records(run: Path) -> dict[str, str]:
    kinds: dict[str, list[str]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        clock = sorted(record.pop("clock", {}))
        kinds.setdefault(record["kind"], []).append(json.dumps({**record, "clock": clock}, sort_keys=True))
    return {f"records of {kind}": "\n".join(lines) for kind, lines in kinds.items()}


def _detect_kind(console: str) -> str:
    """Whether it has a bar, of features or of training (whose loss isn't known yet), and is JSON."""
    bars = [name for name in ("extracting features", "loss -") if name in console and "\x1b" in console]
    lines = console.strip().splitlines()
    return f"bars: {bars}, JSON: {bool(lines) and all(line.startswith('{') for line in lines)}"


def _of_wandb(run: Path) -> Observed:
    """Return the metadata and artifacts that W&B stored for the run."""
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    if not files:
        return {}
    from wandb_files import artifacts_of, run_of

    about = run_of(files[0])
    said = (about.entity, about.project, about.display_name, about.notes, list(about.tags))
    artifacts = sorted(re.sub(r"[0-9a-f]{8,}", "#", one.name) for file in files for one in artifacts_of(file))
    return {"W&B": f"{said} {artifacts}"}


def _file_name(path: Path, run: Path) -> str:
    """Return a file's name; for a tracker's files, with their size in place of the part that varies."""
    name = str(path.relative_to(run))
    if "tfevents" in name:
        return f"tensorboard: {path.stat().st_size}"
    return "wandb" if name.startswith("wandb/") else re.sub(r"[0-9a-f]{16,}", "#", name)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
