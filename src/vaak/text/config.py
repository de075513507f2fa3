"""Options of text that several tasks share. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from vaak.config.base import ResumeClass, Section, option


class TokenizerConfig(Section):
    """The tokenizer."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["bpe", "unigram", "wordpiece", "byte_level", "character"] = option(
        "The algorithm; byte_level is BPE over bytes, exact on any text.", "byte_level"
    )
    vocab_size: int = option("Number of tokens, including special ones.", 32000, gt=0)
    min_frequency: int = option("Minimum count of a merged pair or character.", 2, gt=0)
    path: str | None = option(
        "An existing tokenizer.json, or a folder with one, instead of training.", None, resume="free"
    )
