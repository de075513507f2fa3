"""Encoders of transformers: from the Hugging Face Hub or from a folder, with their tokenizer."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.heads import HEADS, read_head
from vaak.tasks.hub import SAFELY, config_of, fetched, tokenizer_of, transformers_of, without_reports
from vaak.tasks.pretrained import keep_tokenizer_config, tensors_of
from vaak.text.tokenizers.tokenizer import Tokenizer

log = logging.getLogger("vaak")

KEY = "model.pretrained_model"
BOTH_WAYS = ("xlnet", "bert-generation")
"""Kinds that aren't masked language models, and whose tokens see the whole text."""
UNREAD = ("pooler", "pooler_activation")
"""Modules of encoders that classifiers here don't read."""
USED_EARLIER = {"deberta-v2": {"encoder.LayerNorm": -1, "encoder.conv": 0}}
"""By the kind of encoder: modules that it has after its layers, but uses before or in them (``layer_number``)."""
SHOWN = 5


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, or the model isn't an encoder that reads ``max_length`` tokens.
    """
    config = config_of(KEY, source)
    if config.is_encoder_decoder:
        raise UserError(
            f"{KEY}: {source} is an encoder and a decoder ({config.model_type}); give an encoder, like BERT"
        )
    if is_decoder(config):
        raise UserError(
            f"{KEY}: {source} is a decoder ({config.model_type}), whose tokens don't see the text after them; give an "
            "encoder, like BERT"
        )
    longest = longest_input(config)
    if longest is not None and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    found = tokenizer_of(KEY, source)
    tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str())
    tokenizer.save(folder / "tokenizer")
    config.save_pretrained(folder / "base")
    keep_tokenizer_config(found, folder)
    return tokenizer


def saved_config(folder: Path) -> Any:
    """The configuration in prepared data."""
    return transformers_of(KEY).AutoConfig.from_pretrained(folder / "base", **SAFELY)


def is_decoder(config: Any) -> bool:
    """Whether tokens see only those before them: transformers has it for causal, and not for masked language models."""
    kinds = importlib.import_module("transformers.models.auto.modeling_auto")
    causal, masked = kinds.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, kinds.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    known = config.model_type in causal and config.model_type not in (*masked, *BOTH_WAYS)
    return known or bool(getattr(config, "is_decoder", False))


def longest_input(config: Any) -> int | None:
    """The most tokens that a model reads; None where nothing bounds them."""
    positions = getattr(config, "max_position_embeddings", None)
    after_padding = "roberta" in config.model_type or config.model_type in ("camembert", "mpnet")
    offset = config.pad_token_id + 1 if positions and after_padding else 0  # its positions begin there
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
        modules = dict(base.named_modules())
        for name, number in USED_EARLIER.get(base.config.model_type, {}).items():
            if name in modules:
                modules[name].layer_number = number

    @classmethod
    def load(cls, source: str, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """With the weights of ``source``, in 32 bits; those of its head are read apart (``loaded_head``).

        Raises UserError where they can't be loaded.
        """
        import torch

        auto, config = transformers_of(KEY), config_of(KEY, source)
        how = {**SAFELY, "use_safetensors": True, "dtype": torch.float32, "config": with_dropout(config, options)}
        with without_reports(auto):
            base, found = fetched(
                KEY, source, lambda: auto.AutoModel.from_pretrained(source, output_loading_info=True, **how)
            )
        lacking = [name for name in sorted(found["missing_keys"]) if name.split(".")[0] not in UNREAD]
        if lacking:
            log.warning("%s: %s lacks %s: drawn at random", KEY, source, _some(lacking))
        if vocab_size > base.get_input_embeddings().num_embeddings:  # special tokens that its tokenizer lacked
            base.resize_token_embeddings(vocab_size)
        return cls(base)

    @classmethod
    def drawn(cls, folder: Path, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """Of the sizes that were saved in ``folder``, of prepared data, with random weights."""
        auto = transformers_of(KEY)
        config = with_dropout(saved_config(folder), options)
        config.vocab_size = max(vocab_size, config.vocab_size)
        return cls(auto.AutoModel.from_config(config))

    def hidden(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """``(row, time, width)`` of ``inputs`` ``(row, time)``, real where ``mask`` is True."""
        hidden: Tensor = self.base(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
        return hidden


def loaded_embeddings(source: str) -> np.ndarray:
    """The input embeddings ``(token, width)`` of a model. Raises UserError where they can't be loaded."""
    auto = transformers_of(KEY)
    with without_reports(auto):
        model: Any = fetched(
            KEY, source, lambda: auto.AutoModel.from_pretrained(source, **SAFELY, use_safetensors=True)
        )
    found: np.ndarray = model.get_input_embeddings().weight.detach().float().numpy()
    return found


def loaded_head(source: str, pooling: str, names: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """The weights and biases of the classes ``names`` in ``source``; None, with the reason logged, where it can't be.

    They are read where ``source`` is a classifier with these classes, as ``vaak export --format hf`` writes them.
    ``pooling`` is what represents a text.
    """
    config = config_of(KEY, source)
    architecture = next(iter(config.architectures or ()), "")
    if not architecture.endswith("ForSequenceClassification"):
        if "For" in architecture:
            log.info("%s: of %s, a %s, the encoder is read, without its head", KEY, source, architecture)
        return None
    theirs, head, found = [config.id2label[place] for place in sorted(config.id2label)], None, None
    if sorted(theirs) != sorted(names):
        reason = f"its classes are {_some(theirs)}; here they are {_some(names)}"
    elif (head := HEADS.get(config.model_type)) is None or head.poolings.get(pooling) != _pooling(config):
        reason = f"its {config.model_type} represents a text otherwise than pooling {pooling}"
    else:
        wanted = tuple(f"{name}." for name in head.modules)
        tensors = {name: one.float() for name, one in tensors_of(source, lambda name: name.startswith(wanted))}
        found = read_head(head, tensors, getattr(config, "norm_eps", 0.0))
        reason = f"{head.before} is a layer that classifiers here don't have"
    if found is None:
        log.info("%s: the classes of %s are left out: %s", KEY, source, reason)
        return None
    order = [theirs.index(name) for name in names]
    return found[0][order], found[1][order]


def _pooling(config: Any) -> str:
    return str(getattr(config, "classifier_pooling", "cls"))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
