"""The encoder–decoders of transformers that ours can be, and back: their options and the names of their weights.

T5        RMSNorm before each layer, T5's relative positions, scores not scaled, ReLU or gated; the first one ties and
          scales what is scored, v1.1 (and Flan) has a separate head
Marian    LayerNorm after each layer, sinusoidal positions in halves, biases, one for the score of each token, too
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from vaak.core.errors import UserError
from vaak.core.storage.files import sync_file, usual_mode, whole_folder, write_json
from vaak.engine.snapshot import model_tensors
from vaak.nn.lora import merged
from vaak.nn.lora_targets import adapts_head
from vaak.nn.new_tokens import begin_new_rows
from vaak.tasks.fetching import GENERATION
from vaak.tasks.kept_base import (
    BASE_FOLDER,
    note_missing_rows,
    read_config,
    read_generation,
    save_config,
    save_tokenizer,
    write_base_tokenizer,
    write_generation,
)
from vaak.tasks.pretrained import PRETRAINED_KEY, fetch_folder, iterate_tensors, load_config, read_weights
from vaak.tasks.quantised import can_stream, parameters_on_meta, read_in_nf4
from vaak.tasks.seq2seq import sentencepiece_pair
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig
from vaak.tasks.seq2seq.model import Seq2SeqModel
from vaak.text.tokenizer import Tokenizer

RUN_OPTIONS = ("name", "pretrained", "lora")
OWN_OF_SIDES = ("dropout", "attention_dropout")
"""Options that a run has itself; all others are the base's."""
TOKENIZER_FILES = ("*.json", "*.spm")
OF_TOKENS = ("target_embedding.weight", "head.weight", "output_bias")
IN_BF16 = OF_TOKENS[:2]
"""Those that are kept so with a base in four bits."""


def save_base(source: str, folder: Path) -> Tokenizer:
    """Put configuration and tokenizers of a model in ``folder``; a target begins with the token that its decoder does.

    The tokenizer of the target is returned; it is the source's, too, unless each has one of SentencePiece.

    Raises UserError where they can't be loaded, or ours can't be such a model.
    """
    config = load_config(PRETRAINED_KEY, source)
    detect_family(config.to_dict(), source)
    heads = dict(iterate_tensors(source, lambda name: name in ("lm_head.weight", "shared.weight")))
    head, shared = heads.get("lm_head.weight"), heads.get("shared.weight")
    # Transformers says of every T5 that they are one; there, too, the tensors in the file decide.
    separate = config.model_type == "t5" and head is not None and shared is not None and not torch.equal(head, shared)
    start, end = config.decoder_start_token_id, config.eos_token_id
    if start is None or not isinstance(end, int):
        raise UserError(f"{PRETRAINED_KEY}: {source}: its configuration lacks decoder_start_token_id or eos_token_id")
    save_config(config, folder, {"tie_word_embeddings": False} if separate else None)
    write_generation(source, folder)
    roles = {"bos": start, "eos": end, "pad": config.pad_token_id}
    if config.model_type == "marian" and sentencepiece_pair.is_pair(files := fetch_folder(source, TOKENIZER_FILES)):
        tokenizer = sentencepiece_pair.save_pair(files, folder, roles)
    else:
        tokenizer = save_tokenizer(source, folder, roles)
    note_missing_rows(config.vocab_size, tokenizer.vocab_size, source, folder)
    return tokenizer


def options_in(folder: Path, own: Seq2SeqConfig) -> Seq2SeqConfig:
    """Return the options of the model whose base is in prepared data: the base's, and its ``own``."""
    family = detect_family(read_config(folder), str(own.pretrained))
    sides: dict[str, Any] = {
        side: {**family.sides[side], **{name: getattr(getattr(own, side), name) for name in OWN_OF_SIDES}}
        for side in STACKS
    }
    return type(own)(**sides, **family.whole, **{name: getattr(own, name) for name in RUN_OPTIONS})


def init_model(folder: Path, own: Seq2SeqConfig, data: Seq2SeqDataConfig, vocab_size: int) -> Seq2SeqModel:
    """Return the model whose base is in prepared data, of at least ``vocab_size`` tokens, with random weights."""
    size = max(vocab_size, read_config(folder)["vocab_size"])
    return Seq2SeqModel(options_in(folder, own), data, size, size)


def load_model(source: str, folder: Path, own: Seq2SeqConfig, data: Seq2SeqDataConfig, vocab_size: int) -> Seq2SeqModel:
    """Return the model with the weights of ``source``; rows of tokens that it lacks begin as the mean.

    ``folder``, ``own``, ``data`` and ``vocab_size`` are those of ``drawn``. Raises UserError where weights can't be
    loaded, or aren't those of the base's configuration.
    """
    family = detect_family(read_config(folder), source)
    if own.lora is not None and own.lora.base_dtype == "nf4" and can_stream():
        with parameters_on_meta():
            model = init_model(folder, own, data, vocab_size)
        halved = () if adapts_head(own.lora) else IN_BF16
        read_in_nf4(model, source, family.imported, family.theirs, folder, halved)
    else:
        model = init_model(folder, own, data, vocab_size)
        read_weights(model, source, family.imported, family.theirs, OF_TOKENS)
    known = read_config(folder)["vocab_size"]
    new = range(known, max(known, vocab_size))
    begin_new_rows(dict.fromkeys((model.target_embedding, model.source_embedding, model.head)), new)
    return model


def export_hf(model: Seq2SeqModel, prepared: Path, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``folder``, completely or not at all: weights and configuration as the base in ``prepared`` has them."""
    theirs, trained = read_config(prepared), merged(model)
    family = detect_family(theirs, str(model.config.pretrained))
    weights = family.exported(model_tensors(trained))
    with whole_folder(folder) as made:
        write_json(made / "config.json", {**theirs, "vocab_size": trained.target_embedding.num_embeddings})
        if generation := read_generation(prepared):
            write_json(made / GENERATION, generation)
        if sentencepiece_pair.is_pair(prepared / BASE_FOLDER):
            sentencepiece_pair.copy_files(prepared / BASE_FOLDER, made)
        else:
            write_base_tokenizer(tokenizer, prepared, made)
        with usual_mode(made / "model.safetensors"):
            save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
        sync_file(made / "model.safetensors")


Theirs = Mapping[str, Any]
Parts = dict[str, str]
BLOCK_KEY = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)")
STACKS = ("encoder", "decoder")
REPEATED = re.compile(
    r".*(embed_tokens|embed_positions|lm_head)\.weight|.*EncDecAttention\.relative_attention_bias\.weight"
)
"""Tensors of folders that aren't read: embeddings under other names, what is computed, and a table that isn't read."""


class TranslatorFamily(NamedTuple):
    """A model of transformers as ours: the options of both sides, and of the ``whole``.

    ``parts`` are transformers' names of a block's layers, which follow ``block``; ``others`` those of all else.
    """

    sides: dict[str, dict[str, Any]]
    whole: dict[str, Any]
    block: str
    parts: dict[str, Parts]
    others: Parts

    def theirs(self, name: str) -> str:
        """Return their name of one of our tensors.

        ``decoder.blocks.3.cross_attention.query.weight`` → ``decoder.block.3.layer.1.EncDecAttention.q.weight``.
        """
        part, _, kind = name.rpartition(".")
        found = BLOCK_KEY.fullmatch(part)
        if found is None:
            return self.others[name]
        side, layer, own = found.groups()
        return f"{self.block.format(side=side, layer=layer)}.{self.parts[side][own]}.{kind}"

    def exported(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors under their names, on the CPU."""
        tensors = {self.theirs(name): tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        return {name: tensor[None] if name.endswith("logits_bias") else tensor for name, tensor in tensors.items()}

    def imported(self, tensors: Iterator[tuple[str, Tensor]], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield our ``names`` with their ``tensors``. Raises KeyError for a tensor that we don't have."""
        wanted = {self.theirs(name): name for name in names}
        for name, tensor in tensors:
            if name in wanted or not REPEATED.fullmatch(name):
                yield wanted[name], tensor[0] if name.endswith("logits_bias") else tensor


def detect_family(theirs: Theirs, source: str) -> TranslatorFamily:
    """Return the family of a model of transformers with the configuration ``theirs``.

    Raises UserError, naming ``source`` and what we don't have, where it is none of ours.
    """
    kind = theirs["model_type"]
    if kind not in FAMILIES:
        raise UserError(f"{PRETRAINED_KEY}: {source} is a {kind}; expected one of {', '.join(FAMILIES)}")
    if theirs.get("quantization_config") is not None:
        raise _unknown_option(source, "quantization_config", theirs["quantization_config"])
    return FAMILIES[kind](theirs, source)


def _t5(theirs: Theirs, source: str) -> TranslatorFamily:
    _require_options(theirs, source, relative_attention_num_buckets=32, relative_attention_max_distance=128)
    kinds = {"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}
    stack = {
        **_sizes(theirs, d_model="d_model", d_ff="d_ff", num_heads="num_heads", head_dim="d_kv"),
        "norm_type": "rmsnorm",
        "norm_placement": "pre",
        "norm_eps": theirs["layer_norm_epsilon"],
        "position_type": "t5",
        # T5's attention isn't divided by the square root of the head's width; its initialisation makes up for that.
        "scale_scores": False,
        "feed_forward_type": _kind(theirs, source, "feed_forward_proj", kinds),
        "bias": False,
    }
    gated = theirs["feed_forward_proj"].startswith("gated")
    return TranslatorFamily(
        {
            "encoder": {**stack, "num_layers": theirs["num_layers"]},
            "decoder": {**stack, "num_layers": theirs["num_decoder_layers"]},
        },
        {"scale_outputs": theirs["scale_decoder_outputs"], "tie_embeddings": theirs["tie_word_embeddings"]},
        "{side}.block.{layer}",
        {
            "encoder": {**_t5_attention("attention", 0, "SelfAttention"), **_t5_feed_forward(1, gated)},
            "decoder": {
                **_t5_attention("attention", 0, "SelfAttention"),
                **_t5_attention("cross_attention", 1, "EncDecAttention"),
                **_t5_feed_forward(2, gated),
            },
        },
        {
            "target_embedding.weight": "shared.weight",
            "head.weight": "lm_head.weight",
            **{f"{side}.norm.weight": f"{side}.final_layer_norm.weight" for side in STACKS},
            **{
                f"{side}.positions.bias.embedding.weight": (
                    f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
                )
                for side in STACKS
            },
        },
    )


def _t5_attention(ours: str, layer: int, name: str) -> Parts:
    letters = {"query": "q", "key": "k", "value": "v", "output": "o"}
    found = {f"{ours}.{part}": f"layer.{layer}.{name}.{letter}" for part, letter in letters.items()}
    return {**found, f"{ours}_norm": f"layer.{layer}.layer_norm"}


def _t5_feed_forward(layer: int, gated: bool) -> Parts:
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    found = {f"feed_forward.{part}": f"layer.{layer}.DenseReluDense.{name}" for part, name in names.items()}
    return {**found, "feed_forward_norm": f"layer.{layer}.layer_norm"}


def _marian(theirs: Theirs, source: str) -> TranslatorFamily:
    _require_options(
        theirs, source, scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True
    )
    kinds = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
    stack = {
        "d_model": theirs["d_model"],
        "norm_type": "layernorm",
        "norm_placement": "post",
        # Marian's configuration has no such option: its layers have torch's default.
        "norm_eps": 1e-5,
        # All sines come before all cosines, instead of one after another.
        "position_type": "sinusoidal_halves",
        "feed_forward_type": _kind(theirs, source, "activation_function", kinds),
        "bias": True,
    }
    sizes = {
        side: _sizes(theirs, d_ff=f"{side}_ffn_dim", num_layers=f"{side}_layers", num_heads=f"{side}_attention_heads")
        for side in STACKS
    }
    own = {**_marian_attention("attention", "self_attn"), "feed_forward.up": "fc1", "feed_forward.down": "fc2"}
    own["feed_forward_norm"] = "final_layer_norm"
    return TranslatorFamily(
        {side: {**stack, **sizes[side]} for side in STACKS},
        {"output_bias": True},
        "model.{side}.layers.{layer}",
        {"encoder": own, "decoder": {**own, **_marian_attention("cross_attention", "encoder_attn")}},
        {"target_embedding.weight": "model.shared.weight", "output_bias": "final_logits_bias"},
    )


def _marian_attention(ours: str, name: str) -> Parts:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    found = {f"{ours}.{part}": f"{name}.{theirs}" for part, theirs in names.items()}
    return {**found, f"{ours}_norm": f"{name}_layer_norm"}


FAMILIES: dict[str, Callable[[Theirs, str], TranslatorFamily]] = {"t5": _t5, "marian": _marian}


def _sizes(theirs: Theirs, **names: str) -> dict[str, Any]:
    return {ours: theirs[name] for ours, name in names.items()}


def _kind(theirs: Theirs, source: str, name: str, kinds: Mapping[str, str]) -> str:
    """Return our feed-forward layer for the one that their option names."""
    if theirs[name] not in kinds:
        raise _unknown_option(source, name, theirs[name])
    return kinds[theirs[name]]


def _require_options(theirs: Theirs, source: str, **expected: object) -> None:
    for name, value in expected.items():
        if theirs.get(name, value) != value:
            raise _unknown_option(source, name, theirs[name])


def _unknown_option(source: str, name: str, value: object) -> UserError:
    return UserError(f"{PRETRAINED_KEY}: {source} has {name} {value}, which vaak's model doesn't")
