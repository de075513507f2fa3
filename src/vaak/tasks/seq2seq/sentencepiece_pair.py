"""The tokenizers of an OPUS-MT Marian, ``source.spm`` and ``target.spm`` (Kudo and Richardson 2018), as ``tokenizers``.

Each of the two divides the text of its side; the ids of all pieces are in ``vocab.json``, so both sides have the same
embeddings. A piece that only the other side's model has is in the vocabulary under a name that no text has, and is
decoded without the mark.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import Unigram

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json
from vaak.tasks.kept_base import BASE_FOLDER
from vaak.tasks.pretrained import PRETRAINED_KEY
from vaak.text.tokenizer import Tokenizer

TOKENIZER_BY_FILE = {"source.spm": "tokenizer", "target.spm": "target_tokenizer"}
"""The files, and where their tokenizers are in prepared data."""
PAIR_FILES = (*TOKENIZER_BY_FILE, "vocab.json", "tokenizer_config.json")
UNKNOWN_TOKEN = "<unk>"
UNIGRAM = 1
"""SentencePiece's number for the kind of model that is read here."""
_OF_THE_OTHER = "\ue000"
"""Before a piece that only the other side's model has; a character for private use."""


def is_pair(folder: Path) -> bool:
    """Return whether a model's folder has two SentencePiece models and no ``tokenizer.json``."""
    return all((folder / name).is_file() for name in TOKENIZER_BY_FILE) and not (folder / "tokenizer.json").exists()


def save_pair(source: Path, folder: Path, ids: Mapping[str, int | None]) -> Tokenizer:
    """Put both tokenizers of the model in ``source`` in prepared data ``folder``, with their files; the target's.

    ``ids`` are those of the tokens that play a role (``bos``, ``eos``, ``pad``). Raises UserError for files that can't
    be read, or lack one of them.
    """
    (folder / BASE_FOLDER).mkdir(parents=True, exist_ok=True)
    copy_files(source, folder / BASE_FOLDER)
    vocabulary = _vocabulary(source / "vocab.json")
    given = {role: at for role, at in ids.items() if at is not None}
    if outside := [f"{role} ({at})" for role, at in given.items() if at not in range(len(vocabulary))]:
        file = source / "vocab.json"
        raise UserError(
            f"{PRETRAINED_KEY}: {file}: its ids are 0 to {len(vocabulary) - 1}, without that of {', '.join(outside)}"
        )
    roles = {"unk": UNKNOWN_TOKEN, **{role: vocabulary[at] for role, at in given.items()}}
    for name, place in TOKENIZER_BY_FILE.items():
        tokenizer = Tokenizer(_backend(source / name, vocabulary), {"mask": roles["eos"], **roles})
        tokenizer.save(folder / place)
    return tokenizer


def copy_files(source: Path, folder: Path) -> None:
    """Copy what transformers reads of the two models from one folder to another."""
    for name in PAIR_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _vocabulary(file: Path) -> list[str]:
    """Return all pieces in the order of their ids."""
    try:
        ids: dict[str, int] = read_json(file)
        pieces = sorted(ids, key=ids.__getitem__)
        if sorted(ids.values()) != list(range(len(ids))) or UNKNOWN_TOKEN not in ids:
            raise ValueError(f"its ids are not 0 to {len(ids) - 1}, or it lacks {UNKNOWN_TOKEN}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{PRETRAINED_KEY}: {file} can't be read: {error}") from error
    return pieces


def _backend(file: Path, vocabulary: list[str]) -> Backend:
    """Return the tokenizer of a SentencePiece model, with the ids of ``vocabulary``."""
    model = _parse_model(file)
    if model.trainer_spec.model_type != UNIGRAM:
        raise UserError(f"{PRETRAINED_KEY}: {file} is not a unigram model of SentencePiece, the only kind that is read")
    special = [piece for piece in ("<pad>", "</s>", UNKNOWN_TOKEN) if piece in vocabulary]
    scores = {piece.piece: piece.score for piece in model.pieces} | dict.fromkeys(special, 0.0)
    scores |= {piece: 0.0 for piece in vocabulary if _is_language(piece)}
    # The vocabulary has the pieces of both languages. Those of the other one keep their ids, under names that no text
    # contains.
    rows = [(piece, scores[piece]) if piece in scores else (_OF_THE_OTHER + piece, 0.0) for piece in vocabulary]
    backend = Backend(Unigram(rows, unk_id=vocabulary.index(UNKNOWN_TOKEN), byte_fallback=False))
    rules: list[Any] = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if characters := model.normalizer_spec.precompiled_charsmap:
        rules.insert(0, normalizers.Precompiled(characters))
    backend.normalizer = normalizers.Sequence(rules)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Replace(_OF_THE_OTHER, ""), decoders.Metaspace()])
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in vocabulary if _is_language(piece)])
    return backend


def _is_language(piece: str) -> bool:
    """Return whether a piece is what a model for several languages reads at the start of a source: ``>>hin<<``."""
    return piece.startswith(">>") and piece.endswith("<<")


def _parse_model(file: Path) -> Any:
    """Return the model in a file, as SentencePiece's protocol buffer."""
    with optional_import(f"{PRETRAINED_KEY}: {file.name} requires protobuf and transformers", "hf"):
        importlib.import_module("google.protobuf")
        buffers: Any = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
    model = buffers.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:
        # Protobuf's own, which may be of several packages.
        raise UserError(f"{PRETRAINED_KEY}: {file} is not a SentencePiece model: {error}") from error
    return model
