"""The recipes that Vaak brings along, by name: ``configs`` of its repository, which an installed Vaak has inside.

A recipe is named by its path there, without its ending: ``quickstart``, ``asr/ctc``. A file of the user's that is
called so comes first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from vaak.config.yaml.tree import PlacedDict, replace, walk

CONFIGS = "configs"
"""The folder's name in the repository, as commands in the documentation have it."""
_PACKAGE = Path(__file__).resolve().parents[2]
_ENDINGS = (".yml", ".yaml")


def recipes_folder() -> Path:
    """Return the folder of the recipes: in the package, or, of a checkout, next to its ``src``."""
    inside = _PACKAGE / "recipes"
    return inside if inside.is_dir() else _PACKAGE.parents[1] / CONFIGS


def recipes() -> dict[str, Path]:
    """Return all recipes by their names, the plain names first."""
    folder = recipes_folder()
    named = {str(path.relative_to(folder).with_suffix("").as_posix()): path for path in folder.rglob("*.yml")}
    return {name: named[name] for name in sorted(named, key=lambda name: (name.count("/"), name))}


def recipe_named(text: str) -> Path | None:
    """Return the recipe of a name, also where it is written as the documentation has it; None if none has it.

    >>> recipe_named("quickstart").name, recipe_named("configs/asr/ctc.yml").name, recipe_named("no-such-recipe")
    ('quickstart.yml', 'ctc.yml', None)
    """
    name = text.removeprefix("./").removeprefix(f"{CONFIGS}/")
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    if not re.fullmatch(r"[\w-]+(/[\w-]+)*", name):
        return None
    path = recipes_folder() / f"{name}.yml"
    # False, too, of a name that is too long.
    return path if os.path.isfile(path) else None


def about(recipe: Path) -> str:
    """Return what a recipe says of itself: the comment at its top, as one line of text."""
    lines = recipe.read_text(encoding="utf-8").splitlines()
    head = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").rstrip() for line in lines[:head])


def bundled_files(tree: PlacedDict) -> dict[str, Path]:
    """Return the data files that a recipe names (``configs/lm/preferences.jsonl``), with where they are."""
    named = [one.value for _, one in walk(tree) if isinstance(one.value, str)]
    files = {name: recipes_folder() / name.removeprefix(f"{CONFIGS}/") for name in named if name.startswith(CONFIGS)}
    return {name: file for name, file in files.items() if file.is_file()}


def find_bundled_files(tree: PlacedDict) -> None:
    """Let a recipe find its data files from any folder that has none of that name."""
    there = {name: str(file) for name, file in bundled_files(tree).items() if not Path(name).exists()}
    for path, one in walk(tree) if there else ():
        if isinstance(one.value, str) and one.value in there:
            replace(tree, path, there[one.value])
