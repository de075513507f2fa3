"""A decoder of transformers as ours: its configuration, its tokenizer and its weights, which are read one at a time.

FOLDER (prepared data)
  base/config.json                        its configuration: a run needs no more of it once it has checkpoints
  tokenizer/tokenizer.json, …_config.json its tokenizer, with which tokens are special, and its chat template
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, write_json
from vaak.engine.checkpoint.files import model_tensors
from vaak.tasks.hub import config_of, fetched, source_of, tokenizer_of
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.families import FAMILIES, GPT2, options_of
from vaak.tasks.lm.model import LanguageModel
from vaak.text.chat_template import keep_template
from vaak.text.tokenizers.tokenizer import SPECIAL_NAMES, Tokenizer

KEY = "model.pretrained"
BASE_FOLDER = "base"
OWN = ("name", "pretrained", "lora", "dropout", "attention_dropout")
"""Options that a run has itself; all others are the base's."""


class Base(NamedTuple):
    """A pretrained model by the ``name`` that a user gives; ``code`` is where a folder is looked for, too."""

    name: str
    code: Path

    @property
    def source(self) -> str:
        """Its folder, or its name on the Hub. Raises UserError for a folder that isn't there."""
        return source_of(KEY, self.name, self.code)


def save_base(source: str, folder: Path, max_length: int) -> Tokenizer:
    """Put configuration and tokenizer of a model in ``folder``.

    Raises UserError where they can't be loaded, ours can't be such a model, or it doesn't read ``max_length`` tokens.
    """
    config = config_of(KEY, source)
    options_of(config.to_dict(), source)
    longest = config.max_position_embeddings
    if config.model_type == GPT2.model_type and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    config.save_pretrained(folder / BASE_FOLDER)
    write_json(folder / BASE_FOLDER / "config.json", config.to_dict())  # with what is as transformers has it, too
    found = tokenizer_of(KEY, source)
    tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str(), _roles_of(found))
    tokenizer.save(folder / "tokenizer")
    if found.chat_template:
        keep_template(folder / "tokenizer", found.chat_template)
    return tokenizer


def _roles_of(found: Any) -> dict[str, str]:
    """Which tokens are special; what a tokenizer has no token for, the one that ends a document stands for.

    So no token is added, and the model keeps its size.
    """
    roles = {role: getattr(found, f"{role}_token", None) for role in SPECIAL_NAMES}
    vocabulary = found.get_vocab()
    for role, names in SPECIAL_NAMES.items():
        roles[role] = roles[role] or next((name for name in names if name in vocabulary), None)
    return {role: str(token or roles["eos"]) for role, token in roles.items() if token or roles["eos"]}


def options_in(folder: Path, own: LanguageModelConfig) -> LanguageModelConfig:
    """The options of the model whose base is in prepared data: the base's, and its ``own``."""
    theirs = read_json(folder / BASE_FOLDER / "config.json")
    return type(own)(**options_of(theirs, str(own.pretrained)), **{name: getattr(own, name) for name in OWN})


def drawn(folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """The model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    theirs = read_json(folder / BASE_FOLDER / "config.json")
    return LanguageModel(options_in(folder, own), max(vocab_size, theirs["vocab_size"]), longest_of(folder))


def longest_of(folder: Path) -> int:
    """The number of tokens that the base in prepared data was made for."""
    theirs = read_json(folder / BASE_FOLDER / "config.json")
    return int(theirs[FAMILIES[theirs["model_type"]].positions])


def loaded(source: str, folder: Path, own: LanguageModelConfig, vocab_size: int) -> LanguageModel:
    """The same with the weights of ``source``, in 32 bits; tokens that it lacks are drawn.

    Raises UserError where they can't be loaded, or aren't those of its configuration.
    """
    model = drawn(folder, own, vocab_size)
    family = FAMILIES[read_json(folder / BASE_FOLDER / "config.json")["model_type"]]
    targets = model_tensors(model)
    left = set(targets)
    for name, tensor in _imported(source, family.imported(_tensors(_folder_of(source)), list(targets))):
        target = targets[name]
        rows = target[: len(tensor)] if name in ("embedding.weight", "head.weight") else target
        if rows.shape != tensor.shape:
            raise UserError(f"{KEY}: {source}: {name} has shape {tuple(tensor.shape)}, expected {tuple(target.shape)}")
        rows.copy_(tensor)
        left.discard(name)
    if left:
        raise UserError(f"{KEY}: {source} lacks {family.theirs(min(left))[0]}")
    return model


def _imported(source: str, found: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """What was found. Raises UserError for a weight that ours doesn't have, or for files that can't be read."""
    try:
        yield from found
    except KeyError as error:
        raise UserError(f"{KEY}: {source} has a weight {error.args[0]}, which vaak's decoder doesn't") from error
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{KEY}: {source} can't be loaded: {error}") from error


def _folder_of(source: str) -> Path:
    """The folder of a model; one of the Hub is downloaded, or found in the cache."""
    if Path(source).is_dir():
        return Path(source)
    hub: Any = importlib.import_module("huggingface_hub")
    return Path(fetched(KEY, source, lambda: hub.snapshot_download(source, allow_patterns=["*.safetensors", "*.json"])))


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise UserError(f"{KEY}: {folder} has no weights; expected model.safetensors")
    for file in files:
        with safe_open(file, "pt") as opened, torch.no_grad():
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)
