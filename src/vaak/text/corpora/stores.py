"""Splits on disk, as tokens or as rows of cleaned text: random access by memory maps, nothing is held in memory.

    FOLDER/
      tokens.bin     ids of all documents one after another: uint16, or uint32 for more than 65,536 tokens
      offsets.bin    int64, one more than documents: document i is tokens[offsets[i]:offsets[i + 1]]
      num_bytes.bin  int64, each document's length in UTF-8: what bits per byte divides by
      answers.bin    of conversations: uint8 per token, 1 where it belongs to an answer; bytes are then of answers
      store.json     format, counts, how many documents the tokens reproduce, type, the tokenizer's fingerprint and
                     the tokens'; little-endian throughout
      pairs.jsonl    (NAMEs.jsonl) a line per row: {"source": text, "targets": [text, …], "where": "file:line"}

A folder of tokens is written under a temporary name, flushed, and renamed: it is complete or not there. Texts are
tokenised about half a million characters at a time: memory grows with the longest document, never with the corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np

from vaak.core.artifact import Artifact, suggest_remedy
from vaak.core.errors import DataError, FormatError
from vaak.core.storage.files import replacing_folder, sync_file
from vaak.core.storage.mapped_lines import MappedLines, cut_short, writing_lines
from vaak.text.corpora.parallel import Pair
from vaak.text.tokenizer import Tokenizer

TOKENS_FORMAT = "vaak tokens 2"
BATCH_CHARACTERS = 1 << 19
PIECE_CHARACTERS = 1 << 16


class TokenStore:
    """The tokens of documents: ``tokens`` ``(token,)``, ``offsets`` ``(document + 1,)``, ``num_bytes`` ``(document,)``.

    Of conversations ``answers`` ``(token,)`` is True where a token is part of an answer; of other documents it is None.
    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path):
        """Map the store in ``folder``.

        Raises DataError if there is none, or it is truncated; FormatError if another version wrote it.
        """
        self.folder = Path(folder)
        artifact = _artifact_in(self.folder)
        about = artifact.read()
        # Only known types: the file's text would otherwise decide what its bytes are mapped as.
        if about["dtype"] not in ("<u2", "<u4"):
            raise DataError(f"{artifact.path}: this is damaged; delete {self.folder} and run again")
        self.num_documents: int = about["documents"]
        self.num_reproduced: int = about["reproduced"]
        self.tokenizer_fingerprint: str = about["tokenizer"]
        self.fingerprint: str = about["fingerprint"]
        self.tokens = _map_file(self.folder / "tokens.bin", about["dtype"], about["tokens"])
        self.offsets = _map_file(self.folder / "offsets.bin", "<i8", self.num_documents + 1)
        self.num_bytes = _map_file(self.folder / "num_bytes.bin", "<i8", self.num_documents)
        self.answers: np.ndarray | None = None
        if about.get("answers"):
            self.answers = _map_file(self.folder / "answers.bin", "|b1", about["tokens"])

    @property
    def is_exact(self) -> bool:
        """Whether decoding gives every document back, to the character."""
        return self.num_reproduced == self.num_documents

    def document(self, index: int) -> np.ndarray:
        """Return the ids of document ``index``, ``(token,)``: a view of the mapped file, read only."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, ``(document,)``."""
        return np.diff(np.asarray(self.offsets))

    def __len__(self) -> int:
        return self.num_documents

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenStore, (self.folder,)


def write_tokens(folder: str | Path, texts: Iterable[str], tokenizer: Tokenizer) -> TokenStore:
    """Tokenise ``texts`` into ``folder`` and return the store; an existing one is replaced.

    If anything fails, including ``texts``, the folder is unchanged.
    """
    return write_encoded(folder, _encode_texts(texts, tokenizer), tokenizer)


def write_encoded(folder: str | Path, pieces: Iterable[EncodedPiece], tokenizer: Tokenizer) -> TokenStore:
    """Write tokens; either all or none of the ``pieces`` have answers."""
    folder = Path(folder)
    with replacing_folder(folder) as temporary:
        _write_files(temporary, pieces, tokenizer)
    return TokenStore(folder)


def _write_files(folder: Path, pieces: Iterable[EncodedPiece], tokenizer: Tokenizer) -> None:
    """Stream the tokens out and write ``store.json`` last."""
    # two bytes a token as long as ids fit: half the memory to read at random
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    digest = hashlib.blake2b(digest_size=16)
    num_tokens = num_documents = num_reproduced = document_bytes = num_answers = 0
    is_reproduced = True
    paths = [folder / f"{name}.bin" for name in ("tokens", "offsets", "num_bytes", "answers")]
    with ExitStack() as opened:
        tokens, offsets, num_bytes, answers = (opened.enter_context(open(path, "wb")) for path in paths)
        offsets.write(_int64(0))
        for piece in pieces:
            content = np.asarray(piece.ids, dtype).tobytes()
            tokens.write(content)
            # Of the content alone, so the same tokens have the same fingerprint wherever they are stored.
            digest.update(content)
            num_tokens += len(piece.ids)
            document_bytes += piece.num_bytes
            is_reproduced &= piece.is_reproduced
            if piece.answers is not None:
                num_answers += answers.write(marks := piece.answers.astype("|b1").tobytes())
                digest.update(marks)
            if piece.ends_document:
                offsets.write(_int64(num_tokens))
                num_bytes.write(_int64(document_bytes))
                digest.update(_int64(num_tokens) + _int64(document_bytes))
                num_documents += 1
                num_reproduced += is_reproduced
                document_bytes, is_reproduced = 0, True
    if not num_answers:
        # They are documents, not conversations.
        paths.pop().unlink()
    for path in paths:
        sync_file(path)
    counts = {"documents": num_documents, "reproduced": num_reproduced, "tokens": num_tokens}
    about: dict[str, Any] = {"dtype": dtype.str, "tokenizer": tokenizer.fingerprint, "fingerprint": digest.hexdigest()}
    about = {"format": TOKENS_FORMAT} | counts | about | ({"answers": True} if num_answers else {})
    _artifact_in(folder).finish(about, with_sizes=False)


def _int64(number: int) -> bytes:
    return number.to_bytes(8, "little")


class EncodedPiece(NamedTuple):
    """The ids of a document, or of a part of a very long one, and the bytes that they stand for.

    ``is_reproduced``: whether they give the text back; ``answers`` ``(token,)``: which of a conversation's are scored.
    """

    ids: Sequence[int]
    num_bytes: int
    is_reproduced: bool
    ends_document: bool = True
    answers: np.ndarray | None = None


class _Piece(NamedTuple):
    """A document, or a part of a very long one."""

    text: str
    ends_document: bool


def _encode_texts(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[EncodedPiece]:
    """Yield the pieces of each text; ``BATCH_CHARACTERS`` or a little more at a time."""

    def both_ways() -> Iterator[EncodedPiece]:
        texts = [piece.text for piece in batch]
        # All texts of a batch at once: the library encodes them on all threads.
        all_ids = tokenizer.encode_batch(texts)
        for ids, same, (text, ends) in zip(all_ids, tokenizer.are_reproduced(all_ids, texts), batch, strict=True):
            yield EncodedPiece(ids, len(text.encode()), same, ends)

    batch: list[_Piece] = []
    characters = 0
    for piece in _pieces(texts, tokenizer.isolates_newlines):
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS:
            yield from both_ways()
            batch, characters = [], 0
    yield from both_ways()


def _pieces(texts: Iterable[str], cut_at_newlines: bool) -> Iterator[_Piece]:
    """Yield the documents; very long ones are cut after newlines, if that changes no token."""
    for text in texts:
        start = 0
        while cut_at_newlines and len(text) - start > PIECE_CHARACTERS:
            # Only after a newline, which is always a token by itself: cut elsewhere, a piece would be tokenised
            # differently.
            end = text.find("\n", start + PIECE_CHARACTERS - 1) + 1
            if not end:
                break
            yield _Piece(text[start:end], False)
            start = end
        yield _Piece(text[start:], True)


def _artifact_in(folder: Path) -> Artifact:
    keys = {"documents": int, "reproduced": int, "tokens": int, "dtype": str, "tokenizer": str, "fingerprint": str}
    return Artifact(folder, "store.json", "tokens", TOKENS_FORMAT, keys)


def _map_file(path: Path, dtype: str, length: int) -> np.ndarray:
    """Return the file as a read-only array of ``length``, unless its size says otherwise."""
    expected = length * np.dtype(dtype).itemsize
    try:
        size = path.stat().st_size
        if size != expected:
            raise DataError(f"{path}: {size} bytes; expected {expected}; delete the folder and run again")
        # As a plain array: slicing a memmap makes another memmap, which takes longer.
        return np.asarray(np.memmap(path, dtype, mode="r", shape=(length,))) if length else np.empty(0, dtype)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; {suggest_remedy(error)}") from error


Row = TypeVar("Row", bound=Any)


class RowStore(Generic[Row]):
    """The rows of a folder, tuples of ``kind``: ``store[i]`` is one, and iterating gives all of them in order.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    kind: ClassVar[Any]
    name: ClassVar[str]

    def __init__(self, folder: str | Path) -> None:
        """Map the rows in ``folder``.

        Raises DataError if there are none, or they are truncated; FormatError if another version wrote them.
        """
        self.folder = Path(folder)
        self.path = self.folder / f"{self.name}s.jsonl"
        self._lines = MappedLines(self.path, self.name)
        # Read one row now: a store of another version fails here, not in the middle of training.
        if len(self):
            self._entry(0)

    @classmethod
    def write(cls, folder: Path, rows: Iterable[Row]) -> Self:
        """Stream ``rows`` to ``folder`` and return the store; an existing one is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        with writing_lines(folder / f"{cls.name}s.jsonl") as lines:
            for row in rows:
                lines.write(json.dumps(row._asdict(), ensure_ascii=False).encode() + b"\n")
        return cls(folder)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        row: Row = self.kind(**{key: _freeze(value) for key, value in self._entry(index).items()})
        return row

    def _entry(self, index: int) -> dict[str, Any]:
        try:
            entry = json.loads(self._lines[index])
        except ValueError as error:
            raise cut_short(self.folder) from error
        found = tuple(entry) if isinstance(entry, dict) else ()
        if set(found) != set(self.kind._fields):
            columns = [" and ".join(one) or "nothing" for one in (found, self.kind._fields)]
            raise FormatError(self.path, f"{self.name}s", *columns)
        return dict(entry)

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)


def _freeze(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


class PairStore(RowStore[Pair]):
    """The pairs of a folder."""

    kind, name = Pair, "pair"


class Texts:
    """The sources, or the first targets, or both, of a store's pairs; can be read again and again."""

    def __init__(self, store: PairStore, *sides: str) -> None:
        self.store, self.sides = store, sides

    def __len__(self) -> int:
        return len(self.store) * len(self.sides)

    def __iter__(self) -> Iterator[str]:
        for pair in self.store:
            for side in self.sides:
                yield pair.source if side == "source" else pair.targets[0]
