"""Estimates before the data is prepared: the files that will be read, the size of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.lm.config import LanguageModelConfig, LanguageModelDataConfig
from vaak.tasks.lm.data import Corruption, SpecialTokens, collate, corrupted
from vaak.tasks.lm.model import LanguageModel
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.readers import find_files
from vaak.text.corpora.sources import files_of
from vaak.text.tokenizer import Tokenizer


def source_files(data: LanguageModelDataConfig) -> list[Path]:
    """The files of corpus, tokenizer and minimal pairs; none for a dataset on the Hub, which isn't contacted.

    Raises DataError for files and patterns that don't exist.
    """
    corpus = data.corpus
    is_on_the_hub = corpus.type == "huggingface"
    files = files_of(corpus.name or "") if is_on_the_hub else CorpusBuilder(corpus, corpus.seed).files
    pairs = tuple(name for name in data.minimal_pairs if name != "grammar")
    files = files + (find_files(pairs, "data.minimal_pairs") if pairs else [])
    return files + ([Path(data.tokenizer.path)] if data.tokenizer.path else [])


def meta_model(options: LanguageModelConfig, data: LanguageModelDataConfig) -> LanguageModel:
    """The model at its largest: with all tokens that the tokenizer may have, or has if it is given.

    Raises UserError if a given tokenizer can't be read.
    """
    tokenizer = data.tokenizer
    vocab_size = Tokenizer.load(Path(tokenizer.path)).vocab_size if tokenizer.path else tokenizer.vocab_size
    return LanguageModel(options, vocab_size, data.max_length)


def meta_batch(options: LanguageModelConfig, data: LanguageModelDataConfig, training: TrainingConfig) -> Batch:
    """The largest possible microbatch, of one repeated token; packed rows have two documents."""
    masking = data.masking_probability if options.model_type == "encoder" else 0.0
    special = SpecialTokens(pad=0, bos=0, mask=0, eos=None, vocab_size=1)
    documents = 2 if training.batching.type == "packed" else 1
    ids, rng = np.zeros(data.max_length // documents + 1, dtype=np.int64), np.random.default_rng(0)
    example = corrupted(ids, ids[1:], 0, Corruption(masking=masking), special, rng)
    return collate([[example] * documents] * largest_rows(training, data.max_length), special.pad)
