"""The options of a language model. Imports no torch; its defaults come from the Hindi language-model seed."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from vaak.config.section import Section, option
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
    "hidden_size": "model.d_model",
    "hidden_dim": "model.d_model",
    "num_hidden_layers": "model.num_layers",
    "num_attention_heads": "model.num_heads",
    "intermediate_size": "model.d_ff",
    "hidden_dropout_prob": "model.dropout",
    "dropout_prob": "model.dropout",
    "attention_probs_dropout_prob": "model.attention_dropout",
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
    "model.global_config.dropout": "model.dropout",
}


class LanguageModelConfig(Section):
    """A transformer of Llama's kind; a preset gives sizes that any other key replaces."""

    bare: ClassVar[str | None] = "preset"

    preset: Literal["tiny", "40m", "110m", "220m"] | None = option("Sizes by name.", None)
    model_type: Literal["decoder", "encoder"] = option(
        "decoder: causal objective; encoder: masked objective.", "decoder"
    )
    d_model: int = option("Width of the residual stream.", 512, gt=0)
    num_layers: int = option("Number of blocks.", 8, gt=0)
    num_heads: int = option("Query heads of attention.", 8, gt=0)
    num_key_value_heads: int | None = option("Key and value heads; null is num_heads.", None, gt=0)
    d_ff: int | None = option("Width of the feed-forward layer; null is 8/3 d_model, rounded up to 32.", None, gt=0)
    dropout: float = option("Dropout of embeddings, attention and feed-forward.", 0.1, ge=0, lt=1)
    attention_dropout: float | None = option("Dropout of attention weights; null is dropout.", None, ge=0, lt=1)
    tie_embeddings: bool = option("Input and output embeddings are one matrix.", True)
    qk_norm: bool = option("RMSNorm on queries and keys of each head (exported as Qwen3 in place of Llama).", False)
    rope_theta: float = option("Base of the rotary positions' wavelengths.", 10000.0, gt=0)
    norm_eps: float = option("Added to the mean square in RMSNorm.", 1e-5, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return {**PRESETS[preset], **values} if isinstance(preset, str) and preset in PRESETS else values

    @model_validator(mode="after")
    def _heads_divide(self) -> LanguageModelConfig:
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model ({self.d_model}) must be a multiple of num_heads ({self.num_heads})")
        if (self.d_model // self.num_heads) % 2:
            raise ValueError(
                f"d_model / num_heads ({self.d_model // self.num_heads}) must be even for rotary positions"
            )
        if self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        return self


class CorpusConfig(Section):
    """Where the text comes from."""

    bare: ClassVar[str | None] = "type"

    type: Literal["grammar", "text", "json", "csv", "parquet", "huggingface"] = option(
        "grammar is the built-in Hindi grammar; json reads JSON lists and JSON lines.", "grammar"
    )
    train: tuple[str, ...] = option("Files or glob patterns; alone, it is split by train_fraction.", ())
    valid: tuple[str, ...] = option("Files of the validation split, kept as given.", ())
    test: tuple[str, ...] = option("Files of the test split, kept as given.", ())
    name: str | None = option("huggingface: name of the dataset, or a folder.", None)
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

    corpus: CorpusConfig = option("Where the text comes from.", CorpusConfig())
    tokenizer: TokenizerConfig = option("How text becomes tokens.", TokenizerConfig())
    max_length: int = option("Tokens of a sequence.", 512, gt=1)
    layout: Literal["stream", "document"] = option(
        "stream: documents one after another, cut in windows; document: each is a sequence of its own.", "document"
    )
    shift_windows: bool = option("stream: windows begin elsewhere in every epoch.", True)
    stride: int | None = option(
        "Evaluation windows of a long text begin this many tokens apart; null is max_length.", None, gt=0
    )
    masking_probability: float = option("Masked objective: part of the tokens to predict.", 0.15, gt=0, lt=1)
    token_dropout: float = option(
        "Causal objective: part of the input tokens replaced by the mask token.", 0.0, ge=0, lt=1
    )
    minimal_pairs: tuple[str, ...] = option("BLiMP JSON lines to score; grammar stands for the built-in pairs.", ())
    on_bad_example: Literal["fail", "skip"] = option("What happens with an example that can't be read.", "fail")
    cache_dir: str | None = option("Prepared data lie here, shared by runs; null is RUN/prepared.", None)
