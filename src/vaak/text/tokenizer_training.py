r"""Trains tokenizers: BPE over bytes or characters, unigram, WordPiece, plain characters, and whole words.

All but words share one way of cutting text in pieces that no token crosses. A piece is a word with the space before it
(as in GPT-2), a number, a run of signs, one newline, or a run of spaces. A word is ``\p{L}``, ``\p{M}`` and the joiners
together: GPT-2's own expression knows no ``\p{M}`` and cuts a Hindi word at every vowel sign. ::

    "नमस्ते दुनिया।\n"  ->  "नमस्ते", " दुनिया", "।", "\n"

A piece has at most 100 characters, the most that WordPiece takes: text without spaces would be one piece of millions,
and training would need 80 bytes of memory for each of them.

Characters that are not in the vocabulary become UTF-8 bytes, so every type but WordPiece and words reproduces any text
exactly; WordPiece loses the words with characters that it never saw (``round_trip_report`` counts them), and words lose
all that are not in the vocabulary, capitals and spaces: they are for classifiers, not for writing.
Source: Radford et al. 2019 (byte-level BPE, leading spaces); Kudo 2018 (unigram); Schuster and Nakajima 2012
(WordPiece); Kudo and Richardson 2018, section 3.2 (byte fallback).

A sample of the texts that a tokenizer is trained on.
"""

from __future__ import annotations

import heapq
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from vaak.core.errors import DataError, OptionError, UserError
from vaak.core.progress import progress, track
from vaak.core.splits import hash_text
from vaak.text.tokenizer import SPECIAL_TOKENS, Tokenizer, UsersTokenizer, data_options

logger = logging.getLogger(__name__)
PIECES = (
    r" ?[\p{L}\p{M}][\p{L}\p{M}\x{200C}\x{200D}]{0,98}"
    r"| ?\p{N}{1,99}"
    r"| ?[^\s\p{L}\p{M}\p{N}]{1,99}"
    r"|\n|"
    r"[^\S\n]{1,99}(?!\S)"
    r"|[^\S\n]"
)
# WordPiece marks what continues a word by "##": a piece must not begin with it.
WORDPIECE_PIECES = f" ?#|{PIECES}"
CONTINUATION = "##"
WORDS = r"[\p{L}\p{M}\p{N}\x{200C}\x{200D}]+(?:['’]\p{L}+)*|['’]\p{L}+|[^\s\p{L}\p{M}\p{N}]"
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
MERGING = ("byte_level", "bpe", "wordpiece")
"""Types whose trainer counts pairs of neighbours, in 32 bits with a sign: beyond, a merge is lost without an error."""
MOST_OF_A_PAIR = 2**31
MEMORY_MARGIN = 0.9
MANY_CHARACTERS = 100_000_000
"""In more text than this, a sample gives nearly the same tokenizer."""
COUNTED = 1 << 18
"""Units of the text whose pairs are all counted; then one text in 64."""
COUNTED_TOGETHER = 1 << 16
"""Units of texts whose pairs are counted at once: short texts one by one took as long as the training."""


class TokenizerOptions(Protocol):
    """Options and files that a tokenizer is made from; ``path`` loads an existing one instead of training."""

    @property
    def type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def min_frequency(self) -> int: ...
    @property
    def training_characters(self) -> int | None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, Any]:
        """The options of a user's class."""
        ...


class TokenizerFactory:
    """Makes the tokenizer that the options of ``key`` describe; a user's ``./file.py`` is looked for in ``folder``."""

    def __init__(self, options: TokenizerOptions, folder: Path = Path(), key: str = "data.tokenizer"):
        self.options, self.folder, self.key = options, folder, key
        self.is_users = options.type not in _TRAINERS

    def load(self, path: str | Path) -> Tokenizer:
        """Return the tokenizer that was saved at ``path``. Raises DataError if there is none or it is damaged."""
        if self.is_users:
            return UsersTokenizer.saved_in(Path(path), self.options, self.folder)
        return Tokenizer.load(path)

    def data_options(self) -> dict[str, Any]:
        """Return the options that determine the tokenizer, except the texts and the path of an existing one."""
        if self.is_users:
            return data_options(self.options, self.folder)
        names = ["type", "vocab_size", "min_frequency"]
        # Data prepared before this option existed lacks it, and must still be found.
        if self.options.training_characters is not None:
            names.append("training_characters")
        return {name: getattr(self.options, name) for name in names}

    def create_tokenizer(self, texts: Iterable[str]) -> Tokenizer:
        """Return the tokenizer at ``options.path``, or one trained on ``texts``, which are read as a stream.

        WordPiece reads them twice (an iterator is kept in memory for that). The same texts and options give the same
        tokenizer in every process. (The library adds unigram's probabilities up in the order of a hash table; what
        this changes in the last digits is rounded away, so only an exact tie between pieces could fall otherwise.)

        Raises UserError for a vocabulary smaller than the text needs and for more text than the library can count,
        DataError without any text.
        """
        if self.options.path is not None:
            return self.load(self.options.path)
        if self.is_users:
            return UsersTokenizer.trained(self.options, self.folder, _require_texts(texts))
        # tokens that don't depend on the text
        least = len(SPECIAL_TOKENS) + (0 if self.options.type in ("wordpiece", "word") else len(BYTE_TOKENS))
        if self.options.vocab_size < least:
            raise self._too_small(least)
        # A stream reports its progress in the corpus.
        if isinstance(texts, Sized):
            texts = _Followed(texts)
        if self.options.training_characters is not None:
            texts = self._sampled(texts, self.options.training_characters)
        else:
            texts = _WithAdvice(texts, self.key)
        if self.options.type in MERGING:
            # Checked while the texts stream past, since the library would silently lose the merge and not fail.
            texts = _below_the_limit(texts, self.options.type == "byte_level")
        with progress("training the tokenizer"):
            tokenizer = Tokenizer(_TRAINERS[self.options.type](texts, self.options))
        # Trainers keep every single character, even beyond the vocabulary asked for.
        if tokenizer.vocab_size > self.options.vocab_size:
            raise self._too_small(tokenizer.vocab_size)
        if tokenizer.vocab_size < self.options.vocab_size:
            logger.warning(
                "%s: the text gives %d tokens, fewer than vocab_size (%d)",
                self.key,
                tokenizer.vocab_size,
                self.options.vocab_size,
            )
        return tokenizer

    def _sampled(self, texts: Iterable[str], most: int) -> list[str]:
        """Return a sample of the texts; a line says how much of them it is."""
        read = _Counted(texts)
        kept = draw_sample(read, most)
        characters = sum(map(len, kept))
        logger.info(
            "the tokenizer is trained on %s of %s characters (%.1f %%), %s of %s texts (%s.training_characters)",
            f"{characters:,}",
            f"{read.characters:,}",
            100 * characters / max(1, read.characters),
            f"{len(kept):,}",
            f"{read.number:,}",
            self.key,
        )
        return kept

    def _too_small(self, least: int) -> OptionError:
        return OptionError(
            f"{self.key}.vocab_size",
            f"{self.options.vocab_size} is too small; {self.options.type} on this text requires at least {least} "
            "(special tokens, bytes and single characters)",
        )


class _Followed:
    """Texts that show how many were read, each time they are; the length is that of ``texts``."""

    def __init__(self, texts: Any) -> None:
        self.texts = texts

    def __iter__(self) -> Iterator[str]:
        return track(self.texts, "reading texts", len(self.texts))


class _Counted:
    """Texts that count how many were read, and their characters."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts, self.number, self.characters = texts, 0, 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.number += 1
            self.characters += len(text)
            yield text


class _WithAdvice:
    """Texts; the first time that they are read, a line says how to sample them where they are many."""

    def __init__(self, texts: Iterable[str], key: str) -> None:
        self.texts, self.key, self.said = texts, key, False

    def __iter__(self) -> Iterator[str]:
        read = _Counted(self.texts)
        for text in read:
            if read.characters > MANY_CHARACTERS and not self.said:
                self.said = True
                logger.info(
                    "the tokenizer is trained on all texts, more than %s characters; %s.training_characters=%d trains "
                    "on a sample in less time and memory",
                    *(f"{MANY_CHARACTERS:,}", self.key, MANY_CHARACTERS // 2),
                )
            yield text


def _train_byte_level(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """BPE over the 256 bytes, each written as a printable character."""
    backend = Backend(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([_cut(PIECES), to_bytes])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        # Sorted, because the library returns them in no fixed order.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_require_texts(texts), trainer)
    return backend


def _train_bpe(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """BPE over characters, with byte fallback."""
    backend = _add_byte_fallback(models.BPE(unk_token="<unk>", byte_fallback=True))
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *BYTE_TOKENS],
        show_progress=False,
    )
    backend.train_from_iterator(_require_texts(texts), trainer)
    return _rebuilt(backend)


def _train_unigram(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """Return a unigram language model over pieces of words, with byte fallback."""
    backend = _add_byte_fallback(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=options.vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *BYTE_TOKENS],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(_require_texts(texts), trainer)
    return _rebuilt(backend, _canonical_unigram)


def _train_wordpiece(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """WordPiece by longest match, with spaces kept in the words.

    The trainer numbers continuing characters in the order of a hash table, and breaks ties by that number: giving it
    all of them beforehand makes it deterministic, and lets a known character stand anywhere in a word.
    """
    # Read twice, below: an iterator would be empty the second time.
    texts = list(texts) if isinstance(texts, Iterator) else texts
    alphabet = sorted({"\n", "\t", " "}.union(*_require_texts(texts)))
    continuing = [CONTINUATION + character for character in alphabet]
    backend = Backend(models.WordPiece(unk_token="<unk>", continuing_subword_prefix=CONTINUATION))
    backend.pre_tokenizer = _cut(WORDPIECE_PIECES)
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(f"^{CONTINUATION}"), ""), decoders.Fuse()])
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *continuing],
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _rebuilt(backend)


def _train_character(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """Return the most frequent characters, with byte fallback: BPE without a single merge."""
    counts: Counter[str] = Counter()
    for text in _require_texts(texts):
        counts.update(text)
    frequent = [character for character, count in counts.items() if count >= options.min_frequency]
    # Ties by the character itself, so that ids don't depend on the order of the texts.
    frequent.sort(key=lambda character: (-counts[character], character))
    fixed = [*SPECIAL_TOKENS, *BYTE_TOKENS]
    tokens = fixed + frequent[: options.vocab_size - len(fixed)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = _add_byte_fallback(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend


def _train_word(texts: Iterable[str], options: TokenizerOptions) -> Backend:
    """Return the most frequent words, in small letters, and signs."""
    backend = Backend(models.WordLevel(unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    backend.train_from_iterator(_require_texts(texts), trainer)
    return backend


_TRAINERS: dict[str, Callable[[Iterable[str], TokenizerOptions], Backend]] = {
    "byte_level": _train_byte_level,
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "wordpiece": _train_wordpiece,
    "character": _train_character,
    "word": _train_word,
}


def _cut(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _add_byte_fallback(model: models.Model) -> Backend:
    """Return a backend whose unknown characters become byte tokens, and whose byte tokens become characters again."""
    backend = Backend(model)
    backend.pre_tokenizer = _cut(PIECES)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _rebuilt(backend: Backend, edit: Callable[[dict[str, Any]], None] | None = None) -> Backend:
    """Return the backend with only the five special tokens marked as special, and its model edited.

    Trainers fix the ids of what they are given as special tokens; bytes and characters are given so too, for their ids.
    """
    content = json.loads(backend.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in SPECIAL_TOKENS]
    if edit:
        edit(content["model"])
    return Backend.from_str(json.dumps(content))


def _canonical_unigram(model: dict[str, Any]) -> None:
    """Byte fallback on; scores and order freed from the trainer's hash tables and the order of its sums.

    The trainer gives characters that no piece kept the least score plus 0.0001 for each before it, in the order of a
    hash table; here they all get the least score. So do those whose score it can't compute, which are all characters
    of a text such as ``00000000``. Scores are rounded and their ties sorted by text.
    """
    fixed = len(SPECIAL_TOKENS) + len(BYTE_TOKENS)
    known = [score for _, score in model["vocab"][fixed:] if score is not None]
    least = min(known, default=0.0)
    pieces = [(piece, least if score is None else score) for piece, score in model["vocab"][fixed:]]
    # No score above this can be one of the artificial ones.
    near = least + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {piece: least if len(piece) == 1 and score < near else score for piece, score in pieces}
    ordered = sorted(
        ((piece, round(score, 3)) for piece, score in scores.items()), key=lambda item: (-item[1], item[0])
    )
    model["vocab"] = model["vocab"][:fixed] + [list(item) for item in ordered]
    model["byte_fallback"] = True


def _below_the_limit(texts: Iterable[str], of_bytes: bool) -> Iterator[str]:
    """``texts``. Raises UserError if the most frequent pair of neighbours comes near what the library can count."""
    seen = counted = waiting = number = 0
    pairs: Counter[int] = Counter()
    keys: list[Any] = []
    """Pairs that aren't counted yet: many short texts are counted together."""
    for text in texts:
        # Pairs as numbers: two bytes, or two code points, in one int64.
        units = np.frombuffer(text.encode() if of_bytes else text.encode("utf-32-le"), np.uint8 if of_bytes else "<u4")
        seen, number = seen + len(units), number + 1
        if counted < COUNTED or number % 64 == 0:
            counted, waiting = counted + len(units), waiting + len(units)
            keys.append(units[:-1].astype(np.int64) << 32 | units[1:])
        if keys and (waiting > COUNTED_TOGETHER or seen > MEMORY_MARGIN * MOST_OF_A_PAIR):
            found, counts = np.unique(np.concatenate(keys), return_counts=True)
            pairs.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            keys, waiting = [], 0
        if seen > MEMORY_MARGIN * MOST_OF_A_PAIR and pairs:
            # Extrapolate from the counted part to all of the text so far.
            estimate = max(pairs.values()) * seen / counted
            if estimate > MEMORY_MARGIN * MOST_OF_A_PAIR:
                # Half of what would fit, to be safe; counted in bytes, since a character may have three.
                fits = int(seen * MEMORY_MARGIN * MOST_OF_A_PAIR / estimate / 2 / (3 if of_bytes else 1))
                raise UserError(
                    f"data.tokenizer: the most frequent pair occurs about {estimate:,.0f} times in the training text, "
                    f"and the tokenizers library counts to {MOST_OF_A_PAIR:,}; train on a sample: "
                    f"data.tokenizer.training_characters={fits}"
                )
        yield text


def _require_texts(texts: Iterable[str]) -> Iterator[str]:
    """``texts``. Raises DataError if there are none."""
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise DataError("no text to train the tokenizer on: the training split is empty")


def draw_sample(texts: Iterable[str], most: int) -> list[str]:
    """Whole texts, in their order, with at most ``most`` characters in all: those whose content has the lowest hashes.

    So the sample is a function of the texts, and a larger one contains a smaller one. A single text that is too long is
    cut.
    """
    kept: list[tuple[int, int, str]] = []
    total, highest_kept = 0, math.inf
    for number, text in enumerate(texts):
        # A heap of the lowest hashes, so memory holds only the sample, whatever the corpus.
        digest = hash_text(text)
        if digest >= highest_kept:
            continue
        heapq.heappush(kept, (-digest, -number, text))
        total += len(text)
        # Hashes at or above a dropped one are refused from now on, so a larger sample contains every smaller one.
        while total > most and len(kept) > 1:
            dropped = heapq.heappop(kept)
            total, highest_kept = total - len(dropped[2]), -dropped[0]
    ordered = [text for _, _, text in sorted(kept, key=lambda item: -item[1])]
    return [text[:most] for text in ordered]
