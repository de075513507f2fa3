"""Lhotse's recipes by name: list them, download a corpus, and make manifests of one that is on disk.

A recipe is a pair of functions of ``lhotse.recipes``, ``download_NAME`` and ``prepare_NAME``, with arguments that
differ: folders are passed to those that are folders, all others are options.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.audio.corpora.download import downloads_of
from vaak.core.errors import DataError, UserError, optional_import

CORPUS_PARAMETERS = ("corpus_dir", "data_dir", "tedlium_root", "audio_dir", "corpus_root", "speech_dir", "target_dir")
OUTPUT_PARAMETERS = ("output_dir", "manifest_dir")


@dataclass(frozen=True)
class LhotseRecipe:
    """A recipe: its functions; there may be no or several download functions."""

    name: str
    module: str
    prepare: Callable[..., Any]
    downloads: tuple[Callable[..., Any], ...]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The further arguments of its prepare function."""
        places = {*OUTPUT_PARAMETERS, "num_jobs", _corpus_parameter(self.prepare)}
        return {name: one for name, one in _parameters(self.prepare).items() if name not in places}


@functools.cache
def recipes() -> dict[str, LhotseRecipe]:
    """All recipes of the installed Lhotse, by name. Raises UserError if it isn't installed."""
    with optional_import("recipes require lhotse", "audio"):
        import lhotse.recipes
    found: dict[str, LhotseRecipe] = {}
    for info in pkgutil.iter_modules(lhotse.recipes.__path__):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(f"lhotse.recipes.{info.name}")
        except (ImportError, OSError):  # one that requires a package that isn't installed
            continue
        found.update({recipe.name: recipe for recipe in _recipes_of(module, info.name, set(dir(lhotse.recipes)))})
    return dict(sorted(found.items()))


def recipe_named(name: str) -> LhotseRecipe:
    """Raises UserError for an unknown recipe, with a suggestion."""
    known = recipes()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"Lhotse has no recipe {name}{hint} (vaak data list lists all)")
    return known[name]


def _recipes_of(module: Any, name: str, exported: set[str]) -> Iterator[LhotseRecipe]:
    """The recipes of a module: what it exports, or what is named like it."""
    own = {
        key: one for key, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__
    }
    prepares = [key for key in own if key.startswith("prepare_") and (key in exported or key == f"prepare_{name}")]
    for key in prepares:
        called = name if len(prepares) == 1 else key.removeprefix("prepare_")
        wanted = f"download_{called}"
        downloads = [one for one in own if one == wanted] or [
            one for one in own if one.startswith(wanted) and one in exported and len(prepares) == 1
        ]
        yield LhotseRecipe(called, module.__name__, own[key], tuple(own[one] for one in downloads))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _corpus_parameter(function: Callable[..., Any]) -> str:
    """The argument that is the corpus' folder: one of the usual names, or the first."""
    names = list(_parameters(function))
    return next((name for name in CORPUS_PARAMETERS if name in names), names[0])


def prepare(recipe: LhotseRecipe, corpus: Path, output: Path, options: Mapping[str, Any], num_jobs: int) -> Any:
    """What the recipe's prepare function returns; it also writes its manifests to ``output``.

    It reads the folder ``corpus``, with its ``options`` and up to ``num_jobs`` processes.

    Raises DataError for options that it doesn't have or lacks, and for a corpus that it can't read.
    """
    function = recipe.prepare
    parameters = _parameters(function)
    arguments = demand_known(options, parameters, f"recipe {recipe.name}")
    arguments.setdefault(_corpus_parameter(function), corpus)
    arguments |= {name: output for name in OUTPUT_PARAMETERS if name in parameters}
    if "num_jobs" in parameters:
        arguments.setdefault("num_jobs", num_jobs)
    _demand_all(arguments, parameters, f"recipe {recipe.name}")
    try:
        return function(**arguments)
    except Exception as error:  # recipes raise exceptions of any type, mostly assertions
        raise DataError(f"recipe {recipe.name}: {corpus} can't be prepared: {reason_of(error)}") from error


def demand_known(options: Mapping[str, Any], parameters: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The options. Raises DataError for one that isn't among ``parameters``."""
    for name in options:
        if name not in parameters:
            raise DataError(f"{what} has no option {name}; it has {', '.join(parameters)}")
    return dict(options)


def _demand_all(arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], what: str) -> None:
    required = [
        name for name, one in parameters.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    if missing := [name for name in required if name not in arguments]:
        raise DataError(f"{what} requires {', '.join(missing)}; give them as options")


def reason_of(error: BaseException) -> str:
    """What went wrong, in a line; for an assertion without a message, the line that failed."""
    if text := str(error).strip():
        return f"{type(error).__name__}: {text.splitlines()[0]}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {frames[-1].line}" if frames else type(error).__name__


def download(recipe: LhotseRecipe, folder: Path, options: Mapping[str, Any]) -> Path:
    """Download the corpus to ``folder`` and return the folder in it for its prepare function.

    Raises UserError if the recipe can't download, or the network refuses.
    """
    if not recipe.downloads:
        raise UserError(
            f"recipe {recipe.name}: Lhotse can't download this corpus; get it from its authors, put it in {folder}, "
            f"and run vaak data prepare {recipe.name}"
        )
    found: Any = None
    for function in recipe.downloads:
        parameters = _parameters(function)
        arguments = demand_known(options, parameters, f"download of {recipe.name}")
        arguments.setdefault(_corpus_parameter(function), folder)
        _demand_all(arguments, parameters, f"download of {recipe.name}")
        with downloads_of(recipe.module):
            found = _fetched(recipe, functools.partial(function, **arguments), folder)
    inner = Path(found) if len(recipe.downloads) == 1 and isinstance(found, str | Path) else folder
    return inner if inner.resolve().is_relative_to(folder.resolve()) else folder


def _fetched(recipe: LhotseRecipe, function: Callable[[], Any], folder: Path) -> Any:
    try:
        return function()
    except UserError:
        raise
    except Exception as error:  # each recipe downloads in its own way
        raise UserError(
            f"recipe {recipe.name}: the corpus can't be downloaded: {reason_of(error)}; partial downloads are kept in "
            f"{folder}, and the same command resumes them (delete damaged files)"
        ) from error
