"""A tokenizer: text in one canonical form to token ids and back, over a ``tokenizers`` backend or a user's class.

Corpus text is only ever text: a document that contains the letters ``<mask>`` gets the tokens of those letters, never
the special token's id. Special ids are inserted by code only.

``normalise`` writes NFC only, never NFKC: compatibility forms, and the zero-width joiner and non-joiner that choose
between a conjunct and a half form in Devanagari, carry meaning. Source: Unicode Standard Annex 15.

A user's class has these methods; special tokens are Vaak's, and not its concern. Its state is in
FOLDER/users_tokenizer.json; the class is named by the configuration alone::

    train             learns from the training texts, a stream
    encode, decode    text to ids from 0 to ``len(tokenizer) - 1``, and back
    state_dict        what it has learned, as JSON can hold it; ``load_state_dict`` takes it back from there
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import inspect
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend
from tokenizers import models

from vaak.config.components import check_options, resolve_component, source_file
from vaak.core.errors import DataError, UserError, catching_panics
from vaak.core.secrets import mask
from vaak.core.storage.files import compute_fingerprint, hash_file, read_json, write_json, write_text
from vaak.text.coverage import find_unwritable

logger = logging.getLogger(__name__)
# By role: our own name first, then those that other tokenizers use.
SPECIAL_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<PAD>", "<|pad|>", "<|padding|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<BOS>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<EOS>", "[EOS]", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "unk": ("<unk>", "[UNK]", "<UNK>", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<MASK>", "<|mask|>"),
}
SPECIAL_TOKENS = tuple(names[0] for names in SPECIAL_NAMES.values())
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))
}
"""The byte of each character by which GPT-2 writes it (Radford et al. 2019)."""


def _bytes_readable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"‹{byte:02X}›" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("vaak_readable", _bytes_readable)
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
# Stands in the pre-tokenizer of every tokenizer trained here, as JSON writes it.
ISOLATED_NEWLINE = r"|\\n|"


class Tokenizer:
    """Text to ids and back. Ids of special tokens: ``pad_id``, ``bos_id``, ``eos_id``, ``unk_id``, ``mask_id``.

    Trained here, they are 0 to 4. In a loaded tokenizer they are found by name, and missing ones are added after its
    vocabulary. ``vocab_size`` is the largest id plus one: the rows an embedding needs.
    """

    def __init__(self, backend: Backend, roles: Mapping[str, str] | None = None):
        """``roles`` says which tokens play them, where that is known."""
        backend.no_padding()
        backend.no_truncation()
        # Off by default in the library, which would turn "</s>" in a document into the end of it.
        backend.encode_special_tokens = True
        self.backend = backend
        known = {role: token for role, token in (roles or {}).items() if backend.token_to_id(token) is not None}
        self.special_tokens = {role: known.get(role) or _special_token(backend, role) for role in SPECIAL_NAMES}
        ids = backend.get_vocab(with_added_tokens=True)
        self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id = (
            ids[self.special_tokens[role]] for role in ("pad", "bos", "eos", "unk", "mask")
        )
        # Not the number of tokens: ids of loaded tokenizers may have gaps.
        self.vocab_size = max(ids.values()) + 1

    @classmethod
    def from_json(cls, content: str, roles: Mapping[str, str] | None = None) -> Tokenizer:
        """Return the tokenizer that ``to_json`` wrote. Raises ValueError if the library can't use it."""
        with catching_panics(quietly=True):
            made = cls(Backend.from_str(content), roles)
            # A trial run, since some panics only show here. The text itself may have no tokens, which isn't an error.
            with contextlib.suppress(Exception):
                made.backend.decode(made.backend.encode("a b").ids)
        return made

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Return the tokenizer in a ``tokenizer.json``, or in a folder with one.

        Raises DataError if there is none or it is damaged.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise DataError(f"{file}: this tokenizer file does not exist; give a tokenizer.json or a folder with one")
        # transformers keeps the special tokens' roles here; without it, they are guessed by their names.
        config = file.with_name("tokenizer_config.json")
        try:
            about = dict(read_json(config)) if config.is_file() else {}
            named = {role: about.get(f"{role}_token") for role in SPECIAL_NAMES}
            tokens = {role: one.get("content") if isinstance(one, dict) else one for role, one in named.items()}
            roles = {role: token for role, token in tokens.items() if isinstance(token, str)}
            return cls.from_json(file.read_text(encoding="utf-8"), roles)
        except Exception as error:
            # The library raises bare Exception for what it can't read.
            raise DataError(f"{file}: this is not a tokenizer of the tokenizers library: {error}") from error

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and the ``tokenizer_config.json`` by which transformers finds the special tokens."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {f"{role}_token": token for role, token in self.special_tokens.items()}
        write_text(folder / "tokenizer.json", self.to_json())
        write_json(folder / "tokenizer_config.json", config)

    def to_json(self) -> str:
        """Everything the tokenizer is, as the content of a ``tokenizer.json``."""
        return self.backend.to_str()

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short hash of the content: equal for tokenizers that give equal ids."""
        return compute_fingerprint(json.loads(self.to_json()))

    @property
    def begins_texts(self) -> bool:
        """Whether transformers, with this tokenizer, puts the token that begins a document before every text."""
        return begins_texts(self.backend, self.bos_id)

    @property
    def isolates_newlines(self) -> bool:
        r"""True when ``\n`` is always a separate piece, so text cut after it has the same tokens as the whole."""
        return ISOLATED_NEWLINE in json.dumps(json.loads(self.to_json())["pre_tokenizer"])

    @property
    def has_whole_words(self) -> bool:
        """Whether its tokens are whole words, not letters: words it wasn't trained on are unknown by design."""
        own = self.backend.get_vocab(with_added_tokens=False).keys() - {*self.special_tokens.values()}
        return isinstance(self.backend.model, models.WordLevel) and any(
            len(one) > 1 and one[0].isalnum()
            # Alphabets have names such as <blank> or [PAD], too.
            for one in own
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` alone, without any special token."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_written(self, text: str, *, as_text: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of ``text``, in which special tokens are written out, and the characters that each stands for.

        With ``as_text`` they are letters, as for ``encode``.
        """
        # The setting belongs to the backend, which is shared, so it is always restored.
        self.backend.encode_special_tokens = as_text
        try:
            encoding = self.backend.encode(text, add_special_tokens=False)
        finally:
            self.backend.encode_special_tokens = True
        return encoding.ids, encoding.offsets

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` of each text, on all threads."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; bytes that are not UTF-8 (half a character) become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    @property
    def decoder(self) -> dict[str, Any] | None:
        """Return the section ``decoder`` of ``tokenizer.json``, without writing the whole file."""
        own: Any = self.backend.decoder
        return None if own is None else dict(json.loads(own.__getstate__()))

    def find_unwritable(self, words: Sequence[str]) -> list[str]:
        """Return for each word the characters that its tokens don't represent (``vaak.text.coverage``)."""
        own = self.backend.token_to_id(getattr(self.backend.model, "unk_token", None) or "")
        return find_unwritable(self.backend, words, {self.unk_id} | ({own} if own is not None else set()))

    def are_reproduced(self, batch: Sequence[list[int]], texts: Sequence[str]) -> list[bool]:
        """Return for each row of ids whether it decodes to exactly its text."""
        parts = self.bytes_of_tokens
        if parts is None:
            return [back == text for back, text in zip(self.backend.decode_batch(list(batch)), texts, strict=True)]
        return [b"".join([parts[one] for one in ids]) == text.encode() for ids, text in zip(batch, texts, strict=True)]

    @cached_property
    def bytes_of_tokens(self) -> list[bytes] | None:
        """Return the bytes of each id if a text is just those of its tokens joined, which is faster than decoding.

        None if a decoder does more than that.
        """
        if (self.decoder or {}).get("type") != "ByteLevel":
            return None
        parts = [b""] * self.vocab_size
        for token, number in self.backend.get_vocab(with_added_tokens=True).items():
            if number not in self._special_ids:
                known = all(char in BYTES for char in token)
                parts[number] = bytes(BYTES[char] for char in token) if known else token.encode()
        return parts

    def has_text(self, token: int) -> bool:
        """Return whether a token is decoded: not a special one, nor one beyond the vocabulary."""
        return token not in self._special_ids and self.backend.id_to_token(token) is not None

    def written_bytes(self, token: int) -> bytes:
        """Return the UTF-8 that a token adds after others: a special one's name, nothing beyond the vocabulary."""
        if token >= self.vocab_size:
            return b""
        if token in self._special_ids:
            return self.readable(token).encode()
        if self.is_byte(token):
            return bytes.fromhex(str(self.backend.id_to_token(token))[3:5])
        if (parts := self.bytes_of_tokens) is not None:
            return parts[token]
        return self.decode([token, token])[len(self.decode([token])) :].encode()

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(number for number, token in self.backend.get_added_tokens_decoder().items() if token.special)

    def readable(self, token: int) -> str:
        """Return a token as text: ␣ is a space, ⏎ a newline, and ‹E0› a byte that isn't a character by itself.

        Raises UserError for a number beyond the vocabulary.
        """
        name = self.backend.id_to_token(token)
        if name is None:
            raise UserError(f"{token} is not a token; the tokenizer has {self.vocab_size}")
        if name in self.special_tokens.values():
            return name
        if _BYTE_TOKEN.fullmatch(name):
            text = f"‹{name[3:5]}›"
        elif "ByteLevel" in str(self.decoder) and all(char in BYTES for char in name):
            text = bytes(BYTES[char] for char in name).decode(errors="vaak_readable")
        else:
            text = name
        return text.replace(" ", "␣").replace("\n", "⏎")

    def token_names(self) -> list[str]:
        """Return every token by its number, as its vocabulary writes it."""
        return [self.backend.id_to_token(number) or "" for number in range(self.vocab_size)]

    def is_byte(self, token: int) -> bool:
        """Return whether a token is a byte of byte fallback, which may become a character with the tokens after it."""
        return _BYTE_TOKEN.fullmatch(self.backend.id_to_token(token) or "") is not None

    def __len__(self) -> int:
        return self.vocab_size

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self.to_json(), self.special_tokens)


def begins_texts(backend: Backend, token: int) -> bool:
    """Return whether a tokenizer of transformers puts a token before every text."""
    return backend.encode("a", add_special_tokens=True).ids[:1] == [token]


def _special_token(backend: Backend, role: str) -> str:
    """Return the token that plays ``role``, added to the vocabulary if it has none."""
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    # In order of preference: <|endoftext|> may serve for bos and eos, so specific names come first.
    for name in SPECIAL_NAMES[role]:
        if name in known:
            return name
    own = SPECIAL_NAMES[role][0]
    backend.add_special_tokens([own])
    logger.warning("the tokenizer has no %s token (looked for %s): %s added", role, ", ".join(SPECIAL_NAMES[role]), own)
    return own


@dataclass(frozen=True)
class RoundTrip:
    """The number of documents that their tokens reproduce; ``first_difference`` shows the first exception."""

    documents: int
    exact: int
    tokens: int
    unknown_tokens: int
    first_difference: str | None

    def __str__(self) -> str:
        summary = (
            f"{self.exact} of {self.documents} documents are reproduced exactly; {self.unknown_tokens} unknown tokens"
        )
        return f"{summary}; {self.first_difference}" if self.first_difference else summary


def round_trip_report(tokenizer: Tokenizer, texts: Iterable[str]) -> RoundTrip:
    """Count the losses of encoding and decoding ``texts``."""
    documents = exact = tokens = unknown = 0
    first: str | None = None
    remaining = iter(texts)
    # In chunks: encoding a batch uses all threads without holding all texts in memory.
    while chunk := list(islice(remaining, 256)):
        for text, ids in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            returned = tokenizer.decode(ids)
            if returned != text and first is None:
                first = _difference(documents, text, returned)
            documents += 1
            exact += returned == text
            tokens += len(ids)
            unknown += ids.count(tokenizer.unk_id)
    return RoundTrip(documents, exact, tokens, unknown, first)


def _difference(index: int, text: str, returned: str) -> str:
    """Return the first difference of two texts, with some context."""
    pairs = enumerate(zip(text, returned, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(text), len(returned)))
    around = slice(max(0, place - 10), place + 20)
    return f"document {index}, character {place}: {text[around]!r} became {returned[around]!r}"


TOKENIZER_KEY = "data.tokenizer"
USERS_FILE = "users_tokenizer.json"
TOKENIZER_METHODS = ("train", "encode", "decode", "__len__", "state_dict", "load_state_dict")


class UsersOptions(Protocol):
    """A user's class, and its options."""

    @property
    def type(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


class UsersTokenizer(Tokenizer):
    """A user's tokenizer in the state that was saved, with Vaak's special tokens as ids 0 to 4, before its own."""

    def __init__(self, options: UsersOptions, folder: Path, state: str) -> None:
        """``state`` is JSON. Raises UserError for a class that is not a tokenizer or doesn't take the state."""
        self._options, self._folder, self._state = options, folder, state
        self._users = _make_users_object(options, folder)
        _call_users_method(options, "load_state_dict", self._users, json.loads(state))
        self.special_tokens = {role: names[0] for role, names in SPECIAL_NAMES.items()}
        self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id = range(len(SPECIAL_TOKENS))
        self.vocab_size = len(SPECIAL_TOKENS) + len(self._users)
        self._special_ids, self.bytes_of_tokens = frozenset(range(len(SPECIAL_TOKENS))), None

    @classmethod
    def trained(cls, options: UsersOptions, folder: Path, texts: Iterable[str]) -> UsersTokenizer:
        """Return a new one that has learned from ``texts``."""
        users = _make_users_object(options, folder)
        _call_users_method(options, "train", users, texts)
        state = users.state_dict()
        try:
            content = json.dumps(state, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{TOKENIZER_KEY}: state_dict() of {options.type} gives what JSON can't hold: {error}"
            ) from error
        return cls(options, folder, content)

    @classmethod
    def saved_in(cls, path: Path, options: UsersOptions, folder: Path) -> UsersTokenizer:
        """Return the one that was saved in a folder, or in a file. Raises DataError if there is none."""
        file = path / USERS_FILE if path.is_dir() else path
        try:
            return cls(options, folder, file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{file}: no saved tokenizer of {options.type}") from error
        except ValueError as error:
            raise DataError(f"{file}: this is damaged: {error}") from error

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / USERS_FILE, self._state)

    def to_json(self) -> str:
        """Return the state."""
        return self._state

    @functools.cached_property
    def fingerprint(self) -> str:
        return compute_fingerprint([data_options(self._options, self._folder), json.loads(self._state)])

    @property
    def isolates_newlines(self) -> bool:
        return False

    @property
    def has_whole_words(self) -> bool:
        """No: only the user's class knows what its tokens are."""
        return False

    def encode(self, text: str) -> list[int]:
        ids = [int(one) for one in self._users.encode(text)]
        least, most = min(ids, default=0), max(ids, default=-1)
        if least < 0 or most >= len(self._users):
            raise UserError(
                f"{TOKENIZER_KEY}: {self._options.type} encodes {text[:40]!r} with id "
                f"{least if least < 0 else most}; its ids "
                f"go from 0 to {len(self._users) - 1}"
            )
        return [len(SPECIAL_TOKENS) + one for one in ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text, own = "", list[int]()
        for one in ids:
            if one >= len(SPECIAL_TOKENS):
                own.append(one - len(SPECIAL_TOKENS))
            elif not skip_special_tokens:
                # Decode what came before a special token together: the user's decoder may join tokens with spaces.
                text, own = text + self._decoded(own) + SPECIAL_TOKENS[one], []
        return text + self._decoded(own)

    def find_unwritable(self, words: Sequence[str]) -> list[str]:
        written = [self.decode(ids) for ids in self.encode_batch(words)]
        return ["".join(one for one in word if one not in back) for word, back in zip(words, written, strict=True)]

    def are_reproduced(self, batch: Sequence[list[int]], texts: Sequence[str]) -> list[bool]:
        return [self.decode(ids) == text for ids, text in zip(batch, texts, strict=True)]

    def readable(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            raise UserError(f"{token} is not a token; the tokenizer has {self.vocab_size}")
        return self.decode([token], skip_special_tokens=False).replace(" ", "␣").replace("\n", "⏎")

    def token_names(self) -> list[str]:
        return [self.readable(number) for number in range(self.vocab_size)]

    def _decoded(self, ids: list[int]) -> str:
        return str(self._users.decode(ids)) if ids else ""

    def is_byte(self, token: int) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return UsersTokenizer, (self._options, self._folder, self._state)


def data_options(options: UsersOptions, folder: Path) -> dict[str, Any]:
    """Return everything that determines the ids of a user's tokenizer: its name, options and code."""
    name = options.type.rpartition(":")[2]
    return {"type": name, "options": mask(options.options), "code": _hash_code(options, folder)}


def _hash_code(options: UsersOptions, folder: Path) -> str:
    """Return a hash of the user's file; or of the module, where the class is in a package; or of a registered class."""
    file = source_file(options.type, folder)
    if file is not None:
        return hash_file(file)
    found = resolve_component(TOKENIZER_KEY, options.type, folder)
    try:
        return compute_fingerprint(inspect.getsource(sys.modules[found.__module__] if ":" in options.type else found))
    except (OSError, TypeError):
        # Typed into an interpreter.
        return str(found.__qualname__)


def _make_users_object(options: UsersOptions, folder: Path) -> Any:
    """Return the user's object, new. Raises UserError, in one line, for anything but a tokenizer."""
    found = resolve_component(TOKENIZER_KEY, options.type, folder)
    if not isinstance(found, type):
        raise UserError(f"{TOKENIZER_KEY}: {options.type} is not a class")
    # Before an object is made, so that the error lists everything that the class lacks.
    lacking = [name for name in TOKENIZER_METHODS if not callable(getattr(found, name, None))]
    if lacking:
        raise UserError(
            f"{TOKENIZER_KEY}: {options.type} lacks {', '.join(lacking)}; a tokenizer's methods "
            f"are {', '.join(TOKENIZER_METHODS)}"
        )
    check_options(TOKENIZER_KEY, options.type, found, options.options)
    try:
        return found(**options.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{TOKENIZER_KEY}: {options.type} can't be made: {error}") from error


def _call_users_method(options: UsersOptions, method: str, users: Any, given: Any) -> None:
    """Call a method that may not fit. Raises UserError naming it."""
    try:
        getattr(users, method)(given)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{TOKENIZER_KEY}: {method} of {options.type} doesn't work: {type(error).__name__}: {error}"
        ) from error


BYTE_ORDER_MARK = "\ufeff"
_CARRIAGE_RETURNS = re.compile(r"\r+\n")


def normalise(text: str) -> str:
    r"""``text`` in NFC, without byte-order marks, with lines ending in ``\n``; idempotent.

    >>> normalise("\ufeffक़लम\r\n") == "क\u093cलम\n"
    True
    >>> normalise("क्\u200dष") == "क्\u200dष"
    True
    """
    if BYTE_ORDER_MARK in text:
        text = text.replace(BYTE_ORDER_MARK, "")
    if "\r" in text:
        text = _CARRIAGE_RETURNS.sub("\n", text)
    return unicodedata.normalize("NFC", text)
