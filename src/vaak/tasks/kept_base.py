"""The files of a pretrained model that prepared data keep, so that runs and exports need no more of it.

FOLDER (prepared data)
  base/config.json                        its configuration: a run needs no more of it once it has checkpoints
  base/tokenizer_config.json              how transformers makes its tokenizer, for exports
  base/generation_config.json             its settings for generation, if it has any
  base/new_tokens.json                    the tokens that it lacks, if there are any
  tokenizer/tokenizer.json, …_config.json its tokenizer, with which tokens are special, and its chat template
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken

from vaak.core.errors import UserError
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import read_json, scratch_folder, write_json
from vaak.tasks.fetching import GENERATION, TOKENIZER_CONFIG, load_generation, load_tokenizer
from vaak.tasks.older_names import name_for_older
from vaak.tasks.pretrained import PRETRAINED_KEY
from vaak.text.chat_template import keep_template
from vaak.text.tokenizer import SPECIAL_NAMES, Tokenizer

log = logging.getLogger("vaak")

BASE_FOLDER = "base"
NEW_TOKENS_FILE = "new_tokens.json"
LIKE = "give one of its tokenizer's"


class KeptBase(NamedTuple):
    """The files of a base that exports need: ``tokenizer_config.json``, ``generation_config.json``, ``config.json``."""

    tokenizer: dict[str, Any]
    generation: dict[str, Any]
    config: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> KeptBase:
        """Return the files kept in prepared data."""
        return cls(read_tokenizer_config(folder), read_generation(folder), read_config(folder))


def save_config(config: Any, folder: Path, changed: Mapping[str, Any] | None = None) -> None:
    """Write a configuration to prepared data, ``changed`` values replaced, with every default of transformers."""
    config.save_pretrained(folder / BASE_FOLDER)
    write_json(folder / BASE_FOLDER / "config.json", {**config.to_dict(), **(changed or {})})


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration in prepared data."""
    found: dict[str, Any] = read_json(folder / BASE_FOLDER / "config.json")
    return found


def write_generation(source: str, folder: Path) -> None:
    """Write a model's settings for generation to prepared data, if it has any.

    Raises UserError if they can't be read.
    """
    found = load_generation(PRETRAINED_KEY, source)
    if found is not None:
        write_json(folder / BASE_FOLDER / GENERATION, found.to_diff_dict())


def read_generation(folder: Path) -> dict[str, Any]:
    """Return a model's settings for generation; empty if it has none, or earlier versions prepared the data."""
    file = folder / BASE_FOLDER / GENERATION
    return dict(read_json(file)) if file.is_file() else {}


class NewTokens(NamedTuple):
    """Tokens to add to a base's tokenizer, and the one whose row theirs start from; None: the mean of all rows."""

    names: Sequence[str] = ()
    like: str | None = None


class NewIds(NamedTuple):
    """The tokens that a base has no rows for, and the one whose row theirs start from."""

    ids: range = range(0)
    like: int | None = None


def save_new_tokens(found: Any, tokens: NewTokens, num_rows: int, folder: Path) -> None:
    """Add ``tokens`` to the tokenizer ``found`` of a base, and record in prepared data which rows the base lacks.

    The base has ``num_rows`` rows, possibly a few more than tokens. The number of new rows and what they start from is
    logged. Raises UserError if the base doesn't have the token ``tokens.like``.
    """
    known = found.get_vocab()
    if tokens.like is not None:
        require_known([tokens.like], known, "data.new_tokens_like: the base has no token", error=UserError, remedy=LIKE)
    first = max(known.values()) + 1
    added = [token for token in dict.fromkeys(tokens.names) if token not in known]
    found.add_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    vocabulary = found.get_vocab()
    ids = range(min(num_rows, first) if added else num_rows, max(vocabulary.values()) + 1)
    if not ids:
        return
    names = [name for name, token in sorted(vocabulary.items(), key=itemgetter(1)) if token in ids]
    begin = "the mean of all others" if tokens.like is None else f"that of {tokens.like}"
    log.info("%d tokens are new to the base (%s): the row of each begins as %s", len(ids), list_names(names), begin)
    write_new_tokens(NewIds(ids, None if tokens.like is None else known[tokens.like]), folder)


def write_new_tokens(new: NewIds, folder: Path) -> None:
    """Record in prepared data which tokens the base has no rows for."""
    (folder / BASE_FOLDER).mkdir(exist_ok=True)
    about = {"first": new.ids.start, "stop": new.ids.stop, "like": new.like}
    write_json(folder / BASE_FOLDER / NEW_TOKENS_FILE, about)


def note_missing_rows(num_rows: int, vocab_size: int, source: str, folder: Path, key: str = PRETRAINED_KEY) -> None:
    """Record in prepared data, and log, which of a tokenizer's tokens the base ``source`` has no rows for."""
    if vocab_size > num_rows:
        number = vocab_size - num_rows
        log.info("%s: %d tokens are new to %s: the row of each begins as the mean", key, number, source)
        write_new_tokens(NewIds(range(num_rows, vocab_size)), folder)


def read_new_tokens(folder: Path) -> NewIds:
    """Return the tokens that the base in prepared data has no rows for."""
    file = folder / BASE_FOLDER / NEW_TOKENS_FILE
    if not file.is_file():
        return NewIds()
    about = read_json(file)
    return NewIds(range(about["first"], about["stop"]), about["like"])


def save_tokenizer(
    source: str,
    folder: Path,
    roles: Mapping[str, int | None] | None = None,
    key: str = PRETRAINED_KEY,
    new: tuple[NewTokens, int] | None = None,
) -> Tokenizer:
    """Write a model's tokenizer to prepared data and return it; the ids in ``roles`` replace its special tokens.

    ``key`` is the option that names the model. ``new`` has tokens to add, and the number of rows that the model has.
    Raises UserError if the tokenizer can't be loaded.
    """
    found = load_tokenizer(key, source)
    if new is not None:
        save_new_tokens(found, *new, folder)
    own: dict[str, Any] = {role: getattr(found, f"{role}_token", None) for role in SPECIAL_NAMES}
    vocabulary = found.get_vocab()
    for role, names in SPECIAL_NAMES.items():
        own[role] = own[role] or next((name for name in names if name in vocabulary), None)
    # Roles without a token of their own share the end of a document: adding tokens would change the model's size.
    special = {role: str(token or own["eos"]) for role, token in own.items() if token or own["eos"]}
    given = {role: found.convert_ids_to_tokens(token) for role, token in (roles or {}).items() if token is not None}
    tokenizer = Tokenizer.from_json(found.backend_tokenizer.to_str(), special | given)
    tokenizer.save(folder / "tokenizer")
    write_tokenizer_config(found, folder)
    if found.chat_template:
        keep_template(folder / "tokenizer", found.chat_template)
    return tokenizer


def write_tokenizer_config(found: Any, folder: Path) -> None:
    """Write the configuration of a transformers tokenizer, ``found``, to prepared data."""
    (folder / BASE_FOLDER).mkdir(exist_ok=True)
    write_json(folder / BASE_FOLDER / TOKENIZER_CONFIG, make_tokenizer_config(found))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return the tokenizer's configuration; if earlier versions prepared the data, its special tokens alone."""
    kept = folder / BASE_FOLDER / TOKENIZER_CONFIG
    return name_for_older(read_json(kept if kept.is_file() else folder / "tokenizer" / TOKENIZER_CONFIG))


def write_base_tokenizer(tokenizer: Tokenizer, prepared: Path, folder: Path) -> None:
    """Write a base's tokenizer to ``folder`` as transformers reads it, with the configuration in ``prepared`` data."""
    tokenizer.save(folder)
    write_json(folder / TOKENIZER_CONFIG, read_tokenizer_config(prepared))


def make_tokenizer_config(tokenizer: Any) -> dict[str, Any]:
    """Return the ``tokenizer_config.json`` of a transformers tokenizer, without the place it was loaded from."""
    with scratch_folder("tokenizer") as folder:
        tokenizer.save_pretrained(folder)
        found: dict[str, Any] = read_json(folder / TOKENIZER_CONFIG)
    return name_for_older(
        {name: value for name, value in found.items() if name not in ("is_local", "local_files_only")}
    )
