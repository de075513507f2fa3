"""The options of a language model. Imports no torch; its defaults are those of the Hindi language-model trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

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
from vaak.nn.config import STACK_ALIASES, LoraConfig, SingleStackConfig, block_option, lora_option
from vaak.text.config import TextSourceSection, TokenizerConfig, dataset_option, max_unknown_option, subset_option

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 64, "num_layers": 2, "num_heads": 4},
    "40m": {"d_model": 512, "num_layers": 8, "num_heads": 8},
    "110m": {"d_model": 768, "num_layers": 12, "num_heads": 12},
    "220m": {"d_model": 1024, "num_layers": 15, "num_heads": 16},
}

DEFAULTS: dict[str, Any] = {
    "training": {
        "epochs": 10,
        "batch_size": 32,
        "optimizer": {"type": "adamw", "lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
    },
    "wandb": {"project": "hindi-babylm"},
}

_MODEL_ALIASES: dict[str, str] = {
    **{alias: f"model.{name}" for alias, name in STACK_ALIASES.items()},
    "model_size": "model.preset",
    "vocab_size": "data.tokenizer.vocab_size",
    "tokenizer_type": "data.tokenizer.type",
    "max_length": "data.max_length",
    "max_position_embeddings": "data.max_length",
}

ALIASES: dict[str, str] = {
    **_MODEL_ALIASES,
    **{f"model.{alias}": name for alias, name in _MODEL_ALIASES.items()},
    **{name: f"model.{name}" for name in ("model_type", "d_model", "num_layers", "num_heads", "dropout")},
}

SHARED = {"model.global_config": ("model",)}
STACK_SECTIONS = {"decoder": "model.decoder", "encoder": "model.encoder"}


class NgramConfig(Section):
    """An n-gram model of the training texts, with which a decoder's probabilities are mixed wherever it is used."""

    bare: ClassVar[str | None] = "weight"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    order: int = option("Tokens of its longest n-grams.", 5, ge=2, le=8)
    weight: float = option(
        "Its share of the mixture: weight · p(n-gram) + (1 − weight) · p(network). With 0, here and in geometric, a "
        "run is evaluated and used as the network alone.",
        0.25,
        ge=0,
        lt=1,
        resume="other numbers",
    )
    geometric: float = option(
        "Above 0, p(network) in the mixture is p(network)^(1 − geometric) · p(n-gram)^geometric, normalised.",
        0.0,
        ge=0,
        lt=1,
        resume="other numbers",
    )


class LanguageModelConfig(SingleStackConfig):
    """One stack of blocks, by default like Llama's; other keys override the sizes of a preset."""

    bare: ClassVar[str | None] = "preset"

    preset: Literal["tiny", "40m", "110m", "220m"] | None = option("Preset sizes.", None, resume="free")
    pretrained: SourceOrName | None = option(
        "A causal language model of transformers to start from, by its name on the Hugging Face Hub or its "
        "folder; its sizes and tokenizer are used.",
        None,
    )
    lora: LoraConfig | None = lora_option()
    ngram: NgramConfig | None = option(
        "Mix the network with an n-gram model (Kneser-Ney) of the training texts, in evaluation and use; training is "
        "that of the network alone.",
        None,
    )
    neftune_noise_alpha: float = option(
        "Noise on token embeddings in training: each number is moved at random, by up to alpha / sqrt(row length "
        "· d_model); 5 to 15 are usual. Source: Jain et al. 2024, NEFTune.",
        0.0,
        ge=0,
        resume="other numbers",
    )
    model_type: Literal["decoder", "encoder"] = option(
        "decoder: causal objective; encoder: masked objective.", "decoder"
    )
    num_layers: int = block_option("Number of blocks.", 8, gt=0, le=10_000)
    qk_norm: bool = block_option(
        "RMSNorm on queries and keys of each head (exported as Qwen3 instead of Llama).", False
    )

    @property
    def is_causal(self) -> bool:
        return self.model_type == "decoder"

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return cls.with_preset(PRESETS[preset], values) if isinstance(preset, str) and preset in PRESETS else values


FILE_TYPES = ("text", "json", "csv", "parquet", "chat", "preferences")
"""The types of corpora that are read from files."""


class CorpusConfig(TextSourceSection):
    """The source of the text."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type_of_ending: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys((".txt", ".text", ".md"), "text"),
        **dict.fromkeys((".json", ".jsonl"), "json"),
        **dict.fromkeys((".csv", ".tsv", *SPREADSHEETS), "csv"),
        ".parquet": "parquet",
    }

    type: Literal["grammar", "text", "json", "csv", "parquet", "huggingface", "chat", "preferences"] = option(
        "grammar: the built-in Hindi grammar; json: JSON lists and JSON lines; chat: conversations in JSON; "
        "preferences: pairs of a chosen and a rejected answer in JSON. Default: by the extensions of the files.",
        "grammar",
    )
    train: tuple[Source, ...] = option(
        "Files or glob patterns; alone, it is split by train_fraction.", (), only_for=FILE_TYPES, resume="free"
    )
    valid: tuple[Source, ...] = option(
        "Files of the validation split, kept as given.", (), only_for=FILE_TYPES, resume="free"
    )
    test: tuple[Source, ...] = option("Files of the test split, kept as given.", (), only_for=FILE_TYPES, resume="free")
    name: SourceOrName | None = dataset_option()
    subset: str | None = subset_option()
    text_column: str = option("Column or key of the text.", "text")
    document: Literal["line", "paragraph", "file"] = option(
        "text: the unit that is a document; with file, every newline counts.", "line"
    )
    num_sentences: int = option("grammar: number of sentences to generate.", 30000, gt=0, le=LARGEST_COUNT)
    seed: int = option("grammar: random seed of the sentences; training.random_seed doesn't change the text.", 0, ge=0)
    deduplicate: bool = option("Drop exact duplicates of a training document.", True)
    train_fraction: float = option(
        "Fraction of the documents for train, if valid and test are not given.", 0.8, gt=0, lt=1
    )
    valid_fraction: float = option("Fraction for valid; the rest is test.", 0.1, gt=0, lt=1)
    valid_examples: int | None = valid_examples_option("documents")
    test_examples: int | None = test_examples_option()
    on_invalid_utf8: Literal["fail", "replace"] = option(
        "replace: invalid bytes become U+FFFD and are counted.", "fail"
    )
    dialect: DialectConfig | None = dialect_option("csv")
    fold: str | None = fold_option()
    folds_file: Source | None = folds_file_option()

    @property
    def has_answers(self) -> bool:
        """Whether its documents are conversations, which a chat template writes."""
        return self.type in ("chat", "preferences")


class SourceWeights(Section):
    """How much is read of each source at a step."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    step: int = option("The step; before the first and after the last one given, the weights stay the same.", 0, ge=0)
    weights: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = option(
        "The weight of each pattern of data.corpus.train, in their order.", (), min_length=1
    )

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: tuple[float, ...]) -> tuple[float, ...]:
        if not sum(weights):
            raise ValueError("all are 0, so nothing would be read")
        return weights


class LanguageModelDataConfig(Section):
    """Text, tokens and the windows into which they are cut."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus: CorpusConfig = option("The source of the text.", CorpusConfig())
    mixture: tuple[SourceWeights, ...] = option(
        "Weights of the sources (the patterns of data.corpus.train) in training, by step, with linear "
        "interpolation between steps. Empty: each document once per epoch.",
        (),
    )
    tokenizer: TokenizerConfig = option("The tokenizer.", TokenizerConfig())
    new_tokens: tuple[str, ...] = option(
        "Special tokens to add to those of model.pretrained, such as <|im_start|> of a chat template. Their "
        "embeddings are trained, also next to low-rank adapters.",
        (),
    )
    new_tokens_like: str | None = option(
        "The base's token with whose embedding those of new tokens start; null: the mean of all.", None
    )
    max_length: int = option("Maximum sequence length, in tokens.", 512, gt=1, le=LARGEST_LENGTH)
    chat_template: SourceOrName | None = option(
        "chat, preferences: the template in Jinja, or its file, by which conversations are written, or the name of one "
        "of ours (qwen3, glm4, llama3, llama3_1, mistral, mistral_nemo, gemma, chatml); null is the tokenizer's, else "
        "by tokens.",
        None,
    )
    chat_template_kwargs: dict[str, Any] = option(
        "chat, preferences: further arguments of the template, such as enable_thinking: false for Qwen3; a row's "
        "own take precedence.",
        {},
    )
    loss_on: Literal["answers", "last", "all"] = option(
        "chat: which tokens the loss is on; last: only the last answer. Evaluations score answers, or the last one.",
        "answers",
    )
    learned_roles: tuple[Literal["assistant", "user", "system", "tool"], ...] = option(
        "chat: whose turns count as answers, for training and evaluation.", ("assistant",), min_length=1
    )
    reasoning: Literal["keep", "mask", "drop"] = option(
        "chat, preferences: whether the reasoning in answers (reasoning_content; unless it is kept, <think> in "
        "the content, too) is learned; read, but not learned; or left out.",
        "keep",
    )
    long_chats: Literal["cut", "drop"] = option(
        "chat, preferences: how conversations of more than max_length tokens are handled.", "cut"
    )
    layout: Literal["stream", "document"] = option(
        "stream: documents are concatenated and cut into windows; document: each is a separate sequence.", "document"
    )
    shift_windows: bool = option("stream: windows begin at different places in every epoch.", True)
    stride: int | None = option(
        "Evaluation windows of a long text begin this many tokens apart; null is max_length.",
        None,
        gt=0,
        le=LARGEST_LENGTH,
        resume="other numbers",
    )
    bos_in_windows: bool | None = option(
        "Begin each window with the token that begins a document, also within a document; null: if a pretrained "
        "base's tokenizer begins every text with it.",
        None,
        resume="other numbers",
    )
    masking_probability: float = option(
        "Masked objective: fraction of the tokens to predict.", 0.15, gt=0, lt=1, resume="other numbers"
    )
    token_dropout: float = option(
        "Causal objective: fraction of the input tokens replaced by the mask token.",
        0.0,
        ge=0,
        lt=1,
        resume="other numbers",
    )
    minimal_pairs: tuple[SourceOrName, ...] = option(
        "BLiMP JSON lines to score; grammar: the built-in pairs.", (), resume="other numbers"
    )
    on_bad_example: Literal["fail", "skip"] = option(
        "Fail on an example that can't be read, or skip it.", "fail", resume="other numbers"
    )
    max_unknown: float = max_unknown_option()
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )


class GenerationOptions(Section):
    """Options of vaak generate: how tokens are drawn."""

    resume_class: ClassVar[ResumeClass | None] = "free"

    temperature: float = option("0 always takes the most probable token.", 0.8)
    top_k: int = option("Sample from the K most probable tokens only; 0 for all.", 0)
    top_p: float = option("Nucleus sampling: only the most probable tokens with this total probability.", 1.0)
    min_p: float = option("Only tokens at least this fraction as probable as the most probable one; 0 for all.", 0.0)
    repetition_penalty: float = option("Above 1, tokens that already occurred become less probable.", 1.0)
    max_new_tokens: int = option("Maximum number of new tokens.", 100)
    seed: int = option("The same seed gives the same text.", 0)


LanguageModelExperiment = Experiment[LanguageModelConfig, LanguageModelDataConfig]
