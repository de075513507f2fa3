"""A decoder of transformers as ours (``vaak.tasks.pretrained``)."""

from __future__ import annotations

from pathlib import Path

from vaak.core.errors import UserError
from vaak.tasks.hub import config_of
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.families import FAMILIES, GPT2, options_of
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.pretrained import KEY, Names, keep_generation, read_weights, save_config, save_tokenizer, saved_config
from vaak.text.tokenizers.tokenizer import Tokenizer

OWN = ("name", "pretrained", "lora", "dropout", "attention_dropout")
"""Options that a run has itself; all others are the base's."""


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, ours can't be such a model, or it doesn't read ``max_length`` tokens.
    """
    config = config_of(KEY, source)
    options_of(config.to_dict(), source)
    longest = config.max_position_embeddings
    if config.model_type == GPT2.model_type and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    save_config(config, folder)
    keep_generation(source, folder)
    return save_tokenizer(source, folder)


def options_in(folder: Path, own: LanguageModelConfig) -> LanguageModelConfig:
    """The options of the model whose base is in prepared data: the base's, and its ``own``."""
    found = options_of(saved_config(folder), str(own.pretrained))
    return type(own)(**found, **{name: getattr(own, name) for name in OWN})


def drawn(folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """The model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    size = max(vocab_size, saved_config(folder)["vocab_size"])
    return LanguageModel(options_in(folder, own), size, longest_of(folder))


def longest_of(folder: Path) -> int:
    """The number of tokens that the base in prepared data was made for."""
    theirs = saved_config(folder)
    return int(theirs[FAMILIES[theirs["model_type"]].positions])


def loaded(source: str, folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """The same with the weights of ``source``; tokens that it lacks are drawn.

    Raises UserError where they can't be loaded, or aren't those of its configuration.
    """
    model = drawn(folder, own, vocab_size)
    family = FAMILIES[saved_config(folder)["model_type"]]
    names = Names(family.imported, lambda name: family.theirs(name)[0], ("embedding.weight", "head.weight"))
    read_weights(model, source, names)
    return model
