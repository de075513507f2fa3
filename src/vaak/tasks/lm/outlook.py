"""What can be told of a training before its data are prepared: the files it will read, how large its model may be."""

from __future__ import annotations

from pathlib import Path

from vaak.tasks.lm.config import LanguageModelConfig, LanguageModelDataConfig
from vaak.tasks.lm.model import LanguageModel
from vaak.text.corpus import CorpusBuilder
from vaak.text.readers import find_files
from vaak.text.tokenizers import Tokenizer


def source_files(data: LanguageModelDataConfig) -> list[Path]:
    """The files of corpus, tokenizer and minimal pairs; of a dataset on the Hub none, since it isn't asked for.

    Raises DataError for files and patterns that aren't there.
    """
    corpus = data.corpus
    if corpus.type == "huggingface":
        files = sorted(path for path in Path(corpus.name or "").rglob("*") if path.is_file()) if corpus.name else []
    else:
        files = CorpusBuilder(corpus, corpus.seed).files
    pairs = tuple(name for name in data.minimal_pairs if name != "grammar")
    files = files + (find_files(pairs, "data.minimal_pairs") if pairs else [])
    return files + ([Path(data.tokenizer.path)] if data.tokenizer.path else [])


def sketch(options: LanguageModelConfig, data: LanguageModelDataConfig) -> LanguageModel:
    """The model at its largest: with all tokens that the tokenizer may have, or has where it is given.

    Raises UserError where a given tokenizer can't be read.
    """
    tokenizer = data.tokenizer
    vocab_size = Tokenizer.load(Path(tokenizer.path)).vocab_size if tokenizer.path else tokenizer.vocab_size
    return LanguageModel(options, vocab_size)
