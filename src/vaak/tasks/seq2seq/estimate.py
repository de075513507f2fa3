"""Estimates before the data is prepared: the files that will be read, the size of the model."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig
from vaak.tasks.seq2seq.data import PairExample, SpecialTokens, collate
from vaak.tasks.seq2seq.model import Seq2SeqModel
from vaak.text.config import TokenizerConfig
from vaak.text.corpora.parallel import ParallelCorpus
from vaak.text.corpora.sources import files_of
from vaak.text.tokenizer import Tokenizer


def source_files(data: Seq2SeqDataConfig) -> list[Path]:
    """The files of corpus and tokenizers; none for a dataset on the Hub, which isn't contacted.

    Raises DataError for files and patterns that don't exist.
    """
    tokenizers = [data.tokenizer, data.target_tokenizer or data.tokenizer]
    paths = dict.fromkeys(Path(tokenizer.path) for tokenizer in tokenizers if tokenizer.path)
    is_on_the_hub = data.corpus.type == "huggingface"
    files = files_of(data.corpus.name or "") if is_on_the_hub else ParallelCorpus(data.corpus).files
    return [*files, *paths]


def meta_model(options: Seq2SeqConfig, data: Seq2SeqDataConfig) -> Seq2SeqModel:
    """The model at its largest: with all tokens that the tokenizers may have, or have if they are given.

    Raises UserError if a given tokenizer can't be read.
    """
    target = data.target_tokenizer or data.tokenizer
    return Seq2SeqModel(options, data, _vocab_size(data.tokenizer), _vocab_size(target))


def meta_batch(data: Seq2SeqDataConfig, training: TrainingConfig) -> Batch:
    """The largest possible microbatch, of one repeated token."""
    source, target = (np.zeros(length, dtype=np.int64) for length in (data.max_source_length, data.max_target_length))
    special = SpecialTokens(*[0] * len(fields(SpecialTokens)))
    rows = largest_rows(training, 2 * max(len(source), len(target)))
    return collate([PairExample(source, target, target)] * rows, special, with_texts=False)


def _vocab_size(options: TokenizerConfig) -> int:
    return Tokenizer.load(Path(options.path)).vocab_size if options.path else options.vocab_size
