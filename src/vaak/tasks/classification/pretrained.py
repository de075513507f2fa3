"""Encoders and decoders of transformers: from the Hugging Face Hub or a folder, with their tokenizer and their head.

Their classifiers have one layer more than ours before the classes, which is given weights that change nothing:
tanh     the layer becomes a small multiple of the identity, where tanh is one, too; the classes' weights undo it
pairs    gelu(x) - gelu(-x) = x, and so of relu: the layer has each class's score and its negative, which are subtracted

ModernBERT also normalises after the layer. Numbers far smaller than the epsilon of its norm are only scaled by it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.engine.trained import tell_rows
from vaak.nn.new_tokens import begin_new_rows
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.fetching import SAFELY, fetch_model, import_transformers, load_tokenizer, quiet_transformers
from vaak.tasks.kept_base import note_missing_rows, save_tokenizer, write_tokenizer_config
from vaak.tasks.pretrained import ATTENTION_DROPOUTS, DROPOUTS, is_decoder, iterate_tensors, load_config
from vaak.tasks.quantised import Frozen, layers_in_nf4
from vaak.tasks.transformers_internals import without_reading
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")
PRETRAINED_KEY = "model.pretrained_model"
UNREAD_KEYS = ("pooler", "pooler_activation")
"""Modules of encoders that classifiers here don't read."""
USED_EARLIER = {"deberta-v2": {"encoder.LayerNorm": -1, "encoder.conv": 0}}
"""Modules, by the kind of encoder, that it has after its layers, but uses before or in them (``layer_number``)."""
NUM_SHOWN_WEIGHTS = 5


def save_base(source: str, folder: Path, max_length: int, pooling: str = "first") -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, or the model isn't one that reads ``max_length`` tokens and can
    represent a text by ``pooling``.
    """
    config = load_config(PRETRAINED_KEY, source)
    decodes = require_encoder(config, source, pooling)
    longest = longest_input(config)
    if longest is not None and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    config.save_pretrained(folder / "base")
    if decodes:
        # This tokenizer often has one special token for all roles.
        tokenizer = save_tokenizer(source, folder, key=PRETRAINED_KEY)
    else:
        found = load_tokenizer(PRETRAINED_KEY, source)
        tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str())
        tokenizer.save(folder / "tokenizer")
        write_tokenizer_config(found, folder)
    note_missing_rows(config.vocab_size, tokenizer.vocab_size, source, folder, PRETRAINED_KEY)
    return tokenizer


def require_encoder(config: Any, source: str, pooling: str) -> bool:
    """Return whether a model of transformers is a decoder. Raises UserError if it can't represent a text so."""
    if config.is_encoder_decoder:
        raise UserError(
            f"{PRETRAINED_KEY}: {source} is an encoder and a decoder ({config.model_type}); give an encoder, like BERT"
        )
    decodes = is_decoder(config)
    if decodes and pooling != "last":
        raise UserError(
            f"{PRETRAINED_KEY}: {source} is a decoder ({config.model_type}), whose tokens don't "
            "see the text after them; give "
            f"model.pooling: last instead of {pooling}, or an encoder, like BERT"
        )
    return decodes


def read_config(folder: Path) -> Any:
    """Return the configuration in prepared data."""
    return import_transformers(PRETRAINED_KEY).AutoConfig.from_pretrained(folder / "base", **SAFELY)


def longest_input(config: Any) -> int | None:
    """Return the most tokens that a model reads; None where nothing bounds them."""
    positions = getattr(config, "max_position_embeddings", None)
    after_padding = "roberta" in config.model_type or config.model_type in ("camembert", "mpnet")
    # These families number positions from the one after the padding's.
    offset = config.pad_token_id + 1 if positions and after_padding else 0
    return None if positions is None else positions - offset


def set_dropout(config: Any, options: ClassifierConfig) -> Any:
    """Return the configuration with the dropout that is asked for, under the names that it has."""
    attention = options.dropout if options.attention_dropout is None else options.attention_dropout
    names = {"hidden_dropout_prob": options.dropout, "dropout": options.dropout}
    names |= {"attention_probs_dropout_prob": attention, "attention_dropout": attention}
    if is_decoder(config):
        names |= {**dict.fromkeys(DROPOUTS, options.dropout), **dict.fromkeys(ATTENTION_DROPOUTS, attention)}
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
    def load(cls, source: str, vocab_size: int, options: ClassifierConfig, frozen: Frozen | None = None) -> Pretrained:
        """Return one with the weights of ``source``, in 32 bits; its head is read separately (``load_head``).

        ``frozen`` says which layers are in four bits. Raises UserError where they can't be loaded.
        """
        import torch

        auto, config = import_transformers(PRETRAINED_KEY), load_config(PRETRAINED_KEY, source)
        how = {**SAFELY, "use_safetensors": True, "dtype": torch.float32, "config": set_dropout(config, options)}
        with quiet_transformers(auto), layers_in_nf4(source, frozen):
            base, found = fetch_model(
                PRETRAINED_KEY, source, lambda: auto.AutoModel.from_pretrained(source, output_loading_info=True, **how)
            )
        lacking = [name for name in sorted(found["missing_keys"]) if name.split(".")[0] not in UNREAD_KEYS]
        if lacking:
            log.warning("%s: %s lacks %s: drawn at random", PRETRAINED_KEY, source, _first_names(lacking))
        known = base.get_input_embeddings().num_embeddings
        if vocab_size > known:
            # Special tokens that its tokenizer lacked.
            base.resize_token_embeddings(vocab_size, mean_resizing=False)
            begin_new_rows([base.get_input_embeddings()], range(known, vocab_size))
        return cls(base)

    @classmethod
    def drawn(cls, folder: Path, vocab_size: int, options: ClassifierConfig) -> Pretrained:
        """Return one of the sizes that were saved in ``folder``, of prepared data, with random weights."""
        auto = import_transformers(PRETRAINED_KEY)
        config = set_dropout(read_config(folder), options)
        config.vocab_size = max(vocab_size, config.vocab_size)
        return cls(auto.AutoModel.from_config(config))

    def hidden(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """``(row, time, width)`` of ``inputs`` ``(row, time)``, real where ``mask`` is True."""
        with without_reading(inputs):
            hidden: Tensor = self.base(input_ids=inputs, attention_mask=mask.long()).last_hidden_state
        return hidden


def loaded_embeddings(source: str) -> np.ndarray:
    """Return the input embeddings ``(token, width)`` of a model. Raises UserError where they can't be loaded."""
    auto = import_transformers(PRETRAINED_KEY)
    with quiet_transformers(auto):
        model: Any = fetch_model(
            PRETRAINED_KEY, source, lambda: auto.AutoModel.from_pretrained(source, **SAFELY, use_safetensors=True)
        )
    found: np.ndarray = model.get_input_embeddings().weight.detach().float().numpy()
    return found


def load_head(head: nn.Linear, source: str, pooling: str, names: Sequence[str]) -> None:
    """Give the rows of the classes ``names`` of a head the weights and biases that ``source`` has under these names.

    They are read where ``source`` is a classifier as ``vaak export --format hf`` writes them, whose ``pooling``
    represents a text likewise. Logs which rows are taken, or why none is.
    """
    found = _read_classes(source, pooling, names)
    if found is None:
        return
    theirs, weight, bias = found
    with torch.no_grad():
        for row in (place for place, name in enumerate(names) if name in theirs):
            place = theirs.index(names[row])
            # row by row: where the model is divided over processes, each writes only what it has
            head.weight[row : row + 1].copy_(weight[place : place + 1])
            head.bias[row : row + 1].copy_(bias[place : place + 1])
    if theirs != [*names]:
        tell_rows("labels", names, theirs, source)


def _read_classes(source: str, pooling: str, names: Sequence[str]) -> tuple[list[str], Tensor, Tensor] | None:
    """Return the names, weights and biases of the classes of ``source``; None if they can't be used for ``names``."""
    config = load_config(PRETRAINED_KEY, source)
    architecture = next(iter(config.architectures or ()), "")
    if not architecture.endswith("ForSequenceClassification"):
        if "For" in architecture:
            log.info("%s: of %s, a %s, the encoder is read, without its head", PRETRAINED_KEY, source, architecture)
        return None
    theirs, head, found = [config.id2label[place] for place in sorted(config.id2label)], None, None
    their_pooling = str(getattr(config, "classifier_pooling", "cls"))
    # Equal lists fit unchanged. Otherwise classes are matched by their names, which then have to be unique.
    are_told_apart = len({*theirs}) == len(theirs) and len({*names}) == len(names)
    if theirs != [*names] and not (are_told_apart and {*theirs} & {*names}):
        reason = f"its classes are {_first_names(theirs)}; here they are {_first_names(names)}"
    elif (head := HEADS.get(config.model_type)) is None or head.poolings.get(pooling) != their_pooling:
        reason = f"its {config.model_type} represents a text otherwise than pooling {pooling}"
    else:
        wanted = tuple(f"{name}." for name in head.modules)
        tensors = {name: one.float() for name, one in iterate_tensors(source, lambda name: name.startswith(wanted))}
        found = read_head(head, tensors, getattr(config, "norm_eps", 0.0))
        reason = f"{head.before} is a layer that classifiers here don't have"
    if found is None:
        log.info("%s: the classes of %s are left out: %s", PRETRAINED_KEY, source, reason)
        return None
    return theirs, *found


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:NUM_SHOWN_WEIGHTS]) + (", …" if len(names) > NUM_SHOWN_WEIGHTS else "")


SHRUNK = 1e-4
"""tanh(x · SHRUNK) / SHRUNK is x but for x³ · 3e-9."""
TINY = 1e-6
"""Scores times this are what a norm only scales."""


class Head(NamedTuple):
    """The layer before the classes, and that of the classes, by their names in a classifier of transformers."""

    before: str
    classes: str
    pairs: bool = False
    norm: str | None = None
    poolings: Mapping[str, str] = {"first": "cls"}
    """The kinds of pooling, in our words and its configuration's."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of all modules of the head."""
        return (self.before, *((self.norm,) if self.norm else ()), self.classes)


HEADS = {
    "bert": Head("bert.pooler.dense", "classifier"),
    "albert": Head("albert.pooler", "classifier"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), Head("classifier.dense", "classifier.out_proj")),
    "electra": Head("classifier.dense", "classifier.out_proj", pairs=True),
    "distilbert": Head("pre_classifier", "classifier", pairs=True),
    **dict.fromkeys(("deberta", "deberta-v2"), Head("pooler.dense", "classifier", pairs=True)),
    "modernbert": Head("head.dense", "classifier", True, "head.norm", {"first": "cls", "mean": "mean"}),
}
"""The heads, by the kind of encoder."""
HEAD_OPTIONS = {"pooler_hidden_act": "gelu", "classifier_activation": "gelu"}
"""Options of a configuration, where it has them and the head is of pairs."""


def configure_head(config: Any, head: Head, pooling: str) -> Any:
    """Return the configuration of a classifier with such a head."""
    given = {"classifier_pooling": head.poolings[pooling], **(HEAD_OPTIONS if head.pairs else {})}
    config.update({name: value for name, value in given.items() if hasattr(config, name)})
    return config


@torch.no_grad()
def write_head(peer: nn.Module, head: Head, weight: Tensor, bias: Tensor) -> None:
    """Give ``peer``, a classifier of transformers, the scores ``weight · x + bias`` of what it pools.

    A head of pairs has half as many classes as outputs.
    """
    before, classes = peer.get_submodule(head.before), peer.get_submodule(head.classes)
    norm: Any = peer.get_submodule(head.norm) if head.norm else None
    layers = _layers(head, weight, len(_tensor(before, "weight")), 0.0 if norm is None else float(norm.eps))
    for module, value in zip((before, classes), layers, strict=True):
        _tensor(module, "weight").copy_(value)
    _tensor(classes, "bias").copy_(bias)
    for name in (head.before, head.norm):
        module_bias = getattr(peer.get_submodule(name), "bias", None) if name else None
        if module_bias is not None:
            module_bias.zero_()
    if head.norm:
        _tensor(peer.get_submodule(head.norm), "weight").fill_(1.0)


def read_head(head: Head, tensors: Mapping[str, Tensor], epsilon: float) -> tuple[Tensor, Tensor] | None:
    """Return the weights and biases that ``write_head`` wrote; None where a head isn't one of those."""
    before, classes = (tensors.get(f"{name}.weight") for name in (head.before, head.classes))
    bias = tensors.get(f"{head.classes}.bias")
    if before is None or classes is None or bias is None:
        return None
    number = len(classes)
    weight = before[:number] / _scales(head, epsilon)[0] if head.pairs else classes * SHRUNK
    if head.pairs and 2 * number > len(before):
        return None
    # Written again from the weights: a head that comes out the same has nothing in it that classifiers here lack.
    again = _layers(head, weight, len(before), epsilon)
    others = [tensors.get(f"{name}.bias") for name in (head.before, head.norm) if name]
    if any(one is not None and one.any() for one in others):
        return None
    pairs = zip((before, classes), again, strict=True)
    return (weight, bias) if all(torch.allclose(one, ours, rtol=1e-5, atol=0) for one, ours in pairs) else None


def _layers(head: Head, weight: Tensor, width: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the weights of both layers, the first with ``width`` outputs."""
    if not head.pairs:
        return SHRUNK * torch.eye(width), weight / SHRUNK
    number = len(weight)
    shrunk, scale = _scales(head, epsilon)
    before, classes = weight.new_zeros(width, weight.shape[1]), weight.new_zeros(number, width)
    before[: 2 * number] = shrunk * torch.cat([weight, -weight])
    classes[:, : 2 * number] = scale * torch.cat([torch.eye(number), -torch.eye(number)], 1)
    return before, classes


def _scales(head: Head, epsilon: float) -> tuple[float, float]:
    """Return the factors of scores in the first layer, and in the second."""
    return (TINY, epsilon**0.5 / TINY) if head.norm else (1.0, 1.0)


def _tensor(module: nn.Module, name: str) -> Tensor:
    found: Tensor = getattr(module, name)
    return found
