"""Pretrained models in other forms, converted once to folders that transformers reads.

GGUF (llama.cpp)          transformers' own names and orders of its tensors; quantized weights become 32 bits; one in
                          parts is joined first
Whisper as OpenAI's .pt   ``{"dims": …, "model_state_dict": …}``, read as tensors alone; its tokenizer is next to the
                          file, or that of the model of its size on the Hugging Face Hub

One tensor is held at a time, so a conversion takes the memory of the largest, and not of the model. What transformers
holds as one, such as the gates and inputs of all experts of a layer, is joined as soon as its parts are read, and
written as transformers saves it, in a tensor for each expert.

A converted folder is in the user's cache, under the name, the size and the time of change of the file:

~/.cache/vaak/converted/NAME-FINGERPRINT/
  converted.json      written last
  config.json, model.safetensors, tokenizer.json, …
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import mmap
import os
import re
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from tokenizers import Regex, pre_tokenizers, processors
from tokenizers.pre_tokenizers import ByteLevel, Split
from torch import Tensor

from vaak.core.artifact import LOCK, Artifact
from vaak.core.errors import UserError, catching_panics, optional_import
from vaak.core.storage.files import compute_fingerprint
from vaak.core.storage.gguf_header import read_gguf_header
from vaak.core.storage.lock import locked
from vaak.core.storage.model_formats import GGUF, SAFETENSORS, ModelFormat, list_gguf_parts
from vaak.engine.snapshot import model_tensors
from vaak.tasks.fetching import load_generation, load_tokenizer

log = logging.getLogger("vaak")
MARKER = "converted.json"
ABANDONED_SECONDS = 60.0
"""Age from which a folder without a marker, that no process holds, was left by one that was killed.

A process that has made its folder takes the lock at once.
"""
NUMBERS_AT_ONCE = 1 << 24
"""Numbers that are dequantized at once."""
LIKE_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe", "gigachat")
"""llama.cpp's names of rules by which texts are split before merging: those that are GPT-2's."""
LIKE_BLOOM, BLOOM_SPLITTING = ("bloom", "gpt3-finnish", "poro-chat"), r" ?[^(\s|.,!?…。，、।۔،)]+"
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Rules by which a word that is a token is taken whole, merged or not, and a text begins with a token by default."""
_EXPERT_WIDTHS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Keys of a GGUF and of transformers' configurations."""


def locate_converted(file: Path) -> Path:
    """Return the folder that a file's model is converted to, whether it was already or not."""
    parts = list_gguf_parts(file)
    stats = [one.stat() for one in parts if one.is_file()]
    about = [value for one in stats for value in (one.st_size, one.st_mtime_ns)]
    mark = compute_fingerprint([str(parts[0].resolve()), *about])[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "vaak" / "converted" / f"{parts[0].stem}-{mark}"


def convert(key: str, found: ModelFormat) -> Path:
    """Return the folder of a model of a readable form, made now if it isn't there yet.

    Raises UserError, which begins with the option's ``key``, where it can't be read.
    """
    assert found.file is not None
    parts = list_gguf_parts(found.file)
    if missing := [part.name for part in parts if not part.is_file()]:
        raise UserError(f"{key}: {found.file} lacks {len(missing)} of its {len(parts)} parts: {', '.join(missing[:3])}")
    file = parts[0]
    made = Artifact(
        locate_converted(file), MARKER, "converted model", keys={"sizes": dict, "splits_as_llama_cpp": bool}
    )
    _remove_abandoned(made.folder)
    if made.find() is None or made.damage() is not None:
        with made.making(lambda: made.find() is not None and made.damage() is None, keeps_empty=False) as needed:
            if needed:
                log.info("%s: %s is converted to %s in 32 bits", key, file, made.folder)
                with _leaving_nothing(made.folder):
                    (_convert_gguf if found.name == GGUF else _convert_whisper)(key, file, made.folder)
                    made.finish({"format": found.name, "file": str(file), "splits_as_llama_cpp": True})
    return made.folder


@contextlib.contextmanager
def _leaving_nothing(folder: Path) -> Iterator[None]:
    """Within this context a model is written to a folder; after an error, such as a full disk, its files are removed.

    Raises UserError where safetensors can't write.
    """
    try:
        yield
    except BaseException as error:
        for path in folder.iterdir():
            if path.name != LOCK:
                path.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise UserError(f"converted model can't be written to {folder}: {error}") from error
        raise


def _remove_abandoned(own: Path) -> None:
    """Delete what killed conversions left next to the folder ``own``: those without a marker that no process holds."""
    for folder in own.parent.iterdir() if own.parent.is_dir() else ():
        try:
            is_old = time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
            if folder == own or not is_old or not folder.is_dir() or (folder / MARKER).exists():
                continue
            with locked(folder / LOCK, 0.0):
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                shutil.rmtree(folder)
            log.info("%s is deleted: a conversion that was killed left %d MB there", folder, size / 1e6)
        # Another process works in it, or has deleted it.
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError as error:
            log.warning("%s, which a killed conversion left, can't be deleted: %s", folder, error.strerror or error)


def _join_gguf(parts: Sequence[Path], joined: Path) -> None:
    """Write one GGUF file with the tensors of all ``parts``, one at a time, and what the first says of the model."""
    gguf: Any = importlib.import_module("gguf")
    readers = [gguf.GGUFReader(part) for part in parts]
    fields = readers[0].fields
    writer = gguf.GGUFWriter(joined, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name.startswith(("GGUF.", "split.")) or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    tensors = [one for reader in readers for one in reader.tensors]
    expected = fields["split.tensors.count"].contents() if "split.tensors.count" in fields else len(tensors)
    if len(tensors) != expected:
        raise ValueError(f"its parts have {len(tensors)} tensors, and should have {expected}")
    # The format has the names and shapes of all tensors before the first one's numbers.
    for one in tensors:
        writer.add_tensor_info(one.name, one.data.shape, one.data.dtype, one.data.nbytes, one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for one in tensors:
        writer.write_tensor_data(one.data)
    writer.close()


@contextlib.contextmanager
def _as_one_file(file: Path, folder: Path) -> Iterator[Path]:
    """The file, or the one that its parts make, which is in ``folder`` as long as this context."""
    parts = list_gguf_parts(file)
    if len(parts) == 1:
        yield file
        return
    joined = folder / f".joined.{os.getpid()}.tmp"
    try:
        _join_gguf(parts, joined)
        yield joined
    finally:
        joined.unlink(missing_ok=True)


def _convert_gguf(key: str, file: Path, folder: Path) -> None:
    with optional_import(f"{key}: reading GGUF requires gguf and transformers", "gguf"):
        importlib.import_module("gguf")
        auto: Any = importlib.import_module("transformers")
    try:
        names = [name for part in list_gguf_parts(file) for name, _ in read_gguf_header(part)[1]]
        if any(name.endswith(".lora_a") for name in names):
            raise UserError(f"{key}: {file} is an adapter (LoRA) without its base; give the base")
        with catching_panics(), _as_one_file(file, folder) as whole:
            how = {"gguf_file": whole.name, "trust_remote_code": False}
            values = _read_values(whole)
            tokenizer = auto.AutoTokenizer.from_pretrained(whole.parent, **how)
            _split_as_llama_cpp(tokenizer, values, f"{key}: {file}")
            _save_tokenizer(tokenizer, folder)
            config = auto.AutoConfig.from_pretrained(whole.parent, **how)
            _set_expert_widths(config, values)
            with torch.device("meta"):
                model = auto.AutoModelForCausalLM.from_config(config)
            lacking = _write_tensors(model, _iterate_gguf(whole, model), folder)
            _write_sizes(model, folder)
    except UserError:
        raise
    # each layer of transformers and of gguf raises its own
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
        # What numpy says of fewer bytes than the header lists.
        is_cut = isinstance(error, struct.error) or said.startswith(CUT_OFF)
        remedy = "it is cut off: download it again" if is_cut else "give the folder that it was converted from"
        raise UserError(f"{key}: {file} can't be read as GGUF: {said}; {remedy}") from error
    if lacking:
        raise UserError(f"{key}: {file} lacks {len(lacking)} tensors of its model, such as {lacking[0]}")


CUT_OFF = ("cannot reshape array", "mmap length is greater than file size")


def _read_values(file: Path) -> dict[str, Any]:
    """Return what a GGUF says of its model by keys, without lists such as its vocabulary."""
    gguf: Any = importlib.import_module("gguf")
    fields = gguf.GGUFReader(file).fields
    return {name: one.contents() for name, one in fields.items() if one.types[:1] != [gguf.GGUFValueType.ARRAY]}


def _split_as_llama_cpp(tokenizer: Any, values: Mapping[str, Any], name: str) -> None:
    """Have a converted tokenizer of merged bytes split texts, and begin them, as llama.cpp does by the file's rule.

    transformers takes rules that it doesn't know for GPT-2's, without a word.
    """
    if values.get("tokenizer.ggml.model") != "gpt2":
        return
    rule, backend = values.get("tokenizer.ggml.pre", "default"), tokenizer.backend_tokenizer
    if rule in LIKE_BLOOM:
        parts = [Split(Regex(BLOOM_SPLITTING), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    elif rule not in LIKE_GPT2 and isinstance(backend.pre_tokenizer, ByteLevel):
        log.warning(
            "%s splits texts by llama.cpp's rule %s, which isn't known here: GPT-2's is used, so some texts become "
            "other tokens than those that the model was trained on",
            *(name, rule),
        )
    if rule in WHOLE_WORDS:
        backend.model.ignore_merges = True
        first = values.get("tokenizer.ggml.bos_token_id")
        if first is not None and "tokenizer.ggml.add_bos_token" not in values:
            token = tokenizer.convert_ids_to_tokens(int(first))
            backend.post_processor = processors.TemplateProcessing(
                single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=[(token, int(first))]
            )


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    # the tokenizers library raises its own for a full disk
    except Exception as error:
        raise UserError(f"converted model can't be written to {folder}: {error}") from error


def _set_expert_widths(config: Any, values: Mapping[str, Any]) -> None:
    """Set the widths of experts, which transformers doesn't read from a GGUF: it takes its defaults."""
    for name, option in _EXPERT_WIDTHS.items():
        found = values.get(f"{values['general.architecture']}.{name}")
        if found is not None and hasattr(config, option):
            setattr(config, option, found)


def _iterate_gguf(file: Path, model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield transformers' names of a GGUF's tensors that ``model`` has, and their numbers, as transformers holds them.

    Several tensors of the file can be parts of one of the model: it is yielded when the last has been read.
    """
    gguf: Any = importlib.import_module("gguf")
    theirs: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    config = theirs.load_gguf_checkpoint(str(file), return_tensors=False)["config"]
    joined: dict[str, Tensor] = {}
    parsed = {"config": config, "tensors": joined}
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    # Of a vocabulary of 262,144 tokens, these are 0.65 GB of small arrays.
    reader.fields.clear()
    processor = theirs.TENSOR_PROCESSORS.get(architecture, theirs.TensorProcessor)(config=config)
    names = theirs.get_gguf_hf_weights_map(model, processor)
    unread = Counter(names.values())
    for tensor in reader.tensors:
        weights = _dequantize(gguf, reader, tensor)
        found = processor.process(weights=weights, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed)
        del weights  # of experts, a copy is in ``joined``
        # Tensors of experts aren't weights of one layer, and have no ".weight" in transformers.
        own = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))
        if found.name in names:
            yield names[found.name], found.weights
        elif own in joined:
            unread[own] -= 1
            if not unread[own]:
                yield own, joined.pop(own).numpy()


def _dequantize(gguf: Any, reader: Any, tensor: Any) -> np.ndarray:
    """Return the numbers of a tensor, some rows of which are read at a time."""
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    found = np.empty((len(rows), int(tensor.shape[0])), np.float32)
    step = max(1, NUMBERS_AT_ONCE // found.shape[1])
    for first in range(0, len(rows), step):
        found[first : first + step] = gguf.dequantize(rows[first : first + step], tensor.tensor_type)
        # Pages of the file that were read count as this process's memory until the kernel needs them.
        if hasattr(mmap, "MADV_DONTNEED"):
            reader.data._mmap.madvise(mmap.MADV_DONTNEED)
    return found.reshape(tuple(int(size) for size in reversed(tensor.shape)))


# Tensors, one at a time


def _write_tensors(model: Any, tensors: Iterable[tuple[str, np.ndarray]], folder: Path) -> list[str]:
    """Write a model's tensors to model.safetensors as they come; return the names of those that didn't.

    ``model`` has their names and shapes, on the device meta. Raises ValueError for another shape.

    The file's header, which comes first, is written last, in the room that is left for it.

    Source: github.com/huggingface/safetensors, Format.
    """
    # Tensors that are tied are written once, under the first name.
    held = {name: tuple(one.shape) for name, one in model_tensors(model).items()}
    expected = {name: tuple(one.shape) for name, one in _as_saved(model, model_tensors(model)).items()}
    longest = {name: _describe(shape, 1 << 50, 1 << 50) for name, shape in expected.items()}
    room = -(-len(_header(longest)) // 8) * 8
    written: dict[str, Any] = {}
    with open(folder / SAFETENSORS, "wb") as file:
        file.seek(8 + room)
        for name, weights in tensors:
            if name not in held:
                continue  # a second name of one that is tied
            if weights.shape != held[name]:
                raise ValueError(f"{name} has shape {weights.shape}, expected {held[name]}")
            for part, tensor in _as_saved(model, {name: torch.from_numpy(weights)}).items():
                begin = file.tell() - 8 - room
                file.write(np.ascontiguousarray(tensor.numpy(), "<f4").data)
                written[part] = _describe(tensor.shape, begin, file.tell() - 8 - room)
        file.seek(0)
        file.write(struct.pack("<Q", room) + _header(written).ljust(room))
    return sorted(expected.keys() - written.keys())


def _as_saved(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as transformers saves them: of all experts that it holds as one, each by itself."""
    loading: Any = importlib.import_module("transformers.core_model_loading")
    saved: dict[str, Tensor] = loading.revert_weight_conversion(model, dict(tensors))
    return saved


def _describe(shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [*shape], "data_offsets": [begin, end]}


def _header(tensors: Mapping[str, Any]) -> bytes:
    return json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()


def _write_sizes(model: Any, folder: Path) -> None:
    """Write the configurations of a model that are in 32 bits, as transformers does with its weights."""
    model.config.architectures, model.config.dtype = [type(model).__name__], torch.float32
    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


# Whisper

_BLOCK = {
    "attn.query": "self_attn.q_proj",
    "attn.key": "self_attn.k_proj",
    "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_ln": "self_attn_layer_norm",
    "cross_attn.query": "encoder_attn.q_proj",
    "cross_attn.key": "encoder_attn.k_proj",
    "cross_attn.value": "encoder_attn.v_proj",
    "cross_attn.out": "encoder_attn.out_proj",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
}
_OTHERS = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "encoder.ln_post": "encoder.layer_norm",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding": "decoder.embed_tokens",
    "decoder.ln": "decoder.layer_norm",
}
_IN_BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)\.(weight|bias)")
WHISPER_SIZES = {
    (384, 4): "tiny",
    (512, 6): "base",
    (768, 12): "small",
    (1024, 24): "medium",
    (1280, 32): "large",
    (1280, 4): "large-v3-turbo",
}
"""OpenAI's models by the width and the blocks of the decoder."""
ENGLISH_ONLY, LARGE_V3_BINS, LARGE_V3_TOKENS = 51864, 128, 51866


def name_whisper_tensor(name: str) -> str:
    """Return transformers' name of one of OpenAI's tensors. Raises KeyError for an unknown one.

    >>> name_whisper_tensor("decoder.blocks.0.cross_attn.query.weight")
    'model.decoder.layers.0.encoder_attn.q_proj.weight'
    """
    if name in _OTHERS:
        return f"model.{_OTHERS[name]}"
    if match := _IN_BLOCK.fullmatch(name):
        side, number, part, kind = match.groups()
        return f"model.{side}.layers.{number}.{_BLOCK[part]}.{kind}"
    part, _, kind = name.rpartition(".")
    return f"model.{_OTHERS[part]}.{kind}" if part in _OTHERS else f"model.{_conv(part)}.{kind}"


def _conv(part: str) -> str:
    if part not in ("encoder.conv1", "encoder.conv2"):
        raise KeyError(part)
    return part


def _convert_whisper(key: str, file: Path, folder: Path) -> None:
    with optional_import(f"{key}: reading a Whisper requires transformers", "asr"):
        transformers: Any = importlib.import_module("transformers")
    dims, weights = _read_whisper(key, file)
    source = _find_tokenizer(file, dims)
    try:
        tokenizer = load_tokenizer(key, source, "WhisperTokenizer")
    except UserError as error:
        raise UserError(
            f"{key}: {file} has no tokenizer, and {source} isn't available; put its tokenizer.json and "
            "tokenizer_config.json next to the file"
        ) from error
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(_whisper_config(transformers, dims, tokenizer))
    try:
        named = ((name_whisper_tensor(name), tensor.float().numpy()) for name, tensor in weights.items())
        lacking = _write_tensors(model, named, folder)
        why = f"{lacking[0]} is missing" if lacking else ""
    except (KeyError, ValueError) as error:
        why = str(error).splitlines()[0]
    if why:
        raise UserError(f"{key}: {file}: the weights don't fit the sizes in its header: {why}")
    model.generation_config = load_generation(key, source) or model.generation_config
    _write_sizes(model, folder)
    _save_tokenizer(tokenizer, folder)


def _read_whisper(key: str, file: Path) -> tuple[Mapping[str, int], Mapping[str, Tensor]]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return found["dims"], found["model_state_dict"]
    # a pickle with other things than tensors in it, or a damaged one
    except Exception as error:
        said = str(error).splitlines()[0][:200]
        raise UserError(f"{key}: {file} can't be read as tensors alone: {said}") from error


def _find_tokenizer(file: Path, dims: Mapping[str, int]) -> str:
    """Return the folder of the file, where it has a tokenizer; else the name on the Hub of the model of its size."""
    if (file.parent / "tokenizer.json").is_file() or (file.parent / "vocab.json").is_file():
        return str(file.parent)
    size = WHISPER_SIZES.get((dims["n_text_state"], dims["n_text_layer"]), "base")
    if dims["n_vocab"] == ENGLISH_ONLY:
        return f"openai/whisper-{size}.en"
    is_third = dims["n_vocab"] == LARGE_V3_TOKENS or dims["n_mels"] == LARGE_V3_BINS
    return f"openai/whisper-{f'{size}-v3' if is_third and size == 'large' else size}"


def _whisper_config(transformers: Any, dims: Mapping[str, int], tokenizer: Any) -> Any:
    end, start = (tokenizer.convert_tokens_to_ids(one) for one in ("<|endoftext|>", "<|startoftranscript|>"))
    return transformers.WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        encoder_layers=dims["n_audio_layer"],
        decoder_layers=dims["n_text_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        decoder_attention_heads=dims["n_text_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        # transformers' default, 50256, ends a text in English-only Whispers, and is another token in the others.
        begin_suppress_tokens=None,
        architectures=["WhisperForConditionalGeneration"],
    )
