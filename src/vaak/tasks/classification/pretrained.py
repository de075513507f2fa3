"""Encoders of transformers: from the Hugging Face Hub or from a folder, with their tokenizer.

Weights are read from safetensors only, and code of a repository is never executed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from vaak.core.errors import UserError, optional_import
from vaak.tasks.classification.config import ClassifierConfig
from vaak.text.tokenizers.tokenizer import Tokenizer

Found = TypeVar("Found")
KEY = "model.pretrained_model"
SAFELY: dict[str, Any] = {"trust_remote_code": False}


def transformers() -> Any:
    """The package. Raises UserError where it is not installed."""
    with optional_import(f"{KEY} requires transformers", "hf"):
        package: Any = importlib.import_module("transformers")
    package.utils.logging.disable_progress_bar()
    return package


def source_of(name: str, folder: Path) -> str:
    """The folder or the name on the Hub of a model; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there.
    """
    for path in (Path(name).expanduser(), folder / name):
        if path.is_dir():
            return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{KEY}: no such folder: {name}")
    return name


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, or the model isn't an encoder that reads ``max_length`` tokens.
    """
    auto = transformers()
    config = _fetched(source, lambda: auto.AutoConfig.from_pretrained(source, **SAFELY))
    if config.is_encoder_decoder:
        raise UserError(
            f"{KEY}: {source} is an encoder and a decoder ({config.model_type}); give an encoder, like BERT"
        )
    longest = longest_input(config)
    if longest is not None and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    found = _fetched(source, lambda: auto.AutoTokenizer.from_pretrained(source, **SAFELY))
    if not getattr(found, "is_fast", False):
        raise UserError(f"{KEY}: the tokenizer of {source} is not one of the tokenizers library (tokenizer.json)")
    tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str())
    tokenizer.save(folder / "tokenizer")
    config.save_pretrained(folder / "base")
    return tokenizer


def longest_input(config: Any) -> int | None:
    """The most tokens that a model reads; None where nothing bounds them."""
    positions = getattr(config, "max_position_embeddings", None)
    offset = config.pad_token_id + 1 if positions and "roberta" in config.model_type else 0  # its positions begin there
    return None if positions is None else positions - offset


def with_dropout(config: Any, options: ClassifierConfig) -> Any:
    """The configuration with the dropout that is asked for, under the names that it has."""
    attention = options.dropout if options.attention_dropout is None else options.attention_dropout
    names = {"hidden_dropout_prob": options.dropout, "dropout": options.dropout}
    names |= {"attention_probs_dropout_prob": attention, "attention_dropout": attention}
    for name, value in names.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


class Pretrained(nn.Module):
    """A model of transformers that gives a vector for each token."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.width: int = base.config.hidden_size

    @classmethod
    def load(cls, source: str, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """With the weights of ``source``, in 32 bits. Raises UserError where they can't be loaded."""
        import torch

        auto = transformers()
        config = _fetched(source, lambda: auto.AutoConfig.from_pretrained(source, **SAFELY))
        how = {**SAFELY, "use_safetensors": True, "dtype": torch.float32, "config": with_dropout(config, options)}
        base = _fetched(source, lambda: auto.AutoModel.from_pretrained(source, **how))
        if vocab_size > base.get_input_embeddings().num_embeddings:  # special tokens that its tokenizer lacked
            base.resize_token_embeddings(vocab_size)
        return cls(base)

    @classmethod
    def drawn(cls, folder: Path, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """Of the sizes that were saved in ``folder``, with random weights."""
        auto = transformers()
        config = with_dropout(auto.AutoConfig.from_pretrained(folder, **SAFELY), options)
        config.vocab_size = max(vocab_size, config.vocab_size)
        return cls(auto.AutoModel.from_config(config))

    def hidden(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """``(row, time, width)`` of ``inputs`` ``(row, time)``, real where ``mask`` is True."""
        hidden: Tensor = self.base(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
        return hidden


def _fetched(source: str, fetch: Callable[[], Found]) -> Found:
    """What ``fetch`` gets from a folder or the Hub. Raises UserError with one line where it can't."""
    try:
        return fetch()
    except Exception as error:  # each layer of transformers and of the Hub raises its own
        where = "no such folder, and the Hugging Face Hub has no such model or can't be reached"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = said[:200] if Path(source).is_dir() else where
        raise UserError(f"{KEY}: {source} can't be loaded: {reason}") from error
