"""The tokenizer of an export for other tools, and where a text ends there: at the end of an answer or a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, processors

from vaak.core.errors import UserError
from vaak.core.storage.files import (
    read_json,
    write_json,
    write_text,
)
from vaak.tasks.kept_base import KeptBase
from vaak.text.chat_template import template_in

GENERATION_TOKENS = ("bos_token", "eos_token", "pad_token")
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token")


class RunTokenizer(NamedTuple):
    """The ``file`` of a run's tokenizer and the text of its special tokens, by transformers' names (``bos_token``, …).

    ``turn_ends`` are the ids by which the run's chat template ends an answer.
    """

    file: Path
    special_tokens: dict[str, str]
    turn_ends: tuple[int, ...] = ()


def write_tokenizer_files(
    folder: Path,
    tokenizer: RunTokenizer,
    special_ids: dict[str, int],
    max_length: int | None,
    base: KeptBase | None,
) -> None:
    """Write the tokenizer with its chat template, and the settings for generation, which say where other tools stop."""
    _write_tokenizer(folder, tokenizer, special_ids, max_length, base.tokenizer if base else None)
    write_ends(folder, tokenizer, special_ids, base)


def write_ends(folder: Path, tokenizer: RunTokenizer, special_ids: dict[str, int], base: KeptBase | None) -> None:
    """Write the tokens that end a text or a turn next to a tokenizer."""
    ids = select_generation_ids(special_ids)
    generation = {**ids, **(base.generation if base else {}), **stop_ids(ids, base, tokenizer.turn_ends)}
    write_json(folder / "generation_config.json", generation)
    if tokenizer.turn_ends:
        _set_turn_end(folder, tokenizer.turn_ends)


def _write_tokenizer(
    folder: Path,
    given: RunTokenizer,
    special_ids: dict[str, int],
    max_length: int | None,
    base: Mapping[str, Any] | None,
) -> None:
    """Write the tokenizer to ``folder``: with its base's configuration, or so that it reads texts as in training.

    ``given`` and ``max_length`` are those of ``export_hf``; ``special_ids`` are the ids of its special tokens.
    """
    content = given.file.read_text(encoding="utf-8")
    config: dict[str, Any] = {**(base or {})}
    if base is None:
        tokenizer = Tokenizer.from_file(str(given.file))
        if bos := given.special_tokens.get("bos_token"):
            # Training reads it before every text.
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, special_ids["bos_token"])]
            )
        content = str(tokenizer.to_str())
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            **given.special_tokens,
        }
        write_json(folder / "special_tokens_map.json", given.special_tokens)
    else:
        # A limit below the trained length would cut texts; no limit, or a higher one, stays unchanged.
        limit = config.get("model_max_length")
        if max_length is not None and isinstance(limit, int) and limit < max_length:
            config["model_max_length"] = max_length
    if (template := template_in(given.file.parent)) is not None:
        config["chat_template"] = template
    write_json(folder / "tokenizer_config.json", config)
    write_text(folder / "tokenizer.json", content)


def find_special_ids(tokenizer_file: Path, special_tokens: dict[str, str], vocab_size: int) -> dict[str, int]:
    """Return the ids of the special tokens, by transformers' names. Raises UserError if the tokenizer lacks one."""
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


def select_generation_ids(special_ids: Mapping[str, int]) -> dict[str, int]:
    return {f"{name}_id": special_ids[name] for name in GENERATION_TOKENS if name in special_ids}


def _set_turn_end(folder: Path, turn_ends: Sequence[int]) -> None:
    """Make the token that ends an answer the tokenizer's ``eos_token``, at which vLLM and CTranslate2 stop, too.

    A template that writes ``eos_token`` itself keeps it, since its text would change.
    """
    path = folder / "tokenizer_config.json"
    about, tokenizer = read_json(path), Tokenizer.from_file(str(folder / "tokenizer.json"))
    if "eos_token" in str(about.get("chat_template") or ""):
        return
    token = tokenizer.id_to_token(turn_ends[0])
    write_json(path, {**about, "eos_token": token})
    if (special := folder / "special_tokens_map.json").is_file():
        write_json(special, {**read_json(special), "eos_token": token})


def stop_ids(own: Mapping[str, Any], base: KeptBase | None, turn_ends: Sequence[int] = ()) -> dict[str, Any]:
    """Return the tokens that end a text: of a turn, of the base and of the run; a single one isn't in a list.

    >>> base = KeptBase({}, {"eos_token_id": [5, 2]}, {})
    >>> stop_ids({"eos_token_id": 2}, base, [7]), stop_ids({"eos_token_id": 2}, None)
    ({'eos_token_id': [7, 5, 2]}, {'eos_token_id': 2})
    """
    found = [*turn_ends, *find_base_ends(base), own.get("eos_token_id")]
    known = [one for one in dict.fromkeys(found) if one is not None]
    return {"eos_token_id": known[0] if len(known) == 1 else known} if known else {}


def find_base_ends(base: KeptBase | None) -> list[int]:
    """Return the tokens at which a pretrained model stops; none without one."""
    if base is None:
        return []
    # transformers asks the configuration only where a base has no generation_config.json.
    found = (base.generation or base.config).get("eos_token_id")
    return found if isinstance(found, list) else [] if found is None else [found]
