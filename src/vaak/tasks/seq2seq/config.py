"""The options of a sequence-to-sequence model. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vaak.config.base import ResumeClass, Section, option
from vaak.config.experiment import Experiment
from vaak.nn.config import STACK_ALIASES, EncoderDecoderConfig
from vaak.text.config import TokenizerConfig

DEFAULTS: dict[str, Any] = {
    "training": {
        "epochs": 50,
        "batch_size": 32,
        "optimizer": {"type": "adamw", "lr": 2e-4, "betas": [0.9, 0.999], "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
    },
}

_SECTIONS = ("model.encoder", "model.decoder")

ALIASES: dict[str, str] = {
    f"{section}.{alias}": f"{section}.{name}" for section in _SECTIONS for alias, name in STACK_ALIASES.items()
}

SHARED = {"model.global_config": _SECTIONS}
SIDES: dict[str, str] = {}


class Seq2SeqConfig(EncoderDecoderConfig):
    """A translator: one stack reads the source, the other writes the target."""


class ParallelCorpusConfig(Section):
    """Where the pairs of texts come from."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["grammar", "json", "tsv", "text", "huggingface"] = option(
        "grammar is the built-in grammar, in English and Hindi; json reads JSON lists and JSON lines; text reads files "
        "whose lines belong together.",
        "grammar",
    )
    train: tuple[str, ...] = option(
        "Files or glob patterns; alone, they are split by train_fraction.", (), resume="free"
    )
    valid: tuple[str, ...] = option("Files of the validation split, kept as given.", (), resume="free")
    test: tuple[str, ...] = option("Files of the test split, kept as given.", (), resume="free")
    train_target: tuple[str, ...] = option(
        "text: the target sides of train, in the same order.", (), only_for=("text",), resume="free"
    )
    valid_target: tuple[str, ...] = option(
        "text: the target sides of valid, in the same order.", (), only_for=("text",), resume="free"
    )
    test_target: tuple[str, ...] = option(
        "text: the target sides of test, in the same order.", (), only_for=("text",), resume="free"
    )
    name: str | None = option("huggingface: name of the dataset, or a folder.", None, resume="free")
    subset: str | None = option("huggingface: name of its configuration.", None)
    source_column: str = option(
        "Key or column of the source; dots lead inside (translation.en); numbers are for tsv without a header.",
        "en",
    )
    target_column: str = option("Key or column of the target; a list holds several references.", "hi")
    training_references: Literal["all", "first"] = option(
        "Of a target with several references, which are trained on.", "all"
    )
    num_sentences: int = option("grammar: how many of its pairs to take.", 20000, gt=0)
    seed: int = option("grammar: the seed of their choice; training.random_seed leaves the text as it is.", 0, ge=0)
    deduplicate: bool = option("Drop exact duplicates of a training pair.", True)
    train_fraction: float = option("Part of the pairs that goes to train where splits are made here.", 0.9, gt=0, lt=1)
    valid_fraction: float = option("Part that goes to valid; the rest is test.", 0.05, gt=0, lt=1)
    max_length_ratio: float | None = option(
        "Drop training pairs whose longer side has more than so many times the other's tokens; null keeps all.",
        None,
        gt=1,
    )
    on_invalid_utf8: Literal["fail", "replace"] = option(
        "replace puts U+FFFD in place of bad bytes and counts them.", "fail"
    )

    @field_validator("source_column", "target_column", mode="before")
    @classmethod
    def _number_as_text(cls, column: Any) -> Any:
        return str(column) if type(column) is int else column

    @model_validator(mode="after")
    def _columns_differ(self) -> ParallelCorpusConfig:
        if self.type != "text" and self.source_column == self.target_column:
            raise ValueError(
                f"source_column and target_column are both {self.source_column!r}: a pair has two sides, name both"
            )
        return self


class DecodingConfig(Section):
    """How targets are written: in evaluation, and by default in vaak translate."""

    bare: ClassVar[str | None] = "method"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    method: Literal["greedy", "beam", "sampling", "mbr"] = option(
        "greedy and beam look for the most probable text, sampling draws one; mbr (minimum Bayes risk) draws many and "
        "takes the one most like the others.",
        "greedy",
    )
    beam_size: int = option("beam: hypotheses kept.", 4, ge=1)
    length_penalty: float = option(
        "beam: scores are divided by this power of the length; 0 prefers short ones.", 1.0, ge=0
    )
    num_samples: int = option("mbr: texts drawn.", 16, ge=2)
    temperature: float = option("sampling, mbr: under 1 the probable become more probable; 0 is greedy.", 1.0, ge=0)
    top_k: int = option("sampling, mbr: only so many most probable tokens; 0 is all.", 0, ge=0)
    top_p: float = option("sampling, mbr: only the fewest tokens that have this probability together.", 1.0, ge=0, le=1)
    max_new_tokens: int | None = option("Tokens written at most; null is max_target_length.", None, gt=0)
    valid_examples: int | None = option(
        "How many examples of valid are translated as training goes; null is all.", None, ge=0
    )


class TranslationOptions(DecodingConfig):
    """What vaak translate may be asked for: how targets are written, and how many at a time."""

    n_best: int = option("How many translations of each text.", 1)
    seed: int = option("sampling, mbr: the same seed gives a text the same translation.", 0)
    batch_size: int = option("Texts translated together, at most.", 64)
    max_tokens: int = option("Tokens of all hypotheses translated together, at most: what bounds memory.", 32768)


class Seq2SeqDataConfig(Section):
    """Pairs of texts and their tokens."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus: ParallelCorpusConfig = option("Where the pairs come from.", ParallelCorpusConfig())
    tokenizer: TokenizerConfig = option(
        "How text becomes tokens; of both sides together, unless target_tokenizer is given.",
        TokenizerConfig(vocab_size=8000),
    )
    target_tokenizer: TokenizerConfig | None = option(
        "The target's own; tokenizer then is the source's alone. null has one for both.", None
    )
    max_source_length: int = option(
        "Longest source, in tokens; longer training pairs are dropped and counted.", 128, gt=1
    )
    max_target_length: int = option(
        "Longest target, in tokens; longer training pairs are dropped and counted.", 128, gt=1
    )
    token_dropout: float = option(
        "Part of the tokens that training reads, of both sides, replaced by the mask token.",
        0.0,
        ge=0,
        lt=1,
        resume="other numbers",
    )
    gloss: bool = option(
        "Behind each source stands its translation word by word, by a dictionary drawn from the training pairs: a help "
        "where these are few.",
        False,
    )
    decoding: DecodingConfig = option("How targets are written.", DecodingConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "What happens with an example that can't be read.", "fail", resume="other numbers"
    )
    cache_dir: str | None = option("Prepared data lie here, shared by runs; null is RUN/prepared.", None, resume="free")


Seq2SeqExperiment = Experiment[Seq2SeqConfig, Seq2SeqDataConfig]
