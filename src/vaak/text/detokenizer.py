"""The text of tokens as they come, in time that grows with their number, not with its square.

To decode a text again for each of its tokens takes time n² for n of them, and n more for each token of an answer to a
prompt of n. So a window of the last few tokens is decoded, whose text begins with that of tokens decoded before.

This is exact where a token's text depends on few tokens before it; which decoders of the ``tokenizers`` library are
such is known. Others, and users' classes, decode the whole text. Source: ``detokenize_incrementally`` of vLLM (Kwon
et al. 2023), first in text-generation-inference. Differs: a window begins neither within the bytes of a character nor
with tokens without text, since decoders treat the first token of a text differently.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from vaak.text.tokenizer import Tokenizer, UsersTokenizer

HALF_A_CHARACTER = "\ufffd"
BY_TOKEN = {"Metaspace", "WordPiece", "BPEDecoder", "ByteFallback", "Strip", "Replace", "Fuse"}
"""Decoders whose text of a token depends on whether it is the first or the last, and on neighbours like itself."""
BY_CHARACTER = {"Metaspace", "Strip", "Fuse"}
"""Decoders for which the same holds for the characters of a text whose tokens were joined."""


class Pieces:
    """The text of tokens after a prompt, as they come, in pieces that are whole characters."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        # The token that begins a text isn't part of it; a prompt of tokens may lack it.
        ids = prompt[1:] if prompt[:1] == [tokenizer.bos_id] else prompt
        self.tokenizer, self._decoded = tokenizer, _begin(tokenizer, ids)
        self._waiting = self._tail = self._last = ""
        self._num_said = 0
        self._read()
        self._take()

    def add(self, token: int) -> str:
        """Return the text that one more token completes; empty within a character."""
        self._decoded.extend([token])
        if self.tokenizer.is_byte(token):
            return ""
        self._read()
        if (self._tail or self._last).endswith(HALF_A_CHARACTER):
            # Wait for the rest.
            return ""
        return self._take()

    def rest(self) -> str:
        """Return the text held back so far, once there are no more tokens."""
        self._read()
        return self._waiting + self._tail[self._num_said :]

    def _read(self) -> None:
        """Move what has become final from the tail, of which ``_num_said`` characters were returned, to what waits."""
        new, self._tail = self._decoded.read()
        self._waiting += new[self._num_said :]
        self._num_said = max(0, self._num_said - len(new))
        self._last = new[-1:] or self._last

    def _take(self) -> str:
        piece, self._waiting = self._waiting + self._tail[self._num_said :], ""
        self._num_said = len(self._tail)
        return piece


def pieces(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens after a prompt, in pieces that are whole characters."""
    found = Pieces(tokenizer, prompt)
    for token in tokens:
        if piece := found.add(token):
            yield piece
    yield found.rest()


class _Decoded(Protocol):
    """The text of tokens."""

    def extend(self, ids: Sequence[int]) -> None: ...

    def read(self) -> tuple[str, str]:
        """Return the text that has become final since the last call, and the rest, which further tokens may change."""


def _begin(tokenizer: Tokenizer, ids: Sequence[int]) -> _Decoded:
    if isinstance(tokenizer, UsersTokenizer):
        return _Whole(tokenizer, ids)
    if (parts := tokenizer.bytes_of_tokens) is not None:
        return _Bytes(parts, ids)
    return (_Window if _is_local(tokenizer.decoder) else _Whole)(tokenizer, ids)


def _is_local(decoder: Mapping[str, Any] | None) -> bool:
    """Return whether a decoder makes of a token the same text whatever stands further before it or after it."""
    is_joined = False
    for number, step in enumerate(_steps(decoder)):
        if is_joined:
            is_local = step["type"] in BY_CHARACTER or len(step.get("pattern", {}).get("String", "")) == 1
        else:
            # CTC joins neighbours that are equal, and others before it make the first token of a text another one.
            is_local = step["type"] in BY_TOKEN or (step["type"] == "CTC" and number == 0)
        if not is_local:
            return False
        is_joined = is_joined or step["type"] == "Fuse"
    return True


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is not None and decoder["type"] == "Sequence":
        for one in decoder["decoders"]:
            yield from _steps(one)
    elif decoder is not None:
        yield decoder


class _Whole:
    """All of it is decoded each time, and may change: nothing is known of how."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, list(ids)

    def extend(self, ids: Sequence[int]) -> None:
        self.ids += ids

    def read(self) -> tuple[str, str]:
        return "", self.tokenizer.decode(self.ids)


class _Bytes:
    """Bytes one after another, of which each character is final once they are all there."""

    def __init__(self, parts: Sequence[bytes], ids: Sequence[int]) -> None:
        self.parts, self.new, self.decoder = parts, "", codecs.getincrementaldecoder("utf-8")("replace")
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        # A model may have more tokens than its tokenizer.
        known = (self.parts[one] for one in ids if one < len(self.parts))
        self.new += self.decoder.decode(b"".join(known))

    def read(self) -> tuple[str, str]:
        new, self.new = self.new, ""
        return new, self.decoder.getstate()[0].decode(errors="replace")


class _Window:
    """The last few tokens: ``num_final`` characters of their text are final, and a window may begin at ``later``."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.num_final = self.later = 0
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        # Others have no text, wherever they are.
        self.ids += filter(self.tokenizer.has_text, ids)

    def read(self) -> tuple[str, str]:
        text = self.tokenizer.decode(self.ids)
        new = text[self.num_final :]
        if not self.ids or self.tokenizer.is_byte(self.ids[-1]):
            # Bytes are characters or not depending on those after them.
            return "", new
        self.num_final = len(text)
        if not self.later:
            self.later = len(self.ids)
        elif length := len(self.tokenizer.decode(self.ids[self.later :])):
            self.ids, self.num_final = self.ids[self.later :], length
            self.later = len(self.ids)
        return new, ""
