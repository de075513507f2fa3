"""Prepared data of a task: made once, under a fingerprint of everything it depends on, and kept.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  …                            whatever the task makes
  prepared.json                the fingerprint, the options, each file's size and hash, remarks; written last:
                               it means "complete"
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import vaak
from vaak.config.changes import moved_together
from vaak.core.artifact import Artifact, differences, list_sizes
from vaak.core.errors import DataError, FormatError, UserError
from vaak.core.left_out import CONTENTS, SplitContents
from vaak.core.names import require_known
from vaak.core.secrets import mask
from vaak.core.storage.files import compute_fingerprint
from vaak.core.storage.links import make_link
from vaak.runs.folder.directory import holds_a_run, iterate_run_dirs

log = logging.getLogger("vaak")

PREPARED_FILE = "prepared.json"
Store = TypeVar("Store")
LEFT_OUT = "left_out"
"""The key of the splits that a copy in a checkpoint doesn't have."""
NOT_TRAINED_WITH = "test"
"""The split that training doesn't read."""


@dataclass(frozen=True)
class PreparedFolder:
    """The prepared data of a folder; its ``about`` has ``statistics`` by split."""

    folder: Path

    @classmethod
    def open(cls, folder: Path, *reading: Any) -> Self:
        """``reading`` are the class's further fields. Raises DataError if nothing was prepared."""
        if not artifact_in(folder).path.exists():
            raise DataError(f"{folder}: no prepared data; vaak train prepares them")
        return cls(folder, *reading)

    @classmethod
    def make(cls, recipe: Recipe, folder: Path, *reading: Any) -> Self:
        """Make a folder by a recipe, unless it is there, as ``prepare_folder`` does; return it."""
        prepare_folder(recipe, folder)
        return cls(folder, *reading)

    def split_folder(self, split: str) -> Path:
        """Return the folder of a split.

        Raises UserError if the corpus has no such split, or it was left out; DataError if it is damaged.
        """
        about = self.about
        there = about["statistics"]
        require_known([split], sorted(there), "unknown split", error=UserError)
        if self.lacks((split,)):
            raise UserError(
                f"the data of {split} isn't kept with the checkpoint {self.folder.parent}; open the run itself"
            )
        self._check(lambda name: _get_split(name) == split)
        return self.folder / split

    def contents(self, split: str) -> SplitContents | None:
        """Return how much was read of a split, and what was left out; None if an earlier version prepared it."""
        found = self.about["statistics"].get(split, {}).get(CONTENTS)
        return None if found is None else SplitContents.from_json(found)

    def lacks(self, splits: Iterable[str]) -> bool:
        """Return whether one of ``splits`` was left out, as from what a checkpoint has."""
        return not set(self.about.get(LEFT_OUT, ())).isdisjoint(splits)

    def open_split(self, split: str, reader: Callable[[Path], Store]) -> Store:
        """Return the folder of a split as ``reader`` opens it.

        Raises what ``split_folder`` does, and DataError if another version prepared it.
        """
        folder = self.split_folder(split)
        try:
            return reader(folder)
        except FormatError as error:
            raise DataError(f"{error.problem}; {_make_remedy(self.folder)}") from error

    @property
    def about(self) -> dict[str, Any]:
        """The content of ``prepared.json``. Raises DataError if it is damaged."""
        return self._artifact.read()

    @cached_property
    def _artifact(self) -> Artifact:
        """The folder as an artifact; its remedy, with links resolved, is made once."""
        return artifact_in(self.folder)

    def check_what_training_reads(self) -> None:
        """Raises DataError naming the first file that has changed since it was made, in the splits to come too."""
        self._check(lambda name: _get_split(name) != NOT_TRAINED_WITH)

    def _check(self, concerns: Callable[[str], bool]) -> None:
        damage = self._artifact.damage(concerns)
        if damage is not None:
            raise DataError(f"{damage}; {_make_remedy(self.folder)}")


def artifact_in(folder: Path) -> Artifact:
    """Return the prepared data of a folder as an artifact."""
    return Artifact(folder, PREPARED_FILE, "prepared data", remedy=_make_remedy(folder))


def _get_split(name: str) -> str:
    return name.partition("/")[0]


def _make_remedy(folder: Path) -> str:
    """Return the remedy for damaged data."""
    return f"delete {folder.resolve()}, and training recreates the data from their sources"


@dataclass(frozen=True)
class Recipe:
    """The way a task's data are made.

    ``make`` fills a folder and returns the content of ``prepared.json``. ``fingerprint`` hashes everything that it
    depends on, and raises UserError where a source has gone. ``options`` are those that determine the data, except
    where they are: a run may find them elsewhere after it has moved. ``sections`` is what a message calls them.
    """

    make: Callable[[Path], dict[str, Any]]
    fingerprint: Callable[[], str]
    options: dict[str, Any]
    sections: str = "data.corpus or data.tokenizer"

    def __post_init__(self) -> None:
        # They are stored with the data.
        object.__setattr__(self, "options", mask(self.options))


def prepared_folder(directory: Path) -> Path:
    """Return the folder where a run's prepared data are found, whether they are there or in a cache."""
    return directory / "prepared"


def is_prepared(directory: Path) -> bool:
    """Return whether a run's data are there, complete."""
    return (prepared_folder(directory) / PREPARED_FILE).exists()


def prepare_for_run(recipe: Recipe, directory: Path, cache: str | None) -> None:
    """Prepare a run's data; with a ``cache`` they are there and RUN/prepared points to them.

    So a run finds what it was trained with even when its corpus has changed or gone; and one that has begun keeps it.

    Raises UserError if a run that has begun is to continue with other options, or its data are damaged.
    """
    folder = prepared_folder(directory)
    if holds_a_run(directory) and is_prepared(directory):
        _keep(recipe, PreparedFolder(folder), directory)
        return
    if cache is None:
        # It pointed to a cache at an earlier start: writing through it would change what other runs share.
        if folder.is_symlink():
            folder.unlink()
        prepare_folder(recipe, folder)
        return
    shared = Path(cache) / recipe.fingerprint()
    prepare_folder(recipe, shared)
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        # Made before there was a cache.
        shutil.rmtree(folder)
    # For one of several tasks, RUN/tasks/NAME isn't there yet.
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_link(folder, shared)


def _keep(recipe: Recipe, prepared: PreparedFolder, directory: Path) -> None:
    """Continue with the data that the run in a directory was started with; warn where their sources have changed."""
    prepared.check_what_training_reads()
    before = prepared.about.get("options", recipe.options)
    if before != recipe.options and not any(
        moved_together(before, recipe.options, place, str(directory)) for place in iterate_run_dirs(directory)
    ):
        changed = "; ".join(differences(before, recipe.options))
        raise UserError(
            f"{recipe.sections} has other options than this run was started with ({changed}): restore them, or give "
            "another name= to start a new run"
        )
    try:
        unchanged = prepared.about.get("fingerprint") == recipe.fingerprint()
    except UserError:
        # A source has gone.
        unchanged = False
    if not unchanged:
        log.warning(
            "the corpus may have changed since this run started (other paths, sizes or dates): it continues with %s",
            prepared.folder,
        )


def fingerprint_with_files(options: dict[str, Any], files: Iterable[Path]) -> str:
    """Return a hash of options, of the version, and of the size and time of change of every file.

    A file that isn't there counts by its path; whoever reads it will name it.
    """
    stamps = [[str(path), *((path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else ())] for path in files]
    return compute_fingerprint({**mask(options), "files": stamps, "vaak": vaak.__version__})


def prepare_folder(recipe: Recipe, folder: Path) -> None:
    """Make what the recipe makes unless it is there, from the same sources.

    Processes that prepare the same folder wait for one another.

    Raises UserError if the folder can't be written.
    """
    artifact, mark = artifact_in(folder), recipe.fingerprint()
    with artifact.making(lambda: _is_done(artifact, mark)) as needed:
        if needed:
            about = {"fingerprint": mark, "options": recipe.options, **recipe.make(folder)}
            artifact.finish(about, with_hashes=True)
        else:
            log.info("prepared data in %s are up to date", folder)


def _is_done(artifact: Artifact, mark: str) -> bool:
    """Return whether a folder holds all of what is to be made; where files are damaged, remove them.

    They are never written over: another run may have them mapped, and keeps what it has mapped.
    """
    if (artifact.find() or {}).get("fingerprint") != mark:
        return False
    damage = artifact.damage()
    if damage is not None:
        log.warning("%s; the prepared data in %s are recreated", damage, artifact.folder)
        # The record goes first: without it the folder counts as incomplete, whenever a kill comes.
        artifact.path.unlink()
        for name in list_sizes(artifact.folder):
            (artifact.folder / name).unlink()
    return damage is None
