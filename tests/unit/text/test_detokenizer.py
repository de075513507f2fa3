"""The text of tokens as they come is, piece by piece, that of decoding all of them again for each."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models
from tokenizers import Tokenizer as Backend

import tokenizer_families
from vaak.text.config import TokenizerConfig
from vaak.text.detokenizer import Pieces, _begin, _Bytes, _is_local, _Whole, _Window
from vaak.text.tokenizer import Tokenizer, UsersTokenizer
from vaak.text.tokenizer_training import TokenizerFactory

WEIGHTS = Path(os.environ.get("VAAK_WEIGHTS", "no such folder"))
TEXT = "Hello, World! it's 42. राम घर जाता है। é 😀 do not \ufffd x"
WRITTEN = [
    *("a", "b", " ", "  ", " a", "▁", "▁▁", "▁a", "##b", "##", "b</w>", "</w>", "|", "\ufffd", "x\ufffd", "é", "😀"),
    *(".", "'", "'s", "n't", "not", "do", "<0x41>", "<0xE0>", "<0xA4>", "<0x85>", "<0xFF>", "Ġa", "à¤", "à", "ħ"),
]


class WholeText:
    """Pieces of a text that is decoded again for each token."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, list(prompt[1:] if prompt[:1] == [tokenizer.bos_id] else prompt)
        self.said = tokenizer.decode(self.ids)

    def add(self, token: int) -> str:
        self.ids.append(token)
        whole = self.tokenizer.decode(self.ids)
        if whole.endswith("\ufffd") or self.tokenizer.is_byte(token):
            return ""
        piece, self.said = whole[len(self.said) :], whole
        return piece

    def rest(self) -> str:
        return self.tokenizer.decode(self.ids)[len(self.said) :]


def require_same_pieces(tokenizer: Any, prompt: list[int], tokens: list[int]) -> None:
    found, expected = Pieces(tokenizer, prompt), WholeText(tokenizer, prompt)
    for at, token in enumerate(tokens):
        assert found.add(token) == expected.add(token), (prompt, tokens[: at + 1])
        assert found.rest() == expected.rest(), (prompt, tokens[: at + 1])


def wrap(tokenizer: Any) -> Tokenizer:
    return Tokenizer.from_json(tokenizer._tokenizer.to_str())


@functools.cache
def load(name: str) -> Tokenizer:
    if name.startswith("real "):
        return Tokenizer.load(WEIGHTS / name.removeprefix("real "))
    if name == "character":
        given = TokenizerConfig.model_validate({"type": name})
        return TokenizerFactory(given).create_tokenizer(iter([*tokenizer_families.TEXTS, TEXT]))
    return wrap(getattr(tokenizer_families, name)())


FAMILIES = ("gpt2", "llama", "llama3", "bert", "xlm_roberta", "t5", "whisper", "character")
QUICK = ("gpt2", "llama", "bert")
REAL = ("gemma", "minilm", "whisper-base", "whisper-tiny.en")


def check_family(name: str, seed: Any) -> None:
    tokenizer = load(name)
    size = len(tokenizer)
    ids = seed.draw(st.lists(st.integers(0, size + 2) | st.sampled_from(tokenizer.encode(TEXT)), max_size=24))
    at = seed.draw(st.integers(0, len(ids)))
    require_same_pieces(tokenizer, ids[:at], ids[at:])


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=10, deadline=None)
@given(seed=st.data())
def test_pieces_are_those_of_the_whole_text(name, seed):
    check_family(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, *(f"real {one}" for one in REAL)])
@settings(max_examples=600, deadline=None)
@given(seed=st.data())
def test_pieces_of_many_texts_are_those_of_the_whole_text(name, seed):
    if name.startswith("real ") and not (WEIGHTS / name.removeprefix("real ")).is_dir():
        pytest.skip(f"VAAK_WEIGHTS has no folder {name.removeprefix('real ')}")
    check_family(name, seed)


STEPS: dict[str, Any] = {
    "Metaspace": decoders.Metaspace(),
    "Metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "WordPiece": decoders.WordPiece(),
    "WordPiece, uncleaned": decoders.WordPiece(cleanup=False),
    "BPE": decoders.BPEDecoder(),
    "CTC": decoders.CTC(pad_token="b"),
    "bytes": decoders.ByteFallback(),
    "fuse": decoders.Fuse(),
    "strip": decoders.Strip(" ", 1, 0),
    "strip two": decoders.Strip("a", 2, 0),
    "replace": decoders.Replace("▁", " "),
    "replace two": decoders.Replace("aa", "b"),
    "replace by pattern": decoders.Replace(Regex("^ | $"), ""),
    "ByteLevel": decoders.ByteLevel(),
}


@functools.cache
def make(*steps: str) -> Tokenizer:
    """A tokenizer whose tokens are whatever decoders treat differently."""
    names = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", *WRITTEN]
    backend = Backend(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    backend.add_special_tokens(names[:5])
    backend.add_tokens(["added", " added "])
    if len(steps) == 1:
        backend.decoder = STEPS[steps[0]]
    elif steps:
        backend.decoder = decoders.Sequence([STEPS[one] for one in steps])
    return Tokenizer.from_json(backend.to_str())


def check_decoders(seed: Any) -> None:
    tokenizer = make(*seed.draw(st.lists(st.sampled_from([*STEPS]), max_size=4)))
    ids = seed.draw(st.lists(st.integers(0, len(tokenizer)), max_size=24))
    at = seed.draw(st.integers(0, len(ids)))
    require_same_pieces(tokenizer, ids[:at], ids[at:])


@settings(max_examples=60, deadline=None)
@given(seed=st.data())
def test_pieces_of_any_decoder_are_those_of_the_whole_text(seed):
    check_decoders(seed)


@pytest.mark.slow
@settings(max_examples=30_000, deadline=None)
@given(seed=st.data())
def test_pieces_of_many_decoders_are_those_of_the_whole_text(seed):
    check_decoders(seed)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ((), _Window),
        (("ByteLevel",), _Bytes),
        (("Metaspace",), _Window),
        (("WordPiece",), _Window),
        (("replace", "bytes", "fuse", "strip"), _Window),
        # The first looks across tokens; a byte of the second may be half a character.
        (("fuse", "replace two"), _Whole),
        (("replace", "ByteLevel"), _Whole),
    ],
)
def test_decoders_of_known_kinds_do_not_decode_the_whole_text(steps, kind):
    assert isinstance(_begin(make(*steps), []), kind)


def test_a_decoder_that_is_not_known_is_not_local():
    assert not _is_local({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Invented"}]})
    assert not _is_local({"type": "Invented"})


class Reversed:
    """A user's tokenizer whose text of a token depends on all the others."""

    letters = "abc"

    def train(self, texts: Any) -> None: ...

    def encode(self, text: str) -> list[int]:
        return [self.letters.index(one) for one in reversed(text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.letters[one] for one in reversed(ids))

    def __len__(self) -> int:
        return len(self.letters)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@settings(max_examples=20, deadline=None)
@given(ids=st.lists(st.integers(0, 7), max_size=12), at=st.integers(0, 12))
def test_pieces_of_a_users_tokenizer_are_those_of_the_whole_text(ids, at):
    options: Any = SimpleNamespace(type=f"{__name__}:Reversed", options={})
    tokenizer = UsersTokenizer(options, Path(), "{}")
    require_same_pieces(tokenizer, ids[:at], ids[at:])


@pytest.mark.parametrize("name", QUICK)
def test_the_tokens_that_are_decoded_are_few_whatever_the_prompt(name, monkeypatch):
    """Each token of an answer decoded the prompt again."""
    tokenizer = load(name)
    ids = tokenizer.encode(TEXT)
    sizes: list[int] = []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda some: (sizes.append(len(some)), decode(some))[1])
    # As much work as to decode millions of tokens, for a large vocabulary.
    monkeypatch.setattr(tokenizer, "to_json", None)
    found = Pieces(tokenizer, ids * 50)
    for token in ids:
        found.add(token)
    assert sum(sizes) <= 3 * 50 * len(ids) + 10 * len(ids)
    assert max(sizes[4:], default=0) <= 10
