"""The options of a language model. Imports no torch; its defaults come from the Hindi language-model seed."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from vaak.config.base import ResumeClass, Section, option
from vaak.config.experiment import Experiment
from vaak.nn.config import STACK_ALIASES, SingleStackConfig
from vaak.text.config import TokenizerConfig

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
SIDES = {"decoder": "model.decoder", "encoder": "model.encoder"}


class LanguageModelConfig(SingleStackConfig):
    """One stack of blocks, by default of Llama's kind; a preset gives sizes that any other key replaces."""

    bare: ClassVar[str | None] = "preset"

    preset: Literal["tiny", "40m", "110m", "220m"] | None = option("Sizes by name.", None, resume="free")
    model_type: Literal["decoder", "encoder"] = option(
        "decoder: causal objective; encoder: masked objective.", "decoder"
    )
    num_layers: int = option("Number of blocks.", 8, gt=0)
    qk_norm: bool = option("RMSNorm on queries and keys of each head (exported as Qwen3 in place of Llama).", False)

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return {**PRESETS[preset], **values} if isinstance(preset, str) and preset in PRESETS else values


class CorpusConfig(Section):
    """Where the text comes from."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["grammar", "text", "json", "csv", "parquet", "huggingface"] = option(
        "grammar is the built-in Hindi grammar; json reads JSON lists and JSON lines.", "grammar"
    )
    train: tuple[str, ...] = option("Files or glob patterns; alone, it is split by train_fraction.", (), resume="free")
    valid: tuple[str, ...] = option("Files of the validation split, kept as given.", (), resume="free")
    test: tuple[str, ...] = option("Files of the test split, kept as given.", (), resume="free")
    name: str | None = option("huggingface: name of the dataset, or a folder.", None, resume="free")
    subset: str | None = option("huggingface: name of its configuration.", None)
    text_column: str = option("Column or key that holds the text.", "text")
    document: Literal["line", "paragraph", "file"] = option(
        "text: what a document is; with file, every newline counts.", "line"
    )
    num_sentences: int = option("grammar: how many sentences to generate.", 30000, gt=0)
    seed: int = option("grammar: the seed of its sentences; training.random_seed leaves the text as it is.", 0, ge=0)
    deduplicate: bool = option("Drop exact duplicates of a training document.", True)
    train_fraction: float = option(
        "Part of the documents that goes to train where splits are made here.", 0.8, gt=0, lt=1
    )
    valid_fraction: float = option("Part that goes to valid; the rest is test.", 0.1, gt=0, lt=1)
    on_invalid_utf8: Literal["fail", "replace"] = option(
        "replace puts U+FFFD in place of bad bytes and counts them.", "fail"
    )


class LanguageModelDataConfig(Section):
    """Text, tokens and the windows they are cut into."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus: CorpusConfig = option("Where the text comes from.", CorpusConfig())
    tokenizer: TokenizerConfig = option("How text becomes tokens.", TokenizerConfig())
    max_length: int = option("Tokens of a sequence.", 512, gt=1)
    layout: Literal["stream", "document"] = option(
        "stream: documents one after another, cut in windows; document: each is a sequence of its own.", "document"
    )
    shift_windows: bool = option("stream: windows begin elsewhere in every epoch.", True)
    stride: int | None = option(
        "Evaluation windows of a long text begin this many tokens apart; null is max_length.",
        None,
        gt=0,
        resume="other numbers",
    )
    masking_probability: float = option(
        "Masked objective: part of the tokens to predict.", 0.15, gt=0, lt=1, resume="other numbers"
    )
    token_dropout: float = option(
        "Causal objective: part of the input tokens replaced by the mask token.",
        0.0,
        ge=0,
        lt=1,
        resume="other numbers",
    )
    minimal_pairs: tuple[str, ...] = option(
        "BLiMP JSON lines to score; grammar stands for the built-in pairs.", (), resume="other numbers"
    )
    on_bad_example: Literal["fail", "skip"] = option(
        "What happens with an example that can't be read.", "fail", resume="other numbers"
    )
    cache_dir: str | None = option("Prepared data lie here, shared by runs; null is RUN/prepared.", None, resume="free")


LanguageModelExperiment = Experiment[LanguageModelConfig, LanguageModelDataConfig]
