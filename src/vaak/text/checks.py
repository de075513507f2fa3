"""What a task on text can't have, or has no use for, whichever it is. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vaak.config.task_spec import CheckFinding, no_effect, unread_input
from vaak.text.config import TokenizerConfig

OF_TRAINING = ("vocab_size", "min_frequency", "training_characters")
"""Options of Vaak's tokenizers that only training them reads."""
TOKENIZER_OPTIONS = ("type", *OF_TRAINING, "path")
"""Options of a tokenizer that a pretrained model's own doesn't have."""

NO_CLASSES = {"stratified": "texts have no classes to keep in proportion; expected fixed or bucketed"}
"""Batching that texts can't have, with the reason."""


def losses_of_tokens(experiment: Any) -> tuple[str, ...]:
    """The main losses that fit the choice of one token among many."""
    return ("cross_entropy", "focal")


def corpus_findings(
    corpus: Any, files: tuple[str, ...], read_by: Mapping[str, tuple[str, ...]]
) -> Iterator[CheckFinding]:
    """Options of ``data.corpus`` that its type doesn't read; those that name what is read are errors (``only_for``).

    ``files`` are the task's types that read files, and ``read_by`` those that read an option of that task alone.
    """
    read_by = {
        **read_by,
        **dict.fromkeys(("num_sentences", "seed"), ("grammar",)),
    }
    for name, types in read_by.items():
        if corpus.type not in types:
            yield no_effect(f"data.corpus.{name}", f"is read by the type {', '.join(types)} only, not by {corpus.type}")
    if corpus.type in files and corpus.valid and corpus.test:
        for name in ("train_fraction", "valid_fraction"):
            yield no_effect(f"data.corpus.{name}", "valid and test are given, so train isn't split")


def unread_tokenizer_findings(key: str, tokenizer: TokenizerConfig, base: str) -> Iterator[CheckFinding]:
    """Options of a tokenizer where the pretrained model that the option ``base`` names has its own."""
    for name in TOKENIZER_OPTIONS:
        yield unread_input(f"{key}.{name}", getattr(tokenizer, name) if name == "path" else None, f"{base} has its own")


def tokenizer_findings(key: str, tokenizer: TokenizerConfig | None) -> Iterator[CheckFinding]:
    """Options of training a tokenizer where there is one already."""
    if tokenizer is None:
        return
    if tokenizer.path is not None:
        for name in () if tokenizer.is_users(tokenizer.type) else ("type", *OF_TRAINING):
            yield no_effect(f"{key}.{name}", f"the tokenizer is that of {key}.path, which is not trained again")
    elif tokenizer.type == "unigram":
        yield no_effect(f"{key}.min_frequency", "unigram has no minimum count: it drops the least likely pieces")
