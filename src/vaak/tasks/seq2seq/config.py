"""The options of a sequence-to-sequence model. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vaak.config.base import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    DialectConfig,
    Place,
    ResumeClass,
    Section,
    Source,
    SourceOrName,
    dialect_option,
    fold_option,
    folds_file_option,
    option,
    test_examples_option,
    valid_examples_option,
)
from vaak.config.experiment import Experiment
from vaak.core.storage.spreadsheets import SPREADSHEETS
from vaak.nn.config import STACK_ALIASES, EncoderDecoderConfig, LoraConfig, lora_option
from vaak.text.config import TextSourceSection, TokenizerConfig, dataset_option, max_unknown_option, subset_option

DEFAULTS: dict[str, Any] = {
    "data": {"tokenizer": {"vocab_size": 8000}},
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

    pretrained: SourceOrName | None = option(
        "An encoder-decoder (T5, Marian) to start from, by its name on the Hugging Face Hub or its folder; its "
        "sizes and tokenizer are used.",
        None,
    )
    lora: LoraConfig | None = lora_option()


FILE_TYPES = ("json", "tsv", "text")
"""The types of corpora that are read from files."""


class ParallelCorpusConfig(TextSourceSection):
    """The source of the pairs of texts."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type_of_ending: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys((".json", ".jsonl"), "json"),
        **dict.fromkeys((".tsv", ".csv", ".parquet", *SPREADSHEETS), "tsv"),
        "": "text",
    }

    type: Literal["grammar", "json", "tsv", "text", "huggingface"] = option(
        "grammar: the built-in grammar, in English and Hindi; json: JSON lists and JSON lines; tsv: tables as "
        "TSV, CSV, spreadsheets or Parquet; text: parallel files, line by line. Default: by the extensions of the "
        "files.",
        "grammar",
    )
    train: tuple[Source, ...] = option(
        "Files or glob patterns; alone, they are split by train_fraction.", (), only_for=FILE_TYPES, resume="free"
    )
    valid: tuple[Source, ...] = option(
        "Files of the validation split, kept as given.", (), only_for=FILE_TYPES, resume="free"
    )
    test: tuple[Source, ...] = option("Files of the test split, kept as given.", (), only_for=FILE_TYPES, resume="free")
    train_target: tuple[Source, ...] = option(
        "text: the target sides of train, in the same order.", (), only_for=("text",), resume="free"
    )
    valid_target: tuple[Source, ...] = option(
        "text: the target sides of valid, in the same order.", (), only_for=("text",), resume="free"
    )
    test_target: tuple[Source, ...] = option(
        "text: the target sides of test, in the same order.", (), only_for=("text",), resume="free"
    )
    name: SourceOrName | None = dataset_option()
    subset: str | None = subset_option()
    source_column: str = option(
        "Key or column of the source; dots for nested keys (translation.en); numbers for tsv without a header.",
        "en",
    )
    target_column: str = option("Key or column of the target; a list has several references.", "hi")
    training_references: Literal["all", "first"] = option("Which references of a target are used in training.", "all")
    num_sentences: int = option("grammar: number of pairs to use.", 20000, gt=0, le=LARGEST_COUNT)
    seed: int = option("grammar: random seed of the selection; training.random_seed doesn't change the text.", 0, ge=0)
    deduplicate: bool = option("Drop exact duplicates of a training pair.", True)
    evaluation_overlap: Literal["source", "pair", "target"] = option(
        "Which training pairs to drop, so that evaluations don't contain what was learned: those whose source is "
        "in an evaluation split, too; those that are there as the same pair; or those whose source or target is "
        "there, which drops nearly everything where targets repeat, such as names of classes.",
        "source",
    )
    train_fraction: float = option("Fraction of the pairs for train, if valid and test are not given.", 0.9, gt=0, lt=1)
    valid_fraction: float = option("Fraction for valid; the rest is test.", 0.05, gt=0, lt=1)
    valid_examples: int | None = valid_examples_option("pairs")
    test_examples: int | None = test_examples_option()
    max_length_ratio: float | None = option(
        "Drop training pairs if one side has more than this many times the tokens of the other; null keeps all.",
        None,
        gt=1,
    )
    on_invalid_utf8: Literal["fail", "replace"] = option(
        "replace: invalid bytes become U+FFFD and are counted.", "fail"
    )
    dialect: DialectConfig | None = dialect_option("tsv")
    fold: str | None = fold_option()
    folds_file: Source | None = folds_file_option()

    @field_validator("source_column", "target_column", mode="before")
    @classmethod
    def _number_as_text(cls, column: Any) -> Any:
        return str(column) if type(column) is int else column

    @model_validator(mode="after")
    def _columns_differ(self) -> ParallelCorpusConfig:
        if self.type != "text" and self.source_column == self.target_column:
            raise ValueError(
                f"source_column and target_column are both {self.source_column!r}: a pair has two different sides"
            )
        return self


METHOD_OPTIONS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "beam": ("beam_size", "length_penalty", "early_stopping"),
    "sampling": ("temperature", "top_k", "top_p"),
    "mbr": ("num_samples", "temperature", "top_k", "top_p"),
}
"""The options that the translations of each method of decoding depend on."""

METHODS_OF = {
    name: tuple(method for method, names in METHOD_OPTIONS.items() if name in names)
    for name in dict.fromkeys(name for names in METHOD_OPTIONS.values() for name in names)
}
"""The methods that read each of them."""


class DecodingConfig(Section):
    """Options of decoding: in evaluation, and by default in vaak translate."""

    bare: ClassVar[str | None] = "method"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    method: Literal["greedy", "beam", "sampling", "mbr"] = option(
        "greedy and beam search for the most probable text, sampling draws one; mbr (minimum Bayes risk) draws many "
        "and chooses the one most similar to the others.",
        "greedy",
    )
    beam_size: int = option("beam: number of hypotheses.", 4, ge=1, le=10_000)
    length_penalty: float = option(
        "beam: scores are divided by length to this power; 0 prefers short texts.", 1.0, ge=0
    )
    early_stopping: bool = option(
        "beam: end a search once beam_size hypotheses are complete; false: once no other can win, which takes "
        "several times as long.",
        True,
    )
    num_samples: int = option("mbr: number of samples.", 16, ge=2, le=1_000_000)
    temperature: float = option("sampling, mbr: below 1, probable tokens become more probable; 0 is greedy.", 1.0, ge=0)
    top_k: int = option("sampling, mbr: only the K most probable tokens; 0 for all.", 0, ge=0)
    top_p: float = option("sampling, mbr: only the most probable tokens with this total probability.", 1.0, ge=0, le=1)
    no_repeat_ngram_size: int = option(
        "No run of this many tokens is written twice, against models that repeat themselves; 0 allows it.", 0, ge=0
    )
    max_new_tokens: int | None = option(
        "Maximum number of tokens to generate; null is max_target_length.", None, gt=0, le=LARGEST_LENGTH
    )
    valid_examples: int | None = option(
        "Number of validation examples that are translated during training; null is all.", None, ge=0
    )


class TranslationOptions(DecodingConfig):
    """Options of vaak translate: how targets are written, and how many at a time."""

    n_best: int = option("Number of translations of each text.", 1)
    seed: int = option("sampling, mbr: the same seed gives a text the same translation.", 0)
    batch_size: int = option("Maximum number of texts translated together.", 64)
    max_tokens: int = option(
        "Maximum number of tokens of all hypotheses translated together, which bounds memory.", 32768
    )


class Seq2SeqDataConfig(Section):
    """Pairs of texts and their tokens."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus: ParallelCorpusConfig = option("The source of the pairs.", ParallelCorpusConfig())
    tokenizer: TokenizerConfig = option(
        "The tokenizer of both sides, or of the source alone if target_tokenizer is given.", TokenizerConfig()
    )
    target_tokenizer: TokenizerConfig | None = option(
        "A separate tokenizer for the target; null: tokenizer is for both sides.", None
    )
    max_source_length: int = option(
        "Longest source, in tokens; longer training pairs are dropped and counted.", 128, gt=1, le=LARGEST_LENGTH
    )
    max_target_length: int = option(
        "Longest target, in tokens; longer training pairs are dropped and counted.", 128, gt=1, le=LARGEST_LENGTH
    )
    token_dropout: float = option(
        "Fraction of the input tokens, on both sides, replaced by the mask token in training.",
        0.0,
        ge=0,
        lt=1,
        resume="other numbers",
    )
    gloss: Literal["phrases"] | bool = option(
        "Append a translation to each source, phrase by phrase or (true) word by word, by a dictionary made from the "
        "training pairs; this helps if there are few.",
        False,
    )
    decoding: DecodingConfig = option("Decoding of targets.", DecodingConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "Fail on an example that can't be read, or skip it.", "fail", resume="other numbers"
    )
    max_unknown: float = max_unknown_option()
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )


Seq2SeqExperiment = Experiment[Seq2SeqConfig, Seq2SeqDataConfig]
