"""Corpora to utterances with phonemes, spectrograms and durations, once.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  processor.json               the front end (vaak.text.speech.processor)
  train/  valid/  test/        utterances (vaak.tasks.tts.data)
  prepared.json                the fingerprint, statistics, speakers and normalisation; written last: it means
                               "complete"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.audio.config import AudioConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.recordings import LeftOut
from vaak.audio.cuts.store import CutStore
from vaak.audio.mel_config import PitchConfig
from vaak.core.errors import DataError
from vaak.core.left_out import CONTENTS, join_contents
from vaak.runs.prepared import Recipe, fingerprint_with_files
from vaak.tasks.speech_task import PATH_OPTIONS, Datasets, PreparedAudio, collect_contents, list_splits, make_corpora
from vaak.tasks.tts.config import TtsDataConfig, TtsExperiment
from vaak.tasks.tts.data import Normalisation, RecordMaker, UtteranceStore, write_features, write_utterances
from vaak.tasks.tts.recordings import utterances
from vaak.text.speech.guesses import summarize_guesses
from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor

if TYPE_CHECKING:
    from lhotse.cut import Cut

log = logging.getLogger("vaak")

ADVICE = "write them in words, remove them, or choose another data.front_end.language"
READING_OPTIONS = frozenset(
    {*PATH_OPTIONS, "storage_path", "storage_type", "num_jobs", "progress_bar", "cache_gigabytes", "dither"}
)
"""Audio options that may differ when a trained model is used."""


@dataclass(frozen=True)
class PreparedSpeech(PreparedAudio):
    """The front end, utterances by split, and what was learned from those of training."""

    @cached_property
    def processor(self) -> PhonemeProcessor:
        return PhonemeProcessor.load(self.folder / PROCESSOR_FILE)

    @cached_property
    def speakers(self) -> tuple[str, ...]:
        """The training speakers, sorted."""
        return tuple(self.about["speakers"])

    @cached_property
    def normalisation(self) -> Normalisation:
        """Means and deviations of training."""
        return Normalisation.from_json(self.about["normalisation"])

    def cut_stores(self, split: str) -> list[CutStore]:
        return [self.store(split).cuts]

    def store(self, split: str) -> UtteranceStore:
        """Return the utterances of a split. Raises UserError for an unknown split."""
        return UtteranceStore(self.split_folder(split))


@dataclass(frozen=True)
class SpeechSources:
    """Everything that utterances are made of."""

    datasets: Datasets
    audio: AudioConfig
    data: TtsDataConfig
    with_durations: bool
    skip_bad: bool

    @classmethod
    def of(cls, experiment: TtsExperiment, datasets: Datasets) -> SpeechSources:
        given, audio = experiment.model.durations == "given", experiment.global_config
        pitch = (audio.pitch or PitchConfig()) if experiment.model.has_prosody else None
        audio = audio.model_copy(update={"pitch": pitch})
        return cls(datasets, audio, experiment.data, given, experiment.skips_bad_examples)

    def corpora(self) -> list[AudioCorpus]:
        return make_corpora(self.datasets, self.audio)

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the prepared data."""
        data = self.data.model_dump(mode="json", include={"front_end", "silence", "max_duration"})
        datasets = [one.model_dump(mode="json", exclude=set(PATH_OPTIONS)) for one in self.datasets]
        audio = self.audio.model_dump(mode="json", include={"mel", "pitch", "channels", "storage_type"})
        return {"data": data, "datasets": datasets, "audio": audio, "with_durations": self.with_durations}


def recipe(sources: SpeechSources, splits: tuple[str, ...] | None = None, own: PreparedSpeech | None = None) -> Recipe:
    """Return how the utterances of ``splits`` (default: all) are made.

    ``own`` is what a run has learned from its own data, where these are others. Making them raises UserError and
    DataError for corpora that can't be read.
    """
    data_options = {**sources.data_options(), "splits": None if splits is None else list(splits)}

    def fingerprint() -> str:
        also = {"skip_bad": True} if sources.skip_bad else {}
        files = [path for corpus in sources.corpora() for path in corpus.files]
        lexicon = sources.data.front_end.lexicon
        return fingerprint_with_files(
            {**data_options, **also}, [*files, *([Path(lexicon).expanduser()] if lexicon else [])]
        )

    return Recipe(partial(_make, sources, splits, own), fingerprint, data_options, "datasets, data or global_config")


def _make(
    sources: SpeechSources, splits: tuple[str, ...] | None, own: PreparedSpeech | None, folder: Path
) -> dict[str, Any]:
    """Fill ``folder``, and return its statistics."""
    processor = PhonemeProcessor(sources.data.front_end) if own is None else own.processor
    processor.save(folder / PROCESSOR_FILE)
    corpora = sources.corpora()
    statistics: dict[str, Any] = {}
    for split in list_splits(corpora) if splits is None else splits:
        store, statistics[split] = _write(sources, corpora, folder / split, processor, is_new=own is None)
        if split == "train" and own is None:
            speakers, normalisation = store.cuts.speakers, Normalisation.of(store)
    if own is not None:
        speakers, normalisation = own.speakers, own.normalisation
    return {"statistics": statistics, "speakers": list(speakers), "normalisation": normalisation.to_json()}


def _write(
    sources: SpeechSources, corpora: list[AudioCorpus], folder: Path, processor: PhonemeProcessor, *, is_new: bool
) -> tuple[UtteranceStore, dict[str, Any]]:
    """Yield the utterances of a split of the ``corpora`` with their statistics, written to the ``folder`` of its name.

    ``sources`` says how they are read, ``processor`` turns their texts into symbols. Raises DataError for none, and
    for a voice that ``is_new`` where too much can't be spoken.
    """
    left_out, data, split = LeftOut(sources.skip_bad), sources.data, folder.name

    def cuts() -> Iterator[Cut]:
        for corpus in corpora:
            if split in corpus.splits:
                corpus.on_bad = left_out.bad
                yield from utterances(corpus.cuts(split), sources.audio, data.silence, data.max_duration, left_out)

    maker = RecordMaker(processor, sources.audio, sources.with_durations, left_out)
    # Texts first: no features are computed for what can't be spoken.
    kept = write_utterances(folder, cuts(), maker)
    unspoken = maker.spoken.report(split, data.max_unknown if is_new else None, ADVICE)
    if maker.guesses:
        log.info("%s: %s", split, summarize_guesses(maker.guesses))
    store = write_features(folder, kept, sources.audio, left_out)
    contents = join_contents([left_out.contents(len(store)), *collect_contents(corpora, split)])
    for line in contents.lines(split):
        log.warning("%s", line)
    if not len(store):
        more = "; give more" if split == "train" else f"; give more, or ask a dataset for {split}_examples: 1"
        first = f": {left_out.messages[0]}" if left_out.messages else more
        raise DataError(f"datasets: {split} is empty: no dataset has a usable utterance{first}")
    seconds, speakers = float(store.durations.sum()), len(store.cuts.speakers)
    about = {
        "utterances": len(store),
        "seconds": seconds,
        "speakers": speakers,
        "left_out": contents.left_out,
        "unusable": left_out.messages,
        "unspoken": unspoken,
        "guesses": dict(maker.guesses.most_common()),
        CONTENTS: contents.to_json(),
    }
    log.info("%s: %s utterances, %.2f hours, %s speakers", split, f"{len(store):,}", seconds / 3600, speakers)
    return store, about
