"""Options of text that several tasks share, and the findings about those that have no effect. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from vaak.config.base import (
    LARGEST_LENGTH,
    DividedSection,
    ExtensibleSection,
    ResumeClass,
    Source,
    open_type,
    option,
    users_options,
)
from vaak.config.components import TOKENIZERS
from vaak.config.tasks import CheckFinding, no_effect, unread_input


class TokenizerConfig(ExtensibleSection):
    """The tokenizer."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"
    key: ClassVar[str] = "data.tokenizer"
    own_types: ClassVar[tuple[str, ...]] = TOKENIZERS

    type: Annotated[str, open_type(TOKENIZERS)] = option(
        "The algorithm; byte_level is BPE over bytes, exact on any text; word is for classifiers.", "byte_level"
    )
    vocab_size: int = option(
        "Number of tokens, including special ones.", 32000, gt=0, le=LARGEST_LENGTH, only_for=TOKENIZERS
    )
    min_frequency: int = option("Minimum count of a merged pair or character.", 2, gt=0, only_for=TOKENIZERS)
    training_characters: int | None = option(
        "Train on a sample of the documents with at most this many characters; null is all of them.",
        None,
        gt=0,
        only_for=TOKENIZERS,
    )
    path: Source | None = option(
        "An existing tokenizer.json, or a folder with one, instead of training.", None, resume="free"
    )
    options: dict[str, Any] = users_options()


def dataset_option() -> Any:
    """``data.corpus.name``."""
    return option("huggingface: name of the dataset, or a folder.", None, only_for=("huggingface",), resume="free")


def subset_option() -> Any:
    """``data.corpus.subset``."""
    return option("huggingface: name of its configuration.", None, only_for=("huggingface",))


def max_unknown_option(lacking: str = "the tokenizer can't write") -> Any:
    """``data.max_unknown``."""
    return option(
        f"Refuse to prepare the data if {lacking} this percentage of a split's characters or words; from 0.5 on, a "
        "warning names them.",
        5.0,
        gt=0,
        le=101,
        resume="free",
    )


class TextSourceSection(DividedSection):
    """A corpus of files, a dataset, or generated text; a missing ``type`` follows from the files' endings or the name.

    ``type_of_ending`` has the type of files by their endings, and ``""`` that of any other.
    """

    type_of_ending: ClassVar[Mapping[str, str]]

    @classmethod
    def type_told_by(cls, values: Mapping[str, Any]) -> str | None:
        """Return the type of the files that are named, by their endings, or of a dataset's name."""
        named = [values[split] for split in ("train", "valid", "test") if values.get(split)]
        patterns = [one for files in named for one in ([files] if isinstance(files, str) else files)]
        endings = sorted({PurePath(str(pattern)).suffix.lower() for pattern in patterns})
        types = {cls.type_of_ending.get(ending, cls.type_of_ending.get("")) for ending in endings}
        if None in types or len(types) > 1:
            known = ", ".join(dict.fromkeys(cls.type_of_ending.values()))
            raise ValueError(f"type is not given, and {', '.join(patterns)} don't tell it; give type: one of {known}")
        return types.pop() if types else "huggingface" if values.get("name") else None

    @model_validator(mode="before")
    @classmethod
    def _infer_type(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        # What a validator returns isn't JSON, whose lists would do for tuples.
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        told = cls.type_told_by(values) if values.get("type") is None else None
        return plain if told is None else {**plain, "type": told}


OF_TRAINING = ("vocab_size", "min_frequency", "training_characters")
"""Options of Vaak's tokenizers that only training them reads."""
TOKENIZER_OPTIONS = ("type", *OF_TRAINING, "path")
"""Options of a tokenizer that a pretrained model's own doesn't have."""
NO_CLASSES = {"stratified": "texts have no classes to keep in proportion; expected fixed or bucketed"}
"""Batching that texts can't have, with the reason."""


def list_token_losses(experiment: Any) -> tuple[str, ...]:
    """Return the main losses that fit the choice of one token among many."""
    return ("cross_entropy", "focal")


def corpus_findings(
    corpus: Any, files: tuple[str, ...], read_by: Mapping[str, tuple[str, ...]]
) -> Iterator[CheckFinding]:
    """Options of ``data.corpus`` that its type doesn't read; those that name inputs are errors (``only_for``).

    ``files`` are the task's types that read files, and ``read_by`` those that read an option of that task alone.
    """
    read_by = {
        **read_by,
        **dict.fromkeys(("num_sentences", "seed"), ("grammar",)),
    }
    for name, types in read_by.items():
        if corpus.type not in types:
            yield no_effect(f"data.corpus.{name}", f"is read by the type {', '.join(types)} only, not by {corpus.type}")
    counts, fractions = ("valid_examples", "test_examples"), ("train_fraction", "valid_fraction")
    if corpus.type in files and corpus.valid and corpus.test:
        for name in (*fractions, *counts):
            yield no_effect(f"data.corpus.{name}", "valid and test are given, so train isn't split")
    elif any(getattr(corpus, name) is not None for name in counts):
        for name in fractions:
            yield no_effect(f"data.corpus.{name}", "valid_examples or test_examples is given")


def unread_tokenizer_findings(tokenizer: TokenizerConfig, base: str) -> Iterator[CheckFinding]:
    """Options of a tokenizer where the pretrained model that the option ``base`` names has its own."""
    for name in TOKENIZER_OPTIONS:
        path = getattr(tokenizer, name) if name == "path" else None
        yield unread_input(f"data.tokenizer.{name}", path, f"{base} has its own")


def tokenizer_findings(key: str, tokenizer: TokenizerConfig | None) -> Iterator[CheckFinding]:
    """Options of training a tokenizer where there is one already, and of what one can't write where it can."""
    if tokenizer is None:
        return
    if key == TokenizerConfig.key and tokenizer.path is None and not tokenizer.is_users(tokenizer.type):
        yield no_effect("data.max_unknown", "tokenizers that are trained here write anything; those of words only warn")
    if tokenizer.path is not None:
        for name in () if tokenizer.is_users(tokenizer.type) else ("type", *OF_TRAINING):
            yield no_effect(f"{key}.{name}", f"the tokenizer is that of {key}.path, which is not trained again")
    elif tokenizer.type == "unigram":
        yield no_effect(f"{key}.min_frequency", "unigram has no minimum count: it drops the least likely pieces")
