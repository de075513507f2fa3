"""Pretrained decoders, kept in prepared data: Vaak's own network for the families it knows, else transformers'."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vaak.core.errors import UserError
from vaak.nn.new_tokens import begin_new_rows
from vaak.tasks.fetching import SAFELY, fetch_model, import_transformers, quiet_transformers
from vaak.tasks.kept_base import (
    BASE_FOLDER,
    NewTokens,
    read_config,
    read_new_tokens,
    save_config,
    save_tokenizer,
    write_generation,
)
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.families import FAMILIES, LLAMA, DecoderFamily, convert_options
from vaak.tasks.lm.model import AnyLanguageModel, LanguageModel, TransformersDecoder, has_token_vectors_in_bf16
from vaak.tasks.pretrained import (
    ATTENTION_DROPOUTS,
    DROPOUTS,
    PRETRAINED_KEY,
    is_decoder,
    load_config,
    note_own_head,
    read_weights,
)
from vaak.tasks.quantised import Frozen, can_stream, layers_in_nf4, parameters_on_meta, read_in_nf4
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")
RUN_OPTIONS = ("name", "pretrained", "lora", "dropout", "attention_dropout", "neftune_noise_alpha", "ngram")
"""Options that a run has itself; all others are the base's."""


def require_decoder(config: Any, source: str) -> None:
    """Raise UserError where the model of a configuration isn't a decoder of text that can be trained here."""
    # Some models have one for each kind of layer, by its name.
    ropes = getattr(config, "rope_parameters", None) or {}
    said = ""
    if config.get_text_config() is not config:
        said = "reads more than text; give a model of text alone"
    elif config.is_encoder_decoder:
        said = "is an encoder and a decoder; those of task seq2seq are T5 and Marian"
    elif not is_decoder(config):
        said = "isn't a causal language model; give a decoder, such as Llama or Gemma"
    elif getattr(config, "quantization_config", None) is not None:
        said = "has quantized weights; give the unquantized model, with model.lora.base_dtype: nf4"
    elif any(one.get("rope_type") == "dynamic" for one in (ropes, *ropes.values()) if isinstance(one, Mapping)):
        said = "has rope_type dynamic, whose wavelengths depend on earlier input; give another scaling"
    if said:
        raise UserError(f"{PRETRAINED_KEY}: {source} is a {config.model_type}, which {said}")


def save_base(source: str, folder: Path, max_length: int, new: NewTokens | None = None) -> Tokenizer:
    """Write the configuration and the tokenizer of a model to ``folder``, with the tokens that are ``new`` to it.

    Raises UserError if they can't be loaded, it isn't a decoder, or it doesn't read ``max_length`` tokens.
    """
    config = load_config(PRETRAINED_KEY, source)
    require_decoder(config, source)
    found = convert_options(config.to_dict())
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(found, str):
        log.info("%s: %s: %s, so transformers' own module computes it", PRETRAINED_KEY, source, found)
    # Our own decoder computes rotary positions of any length; a table of learned ones ends, and of transformers'
    # modules nothing is known.
    has_places = isinstance(found, str) or found["position_type"] == "learned"
    if has_places and longest is not None and max_length > longest:
        raise UserError(f"data.max_length is {max_length}, but {source} reads at most {longest} tokens")
    if not isinstance(found, str) and longest is not None and max_length > longest:
        factor = found.get("rope_scaling_factor", 1)
        scaled = f"scaled by its {found['rope_scaling_type']}, {factor:g} times" if factor != 1 else "not scaled"
        log.warning(
            "data.max_length is %s, but %s was made for %s tokens: positions beyond are new to it, and its rotary "
            "positions are %s; exports say that it reads %s",
            *(f"{max_length:,}", source, f"{longest:,}", scaled, f"{max_length:,}"),
        )
    note_own_head(config, source)
    save_config(config, folder)
    write_generation(source, folder)
    return save_tokenizer(source, folder, new=(new or NewTokens(), config.vocab_size))


def family_in(folder: Path) -> DecoderFamily | None:
    """Return the family of the base in prepared data; None if transformers' own module computes it."""
    theirs = read_config(folder)
    return None if isinstance(convert_options(theirs), str) else FAMILIES[theirs["model_type"]]


def options_in(folder: Path, own: LanguageModelConfig) -> LanguageModelConfig:
    """Return the options of the model whose base is in prepared data: the base's, and its ``own``."""
    found = convert_options(read_config(folder))
    return own if isinstance(found, str) else type(own)(**found, **{name: getattr(own, name) for name in RUN_OPTIONS})


def init_model(folder: Path, own: LanguageModelConfig, vocab_size: int) -> AnyLanguageModel:
    """Return the model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    if family_in(folder) is None:
        auto, config = import_transformers(PRETRAINED_KEY), _with_dropout(base_config(folder), own)
        return _sized(TransformersDecoder(auto.AutoModelForCausalLM.from_config(config), own), vocab_size)
    size = max(vocab_size, read_config(folder)["vocab_size"])
    return LanguageModel(options_in(folder, own), size, read_max_length(folder))


def base_config(folder: Path) -> Any:
    """Return the configuration of the base in prepared data, as transformers has it."""
    return import_transformers(PRETRAINED_KEY).AutoConfig.from_pretrained(folder / BASE_FOLDER, **SAFELY)


def _with_dropout(config: Any, own: LanguageModelConfig) -> Any:
    """Return the configuration with the dropout of a run, under the names that it has."""
    attention = own.dropout if own.attention_dropout is None else own.attention_dropout
    for names, value in ((DROPOUTS, own.dropout), (ATTENTION_DROPOUTS, attention)):
        for name in names:
            if hasattr(config, name):
                setattr(config, name, value)
    return config


def _sized(model: TransformersDecoder, vocab_size: int) -> TransformersDecoder:
    """Return the model with rows for as many tokens, where its tokenizer has more."""
    if vocab_size > model.vocab_size:
        model.network.resize_token_embeddings(vocab_size, mean_resizing=False)
    return model


def read_max_length(folder: Path) -> int | None:
    """Return the number of tokens that the base in prepared data was made for; None where its files don't give it."""
    theirs = read_config(folder)
    family = FAMILIES.get(theirs["model_type"], LLAMA)
    found = theirs.get(family.positions)
    return None if found is None else int(found)


OF_TOKENS = ("embedding.weight", "head.weight")
"""The tensors of ours that have a row for each token."""


def load_model(source: str, folder: Path, own: LanguageModelConfig, vocab_size: int) -> AnyLanguageModel:
    """Return the model with the weights of ``source``; those of tokens that it lacks begin as the options say.

    Raises UserError where they can't be loaded, or aren't those of its configuration.
    """
    family = family_in(folder)
    if family is not None:
        named = family.imported, lambda name: family.theirs(name)[0]
        if own.lora is not None and own.lora.base_dtype == "nf4" and can_stream():
            with parameters_on_meta():
                model = init_model(folder, own, vocab_size)
            halved = OF_TOKENS if has_token_vectors_in_bf16(own.lora) else ()
            read_in_nf4(model, source, *named, folder, halved)
        else:
            model = init_model(folder, own, vocab_size)
            read_weights(model, source, *named, OF_TOKENS)
        begin_new_rows(model.token_modules(), *read_new_tokens(folder))
        return model
    # Its own module, in 32 bits.
    auto = import_transformers(PRETRAINED_KEY)
    how = {**SAFELY, "use_safetensors": True, "dtype": torch.float32, "config": _with_dropout(base_config(folder), own)}
    frozen = None if own.lora is None else Frozen(folder, own.lora)
    with quiet_transformers(auto), layers_in_nf4(source, frozen):
        network, found = fetch_model(
            PRETRAINED_KEY,
            source,
            lambda: auto.AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **how),
        )
    lacking = sorted(found["missing_keys"]) + sorted(str(one[0]) for one in found.get("mismatched_keys", ()))
    if lacking:
        raise UserError(f"{PRETRAINED_KEY}: {source} lacks {lacking[0]}")
    model = _sized(TransformersDecoder(network, own), vocab_size)
    begin_new_rows(model.token_modules(), *read_new_tokens(folder))
    return model
