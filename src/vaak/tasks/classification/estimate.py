"""Estimates before the data is prepared: the files that will be read, the size of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.nn.models import TransformerModel
from vaak.tasks.classification.config import ClassificationExperiment
from vaak.tasks.classification.data import TextExample, collate
from vaak.tasks.classification.model import TextClassifier, TextCNN, TransformerClassifier
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.readers import find_files
from vaak.text.corpora.sources import files_of
from vaak.text.tokenizer import Tokenizer


def source_files(experiment: ClassificationExperiment) -> list[Path]:
    """The files of corpus, tokenizer and word vectors; none for a dataset on the Hub, which isn't contacted.

    Raises DataError for files and patterns that don't exist.
    """
    corpus, tokenizer = experiment.data.corpus, experiment.data.tokenizer
    files = files_of(corpus.name or "") if corpus.type == "huggingface" else LabelledCorpus(corpus).files
    vectors = experiment.model.word_vectors
    given = [tokenizer.path, vectors and vectors.path]
    outside = find_files(corpus.out_of_scope, "corpus.out_of_scope")
    return [*files, *outside, *(Path(path) for path in given if path)]


def meta_model(experiment: ClassificationExperiment) -> TextClassifier:
    """The model at its largest: with all tokens that the tokenizer may have, or has if it is given, and two classes.

    Raises UserError if a given tokenizer can't be read.
    """
    options, tokenizer = experiment.model, experiment.data.tokenizer
    vocab_size = Tokenizer.load(Path(tokenizer.path)).vocab_size if tokenizer.path else tokenizer.vocab_size
    num_classes = options.num_labels or 2
    if options.architecture == "cnn":
        return TextCNN(options, vocab_size, num_classes)
    transformer = TransformerModel(options, vocab_size, causal=False, max_length=experiment.data.max_length)
    return TransformerClassifier(options, transformer, num_classes)


def meta_batch(experiment: ClassificationExperiment) -> Batch:
    """The largest possible microbatch, of one repeated token."""
    length = experiment.data.max_length
    targets = np.zeros(1, dtype=np.int64)
    if experiment.data.corpus.multi_label:
        targets = np.zeros(experiment.model.num_labels or 2, dtype=np.int8)
    example = TextExample(np.zeros(length, dtype=np.int64), targets)
    return collate([example] * largest_rows(experiment.training, length), 0)
