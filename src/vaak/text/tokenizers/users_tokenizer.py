"""A user's tokenizer: a class that turns text into ids and back. Special tokens are Vaak's, and not its concern.

made with         the options next to ``type``
train             learns from the training texts, a stream
encode, decode    text to ids from 0 to ``len(tokenizer) - 1``, and back
state_dict        what it has learned, as JSON can hold it; ``load_state_dict`` takes it back from there

FOLDER/users_tokenizer.json    the state; the class is named by the configuration alone
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vaak.config.components import check_options, resolve_component, source_file
from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import fingerprint_of, sha256_of, write_text
from vaak.text.tokenizers.tokenizer import SPECIAL_NAMES, SPECIAL_TOKENS, Tokenizer

KEY = "data.tokenizer"
FILE = "users_tokenizer.json"
METHODS = ("train", "encode", "decode", "__len__", "state_dict", "load_state_dict")


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
        self._users = _made(options, folder)
        _asked(options, "load_state_dict", self._users, json.loads(state))
        self.special_tokens = {role: names[0] for role, names in SPECIAL_NAMES.items()}
        self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id = range(len(SPECIAL_TOKENS))
        self.vocab_size = len(SPECIAL_TOKENS) + len(self._users)

    @classmethod
    def trained(cls, options: UsersOptions, folder: Path, texts: Iterable[str]) -> UsersTokenizer:
        """A new one that has learned from ``texts``."""
        users = _made(options, folder)
        _asked(options, "train", users, texts)
        return cls(options, folder, _as_json(options, users.state_dict()))

    @classmethod
    def saved_in(cls, path: Path, options: UsersOptions, folder: Path) -> UsersTokenizer:
        """The one that was saved in a folder, or in a file. Raises DataError if there is none."""
        file = path / FILE if path.is_dir() else path
        try:
            return cls(options, folder, file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{file}: no saved tokenizer of {options.type}") from error
        except ValueError as error:
            raise DataError(f"{file}: this is damaged: {error}") from error

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / FILE, self._state)

    def to_json(self) -> str:
        """The state."""
        return self._state

    @property
    def fingerprint(self) -> str:
        return fingerprint_of([decides(self._options, self._folder), json.loads(self._state)])

    @property
    def isolates_newlines(self) -> bool:
        return False

    def encode(self, text: str) -> list[int]:
        ids = [int(one) for one in self._users.encode(text)]
        least, most = min(ids, default=0), max(ids, default=-1)
        if least < 0 or most >= len(self._users):
            raise UserError(
                f"{KEY}: {self._options.type} encodes {text[:40]!r} with id {least if least < 0 else most}; its ids "
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
                text, own = text + self._decoded(own) + SPECIAL_TOKENS[one], []
        return text + self._decoded(own)

    def decode_batch(self, batch: Sequence[list[int]]) -> list[str]:
        return [self.decode(ids) for ids in batch]

    def readable(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            raise UserError(f"{token} is not a token; the tokenizer has {self.vocab_size}")
        return self.decode([token], skip_special_tokens=False).replace(" ", "␣").replace("\n", "⏎")

    def _decoded(self, ids: list[int]) -> str:
        return str(self._users.decode(ids)) if ids else ""

    def is_byte(self, token: int) -> bool:
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return UsersTokenizer, (self._options, self._folder, self._state)


def decides(options: UsersOptions, folder: Path) -> dict[str, Any]:
    """What decides the ids of a user's tokenizer: its name, its options, and its code wherever that is."""
    name = options.type.rpartition(":")[2]
    return {"type": name, "options": dict(options.options), "code": _code_of(options, folder)}


def _code_of(options: UsersOptions, folder: Path) -> str:
    """A hash of the user's file; of a class in a package of its module, of a registered one of the class."""
    file = source_file(options.type, folder)
    if file is not None:
        return sha256_of(file)
    found = resolve_component(KEY, options.type, folder)
    try:
        return fingerprint_of(inspect.getsource(sys.modules[found.__module__] if ":" in options.type else found))
    except (OSError, TypeError):  # typed into an interpreter
        return str(found.__qualname__)


def _made(options: UsersOptions, folder: Path) -> Any:
    """The user's object, new. Raises UserError, in one line, for anything but a tokenizer."""
    found = resolve_component(KEY, options.type, folder)
    if not isinstance(found, type):
        raise UserError(f"{KEY}: {options.type} is not a class")
    lacking = [name for name in METHODS if not callable(getattr(found, name, None))]
    if lacking:
        raise UserError(
            f"{KEY}: {options.type} lacks {', '.join(lacking)}; a tokenizer's methods are {', '.join(METHODS)}"
        )
    check_options(KEY, options.type, found, options.options)
    try:
        return found(**options.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{KEY}: {options.type} can't be made: {error}") from error


def _asked(options: UsersOptions, method: str, users: Any, given: Any) -> None:
    """Call a method that may not fit. Raises UserError naming it."""
    try:
        getattr(users, method)(given)
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{KEY}: {method} of {options.type} doesn't work: {type(error).__name__}: {error}") from error


def _as_json(options: UsersOptions, state: Any) -> str:
    try:
        return json.dumps(state, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{KEY}: state_dict() of {options.type} gives what JSON can't hold: {error}") from error
