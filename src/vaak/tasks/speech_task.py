"""The base of tasks that read audio: corpora, cut stores made of them once, and findings on their audio.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points), of a task with ``PreparedCuts``
  train/0/  train/1/ ...       the cuts of each of ``datasets`` in this split (vaak.audio.cuts.store)
  valid/  test/
  prepared.json                the fingerprint and statistics; written last: it means "complete"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

from typing_extensions import TypeVar

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus, AudioStatistics
from vaak.audio.cuts.findings import cut_findings
from vaak.audio.cuts.reading import UNKNOWN_SPEAKER
from vaak.audio.cuts.recordings import UNUSABLE, LeftOut
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.config.base import FOLDS_FILE
from vaak.core.errors import DataError, UserError
from vaak.core.left_out import CONTENTS, SplitContents, join_contents
from vaak.core.splits import SPLITS
from vaak.core.task import DataFinding, Dataset
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.base import AnyExperiment, PreparedTask, refuse_other_options, without_unread_files

log = logging.getLogger("vaak")

PATH_OPTIONS = ("corpus_dir", "output_dir", "audio_root", FOLDS_FILE)
"""Options for the path of a corpus, which may differ after a run was moved."""
CAME_LATER = ("alignments", "columns", "say")
"""Options that aren't part of what earlier versions prepared."""
READING_OPTIONS = frozenset(
    {*PATH_OPTIONS, "storage_path", "storage_type", "num_jobs", "progress_bar", "cache_gigabytes", "channels", "dither"}
)
"""Audio options that may differ when a trained model is used."""

NOT_TUNED_ON = {"train": "the model has seen it", "test": "metrics on it would become meaningless"}
"""Splits on which options of use aren't chosen, and why."""
VOICES = (DatasetConfig(type="voices"),)
"""The datasets of a task for which none is given."""

UNUSABLE_CUTS = "recordings that can't be used"

Datasets = tuple[DatasetConfig, ...]
Cuts = Iterable[Any]
Choice = Callable[[Cuts], Cuts]
"""Which cuts are usable; it may raise DataError for one."""


@dataclass(frozen=True)
class PreparedAudio(PreparedFolder):
    """Prepared data with the cuts of their recordings or utterances."""

    def cut_stores(self, split: str) -> list[CutStore]:
        """Return the cuts of a split. Raises UserError for an unknown split."""
        raise NotImplementedError


@dataclass(frozen=True)
class PreparedCuts(PreparedAudio):
    """Cut stores, by split and dataset."""

    def cut_stores(self, split: str) -> list[CutStore]:
        return [store for _, store in self.stores(split)]

    def stores(self, split: str) -> list[tuple[int, CutStore]]:
        """Return the cuts of a split, each store with its dataset's number. Raises UserError for an unknown split."""

        def read(folder: Path) -> list[tuple[int, CutStore]]:
            return sorted(((int(path.name), CutStore(path)) for path in folder.iterdir()), key=lambda one: one[0])

        return self.open_split(split, read)


AudioFolder = TypeVar("AudioFolder", bound=PreparedAudio, default=PreparedAudio)
AudioDataset = TypeVar("AudioDataset", bound=Dataset, default=Dataset)


class SpeechTask(PreparedTask[AnyExperiment, AudioFolder], Generic[AnyExperiment, AudioFolder, AudioDataset]):
    """A task that reads the corpora of ``datasets`` as ``global_config`` says; without any, built-in voices.

    MAY_DIFFER
        Options of ``global_config`` that may differ when a trained model is used.
    """

    MAY_DIFFER: ClassVar[frozenset[str]] = READING_OPTIONS

    def __init__(self, experiment: AnyExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.options: Any = experiment.model
        self.data: Any = experiment.data
        self.audio: AudioConfig = experiment.global_config
        self.datasets: Datasets = experiment.datasets or VOICES
        self._datasets: dict[str, AudioDataset] = {}

    def corpora(self) -> list[AudioCorpus]:
        return make_corpora(self.datasets, self.audio)

    def sources(self) -> list[Path]:
        """Return the files that ``prepare`` would read. Raises DataError for one that doesn't exist."""
        return [path for corpus in self.corpora() for path in corpus.files]

    def training_cuts(self) -> Iterator[Any] | None:
        """Return the usable cuts of training, silent about others; None if voices would have to be made first."""
        corpora = self.corpora()
        if any(corpus.dataset.type == "voices" for corpus in corpora):
            return None
        for corpus in corpora:
            corpus.on_bad = lambda error, name: None
        return (cut for corpus in corpora if "train" in corpus.splits for cut in corpus.cuts("train"))

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        return self.make_recipe(self.datasets, splits)

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: AudioFolder | None = None
    ) -> Recipe:
        """Return how the data of ``splits`` of these datasets are made; ``own`` has what a run learned from its own."""
        raise NotImplementedError

    def refuse_other_inputs(self, own: AnyExperiment) -> None:
        """Raise UserError if a model trained by ``own`` would read other features than here."""
        refuse_other_options(own.global_config, self.audio, "global_config", self.MAY_DIFFER)

    def has_other_corpora(self, own: AnyExperiment) -> bool:
        """Return whether other utterances or recordings are read than by the run's experiment ``own``."""
        return bool((own.datasets or VOICES) != self.datasets)

    def prepare_eval_data(self, own: AnyExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        """Prepare ``splits`` with what the run learned from its data; where the corpora are its own, use its data.

        Raises UserError for other features.
        """
        self.refuse_other_inputs(own)
        if splits and (self.has_other_corpora(own) or self.prepared.lacks(splits)):
            # files of the other splits needn't be there; a recipe's files aren't named by split
            datasets = tuple(
                one if one.type == "recipe" else without_unread_files(one, splits) for one in self.datasets
            )
            self.prepare_in(folder, self.make_recipe(datasets, splits, self.prepared))
        self._datasets.clear()

    def dataset(self, split: str) -> AudioDataset:
        if split not in self._datasets:
            self._datasets[split] = self.make_dataset(split)
        return self._datasets[split]

    def make_dataset(self, split: str) -> AudioDataset:
        """Return the examples of a split, which ``dataset`` keeps."""
        raise NotImplementedError

    def prepare_for_check(self) -> None:
        # With skip, preparing lists all that can't be used; the cache is for data that are trained on.
        data = self.data.model_copy(update={"on_bad_example": "skip", "cache_dir": None})
        self.experiment = self.experiment.model_copy(update={"data": data})
        # Each example is read once: nobody would read a cache of them, which may take half a gigabyte.
        self.audio = self.audio.model_copy(update={"cache_gigabytes": 0.0})
        self.prepare()

    def data_findings(self, split: str) -> Iterator[DataFinding]:
        """Yield unusable and omitted recordings, as far as preparing lists them, and faults of the audio."""
        about = self.prepared.about["statistics"][split]
        mark: Literal["problem", "warning"] = "warning" if self.data.on_bad_example == "skip" else "problem"
        for one in about.get("unusable", ()):
            name, reason = ("", one) if isinstance(one, str) else (one["name"], one["reason"])
            # A line's place is its name.
            yield DataFinding(name, "unusable", reason.removeprefix(f"{name}: "), mark)
        for reason, number in about.get("left_out", {}).items():
            if reason != UNUSABLE:
                yield DataFinding("", "left out", f"{number:,} {reason}", "warning")
        for store in self.prepared.cut_stores(split):
            yield from cut_findings(store, self.audio)


def collect_results(found: Iterable[tuple[Path, Any]]) -> Iterator[Any]:
    """Yield the result of each file (``predict_files`` of a task). Raises the UserError of one that can't be read."""
    for _, one in found:
        if isinstance(one, UserError):
            raise one
        yield one


def make_corpora(datasets: Datasets, audio: AudioConfig) -> list[AudioCorpus]:
    return [AudioCorpus(dataset, audio) for dataset in datasets]


def recipe(
    datasets: Datasets,
    audio: AudioConfig,
    splits: tuple[str, ...] | None = None,
    choice: Choice = iter,
    further: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Recipe:
    """Return how the cut stores of ``splits`` (default: all) are made.

    ``audio`` says how ``datasets`` are read, ``choice`` which of their cuts are kept, and ``further`` are the options
    that this depends on. Making them raises UserError and DataError for corpora that can't be read; recordings that
    can't be used are left out and listed where ``skip_bad``.
    """
    options = []
    for dataset in datasets:
        # what came later and isn't used isn't part of the fingerprint: data that were prepared before are still found
        unused = {name for name in CAME_LATER if getattr(dataset, name) == DatasetConfig.model_fields[name].default}
        options.append(dataset.model_dump(mode="json", exclude={*PATH_OPTIONS, "conversations", *unused}))
    data_options: dict[str, Any] = {
        "datasets": options,
        "splits": None if splits is None else list(splits),
        **(further or {}),
        **({"skips": True} if skip_bad else {}),
    }

    def fingerprint() -> str:
        files = [path for corpus in make_corpora(datasets, audio) for path in corpus.files]
        return fingerprint_with_files(data_options, files)

    def make(folder: Path) -> dict[str, Any]:
        corpora = make_corpora(datasets, audio)
        wanted = list_splits(corpora) if splits is None else splits
        statistics = {split: _write(corpora, split, folder / split, choice, skip_bad) for split in wanted}
        report_shared_speakers(corpora)
        return {"statistics": statistics}

    return Recipe(make, fingerprint, data_options, "datasets")


def list_splits(corpora: Iterable[AudioCorpus]) -> list[str]:
    """Return the splits that at least one corpus has, train first."""
    found = {split for corpus in corpora for split in corpus.splits}
    return [split for split in SPLITS if split in found]


def report_shared_speakers(corpora: Iterable[AudioCorpus]) -> None:
    """Log how many speakers of an evaluation split are also in training, among the known speakers of the data read.

    A warning where the splits are those of the corpus: whoever splits a corpus has chosen it by ``split_by``.
    """
    for corpus in corpora:
        known = {split: read.speakers - {UNKNOWN_SPEAKER} for split, read in corpus.statistics.items()}
        for split in sorted(known.keys() - {"train"}):
            shared = known[split] & known.get("train", set())
            if shared:
                level = logging.WARNING if split in corpus.division.given else logging.INFO
                numbers = f"{len(shared):,} of {len(known[split]):,} speakers of {split}"
                example = min(shared)
                log.log(level, "%s: %s are in train, too, such as %s", corpus.dataset.name, numbers, example)


def collect_contents(corpora: Iterable[AudioCorpus], split: str) -> list[SplitContents]:
    """Return the items that each corpus left out of a read split; used recordings are counted elsewhere."""
    return [replace(corpus.statistics[split].contents(), number=0) for corpus in corpora if split in corpus.statistics]


def _write(corpora: list[AudioCorpus], split: str, folder: Path, choice: Choice, skip_bad: bool) -> dict[str, Any]:
    """Write the cuts of a split, and return its statistics. Raises DataError if it has none."""
    recordings, seconds, speakers = 0, 0.0, set[str]()
    read: list[AudioStatistics] = []
    contents, bad = [SplitContents("recordings", 0)], LeftOut(skip_bad)
    for number, corpus in enumerate(corpora):
        if split in corpus.splits:
            if skip_bad:
                corpus.on_bad = bad.bad
            # The count runs over all datasets, so this one's share is the difference.
            before = bad.counts[UNUSABLE]
            store = write_cuts(folder / str(number), choice(corpus.cuts(split)))
            recordings, seconds = recordings + len(store), seconds + float(store.durations.sum())
            speakers |= set(store.speakers)
            read.append(corpus.statistics[split])
            own = replace(read[-1].contents(), number=len(store))
            if unusable := read[-1].cuts - len(store):
                own.left_out[UNUSABLE_CUTS] = unusable
            if skipped := bad.counts[UNUSABLE] - before:
                own.left_out[UNUSABLE] = skipped
            contents.append(own)
            for line in own.lines(f"{split}: {corpus.dataset.name}"):
                log.warning("%s", line)
            for remark, times in read[-1].remarks.items():
                if remark in own.left_out:
                    continue
                log.info("%s: %s: %s %s", split, corpus.dataset.name, f"{times:,}", remark)
    if not recordings:
        first = f": {bad.messages[0]}" if bad.messages else ""
        raise DataError(f"datasets: {split} is empty: no dataset has a usable recording{first}")
    log.info(
        "%s: %s recordings, %.2f hours, %s speakers", split, f"{recordings:,}", seconds / 3600, f"{len(speakers):,}"
    )
    most = max(statistics.most_speakers for statistics in read)
    totals = {"recordings": recordings, "seconds": seconds, "speakers": len(speakers), "most_speakers": most}
    datasets = [statistics.to_json() for statistics in read]
    listed = {"unusable": bad.listed[UNUSABLE]} if bad.messages else {}
    return {**totals, "datasets": datasets, CONTENTS: join_contents(contents).to_json(), **listed}
