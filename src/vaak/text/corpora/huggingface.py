"""Documents of a Hugging Face dataset, by its name on the Hub or from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError, UserError
from vaak.text.corpora.readers import Document, missing_column

# Names of splits in datasets, by our names.
_SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}


class HuggingFaceSource:
    """The rows of a dataset, read from its memory-mapped Arrow files."""

    def __init__(self, name: str | None, subset: str | None, text_column: str):
        """Load the dataset (from the Hub's cache if it is there).

        Raises UserError if it is unavailable, DataError when it has no split of a known name or no ``text_column``.
        """
        self.splits, self.lacks_train = load_splits(name, subset)
        self.name = str(name)
        self.text_column = text_column
        self.given = tuple(self.splits)
        self.source_files = files_of(self.name)
        for split in self.splits.values():
            if text_column not in split.column_names:
                raise missing_column(f"dataset {name}", text_column, split.column_names)

    def read(self, split: str) -> Iterator[Document]:
        rows = self.splits[split].select_columns([self.text_column])
        for batch in rows.iter(batch_size=1000):
            for text in batch[self.text_column]:
                if not isinstance(text, str | None):
                    kind = type(text).__name__
                    raise DataError(f"dataset {self.name}: {self.text_column} is a {kind}, not a string")
                yield Document(text or "")

    def describe(self, split: str) -> str:
        return f"dataset {self.name}, {split}"


def load_splits(name: str | None, subset: str | None) -> tuple[dict[str, Any], str]:
    """A dataset's splits by our names, and the message if there is no training data.

    Raises UserError if it is unavailable, DataError when it has no split of a known name.
    """
    if not name:
        raise UserError("corpus.name: give the name of a dataset on the Hugging Face Hub, or a folder")
    there = _load(name, subset)
    names = {ours: [theirs for theirs in candidates if theirs in there] for ours, candidates in _SPLIT_NAMES.items()}
    splits = {ours: there[found[0]] for ours, found in names.items() if found}
    lacks_train = f"dataset {name}: there is no train split; it has {', '.join(map(str, there))}"
    if not splits:
        raise DataError(lacks_train)
    return splits, lacks_train


def files_of(name: str) -> list[Path]:
    """The files of a dataset in a folder; of one on the Hub none."""
    return sorted(path for path in Path(name).rglob("*") if path.is_file()) if name else []


def _load(name: str, subset: str | None) -> dict[Any, Any]:
    """The dataset's splits by name."""
    try:
        import datasets
    except ImportError as error:
        raise UserError("corpus.type: huggingface requires the datasets library: pip install 'vaak[hf]'") from error
    folder = Path(name)
    saved = (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
    try:
        loaded = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, subset)
    except Exception as error:  # the Hub's client, its HTTP library and the file readers each raise their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"corpus.name: the dataset {name!r} can't be loaded ({reason}); check its name and the network, "
            "or give the folder that contains it"
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
