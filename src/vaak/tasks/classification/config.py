"""The options of a text classifier. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator

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
from vaak.nn.config import LARGEST_WIDTH, STACK_ALIASES, ConvolutionalStackConfig, LoraConfig, lora_option
from vaak.text.config import TextSourceSection, TokenizerConfig, dataset_option, max_unknown_option, subset_option

DEFAULTS: dict[str, Any] = {
    "data": {"tokenizer": {"type": "word", "vocab_size": 30000}},
    "training": {
        "epochs": 10,
        "batch_size": 32,
        "optimizer": {"type": "adamw", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
    },
}

ALIASES: dict[str, str] = {
    **{f"model.{alias}": f"model.{name}" for alias, name in STACK_ALIASES.items()},
    "model.pretrained": "model.pretrained_model",
    "model.vocab_size": "data.tokenizer.vocab_size",
    "model.max_length": "data.max_length",
    "model.max_position_embeddings": "data.max_length",
    "data.text_column": "data.corpus.text_column",
    "data.label_column": "data.corpus.label_columns",
    "data.corpus.label_column": "data.corpus.label_columns",
}


class WordVectorsConfig(Section):
    """Word vectors that a TextCNN begins with."""

    bare: ClassVar[str | None] = "path"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    path: Source = option("File in the text format of word2vec or GloVe: a word and its numbers in each line.")
    use: Literal["static", "tuned", "two_channel"] = option(
        "static: never trained; tuned: trained; two_channel: both, and their filters' outputs are added.", "tuned"
    )


class ClassifierConfig(ConvolutionalStackConfig):
    """A transformer, from scratch or pretrained, or a TextCNN; and a linear layer for the classes."""

    bare: ClassVar[str | None] = "architecture"

    architecture: Literal["transformer", "cnn"] = option(
        "transformer: an encoder with pooling; cnn: TextCNN (Kim 2014).", "transformer"
    )
    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    pretrained_model: SourceOrName | None = option(
        "transformer: an encoder of transformers (with pooling: last, a decoder) to start from, by its name on "
        "the Hugging Face Hub or its folder; its sizes and tokenizer are used.",
        None,
    )
    lora: LoraConfig | None = lora_option()
    num_labels: int | None = option(
        "Number of classes, checked against the data; null: taken from the data.", None, gt=0
    )
    pooling: Literal["first", "last", "mean", "max", "max_mean"] = option(
        "transformer: what represents a text: the output at its first or last token, the mean or maximum over "
        "all, or both of these, concatenated. A decoder takes last.",
        "mean",
    )
    classifier_dropout: float | None = option(
        "Dropout before the output layer; null: as dropout.", None, ge=0, lt=1, resume="other numbers"
    )
    embed_size: int = option("cnn: width of the word vectors.", 128, gt=0, le=LARGEST_WIDTH)
    num_filters: int = option("cnn: number of filters of each size.", 100, gt=0, le=LARGEST_WIDTH)
    filter_sizes: tuple[int, ...] = option("cnn: sizes of the filters, in words.", (3, 4, 5), min_length=1)
    word_vectors: WordVectorsConfig | None = option(
        "cnn: pretrained word vectors to start from; null: random ones.", None
    )
    max_norm: float | None = option(
        "Upper bound on the norm of each class's weights, as in Kim 2014 (3.0); null: none.",
        None,
        gt=0,
        resume="other numbers",
    )
    label_weights: tuple[float, ...] = option(
        "Weight of each label column's loss; empty: all 1.", (), resume="other numbers"
    )

    @field_validator("filter_sizes")
    @classmethod
    def _sizes_are_possible(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if min(sizes) < 1 or len(set(sizes)) < len(sizes):
            raise ValueError("filter_sizes must be 1 or more, and different")
        return sizes


FILE_TYPES = ("files", "folders", "lines", "fasttext")
"""The types of corpora that are read from files."""


class LabelledCorpusConfig(TextSourceSection):
    """The source of the labelled texts."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"
    type_of_ending: ClassVar[Mapping[str, str]] = {"": "files"}

    type: Literal["grammar", "files", "folders", "lines", "fasttext", "huggingface"] = option(
        "files: JSON (a list, or lines), CSV, TSV, spreadsheets and Parquet, by their extensions; folders: each "
        "file is a text, the name of its folder the label; lines: each line is a text, the name of its file the "
        "label; fasttext: the words of a line that begin with __label__ are its labels; grammar: sentences of the "
        "built-in Hindi grammar, labelled with the rule that they show. Default: files or huggingface, where "
        "these are named.",
        "grammar",
    )
    train: tuple[Source, ...] = option(
        "Files or glob patterns; alone, they are split by train_fraction.", (), only_for=FILE_TYPES, resume="free"
    )
    valid: tuple[Source, ...] = option(
        "Files of the validation split, kept as given.", (), only_for=FILE_TYPES, resume="free"
    )
    test: tuple[Source, ...] = option("Files of the test split, kept as given.", (), only_for=FILE_TYPES, resume="free")
    out_of_scope: tuple[Source, ...] = option(
        "Files of texts that belong to no class; --split out_of_scope evaluates how well they are told apart from "
        "the test texts.",
        (),
        resume="free",
    )
    name: SourceOrName | None = dataset_option()
    subset: str | None = subset_option()
    text_column: str = option("Column or key of the text.", "text")
    label_columns: tuple[str, ...] = option(
        "Column or key of the label; several are predicted by one encoder.", ("label",), min_length=1
    )
    multi_label: bool = option("A text may have any number of labels: a list, or a text with | between them.", False)
    num_sentences: int = option("grammar: number of sentences to generate.", 4000, gt=0, le=LARGEST_COUNT)
    seed: int = option("grammar: random seed of the sentences; training.random_seed doesn't change them.", 0, ge=0)
    deduplicate: bool = option("Drop texts that occur in training before.", True)
    stratify: bool = option(
        "Keep the proportions of labels the same in all splits; false: a hash of each text decides its split.", True
    )
    train_fraction: float = option("Fraction of the texts for train, if valid and test are not given.", 0.8, gt=0, lt=1)
    valid_fraction: float = option("Fraction for valid; the rest is test.", 0.1, gt=0, lt=1)
    valid_examples: int | None = valid_examples_option("texts")
    test_examples: int | None = test_examples_option()
    on_invalid_utf8: Literal["fail", "replace"] = option(
        "replace: invalid bytes become U+FFFD and are counted.", "fail"
    )
    dialect: DialectConfig | None = dialect_option("files")
    fold: str | None = fold_option()
    folds_file: Source | None = folds_file_option()

    @field_validator("label_columns")
    @classmethod
    def _columns_differ(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError("label_columns names a column twice")
        return columns


class TextAugmentationConfig(Section):
    """Changes of training texts; each draw is a function of random seed, epoch and example.

    Source: Wei and Zou 2019, "EDA: Easy Data Augmentation Techniques". Differs: each word is changed with the
    probability, instead of a fixed number of them.
    """

    bare: ClassVar[str | None] = "enabled"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    enabled: bool = option("Whether training texts are changed.", False)
    techniques: tuple[Literal["synonym_replacement", "random_insertion", "random_swap", "random_deletion"], ...] = (
        option(
            "Augmentations, in this order.",
            ("synonym_replacement", "random_insertion", "random_swap", "random_deletion"),
            min_length=1,
        )
    )
    probability: float = option("Probability of each technique, for each word.", 0.1, ge=0, lt=1)
    synonyms: SourceOrName = option(
        "wordnet (by nltk), vectors (neighbours among model.word_vectors, or among the words of "
        "pretrained_model), or a file with a group of synonyms per line, separated by tabs or commas.",
        "wordnet",
    )
    keep_negation: bool = option(
        "Words of negation (not, isn't, dont, hardly, नहीं) stay unchanged, and no synonym negates.", True
    )


class ClassificationDataConfig(Section):
    """Labelled texts and their tokens."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus: LabelledCorpusConfig = option("The source of the labelled texts.", LabelledCorpusConfig())
    tokenizer: TokenizerConfig = option("The tokenizer.", TokenizerConfig())
    max_length: int = option("Maximum length, in tokens; longer texts are cut.", 256, gt=2, le=LARGEST_LENGTH)
    augmentation: TextAugmentationConfig = option("Changes of training texts.", TextAugmentationConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "Fail on an example that can't be read, or skip it.", "fail", resume="other numbers"
    )
    max_unknown: float = max_unknown_option()
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )


ClassificationExperiment = Experiment[ClassifierConfig, ClassificationDataConfig]
