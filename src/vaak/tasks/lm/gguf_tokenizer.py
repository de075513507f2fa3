"""The tokenizer of a GGUF file, with its chat template and the tokens that end a text.

llama.cpp knows two kinds. Of merged bytes (Llama 3, Qwen, GPT-2), a file has the merges, and by name how a text is
split before them: that of a base by its pattern. That of tokenizers which are trained here is none of those;
``NEAREST`` gives the same tokens except in the cases that docs/exporting.md lists. A SentencePiece model (Llama 2,
Mistral, Gemma), with bytes for what has no piece, has a score for each piece instead: the two neighbours whose piece
has the highest are joined first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.text.tokenizer import begins_texts

log = logging.getLogger("vaak")

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT_PATTERNS = {
    rf"{_ENDINGS}\p{{N}}{{1,3}}{_OTHERS}": "llama-bpe",
    rf"{_ENDINGS}\p{{N}}{_OTHERS}": "qwen2",
    "GPT-2": "gpt-2",
}
"""llama.cpp's names of how a text is split, by pattern; the last one's is that of the pre-tokenizer ByteLevel."""
NEAREST = "bloom"
"""The name for tokenizers that are trained here, whose words have marks and joiners in them, and all digits."""


def write_tokenizer(writer: Any, folder: Path, config: Mapping[str, Any], types: Any) -> None:
    """Write the tokenizer. Raises UserError for a kind that llama.cpp doesn't have."""
    content, about = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = content["model"]
    is_of_bytes = "ByteLevel" in str(content.get("decoder"))
    if model.get("type") != "BPE" or not (is_of_bytes or model.get("byte_fallback")):
        raise UserError(
            "--format gguf: only tokenizers of merged bytes (data.tokenizer.type byte_level), and SentencePiece's with "
            f"bytes (Llama 2, Mistral, Gemma), are written, not this {model.get('type')}"
        )
    if not model["merges"]:
        raise UserError("--format gguf: llama.cpp requires a tokenizer with merges; raise data.tokenizer.vocab_size")
    special = {one["id"]: one for one in content.get("added_tokens", ())}
    write = _write_merges if is_of_bytes else _write_scores
    write(writer, content, special, config["vocab_size"], types)
    ids = {one["content"]: number for number, one in special.items()}
    roles = {role: about.get(f"{role}_token") for role in ("bos", "pad", "unk", "sep", "mask")}
    tokens = {role: one.get("content") if isinstance(one, dict) else one for role, one in roles.items()}
    for role, token in tokens.items():
        if token in ids:
            getattr(writer, f"add_{role}_token_id")(ids[token])
    # What ends a text is written apart (write_ends).
    begins = tokens["bos"] in ids and begins_texts(Backend.from_str(json.dumps(content)), ids[tokens["bos"]])
    writer.add_add_bos_token(begins)
    # An end after the prompt would end the answer before it begins.
    writer.add_add_eos_token(False)
    # Where newer versions of transformers keep the template.
    kept = folder / "chat_template.jinja"
    template = kept.read_text(encoding="utf-8") if kept.is_file() else about.get("chat_template")
    if isinstance(template, str):
        writer.add_chat_template(template)


def _write_merges(
    writer: Any, content: Mapping[str, Any], special: Mapping[int, Mapping[str, Any]], size: int, types: Any
) -> None:
    """Write the tokens of a tokenizer of merged bytes."""
    model = content["model"]
    names = {number: name for name, number in model["vocab"].items()}
    names |= {number: one["content"] for number, one in special.items()}
    kinds = [
        (types.CONTROL if special[number]["special"] else types.USER_DEFINED)
        if number in special
        else types.NORMAL
        if number in names
        else types.UNUSED
        for number in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_detect_splitting(content))
    writer.add_token_list([names.get(number, f"<|unused {number}|>") for number in range(size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in _iterate_merges(model)])


_SPACE = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def _write_scores(
    writer: Any, content: Mapping[str, Any], special: Mapping[int, Mapping[str, Any]], size: int, types: Any
) -> None:
    """Write the pieces of a tokenizer of SentencePiece's. Raises UserError if scores don't join as its merges do."""
    has_prefix = _adds_space(content)
    names = {number: name for name, number in content["model"]["vocab"].items()}
    scores = _find_scores(content["model"], {one["content"] for one in special.values()})
    tokens, kinds, values = list[str](), list[Any](), list[float]()
    for number in range(size):
        name = special[number]["content"] if number in special else names.get(number, f"<|unused {number}|>")
        if number in special:
            kind = types.CONTROL if special[number]["special"] else types.USER_DEFINED
            # These are found in the original text, before its spaces are replaced.
            name = name if kind == types.CONTROL else name.replace(_SPACE, " ")
        elif number not in names:
            kind = types.UNUSED
        else:
            kind = types.BYTE if _BYTE.fullmatch(name) else types.NORMAL
        tokens.append(name)
        kinds.append(kind)
        # Those of bytes, and of tokens that nothing is joined to, aren't compared; these are llama.cpp's own for them.
        values.append(scores[name] if kind == types.NORMAL else 0.0 if kind == types.BYTE else -1000.0)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(values)
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(has_prefix)
    writer.add_add_sep_token(False)


def _find_scores(model: Mapping[str, Any], special: set[str]) -> dict[str, float]:
    """Return the score of each piece: the place at which it is first made by a merge, negative.

    Raises UserError if a piece can be split into two others that no merge joins, which llama.cpp would join, or
    where one's merges come before and after another's.
    """
    vocab, places, last, pairs = model["vocab"], dict[str, int](), "", set[tuple[str, str]]()
    for left, right in _iterate_merges(model):
        piece = left + right
        if piece != last and piece in places:
            raise UserError(f"--format gguf: llama.cpp can't join in the order of the merges, which make {piece} twice")
        places.setdefault(piece, len(places))
        last = piece
        pairs.add((left, right))
    known = vocab.keys() - special
    for piece in places:
        for cut in range(1, len(piece)):
            pair = (piece[:cut], piece[cut:])
            if pair not in pairs and pair[0] in known and pair[1] in known:
                raise UserError(
                    f"--format gguf: llama.cpp would join {pair[0]} and {pair[1]}, which no merge does; these merges "
                    "aren't SentencePiece's"
                )
    # What no merge makes, such as single letters, comes after, in its order.
    for piece in sorted(vocab.keys() - places.keys(), key=vocab.__getitem__):
        places[piece] = len(places)
    return {piece: -float(place) for piece, place in places.items()}


def _iterate_merges(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Iterate over the pairs that a tokenizer joins, in order; older files have them as texts."""
    for one in model["merges"]:
        left, right = one.split(" ") if isinstance(one, str) else one
        yield left, right


def _adds_space(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer of SentencePiece's puts a space before a text.

    Raises UserError if it does to a text what llama.cpp doesn't.
    """
    found = False
    for part in _iterate_parts(content.get("normalizer"), "normalizers"):
        is_prefix = part["type"] == "Prepend" and part.get("prepend") == _SPACE
        is_space = part["type"] == "Replace" and (part.get("pattern"), part.get("content")) == ({"String": " "}, _SPACE)
        if not is_prefix and not is_space:
            raise UserError(f"--format gguf: llama.cpp has no normalizer {part['type']} for this tokenizer")
        found |= is_prefix
    for part in _iterate_parts(content.get("pre_tokenizer"), "pretokenizers"):
        # No text has spaces after they are replaced, so a split at them does nothing.
        is_nothing = part["type"] == "Split" and part.get("pattern") == {"String": " "}
        if not is_nothing and (
            part["type"] != "Metaspace" or part.get("replacement") != _SPACE or part.get("split", True)
        ):
            raise UserError(f"--format gguf: llama.cpp has no pre-tokenizer {part['type']} for this tokenizer")
        scheme = part.get("prepend_scheme", "always") if part["type"] == "Metaspace" else "never"
        if scheme == "first":
            log.warning("llama.cpp puts a space after each special token, too, where this tokenizer does before a text")
        found |= scheme != "never"
    return found


def _iterate_parts(found: Mapping[str, Any] | None, name: str) -> Iterator[Mapping[str, Any]]:
    """Iterate over the parts of a sequence, or over the one thing that isn't one."""
    if found is not None:
        yield from found.get(name, [found])


def write_ends(writer: Any, folder: Path, turn_ends: Sequence[int], document_end: int | None) -> None:
    """Write the tokens at which llama.cpp stops, at most three: the end of a document, of a turn, and one more."""
    about = read_json(folder / "tokenizer_config.json")
    token = about.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    added = {one["content"]: one["id"] for one in read_json(folder / "tokenizer.json").get("added_tokens", ())}
    eos = added.get(token) if document_end is None else document_end
    kept = folder / "generation_config.json"
    said = read_json(kept).get("eos_token_id", []) if kept.is_file() else []
    said = said if isinstance(said, list) else [said]
    if eos is None and said:
        eos = said[0]
    if eos is not None:
        writer.add_eos_token_id(eos)
    others = [one for one in dict.fromkeys([*turn_ends, *said]) if one != eos] or list(turn_ends[:1])
    for write, number in zip((writer.add_eot_token_id, writer.add_eom_token_id), others, strict=False):
        write(number)
    if len(others) > 2:
        names = {number: name for name, number in added.items()}
        left = ", ".join(str(names.get(one, one)) for one in others[2:])
        log.warning("llama.cpp's files name three tokens that end a text; it may not stop at %s", left)


def _detect_splitting(content: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of how a tokenizer splits a text before its merges."""
    found = content.get("pre_tokenizer") or {}
    parts = found.get("pretokenizers", [found])
    patterns = [one["pattern"]["Regex"] for one in parts if one.get("type") == "Split" and "Regex" in one["pattern"]]
    # ByteLevel splits by GPT-2's expression, unless another splitter comes before it.
    if not patterns and parts[-1].get("type") == "ByteLevel" and parts[-1].get("use_regex", True) and len(parts) == 1:
        return SPLIT_PATTERNS["GPT-2"]
    known = SPLIT_PATTERNS.get(patterns[0]) if len(patterns) == 1 else None
    if known is None:
        log.warning(
            "llama.cpp can't split texts as this tokenizer does; its nearest rule (%s) gives the same tokens for "
            "nearly all lines of prose, but not of code or of several lines: see docs/exporting.md",
            NEAREST,
        )
    return known or NEAREST
