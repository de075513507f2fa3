"""Corpora to cut stores, once: what tasks prepare that read audio while they train.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  train/0/  train/1/ ...       the cuts of each of ``datasets`` in this split (vaak.audio.cuts.store)
  valid/  test/
  prepared.json                the fingerprint and statistics; written last: it means "complete"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus, AudioStatistics
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.config.base import FOLDS_FILE
from vaak.core.errors import DataError
from vaak.core.splits import SPLITS
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.base import without_unread_files

log = logging.getLogger("vaak")

PLACES = ("corpus_dir", "output_dir", "audio_root", FOLDS_FILE)
"""Options for the path of a corpus, which may differ after a run was moved."""
CAME_LATER = ("alignments", "columns", "say")
"""Options that aren't part of what earlier versions prepared."""
READING = frozenset(
    {*PLACES, "storage_path", "storage_type", "num_jobs", "progress_bar", "cache_gigabytes", "channels", "dither"}
)
"""Audio options that may differ when a trained model is used."""

Datasets = tuple[DatasetConfig, ...]
Cuts = Iterable[Any]
Choice = Callable[[Cuts], Cuts]
"""Which cuts are usable; it may raise DataError for one."""


@dataclass(frozen=True)
class PreparedCuts(PreparedFolder):
    """Cut stores, by split and dataset."""

    def stores(self, split: str) -> list[tuple[int, CutStore]]:
        """The cuts of a split, each store with its dataset's number. Raises UserError for an unknown split."""
        return self.open_split(split, _cut_stores)


def _cut_stores(folder: Path) -> list[tuple[int, CutStore]]:
    return [(int(path.name), CutStore(path)) for path in sorted(folder.iterdir(), key=lambda one: int(one.name))]


def read_for(splits: tuple[str, ...], datasets: Datasets) -> Datasets:
    """The datasets without the files of other splits, if they name those of ``splits``."""
    return tuple(one if one.type == "recipe" else without_unread_files(one, splits) for one in datasets)


def corpora_of(datasets: Datasets, audio: AudioConfig) -> list[AudioCorpus]:
    return [AudioCorpus(dataset, audio) for dataset in datasets]


def training_cuts(corpora: list[AudioCorpus]) -> Iterator[Any] | None:
    """The usable recordings or utterances of training, unsaid which aren't; None where voices would be made first."""
    if any(corpus.dataset.type == "voices" for corpus in corpora):
        return None
    for corpus in corpora:
        corpus.on_bad = lambda error, name: None
    return (cut for corpus in corpora if "train" in corpus.splits for cut in corpus.cuts("train"))


def recipe(
    datasets: Datasets,
    audio: AudioConfig,
    splits: tuple[str, ...] | None = None,
    choice: Choice = iter,
    further: Mapping[str, Any] | None = None,
) -> Recipe:
    """How the cut stores of ``splits`` (default: all) are made.

    ``audio`` says how ``datasets`` are read, ``choice`` which of their cuts are kept, and ``further`` are the options
    that this depends on. Making them raises UserError and DataError for corpora that can't be read.
    """
    options = [_options(dataset) for dataset in datasets]
    data_options: dict[str, Any] = {
        "datasets": options,
        "splits": None if splits is None else list(splits),
        **(further or {}),
    }

    def fingerprint() -> str:
        files = [path for corpus in corpora_of(datasets, audio) for path in corpus.files]
        return fingerprint_with_files(data_options, files)

    def make(folder: Path) -> dict[str, Any]:
        return _make(corpora_of(datasets, audio), splits, choice, folder)

    return Recipe(make, fingerprint, data_options, "datasets")


def _options(dataset: DatasetConfig) -> dict[str, Any]:
    """What decides which cuts a dataset has; options that came later are left out where they have their defaults."""
    fields = DatasetConfig.model_fields
    unused = {name for name in CAME_LATER if getattr(dataset, name) == fields[name].default}
    return dataset.model_dump(mode="json", exclude={*PLACES, "conversations", *unused})


def _make(corpora: list[AudioCorpus], splits: tuple[str, ...] | None, choice: Choice, folder: Path) -> dict[str, Any]:
    """Fill ``folder``, and return its statistics."""
    there = [split for split in SPLITS if any(split in corpus.splits for corpus in corpora)]
    statistics = {
        split: _write(corpora, split, folder / split, choice) for split in (there if splits is None else splits)
    }
    return {"statistics": statistics}


def _write(corpora: list[AudioCorpus], split: str, folder: Path, choice: Choice) -> dict[str, Any]:
    """The cuts of a split. Raises DataError if it has none."""
    recordings, seconds, speakers = 0, 0.0, set[str]()
    read: list[AudioStatistics] = []
    for number, corpus in enumerate(corpora):
        if split in corpus.splits:
            store = write_cuts(folder / str(number), choice(corpus.cuts(split)))
            recordings, seconds = recordings + len(store), seconds + float(store.durations.sum())
            speakers |= set(store.speakers)
            read.append(corpus.statistics[split])
            for reason, times in read[-1].dropped.items():
                log.warning("%s: %s: %s skipped: %s", split, corpus.dataset.name, f"{times:,}", reason)
            for remark, times in read[-1].remarks.items():
                log.info("%s: %s: %s %s", split, corpus.dataset.name, f"{times:,}", remark)
    if not recordings:
        raise DataError(f"datasets: {split} is empty: no dataset has a usable recording")
    log.info(
        "%s: %s recordings, %.2f hours, %s speakers", split, f"{recordings:,}", seconds / 3600, f"{len(speakers):,}"
    )
    most = max(statistics.most_speakers for statistics in read)
    totals = {"recordings": recordings, "seconds": seconds, "speakers": len(speakers), "most_speakers": most}
    return totals | {"datasets": [statistics.to_json() for statistics in read]}
