"""An encoder–decoder of transformers as ours (``vaak.tasks.pretrained``), and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vaak.core.errors import UserError
from vaak.core.storage.files import sync_file, usual_mode, whole_folder, write_json
from vaak.engine.checkpoint.files import model_tensors
from vaak.nn.lora import merged
from vaak.tasks.hub import config_of
from vaak.tasks.pretrained import (
    BASE_FOLDER,
    GENERATION,
    KEY,
    Names,
    folder_of,
    keep_generation,
    kept_generation,
    read_weights,
    save_config,
    save_tokenizer,
    saved_config,
    tensors_of,
    write_base_tokenizer,
)
from vaak.tasks.seq2seq import sentencepiece_pair
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig
from vaak.tasks.seq2seq.families import SIDES, family_of
from vaak.tasks.seq2seq.model import Seq2SeqModel
from vaak.text.tokenizers.tokenizer import Tokenizer

OWN = ("name", "pretrained", "lora")
OWN_OF_SIDES = ("dropout", "attention_dropout")
"""Options that a run has itself; all others are the base's."""
TOKENIZER_FILES = ("*.json", "*.spm")
OF_TOKENS = ("target_embedding.weight", "head.weight", "output_bias")


def save_base(source: str, folder: Path) -> Tokenizer:
    """Put configuration and tokenizers of a model in ``folder``; a target begins with the token that its decoder does.

    The tokenizer of the target is returned; it is the source's, too, unless each has one of SentencePiece.

    Raises UserError where they can't be loaded, or ours can't be such a model.
    """
    config = config_of(KEY, source)
    family_of(config.to_dict(), source)
    heads = dict(tensors_of(source, lambda name: name in ("lm_head.weight", "shared.weight")))
    head, shared = heads.get("lm_head.weight"), heads.get("shared.weight")
    # Transformers says of every T5 that they are one; what is in the file decides there, too.
    separate = config.model_type == "t5" and head is not None and shared is not None and not torch.equal(head, shared)
    start, end = config.decoder_start_token_id, config.eos_token_id
    if start is None or not isinstance(end, int):
        raise UserError(f"{KEY}: {source}: its configuration lacks decoder_start_token_id or eos_token_id")
    save_config(config, folder, {"tie_word_embeddings": False} if separate else None)
    keep_generation(source, folder)
    roles = {"bos": start, "eos": end, "pad": config.pad_token_id}
    if config.model_type == "marian" and sentencepiece_pair.is_pair(files := folder_of(source, TOKENIZER_FILES)):
        return sentencepiece_pair.save_pair(files, folder, roles)
    return save_tokenizer(source, folder, roles)


def options_in(folder: Path, own: Seq2SeqConfig) -> Seq2SeqConfig:
    """The options of the model whose base is in prepared data: the base's, and its ``own``."""
    family = family_of(saved_config(folder), str(own.pretrained))
    sides: dict[str, Any] = {
        side: {**family.sides[side], **{name: getattr(getattr(own, side), name) for name in OWN_OF_SIDES}}
        for side in SIDES
    }
    return type(own)(**sides, **family.whole, **{name: getattr(own, name) for name in OWN})


def drawn(folder: Path, own: Seq2SeqConfig, data: Seq2SeqDataConfig, vocab_size: int) -> Seq2SeqModel:
    """The model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    size = max(vocab_size, saved_config(folder)["vocab_size"])
    return Seq2SeqModel(options_in(folder, own), data, size, size)


def loaded(source: str, folder: Path, own: Seq2SeqConfig, data: Seq2SeqDataConfig, vocab_size: int) -> Seq2SeqModel:
    """The same with the weights of ``source``; tokens that it lacks are drawn.

    ``folder``, ``own``, ``data`` and ``vocab_size`` are those of ``drawn``. Raises UserError where weights can't be
    loaded, or aren't those of the base's configuration.
    """
    model = drawn(folder, own, data, vocab_size)
    family = family_of(saved_config(folder), source)
    read_weights(model, source, Names(family.imported, family.theirs, OF_TOKENS))
    return model


def export_hf(model: Seq2SeqModel, prepared: Path, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``folder``, completely or not at all: weights and configuration as the base in ``prepared`` has them."""
    theirs, trained = saved_config(prepared), merged(model)
    family = family_of(theirs, str(model.config.pretrained))
    weights = family.exported(model_tensors(trained))
    with whole_folder(folder) as made:
        write_json(made / "config.json", {**theirs, "vocab_size": trained.target_embedding.num_embeddings})
        if generation := kept_generation(prepared):
            write_json(made / GENERATION, generation)
        if sentencepiece_pair.is_pair(prepared / BASE_FOLDER):
            sentencepiece_pair.copy_files(prepared / BASE_FOLDER, made)
        else:
            write_base_tokenizer(tokenizer, prepared, made)
        with usual_mode(made / "model.safetensors"):
            save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        sync_file(made / "model.safetensors")
