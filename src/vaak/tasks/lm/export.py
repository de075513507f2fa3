"""A trained decoder as a folder that transformers loads without Vaak: the same weights, renamed (pretrained.py).

Any language model is written as an ONNX file, and its low-rank adapters for peft.

    config.json            LlamaForCausalLM, Qwen3ForCausalLM (queries and keys normalised) or GPT2LMHeadModel
    generation_config.json model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json

The files are plain JSON and safetensors; transformers is not needed to write them. A tokenizer that was trained here
puts the token that begins a document before every text, as training does, and none after it: what ends a document is
predicted, never read. That of a pretrained base goes out as it came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import Tensor

from vaak.core.errors import UserError
from vaak.core.storage.files import sync_directory, sync_file, usual_mode, whole_folder, write_json, write_text
from vaak.nn.lora import adapters_of, merged, write_adapter
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, some_tokens, write_onnx
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.pretrained import exported_config, family_of
from vaak.tasks.pretrained import KeptBase
from vaak.text.chat_template import template_in
from vaak.text.tokenizer import Tokenizer as VaaksTokenizer

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token")


def export_hf(
    model: LanguageModel,
    tokenizer_file: Path,
    special_tokens: dict[str, str],
    max_length: int,
    folder: Path,
    base: KeptBase | None = None,
) -> None:
    """Write ``folder``, completely or not at all.

    ``special_tokens`` gives the text of tokens by transformers' names (``bos_token``, ``eos_token``, ``pad_token``, …);
    ``max_length`` is the length the model was trained with.

    ``tokenizer_file`` is the run's tokenizer; ``base`` is what was kept of the pretrained model that it is of: texts
    then begin as its own do.

    Raises UserError for an encoder, a tokenizer that does not fit the model, a special token the tokenizer does not
    know, and a folder that has something in it or can't be written.
    """
    model = merged(model)
    family_of(model.config)  # raises where there is none
    special_ids = _special_ids(tokenizer_file, special_tokens, model.vocab_size)
    with whole_folder(folder) as made:
        _write_files(made, model, special_ids, max_length, base.generation if base else {})
        _write_tokenizer(
            made, tokenizer_file, special_tokens, special_ids, max_length, base.tokenizer if base else None
        )


def export_peft(model: LanguageModel, base: str | None, folder: Path) -> None:
    """Write ``folder`` with the low-rank adapters alone, which peft loads on the ``base``.

    Raises UserError where there are none, or the folder has something in it.
    """
    family = family_of(model.config)
    adapters = [
        adapter._replace(name=family.theirs(f"{adapter.name}.weight")[0].removesuffix(".weight"))
        for adapter in adapters_of(model)
    ]
    write_adapter(adapters, model.config.lora, [adapter.name for adapter in adapters], base, folder)


def export_onnx(model: LanguageModel, tokenizer: VaaksTokenizer, longest: int, folder: Path) -> None:
    """Write ``model.onnx`` and the tokenizer to ``folder``, completely or not at all.

    ``inputs`` are ids ``(row, token)``; an encoder also has ``mask``, true where they are real. ``logits`` are ``(row,
    token, vocab)``, ``hidden`` ``(row, token, width)``; an encoder's are 0 in padding. A row has ``longest`` tokens at
    most. Raises UserError where the model can't be exported, or the outputs differ from PyTorch's.
    """
    is_encoder = model.config.model_type == "encoder"
    names = ("inputs", "mask") if is_encoder else ("inputs",)

    def outputs(given: LanguageModel, inputs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        hidden = given.hidden(inputs, mask=mask)
        found = given.logits(hidden), hidden
        return found if mask is None else tuple(one * mask[..., None] for one in found)

    first, *others = (
        some_tokens(model.vocab_size, rows, min(length, longest), ("inputs", "mask"))
        for rows, length in ((2, 9), (1, 7), (3, 70))
    )
    given = [{name: one[name] for name in names} for one in (first, *others)]
    axes = {name: {0: "row", 1: "token"} for name in names}
    metadata = {"longest": str(longest)}
    exported = OnnxModule(
        ExportWrapper(merged(model), outputs), given[0], axes, ("logits", "hidden"), given[1:], metadata
    )
    with whole_folder(folder) as made:
        tokenizer.save(made)
        write_onnx(made / "model.onnx", exported)


def hf_config(model: LanguageModel, max_length: int) -> dict[str, Any]:
    """The model's ``config.json``."""
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    return exported_config(model.config, model.vocab_size, max_length, dtype)


def hf_weights(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The weights under transformers' names, on the CPU; a tied head is not repeated."""
    return family_of(model.config).exported(model.state_dict())


def _special_ids(tokenizer_file: Path, special_tokens: dict[str, str], vocab_size: int) -> dict[str, int]:
    """The numbers of the special tokens, by transformers' names."""
    if not tokenizer_file.is_file():
        raise UserError(f"The tokenizer {tokenizer_file} does not exist.")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    if tokenizer.get_vocab_size() > vocab_size:
        raise UserError(
            f"The tokenizer {tokenizer_file} has {tokenizer.get_vocab_size()} tokens, the model only {vocab_size}; "
            "export the model with the tokenizer it was trained with."
        )
    ids = {}
    for name, token in special_tokens.items():
        token_id = tokenizer.token_to_id(token)
        if name not in SPECIAL_TOKENS:
            raise UserError(
                f"{name} is not a special token of transformers; expected one of {', '.join(SPECIAL_TOKENS)}."
            )
        if token_id is None:
            raise UserError(f"The tokenizer {tokenizer_file} has no token {token!r} (given as {name}).")
        ids[name] = token_id
    return ids


def _as_read_in_training(tokenizer_file: Path, special_tokens: dict[str, str], special_ids: dict[str, int]) -> str:
    """The tokenizer, as JSON, with ``bos_token`` before every text if there is one."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    if bos := special_tokens.get("bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, special_ids["bos_token"])]
        )
    return str(tokenizer.to_str())


def _write_tokenizer(
    folder: Path,
    tokenizer_file: Path,
    special_tokens: dict[str, str],
    special_ids: dict[str, int],
    max_length: int,
    base: Mapping[str, Any] | None,
) -> None:
    """Write the tokenizer to ``folder``: as the ``base`` has it, or as training reads it.

    ``tokenizer_file``, ``special_tokens`` and ``max_length`` are those of ``export_hf``; ``special_ids`` has the ids of
    the special tokens by the same names.
    """
    content = tokenizer_file.read_text(encoding="utf-8")
    config: dict[str, Any] = {**(base or {})}
    if base is None:
        content = _as_read_in_training(tokenizer_file, special_tokens, special_ids)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **special_tokens,
        }
        write_json(folder / "special_tokens_map.json", special_tokens)
    if (template := template_in(tokenizer_file.parent)) is not None:
        config["chat_template"] = template
    write_json(folder / "tokenizer_config.json", config)
    write_text(folder / "tokenizer.json", content)


def _write_files(
    folder: Path, model: LanguageModel, special_ids: dict[str, int], max_length: int, base: Mapping[str, Any]
) -> None:
    """Write configuration and weights of ``model`` to ``folder``; ``max_length`` is that of ``export_hf``.

    ``special_ids`` are those of special tokens by their names. ``base`` is how the pretrained model generates: what
    ends its texts ends these, too, besides the run's own token.
    """
    generation = {
        f"{name}_id": special_ids[name] for name in ("bos_token", "eos_token", "pad_token") if name in special_ids
    }
    write_json(folder / "config.json", hf_config(model, max_length) | generation)
    write_json(folder / "generation_config.json", {**generation, **base, **_ends(generation, base)})
    with usual_mode(folder / "model.safetensors"):
        try:
            save_file(hf_weights(model), folder / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    sync_file(folder / "model.safetensors")
    sync_directory(folder)


def _ends(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens that end a text, of both; one alone is no list.

    >>> _ends({"eos_token_id": 2}, {"eos_token_id": [5, 2]}), _ends({"eos_token_id": 2}, {})
    ({'eos_token_id': [5, 2]}, {'eos_token_id': 2})
    """
    found = base.get("eos_token_id", [])
    ends = list(dict.fromkeys([*(found if isinstance(found, list) else [found]), own.get("eos_token_id")]))
    known = [one for one in ends if one is not None]
    return {"eos_token_id": known[0] if len(known) == 1 else known} if known else {}
