"""Options of callbacks, losses and networks, checked against the classes that take them.

The file of a class is read, and neither imported nor executed.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.config.base import REGISTERED, Component, ExtensibleSection
from vaak.config.components import (
    AUXILIARY_LOSSES,
    CALLBACKS,
    LOSSES,
    did_you_mean,
    parse_source,
    source_file,
    without_folder,
)
from vaak.config.experiment import Experiment
from vaak.config.tasks import CheckFinding, impossible
from vaak.config.training import AuxiliaryLoss, LossConfig

NO_OPTIONS = ast.arguments(args=[ast.arg("self")], posonlyargs=[], kwonlyargs=[], kw_defaults=[], defaults=[])
"""The parameters of a class that doesn't define ``__init__``."""


def check_component_options(experiment: Experiment[Any, Any], folder: Path) -> Iterator[CheckFinding]:
    """Yield the options that classes named in an experiment don't have, and those they require that aren't given.

    Files of users' classes are looked for in ``folder``.
    """
    loss = experiment.training.loss
    yield from _check_smoothing(loss, folder)
    for number, callback in enumerate(experiment.training.callbacks):
        yield from _check_component(f"training.callbacks.{number}", callback, CALLBACKS, folder)
    yield from _check_component("training.loss.main", loss.main, LOSSES, folder)
    for name, about in loss.auxiliary.items():
        if isinstance(about, AuxiliaryLoss):
            yield from _check_component(f"training.loss.auxiliary.{name}", about, AUXILIARY_LOSSES, folder)
    model = experiment.model
    parts = {f"model.{name}": getattr(model, name) for name in getattr(type(model), "model_fields", ())}
    for key, section in {"model": model, **parts}.items():
        if isinstance(section, ExtensibleSection) and section.is_users(section.type):
            yield from _check_component(key, section, {}, folder)


def _check_component(
    key: str, component: Component | ExtensibleSection, short_names: Mapping[str, str], folder: Path
) -> Iterator[CheckFinding]:
    """Yield the wrong options of the component under ``key``, as far as the source of its class tells."""
    given = component.given if isinstance(component, ExtensibleSection) else ()
    called = without_folder(component.type) if given else component.type
    reference = short_names.get(component.type, component.type)
    module, _, name = reference.rpartition(":")
    # Found, and not imported, which would take as long as torch does.
    ours = importlib.util.find_spec(module) if module.startswith("vaak.") else None
    file = source_file(reference, folder) if ours is None else Path(str(ours.origin))
    found = _find_class(file, name) if file is not None and file.is_file() else None
    if found is None:
        return
    parameters = _read_parameters(found)
    if parameters is None:
        return
    taken = [one.arg for one in (*parameters.args[1:], *parameters.kwonlyargs) if one.arg not in given]
    optional = parameters.args[len(parameters.args) - len(parameters.defaults) :]
    optional += [one for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if default]
    for option in () if parameters.kwarg is not None else component.options.keys() - {*taken}:
        has = f"its options are {', '.join(taken)}" if taken else "it has no options"
        message = f"{called} has no option {option}; {has}{did_you_mean(option, taken)}"
        yield impossible(f"{key}.{option}", message)
    for option in taken:
        if option not in component.options and option not in {one.arg for one in optional}:
            yield impossible(key, f"{called} requires its option {option}")


def _check_smoothing(loss: LossConfig, folder: Path) -> Iterator[CheckFinding]:
    """Yield ``label_smoothing`` if it is given with a user's loss whose class doesn't take it."""
    if not loss.label_smoothing or loss.main.type in LOSSES:
        return
    taken = _registered_options(loss.main.type)
    taken = _read_options(loss.main.type, folder) if taken is None else taken
    if taken is not None and "label_smoothing" not in taken:
        yield impossible(
            "training.loss.label_smoothing", f"{loss.main.type} takes no label_smoothing; leave it out, or add it there"
        )


def _registered_options(name: str) -> Collection[str] | None:
    """Return the options of a class that a program registered; None if it takes any, or no class has that name."""
    found = REGISTERED["training.loss.main"].get(name)
    if found is None:
        return None
    parameters = inspect.signature(found).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return None if takes_any else parameters.keys()


def _read_options(reference: str, folder: Path) -> Collection[str] | None:
    """Return the options of a class in a file; None if it can't be read, or may inherit others."""
    file = source_file(reference, folder)
    found = _find_class(file, reference.rpartition(":")[2]) if file is not None and file.is_file() else None
    parameters = _read_parameters(found) if found is not None and _is_plain_module(found) else None
    if parameters is None or parameters.kwarg is not None:
        return None
    return {one.arg for one in (*parameters.args, *parameters.kwonlyargs)}


def _find_class(file: Path, name: str) -> ast.ClassDef | None:
    """Return the source of a class; None if the file lacks it or can't be read, which training reports."""
    try:
        body = parse_source(file.read_bytes(), str(file)).body
    except (OSError, SyntaxError, ValueError):
        return None
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _read_parameters(found: ast.ClassDef) -> ast.arguments | None:
    """Return the parameters of a class's ``__init__``; None if it is inherited, and so may take any."""
    functions = (node for node in found.body if isinstance(node, ast.FunctionDef))
    own = next((node.args for node in functions if node.name == "__init__"), None)
    return own or (NO_OPTIONS if _is_plain_module(found) else None)


def _is_plain_module(found: ast.ClassDef) -> bool:
    """Return whether a class inherits from torch's module alone, which takes no options."""
    return [ast.unparse(base) for base in found.bases] in (["nn.Module"], ["torch.nn.Module"])
