"""Classes by name: a short name, Vaak's or registered, ``./file.py:Name`` or ``package.module:Name``.

Vaak's stand in tables as text; nothing is imported before its use. ``register_loss`` and the like add a program's class
under a short name. A YAML or a run that names it can then be loaded in every process that registers it.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from vaak.config.base import REGISTERED
from vaak.config.optimization import SCHEDULES, UPDATE_RULES
from vaak.config.trust import require_decided
from vaak.core.errors import UserError
from vaak.core.machine import collecting_no_garbage
from vaak.core.names import from_home


def source_file(reference: str, folder: Path) -> Path | None:
    """Return the file that ``./file.py:Name`` names, seen from ``folder``; None for a short or package name."""
    path, colon, _ = reference.rpartition(":")
    return Path(os.path.normpath(folder / from_home(path))) if colon and path.endswith(".py") else None


def is_reference(text: str) -> bool:
    """Return whether a text is written like the reference of a class from outside Vaak.

    >>> is_reference("./own.py:Huber"), is_reference("pkg.mod:Watch"), is_reference("16:30"), is_reference("a: b")
    (True, True, False, False)
    """
    module, colon, name = text.rpartition(":")
    is_module = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    return bool(colon) and name.isidentifier() and is_module


def is_vaaks_task(task: str) -> bool:
    """Return whether a task named by its class is Vaak's own: importing it does nothing, and only a task has a SPEC."""
    return is_reference(task) and task.startswith("vaak.")


def find_code(reference: str, folder: Path) -> str:
    """Return a text that identifies code: the real path of a file, the reference of a class in a package."""
    file = source_file(reference, folder)
    return reference if file is None else str(file.resolve())


def without_folder(reference: Any) -> Any:
    """Drop the folder from a reference to a file; return anything else unchanged.

    >>> without_folder("/home/me/huber.py:Huber")
    'huber.py:Huber'
    """
    path, colon, name = str(reference).rpartition(":")
    return f"{path.rpartition('/')[2]}:{name}" if colon and path.endswith(".py") else reference


def seen_from(reference: str, written_in: Path, folder: Path) -> str:
    """Return the reference as it reads from another folder than the one it was written in.

    >>> seen_from("./huber.py:Huber", Path("configs/base"), Path("configs"))
    './base/huber.py:Huber'
    """
    file = source_file(reference, written_in)
    if file is None or Path(from_home(reference.rpartition(":")[0])).is_absolute():
        return reference
    relative = Path(os.path.relpath(file, folder)).as_posix()
    prefix = "" if relative.startswith("../") else "./"
    return f"{prefix}{relative}:{reference.rpartition(':')[2]}"


def explain_missing(reference: str, folder: Path) -> str | None:
    """Return why a ``file.py:Name`` or ``package:Name`` can't be found, without running it; None if it is there."""
    module, colon, name = reference.rpartition(":")
    if not colon:
        return None
    if not name.isidentifier() or not module:
        return f"{reference!r} is not of the form ./file.py:Name or package.module:Name"
    file = source_file(reference, folder)
    if file is not None:
        return _missing_in_file(file, name)
    if not all(part.isidentifier() for part in module.split(".")):
        return f"{reference!r} is not of the form ./file.py:Name or package.module:Name"
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return f"{reference!r}: {root} belongs to Python; name a class that is made for this"
    return None if importlib.util.find_spec(root) else f"no package {root} in this environment"


def _missing_in_file(file: Path, name: str) -> str | None:
    try:
        tree = parse_source(file.read_bytes(), str(file))
    except OSError as error:
        return f"{file} can't be read: {error.strerror or error}"
    except (SyntaxError, ValueError) as error:
        return f"{file} is not valid Python: {error}"
    # Only names at the top level are found without executing the file.
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    names |= {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names |= {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }
    return None if name in names else f"{file} has no {name}{did_you_mean(name, names)}"


@functools.lru_cache(8)
def parse_source(source: bytes, filename: str) -> ast.Module:
    """Return the syntax tree of a file that was read; a sweep checks the same built-in losses for each of its runs.

    Raises SyntaxError or ValueError if it isn't valid Python.
    """
    # Until Python 3.11.8, a tree that another thread makes meanwhile (a traceback that it formats is
    # enough) ends this one in a SystemError (CPython, issue 106905). Only garbage collection lets that thread in.
    with collecting_no_garbage():
        return ast.parse(source, filename)


def resolve_class(reference: str, builtin: Mapping[str, str], folder: Path) -> Any:
    """Return the class that a reference names; this imports (and so runs) the user's file or package.

    ``builtin`` holds the short names with their ``package.module:Name``.

    Raises UserError if there is none, and if it is another's and isn't trusted.
    """
    if ":" in reference:
        require_decided(find_code(reference, folder), reference)
    else:
        if reference not in builtin:
            raise UserError(unknown_name(reference, builtin))
        reference = builtin[reference]
    if problem := explain_missing(reference, folder):
        raise UserError(problem)
    module_name, _, name = reference.rpartition(":")
    file = source_file(reference, folder)
    try:
        module = import_file(file) if file else importlib.import_module(module_name)
        return getattr(module, name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{reference} can't be loaded: {error}") from error


def resolve_component(key: str, reference: str, folder: Path) -> Any:
    """Return the class that a reference under an option names: a registered one, or that of ``resolve_class``.

    Raises UserError, naming the option, if there is none.
    """
    registered, built_in = REGISTERED[key], COMPONENTS.get(key, {})
    if reference in registered:
        return registered[reference]
    if ":" not in reference and reference not in built_in:
        raise UserError(f"{key}: {unknown_name(reference, {**built_in, **registered})}")
    try:
        return resolve_class(reference, built_in, folder)
    except UserError as error:
        raise UserError(f"{key}: {error}") from error


def check_options(
    key: str, name: str, found: Any, options: Mapping[str, Any], reserved: Collection[str] = ()
) -> list[str] | None:
    """Return the options that a class or function has; None if it takes any. ``reserved`` are not for users to give.

    ``found`` is what the user called ``name``, and ``options`` are those given to it; an error names the ``key``.

    Raises UserError for an option that it doesn't have.
    """
    parameters = list(inspect.signature(found).parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [one.name for one in parameters if one.kind in by_name and one.name not in reserved]
    for option in options:
        if option in reserved or (not takes_any and option not in known):
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise UserError(f"{key}: {name} has no option {option}; {has}{did_you_mean(option, known)}")
    return None if takes_any else known


def unknown_name(name: str, builtin: Mapping[str, Any]) -> str:
    """Return the message about a short name that doesn't exist."""
    known = ", ".join(sorted(builtin))
    hint = did_you_mean(name, builtin)
    return f"{name!r} is not known; expected one of {known}, ./file.py:Name or package.module:Name{hint}"


def adopt_module(module: ModuleType, file: Path) -> None:
    """Let ``file.py:Name`` refer to a module that this program has already imported from the file."""
    sys.modules[_module_name(file)] = module


def files_being_imported() -> tuple[Path, ...]:
    """Return the users' files that are being imported at this moment, the first one first."""
    return tuple(_BEING_IMPORTED)


_BEING_IMPORTED: list[Path] = []
USER_MODULE_PREFIX = "vaak_user_"


def users_files() -> tuple[Path, ...]:
    """Return the users' files that this process has imported and that are still there.

    Other processes import them to unpickle objects of their classes.
    """
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(USER_MODULE_PREFIX)]
    return tuple(file for file in (Path(str(module.__file__)) for module in modules) if file.is_file())


def _module_name(file: Path) -> str:
    """Return the name of the module in a user's file, made from its path."""
    real = file.resolve()
    return f"{USER_MODULE_PREFIX}{real.stem}_{hashlib.sha256(str(real).encode()).hexdigest()[:8]}"


class _NoBytecode(SourceFileLoader):
    """Imports a file and writes nothing next to it: its folder may be that of a run, which a replay doesn't change."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0) -> None:
        pass


def import_file(file: Path) -> Any:
    """Return the module in a file, imported once."""
    name = _module_name(file)
    if name in sys.modules:
        return sys.modules[name]
    real = file.resolve()
    spec = importlib.util.spec_from_file_location(name, real, loader=_NoBytecode(name, str(real)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it is executed, as Python's import does: dataclasses and pickle look modules up by name.
    sys.modules[name] = module
    _BEING_IMPORTED.append(file)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # A module that failed halfway mustn't be found by the next import.
        del sys.modules[name]
        raise
    finally:
        _BEING_IMPORTED.pop()
    return module


def did_you_mean(word: str, known: Any) -> str:
    """``; did you mean …?`` with the nearest known word, or nothing."""
    near = difflib.get_close_matches(str(word), [str(name) for name in known], n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


LOSSES: dict[str, str] = {
    "cross_entropy": "vaak.nn.losses:CrossEntropy",
    "mse": "vaak.nn.losses:MeanSquaredError",
    "l1": "vaak.nn.losses:MeanAbsoluteError",
    "smooth_l1": "vaak.nn.losses:SmoothL1",
    "huber": "vaak.nn.losses:Huber",
    "bce": "vaak.nn.losses:BinaryCrossEntropy",
    "focal": "vaak.nn.losses:FocalLoss",
    "dpo": "vaak.nn.preferences:DirectPreference",
    "orpo": "vaak.nn.preferences:OddsRatio",
}
"""Short names for training.loss.main."""
SMOOTHING_LOSSES = ("cross_entropy", "bce", "dpo")
"""Losses that take ``label_smoothing``."""
AUXILIARY_LOSSES: dict[str, str] = {
    **{name: place for name, place in LOSSES.items() if name not in ("dpo", "orpo")},
    "z_loss": "vaak.nn.losses:z_loss",
}
"""Short names for training.loss.auxiliary; a task may have more."""
CALLBACKS: dict[str, str] = {
    "early_stopping": "vaak.callbacks.early_stopping:EarlyStoppingCallback",
    "feature_redraw": "vaak.callbacks.step_settings:FeatureRedrawCallback",
    "interbatch_profiler": "vaak.callbacks.profiler:InterbatchProfiler",
    "lr_monitor": "vaak.callbacks.step_log:LRMonitorCallback",
    "gradient_clipping": "vaak.callbacks.step_settings:GradientClippingCallback",
    "memory_manager": "vaak.callbacks.memory_manager:AdaptiveMemoryManager",
    "trace": "vaak.callbacks.profiler:TraceCallback",
}
"""Short names for training.callbacks."""
NETWORKS = ("transformer", "conformer")
"""Vaak's own networks between embeddings and heads, by their names for model.type."""
TOKENIZERS = ("bpe", "unigram", "wordpiece", "byte_level", "character", "word")
"""Vaak's tokenizers by their names for data.tokenizer.type."""
COMPONENTS: dict[str, dict[str, str]] = {
    "training.loss.main": LOSSES,
    "training.loss.auxiliary": AUXILIARY_LOSSES,
    "training.callbacks": CALLBACKS,
}
"""The short names that may stand under each key, whatever the task."""


def register_loss(name: str, loss: Any) -> None:
    """Let ``name`` stand for a module with ``forward(outputs, targets)``: the main loss, or an auxiliary one.

    Raises UserError, as all of these do, where the name is built-in or not a plain word.
    """
    before = REGISTERED["training.loss.main"].get(name)
    _register("training.loss.main", name, loss, LOSSES)
    if REGISTERED["training.loss.auxiliary"].get(name) is before:
        # It isn't one of register_auxiliary_loss.
        _register("training.loss.auxiliary", name, loss, AUXILIARY_LOSSES)


def register_auxiliary_loss(name: str, loss: Any) -> None:
    """Let ``name`` stand for an auxiliary loss (docs/library.md) in ``training.loss.auxiliary``."""
    _register("training.loss.auxiliary", name, loss, AUXILIARY_LOSSES)


def register_optimizer(name: str, optimizer: Any) -> None:
    """Let ``training.optimizer.type: name`` stand for a ``torch.optim.Optimizer`` class."""
    _register("training.optimizer", name, optimizer, UPDATE_RULES)


def register_schedule(name: str, schedule: Any) -> None:
    """Let ``training.scheduler.type: name`` stand for a schedule (docs/library.md)."""
    _register("training.scheduler", name, schedule, SCHEDULES)


def register_tokenizer(name: str, tokenizer: Any) -> None:
    """Let ``data.tokenizer.type: name`` stand for a tokenizer class (docs/library.md)."""
    _register("data.tokenizer", name, tokenizer, TOKENIZERS)


def register_network(name: str, network: Any) -> None:
    """Let ``model.type: name`` stand for a network of one's own (docs/library.md)."""
    _register("model", name, network, NETWORKS)


def _register(key: str, name: str, registered: Any, built_in: Collection[str]) -> None:
    if not name.isidentifier():
        raise UserError(
            f"{name!r} can't be registered under {key}: a name may contain only letters, digits and underscores"
        )
    if name in built_in:
        raise UserError(f"{name!r} is built-in under {key}; register yours under another name")
    REGISTERED[key][name] = registered
