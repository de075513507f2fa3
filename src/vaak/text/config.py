"""Options of text that several tasks share. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from vaak.config.base import LARGEST_LENGTH, OpenSection, ResumeClass, open_type, option, users_options
from vaak.config.catalog import TOKENIZERS


class TokenizerConfig(OpenSection):
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
    path: str | None = option(
        "An existing tokenizer.json, or a folder with one, instead of training.", None, resume="free"
    )
    options: dict[str, Any] = users_options()
