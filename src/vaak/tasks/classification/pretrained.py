"""Encoders of transformers: from the Hugging Face Hub or from a folder, with their tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.hub import SAFELY, config_of, fetched, tokenizer_of, transformers_of
from vaak.text.tokenizers.tokenizer import Tokenizer

KEY = "model.pretrained_model"


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, or the model isn't an encoder that reads ``max_length`` tokens.
    """
    config = config_of(KEY, source)
    if config.is_encoder_decoder:
        raise UserError(
            f"{KEY}: {source} is an encoder and a decoder ({config.model_type}); give an encoder, like BERT"
        )
    longest = longest_input(config)
    if longest is not None and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    tokenizer = Tokenizer.from_json(tokenizer_of(KEY, source).backend_tokenizer.to_str())
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

        auto, config = transformers_of(KEY), config_of(KEY, source)
        how = {**SAFELY, "use_safetensors": True, "dtype": torch.float32, "config": with_dropout(config, options)}
        base = fetched(KEY, source, lambda: auto.AutoModel.from_pretrained(source, **how))
        if vocab_size > base.get_input_embeddings().num_embeddings:  # special tokens that its tokenizer lacked
            base.resize_token_embeddings(vocab_size)
        return cls(base)

    @classmethod
    def drawn(cls, folder: Path, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """Of the sizes that were saved in ``folder``, with random weights."""
        auto = transformers_of(KEY)
        config = with_dropout(auto.AutoConfig.from_pretrained(folder, **SAFELY), options)
        config.vocab_size = max(vocab_size, config.vocab_size)
        return cls(auto.AutoModel.from_config(config))

    def hidden(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """``(row, time, width)`` of ``inputs`` ``(row, time)``, real where ``mask`` is True."""
        hidden: Tensor = self.base(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
        return hidden
