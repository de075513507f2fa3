"""What ``train``, ``valid`` and ``test`` of a dataset name: files, folders and patterns."""

from __future__ import annotations

import glob
from pathlib import Path

from vaak.audio.config import DatasetConfig
from vaak.core.errors import DataError
from vaak.core.split_ranges import SPLITS


def entries_of(dataset: DatasetConfig) -> dict[str, list[Path]]:
    """The files and folders of each split that is given; without any, ``corpus_dir`` is train's.

    If there is a ``corpus_dir``, names and patterns are relative to it. Raises DataError for what doesn't exist.
    """
    named: dict[str, tuple[str, ...]] = {split: getattr(dataset, split) for split in SPLITS}
    if not any(named.values()) and dataset.corpus_dir is not None:
        named["train"] = (".",)
    root = Path(dataset.corpus_dir or ".").expanduser()
    found = {
        split: [path for name in names for path in _matches(root, name, f"datasets, {dataset.name}, {split}")]
        for split, names in named.items()
        if names
    }
    if not found:
        raise DataError(lacks_train(dataset))
    _demand_once(found, dataset)
    return found


def lacks_train(dataset: DatasetConfig) -> str:
    """The message if no training data is given."""
    return f"datasets, {dataset.name}: train: give its files or folders (type: {dataset.type})"


def _matches(root: Path, name: str, option: str) -> list[Path]:
    path = root / Path(name).expanduser()
    found = [path] if path.exists() else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not found:
        what = "nothing matches" if glob.has_magic(name) else "no such file or folder:"
        raise DataError(f"{option}: {what} {path}")
    return found


def _demand_once(found: dict[str, list[Path]], dataset: DatasetConfig) -> None:
    """Raises DataError if a split names a file twice, or two splits a manifest that can't distinguish them."""
    seen: dict[Path, str] = {}
    for split, paths in found.items():
        for path in paths:
            before = seen.get(path.resolve())
            if before == split or (before is not None and dataset.type == "cuts"):
                where = split if before == split else f"{before} and in {split}"
                raise DataError(f"datasets, {dataset.name}: {path} is named twice, in {where}; name it once")
            seen[path.resolve()] = split


def inside(folder: Path, name: str, where: str) -> Path:
    """The file ``name`` of a manifest in ``folder``.

    Raises DataError for one outside of the folder: a manifest that someone else wrote must not read other files.
    """
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise DataError(
            f"{where}: {name} is outside of the folder of the manifest ({folder}), which is refused; move the file "
            "into it, or the manifest above both"
        )
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{where}: {name} is a link to outside of {folder}, which is refused; copy the file")
    return path
