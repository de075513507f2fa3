"""A user's own classes in a run: the file is copied into the run with its hash, so that the run repeats itself.

Evaluating, generating and exporting execute nothing of it, except what a model can't be used without: a task, a
network, a tokenizer, and a label type, which says what a model's scores mean.
Training does; and what executes code that isn't the user's own (vaak.config.yaml.named_code) asks for trust first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from vaak.config.components import adopt_module, import_file, source_file, users_files
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded
from vaak.config.resolved import resolved_values
from vaak.config.trust import CODE, HASHES, refusal
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.core.secrets import OWN_PREFIX, REFERENCE, secrets_in
from vaak.core.storage import files
from vaak.runs.folder.directory import holds_a_run

log = logging.getLogger("vaak")


OF_THE_LOOP = ("training.callbacks", "wandb")
"""Options whose objects only training builds."""


def require_trust(loaded: Loaded, sections: Collection[str] | None = None) -> None:
    """Raises UserError if code would be executed that isn't the user's own, and isn't trusted.

    ``sections`` are the keys of those of which code is executed; None: all, as in training.
    """
    named = [one for one in loaded.code if sections is None or one.key.removesuffix(".type") in sections]
    if doubtful := [(one.doubt, one.reference) for one in named if one.doubt is not None]:
        references = ", ".join(dict.fromkeys(reference for _, reference in doubtful))
        raise UserError(refusal(doubtful[0][0], references))


def require_secrets(loaded: Loaded, but: Collection[str] = (), only: Collection[str] | None = None) -> list[str]:
    """Return remarks on the secrets of a run, where they come from and how its directory refers to them.

    Options below ``but`` aren't needed; with ``only``, no others are. Raises UserError if the variable of one that
    is needed isn't set.
    """
    remarks = []
    values = resolved_values(loaded.experiment, with_secrets=True)
    stored = dict(secrets_in(resolved_values(loaded.experiment)))
    for key, value in secrets_in(values):
        reference = REFERENCE.fullmatch(value)
        needed = not _is_below(key, but) and (only is None or _is_below(key, only))
        if reference is not None and needed:
            raise UserError(
                f"{key} is a secret, which is not stored: set the environment variable {reference[1]}, or give {key}=…"
            )
        if reference is None and needed:
            variable = stored[key][2:-1]
            origin = "stored nowhere" if variable.startswith(OWN_PREFIX) else f"taken from the variable {variable}"
            remarks.append(f"{key} is a secret, {origin}; the run refers to it by ${{{variable}}}: set that to resume")
    return remarks


def _is_below(key: str, sections: Collection[str]) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in sections)


def require_trust_to_use(experiment: Experiment[Any, Any], directory: Path) -> None:
    """Raises UserError if using a run's model would execute code from outside Vaak."""
    inner: Iterable[Experiment[Any, Any]] = getattr(experiment.data, "inner_experiments", {}).values()
    names = [_type_at(one, key) for one in (experiment, *inner) for key in one.spec.used_by_models]
    if outside := [name for name in names if ":" in name]:
        executed = ", ".join(outside)
        raise UserError(
            f"{directory} names code that its model executes: {executed}; read that code, and add --trust-code"
        )


def make_run_config(experiment: Experiment[Any, Any], folder: Path, directory: Path) -> str:
    """Return the YAML that repeats the run from its directory, with users' files copied to RUN/code and named there.

    What was copied for an earlier session of the run stays; a file that has changed since gets another name.
    """
    values = resolved_values(experiment)
    copies: dict[Path, str] = {}
    # The hashes of the copies, by their names, as they were made.
    made = directory / CODE / HASHES
    noted = files.read_json(made) if holds_a_run(directory) and made.exists() else {}
    hashes = {name: files.hash_file(directory / CODE / name) for name in noted if (directory / CODE / name).is_file()}
    for where, key in ((values, "task"), *_types(values)):
        # Every place that may name a class.
        file = source_file(where[key], folder)
        if file is None:
            continue
        if file not in copies:
            copies[file] = _copy(file, directory / CODE, hashes)
            if noted and noted.get(copies[file]) != hashes[copies[file]]:
                log.warning("%s is not the code that this run started with", file)
        where[key] = f"./{CODE}/{copies[file]}:{where[key].rpartition(':')[2]}"
    if copies:
        files.write_json(directory / CODE / HASHES, hashes)
    return yaml_text(values)


def _copy(file: Path, folder: Path, hashes: dict[str, str]) -> str:
    """The name of a file's copy, made unless there is one with this content; ``hashes`` are those of all copies."""
    folder.mkdir(exist_ok=True)
    wanted = files.hash_file(file)
    name, number = file.name, 1
    while hashes.get(name, wanted) != wanted:
        number += 1
        name = f"{file.stem}_{number}{file.suffix}"
    if name not in hashes:
        files.write_bytes(folder / name, file.read_bytes())
        hashes[name] = wanted
    return name


def imported_files() -> dict[str, ModuleType]:
    """Return the modules that this program has imported from users' files, by the hashes of these files."""
    return {files.hash_file(file): import_file(file) for file in users_files()}


def adopt_copies(directory: Path, imported: Mapping[str, ModuleType]) -> None:
    """Have a run's copies of users' files mean the modules that this program has, and not be executed again.

    ``imported`` is what ``imported_files`` returned before the run copied them: a file may have changed since.
    """
    made = directory / CODE / HASHES
    for name, sha256 in files.read_json(made).items() if made.exists() else ():
        if sha256 in imported:
            adopt_module(imported[sha256], directory / CODE / name)


def _type_at(experiment: Experiment[Any, Any], key: str) -> str:
    """Return the type of the section with a dotted key; nothing if it is left out."""
    section: Any = experiment
    for name in key.split("."):
        section = getattr(section, name, None)
    return str(getattr(section, "type", ""))


def _types(values: Any) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(values, dict):
        if isinstance(values.get("type"), str):
            yield values, "type"
        for value in values.values():
            yield from _types(value)
    elif isinstance(values, list):
        for value in values:
            yield from _types(value)
