"""Corpora to utterances with transcripts, once; and the tokens and sizes of the base.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  vocabulary/                  tokens of transcripts (vaak.tasks.asr.vocabulary)
  base/config.json             the sizes of a base that isn't trained from scratch
  train/  valid/  test/        utterances (vaak.tasks.asr.utterances)
  prepared.json                the fingerprint and statistics; written last: it means "complete"
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vaak.audio.config import AudioConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.recordings import UNUSABLE, LeftOut
from vaak.audio.cuts.store import CutStore
from vaak.core.errors import DataError, UserError
from vaak.core.left_out import CONTENTS, SplitContents, join_contents
from vaak.runs.prepared import Recipe, fingerprint_with_files
from vaak.tasks.asr.bases import explain_kind
from vaak.tasks.asr.config import SCRATCH, AsrDataConfig, AsrExperiment, AsrModelConfig
from vaak.tasks.asr.export import exported_vocabulary
from vaak.tasks.asr.model import BASE_KEY, PURPOSE, find_written_language, resolve_base
from vaak.tasks.asr.utterances import (
    Limits,
    TokenLimit,
    Utterances,
    Writing,
    choose_group_label,
    decoder_limit,
    warn_of_groups,
    write_utterances,
)
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.fetching import fetch_model, import_transformers, load_generation, load_tokenizer
from vaak.tasks.kept_base import NewIds, write_new_tokens
from vaak.tasks.pretrained import load_config, note_own_head
from vaak.tasks.speech_task import (
    PATH_OPTIONS,
    Datasets,
    PreparedAudio,
    collect_contents,
    list_splits,
    make_corpora,
    report_shared_speakers,
)
from vaak.text.coverage import measure
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

if TYPE_CHECKING:
    from lhotse.cut import Cut
    from transformers import WhisperConfig

log = logging.getLogger("vaak")

ADVICE = "change the transcripts, or choose a base that was trained on such ones"
WITHOUT_SPEECH = (
    "%s: the transcripts of %s of %s utterances are given as empty: they are recordings without speech, in which "
    "nothing is to be heard (if they aren't: data.refuse_empty_transcripts=true)"
)
NOTHING_TO_SAY = "all transcripts of train are empty: a model needs some words to learn; give recordings with speech"
VOCABULARY, BASE = "vocabulary", "base"
ALIGNMENT_HEADS = "alignment_heads"
"""In the sizes of a base: the layers and heads whose attention follows the speech, if its makers say which."""
READING_OPTIONS = frozenset({*PATH_OPTIONS, "num_jobs", "progress_bar", "cache_gigabytes"})
"""Audio options that may differ when a trained model is used."""
MAY_DIFFER = frozenset(AsrDataConfig.model_fields) - {"max_duration", "language", "language_like", "tokenizer"}
"""Options of data that may differ when a trained model is used."""
CAME_LATER = ("groups", "max_valid_samples", "join_utterances", "language_like", "refuse_empty_transcripts")
"""Options that decide, too, but have no part in what was prepared before there were any."""
DECIDING = {"group", "percent", "max_samples", "sampling_seed", "max_duration", "too_long", "language"}


@dataclass(frozen=True)
class PreparedUtterances(PreparedAudio):
    """The vocabulary, the sizes of the base, and utterances by split."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder / VOCABULARY)

    @property
    def base_config(self) -> WhisperConfig:
        """The sizes of a base that isn't trained from scratch."""
        config: WhisperConfig = import_transformers(PURPOSE, "asr").WhisperConfig.from_pretrained(self.folder / BASE)
        return config

    def cut_stores(self, split: str) -> list[CutStore]:
        return [self.utterances(split).cuts]

    def utterances(self, split: str) -> Utterances:
        """Return the utterances of a split. Raises UserError for an unknown split."""
        return Utterances(self.split_folder(split))


@dataclass(frozen=True)
class AsrSources:
    """Everything that utterances are made of; ``folder`` is where a user's files are looked for."""

    datasets: Datasets
    audio: AudioConfig
    model: AsrModelConfig
    data: AsrDataConfig
    skip_bad: bool
    folder: Path

    @classmethod
    def of(cls, experiment: AsrExperiment, datasets: Datasets, folder: Path) -> Self:
        audio, skip_bad = experiment.global_config, experiment.skips_bad_examples
        return cls(datasets, audio, experiment.model, experiment.data, skip_bad, folder)

    def corpora(self) -> list[AudioCorpus]:
        return make_corpora(self.datasets, self.audio)

    @property
    def tokenizer(self) -> TokenizerFactory | None:
        """The maker of the tokenizer of a model trained from scratch; None for another."""
        return TokenizerFactory(self.data.tokenizer, self.folder) if self.model.base == SCRATCH else None

    def make_vocabulary(self, tokenizer: Tokenizer) -> Vocabulary:
        """Return that of a model trained from scratch."""
        return Vocabulary.of_tokenizer(tokenizer)

    def base_vocabulary(self, folder: Path) -> Vocabulary | None:
        """Return the base's vocabulary and write its sizes to ``folder``; None for a model trained from scratch."""
        if self.model.base == SCRATCH:
            return None
        transformers = import_transformers(PURPOSE, "asr")
        source = resolve_base(self.model, self.folder)
        # transformers reads any configuration as a Whisper's.
        reason = explain_kind(load_config(BASE_KEY, source).model_type, "whisper")
        if reason is not None:
            raise UserError(f"{BASE_KEY}: {source} {reason}")
        config = fetch_model(BASE_KEY, source, lambda: transformers.WhisperConfig.from_pretrained(source))
        generation = load_generation(BASE_KEY, source) or transformers.GenerationConfig.from_model_config(config)
        # The heads that times of words are read from are in generation_config.json, which a run doesn't keep: they go
        # into config.json.
        setattr(config, ALIGNMENT_HEADS, getattr(generation, ALIGNMENT_HEADS, None))
        note_own_head(config, source, BASE_KEY)
        config.save_pretrained(folder / BASE)
        language, like = self.data.language, self.data.language_like
        exported = exported_vocabulary(Path(source))
        if exported is None:
            tokenizer = load_tokenizer(BASE_KEY, source, "WhisperTokenizer")
            found = Vocabulary.of_whisper(tokenizer, config, generation, language, like)
            trained = find_written_language(generation.to_dict()) if found.languages else None
        else:
            found, trained = exported.with_language(language, like), exported.trained_language
        if trained is not None and found.find_code(trained) != found.find_code(language):
            said = "data.language is %s, but the base was trained to write %s: to continue with that, give %s"
            log.warning(said, language, trained, f"data.language: {trained}")
        if found.ids.size == config.vocab_size:
            if like is not None and found.languages:
                log.warning("data.language_like has no effect: %s knows %s", source, language)
        else:
            assert like is not None
            new = NewIds(range(config.vocab_size, found.ids.size), found.languages[found.find_code(like)])
            write_new_tokens(new, folder)
            log.info("%s doesn't know %s: the row of its new token begins as that of %s", source, language, like)
        return found

    def adapted(self, vocabulary: Vocabulary, texts: Callable[[], Iterable[str]]) -> Vocabulary:
        """Return the vocabulary of a base, which reads these transcripts of training as far as it can."""
        return vocabulary

    def token_limit(self, vocabulary: Vocabulary, folder: Path) -> TokenLimit:
        """Return how many tokens a transcript may have; ``folder`` has the sizes of the base."""
        longest = self.model.scratch.max_target_length
        if self.model.base != SCRATCH:
            longest = PreparedUtterances(folder).base_config.max_target_positions
        return decoder_limit(longest - len(vocabulary.ids.prompt))

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the prepared data."""
        factory = self.tokenizer
        later = {name for name in CAME_LATER if getattr(self.data, name)}
        return {
            "data": self.data.model_dump(mode="json", include=DECIDING | later),
            "datasets": [one.model_dump(mode="json", exclude=set(PATH_OPTIONS)) for one in self.datasets],
            "audio": self.audio.model_dump(mode="json", include={"channels"}),
            "base": self.model.base,
            "max_target_length": self.model.scratch.max_target_length,
            "tokenizer": None if factory is None else factory.data_options(),
        }


def recipe(sources: AsrSources, splits: tuple[str, ...] | None = None, own: PreparedUtterances | None = None) -> Recipe:
    """Return how the utterances of ``splits`` (default: all) are made; ``own`` is what a run prepared from other data.

    Making them raises UserError and DataError for corpora and bases that can't be read.
    """
    data_options = {**sources.data_options(), "splits": None if splits is None else list(splits)}

    def fingerprint() -> str:
        corpora, path = sources.corpora(), None if sources.tokenizer is None else sources.data.tokenizer.path
        files = [path for corpus in corpora for path in corpus.files]
        named = {"named": [corpus.digest_of_named() for corpus in corpora], "skip_bad": sources.skip_bad}
        return fingerprint_with_files({**data_options, **named}, [*files, *([Path(path).expanduser()] if path else [])])

    return Recipe(partial(_make, sources, splits, own), fingerprint, data_options, "datasets, data or model.base")


def _make(
    sources: AsrSources, splits: tuple[str, ...] | None, own: PreparedUtterances | None, folder: Path
) -> dict[str, Any]:
    """Fill ``folder`` with the vocabulary and the utterances of ``splits``; return the statistics.

    Each split takes two passes: only a vocabulary, for which the transcripts of training may be read, shows which
    transcripts have too many tokens.
    """
    corpora = sources.corpora()
    base = None if own is not None else sources.base_vocabulary(folder)
    if own is not None and sources.model.base != SCRATCH:
        shutil.copytree(own.folder / BASE, folder / BASE)
    vocabulary = own.vocabulary if own is not None else base
    writings: dict[str, Writing] = {}
    for split in list_splits(corpora) if splits is None else splits:
        writings[split] = _write_split(sources, corpora, folder / split)
        if vocabulary is None:
            # A tokenizer is trained on train, which is the first split.
            assert sources.tokenizer is not None
            vocabulary = sources.make_vocabulary(sources.tokenizer.create_tokenizer(writings[split].texts()))
    if vocabulary is None:
        # No data, and a base without a vocabulary.
        raise UserError(
            f"{BASE_KEY}: {sources.model.base} has no output tokens, and writes nothing before it is trained"
        )
    # Only training transcripts may change a base's vocabulary: those of valid and test have to stay unseen.
    if base is not None and "train" in writings:
        vocabulary = sources.adapted(vocabulary, writings["train"].texts)
    label, tokens = choose_group_label(writings, sources.data.group), sources.token_limit(vocabulary, folder)
    coverage = {split: measure(vocabulary, writing.texts()) for split, writing in writings.items()}
    # data.max_unknown is for new runs: a trained model's errors already count what it can't write.
    limit = sources.data.max_unknown if own is None else None
    statistics: dict[str, Any] = {}
    for split, writing in writings.items():
        statistics[split] = writing.finish(vocabulary, tokens, label)
        contents = join_contents(
            [writing.left_out.contents(statistics[split]["utterances"]), *collect_contents(corpora, split)]
        )
        statistics[split][CONTENTS] = contents.to_json()
        _report(split, statistics[split], contents)
        statistics[split]["unwritable"] = coverage[split].report(split, limit, ADVICE)
    report_shared_speakers(corpora)
    for line in warn_of_groups({split: about["groups"] for split, about in statistics.items()}, label):
        log.warning("%s", line)
    vocabulary.save(folder / VOCABULARY)
    return {"statistics": statistics}


def _write_split(sources: AsrSources, corpora: list[AudioCorpus], folder: Path) -> Writing:
    """Write the usable utterances of the split that ``folder`` is named after, in a first pass.

    Raises DataError where there are none, or where all transcripts of training are empty.
    """
    split, data, left_out = folder.name, sources.data, LeftOut(sources.skip_bad)
    percent = data.percent if split == "train" else 100.0
    most = {"train": data.max_samples, "valid": data.max_valid_samples}.get(split)
    limits = Limits(data, percent, most, joins=data.join_utterances and split == "train")
    writing = write_utterances(folder, _read_cuts(corpora, split, left_out), limits, left_out)
    if not len(writing.store):
        raise _empty_split_error(split, left_out.listed[UNUSABLE])
    if split == "train" and not any(writing.texts()):
        raise DataError(f"datasets: {NOTHING_TO_SAY}")
    return writing


def _empty_split_error(split: str, unusable: list[dict[str, str]]) -> DataError:
    first = f": {unusable[0]['reason']}" if unusable else ""
    return DataError(f"datasets: {split} is empty: no dataset has a usable utterance{first}")


def _read_cuts(corpora: list[AudioCorpus], split: str, left_out: LeftOut) -> Iterator[Cut]:
    """Yield the usable recordings of a split; the others are added to ``left_out``."""
    for corpus in corpora:
        if split in corpus.splits:
            corpus.on_bad = left_out.bad
            corpus.require_text()
            yield from corpus.cuts(split)


def _report(split: str, about: dict[str, Any], contents: SplitContents) -> None:
    """Log what a split has and lacks. Raises DataError where it has nothing."""
    for line in contents.lines(split):
        log.warning("%s", line)
    if not about["utterances"]:
        raise _empty_split_error(split, about["unusable"])
    if number := about["without_speech"]:
        log.warning(WITHOUT_SPEECH, split, f"{number:,}", f"{about['utterances']:,}")
    hours, groups = about["seconds"] / 3600, about["groups"]
    listed = ", ".join(f"{name} {number:,}" for name, number in groups.items())
    log.info("%s: %s utterances, %.2f hours; %s: %s", split, f"{about['utterances']:,}", hours, about["group"], listed)
