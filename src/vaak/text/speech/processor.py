"""The front end of speech as one object: text to phrases, symbols and ids, and back; saved as one JSON file.

The file has all that it is, the lexicon's entries included, so a checkpoint that holds it can speak without anything
else (except espeak-ng, where that pronounces).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from vaak import __version__
from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import compute_fingerprint, write_text
from vaak.text.speech import languages
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.english import ACCENTED_LETTERS, cleaned, normalise, shown
from vaak.text.speech.guesses import count_guesses
from vaak.text.speech.phonemes.alphabets import (
    BOUNDARY,
    NOISE,
    PAD,
    PAUSE,
    PAUSING,
    PUNCTUATION,
    SPECIAL,
    from_arpabet,
    from_either,
    from_espeak,
    from_ipa,
    list_symbols,
)
from vaak.text.speech.phonemes.heteronyms import MARK, find_sense
from vaak.text.speech.phonemes.pronunciation import (
    Words,
    demoted,
    has_stress,
    make_pronunciation,
    read_lexicon,
)
from vaak.text.speech.unspoken import leave_out_pictures

PROCESSOR_FILE = "processor.json"
"""Its name in the prepared data of a run."""
PROCESSOR_FORMAT = "vaak.phoneme_processor"
VERSION = 1
MOST_PHRASES = 100_000
"""Phrases whose pronunciation is remembered; then all are forgotten."""
_SILENCE = ("", "sil", "sp", "_")
"""How aligners mark a pause."""


@dataclass(frozen=True)
class Processed:
    """A text in symbols. ``is_phoneme`` is False for boundaries, pauses and punctuation."""

    text: str
    normalised: str
    symbols: tuple[str, ...]
    ids: tuple[int, ...]
    is_phoneme: tuple[bool, ...]
    unspoken: tuple[str, ...] = ()
    """Symbols of the text that no rule reads."""
    guesses: tuple[tuple[str, int], ...] = ()
    """The kinds of readings that were guessed, of several, and how often."""


class PhonemeProcessor:
    """Text to symbols and ids, and back. Ids are places in ``symbols``, which the options alone decide."""

    def __init__(self, config: FrontEndConfig | None = None) -> None:
        """Reads the lexicon, if the options name one. Raises DataError for one that can't be read."""
        config = config or FrontEndConfig()
        entries = read_lexicon(Path(config.lexicon).expanduser()) if config.lexicon is not None else {}
        if entries and config.stress and not has_stress(entries):
            raise UserError(f"lexicon {config.lexicon} marks no stress (AH0, AH1); set stress: false")
        # besides the options, the rules and the synthesiser decide which symbols a text has
        versions = {"vaak": __version__}
        if config.phonemizer == "espeak" or (config.phonemizer == "lexicon" and config.unknown_words == "espeak"):
            try:
                versions["espeakng-loader"] = importlib.metadata.version("espeakng-loader")
            except importlib.metadata.PackageNotFoundError:
                raise UserError("espeak-ng is not installed; pip install 'vaak[tts]'") from None
        # Also used by from_json, which takes symbols and versions as saved, whatever is installed now.
        self._set(config, list_symbols(config), entries, versions)

    def _set(
        self, config: FrontEndConfig, symbols: Sequence[str], entries: Mapping[str, str], versions: Mapping[str, str]
    ) -> None:
        self.config = config
        self.symbols = tuple(symbols)
        self.entries = dict(entries)
        self.versions = dict(versions)
        self.num_symbols = len(self.symbols)
        self.pad_id, self.pause_id = self.symbols.index(PAD), self.symbols.index(PAUSE)
        self._ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        self._pronounce = make_pronunciation(config, self.entries)
        self._remembered: dict[str, Words] = {}

    def __len__(self) -> int:
        return self.num_symbols

    @property
    def fingerprint(self) -> str:
        """Equal for processors that give equal ids for every text."""
        # The usual locale is left out: processors saved before there were others give equal ids.
        exclude = {"lexicon"} | ({"locale"} if self.config.locale == "en-US" else set())
        return compute_fingerprint({**self._content(), "options": self.config.model_dump(exclude=exclude)})

    def normalise(
        self, text: str, kept: Container[str] = (), unspoken: list[str] | None = None, *, pictures: bool = False
    ) -> str:
        """The text as spoken; with ``normalise: false`` only its characters are brought into one form.

        Characters that are ``kept`` stay. Symbols that no rule reads are added to ``unspoken``, among them emoji, with
        ``pictures``; otherwise these are unknown. Raises DataError for letters of another script and for unknown
        symbols.
        """
        if pictures:
            text = leave_out_pictures(text, unspoken)
        if not self.config.normalise:
            plain = self._cleaned(text, kept=kept)
            if unspoken is not None and not self.config.is_english:
                unspoken.extend(one for one in plain if one in languages.GAPS)
            return plain
        if self.config.is_english:
            return normalise(text, kept, unspoken, self.config.locale)
        return languages.normalise(text, self.config.language, kept, unspoken)

    def without_unknown(self, text: str, kept: Container[str] = ()) -> str:
        """The text without characters that can't be read."""
        return self._cleaned(text, drop_unknown=True, kept=kept)

    def find_unreadable(self, text: str) -> list[str]:
        """Return the characters of a text that can't be read, once per occurrence.

        >>> PhonemeProcessor().find_unreadable("the ☃ of Москва")
        ['☃', 'М', 'о', 'с', 'к', 'в', 'а']
        """
        characters = unicodedata.normalize("NFC", text)
        unreadable = {one for one in {*characters} if not self._reads(one)}
        return [one for one in characters if one in unreadable]

    def _reads(self, character: str) -> bool:
        try:
            plain = self._cleaned(character)
        except DataError:
            return False
        has_rules = self.config.normalise or not self.config.is_english
        return has_rules or not plain or _TOKEN.fullmatch(plain) is not None

    @property
    def _cleaned(self) -> Callable[..., str]:
        return cleaned if self.config.is_english else languages.cleaned

    def symbols_of_phonemes(self, phonemes: str) -> tuple[str, ...]:
        """The symbols of phonemes of ARPAbet or IPA. Raises DataError for unknown ones."""
        if self.config.phonemizer == "characters":
            raise DataError(f"a front end of characters can't read phonemes such as {shown(phonemes)}")
        is_english, stress = self.config.is_english, self.config.stress
        try:
            return from_either(phonemes, self.config.alphabet, stress) if is_english else from_ipa(phonemes, stress)
        except KeyError as error:
            known = "a phoneme of ARPAbet or of espeak-ng's English voices in IPA" if is_english else "of IPA"
            raise DataError(f"{shown(phonemes)}: {error.args[0]} is not {known}") from None

    def process(self, text: str) -> Processed:
        """The symbols, ids and further results for a text.

        Raises DataError, with the text, if nothing in it can be spoken, or something can't be pronounced.
        """
        return self.process_all([text])[0]

    def process_all(
        self, texts: Sequence[str], phonemes: Mapping[str, str] | None = None, *, pictures: bool = False
    ) -> list[Processed]:
        """``process`` of each text, with the synthesiser loaded once for all; with ``pictures``, emoji are unspoken.

        A character that ``phonemes`` has, of no other use, is a word spoken so (ARPAbet or IPA).
        """
        given: dict[str, Words] = {}
        for mark, spoken in (phonemes or {}).items():
            if any(mark in text for text in texts):
                # Only marks that occur: phonemes that the front end can't read matter only where they are used.
                given[mark] = (self.symbols_of_phonemes(spoken),)
        unspoken: list[list[str]] = [[] for _ in texts]
        normalised: list[str] = []
        guesses: list[tuple[tuple[str, int], ...]] = []
        for text, lost in zip(texts, unspoken, strict=True):
            with count_guesses() as counts:
                normalised.append(self.normalise(text, given, lost, pictures=pictures))
            guesses.append(tuple(counts.items()))
        if self.config.is_english:
            parts = [with_senses(pieces(text, given)) for text in normalised]
        else:
            parts = [[Piece(*one) for one in languages.pieces(text, given)] for text in normalised]
        # Each different phrase is pronounced once, all in one call, which loads the synthesiser once.
        phrases = dict.fromkeys(phrase for part in parts for piece in part for phrase in _phrases(piece))
        remembered = self._remembered
        new = [phrase for phrase in phrases if phrase not in remembered and phrase not in given]
        found = dict(zip(new, self._pronounce(new), strict=True)) if new else {}
        said = {phrase: remembered[phrase] for phrase in phrases if phrase in remembered} | found | given
        if len(remembered) + len(found) > MOST_PHRASES:
            remembered.clear()
        remembered.update(found)
        return [
            replace(self._assembled(text, plain, part, said), unspoken=tuple(lost), guesses=guessed)
            for text, plain, part, lost, guessed in zip(texts, normalised, parts, unspoken, guesses, strict=True)
        ]

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self.process(text).ids)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The symbols of ids, without padding. Raises UserError for an id beyond the inventory."""
        found = []
        for number in ids:
            if not 0 <= number < self.num_symbols:
                raise UserError(f"{number} is not an id; ids go from 0 to {self.num_symbols - 1}")
            if number != self.pad_id:
                found.append(self.symbols[number])
        return found

    def of_phone(self, label: str) -> tuple[str, ...]:
        """The symbols of one phone of an alignment by the Montreal Forced Aligner (ARPAbet) or espeak-ng (IPA).

        A few give two (``əl`` in ARPAbet is ``AH0 L``), pauses ``sil``, ``spn`` itself.

        Raises DataError for an unknown one.
        """
        if label in _SILENCE:
            return (PAUSE,)
        if label in ("spn", "nsn"):
            return (NOISE,)
        if self.config.phonemizer == "characters":
            raise DataError(f"a front end of characters can't read aligned phones such as {label!r}")
        if not self.config.is_english:
            return self.symbols_of_phonemes(label)
        # ARPAbet is written in capitals, espeak-ng's IPA in small letters.
        read = from_arpabet if label.isascii() and label[0].isupper() else from_espeak
        try:
            return read(label, self.config.alphabet, self.config.stress)
        except KeyError:
            raise DataError(f"{label!r} is not a phoneme of ARPAbet or of espeak-ng's English voices") from None

    def save(self, path: Path) -> None:
        """Write the processor as one JSON file."""
        write_text(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> PhonemeProcessor:
        """The processor that ``save`` wrote. Raises DataError if there is none or it is damaged."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: this file does not exist; it should hold a phoneme processor") from None
        except (DataError, UnicodeDecodeError, OSError) as error:
            raise DataError(f"{path}: {error}") from error

    def to_json(self) -> str:
        """Everything the processor is."""
        return json.dumps(self._content(), ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, content: str) -> PhonemeProcessor:
        """The processor that ``to_json`` wrote; its symbols are those that were saved.

        Raises DataError for anything else.
        """
        try:
            values = json.loads(content)
            if values["format"] != PROCESSOR_FORMAT or values["version"] > VERSION:
                raise DataError(
                    f"this is not a phoneme processor of version {VERSION} or older "
                    f"(format {values['format']}, version {values['version']})"
                )
            # Past ``__init__``, which would read the lexicon's file again: the entries are in the JSON.
            processor = cls.__new__(cls)
            config = FrontEndConfig.model_validate(values["options"])
            processor._set(config, values["symbols"], values["entries"], values["versions"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise DataError(f"this phoneme processor is damaged: {error}") from error
        return processor

    def __reduce__(self) -> tuple[Any, ...]:
        return PhonemeProcessor.from_json, (self.to_json(),)

    def _content(self) -> dict[str, Any]:
        return {
            "format": PROCESSOR_FORMAT,
            "version": VERSION,
            "options": self.config.model_dump(),
            "versions": self.versions,
            "symbols": list(self.symbols),
            "entries": self.entries,
        }

    def _assembled(self, text: str, normalised: str, parts: Sequence[Piece], said: Mapping[str, Words]) -> Processed:
        symbols: list[str] = []
        for piece in parts:
            if piece.kind == "mark":
                mark = piece.words[0]
                if self.config.punctuation == "keep":
                    symbols.append(mark)
                elif mark in PAUSING and symbols and symbols[-1] != PAUSE:
                    # A pause neither begins a text nor follows another.
                    symbols.append(PAUSE)
                continue
            words = [word for phrase in _phrases(piece) for word in said[phrase]]
            if piece.kind == "letters" and self.config.phonemizer != "characters":
                # In an initialism only the last letter has primary stress: F B I is one word.
                names = [demoted(name) for name in words[:-1]] + words[-1:]
                words = [tuple(symbol for name in names for symbol in name)]
            for word in words:
                if self.config.word_boundaries and symbols and symbols[-1] not in (*PUNCTUATION, PAUSE):
                    symbols.append(BOUNDARY)
                symbols += word
        unknown = [symbol for symbol in symbols if symbol not in self._ids]
        if unknown:
            kind = self.config.phonemizer
            front_end = kind if kind == "characters" else f"{kind}, {self.config.alphabet}"
            raise DataError(f"{shown(text)}: {unknown[0]} is not a symbol of this front end ({front_end})")
        is_phoneme = tuple(symbol not in (*SPECIAL, *PUNCTUATION) for symbol in symbols)
        if not any(is_phoneme):
            raise DataError(f"{shown(text)}: there is nothing to speak in it")
        return Processed(
            text,
            normalised,
            tuple(symbols),
            tuple(self._ids[symbol] for symbol in symbols),
            is_phoneme,
        )


def _phrases(piece: Piece) -> tuple[str, ...]:
    """Return what is pronounced together: the words of a phrase; letters each alone."""
    if piece.kind == "mark":
        return ()
    return piece.words if piece.kind == "letters" else (" ".join(piece.words),)


class Piece(NamedTuple):
    """A ``phrase`` of words, ``letters`` that are read by their names, a ``mark``, or a ``given`` word."""

    kind: Literal["phrase", "letters", "mark", "given"]
    words: tuple[str, ...]


_LETTER = f"[A-Za-z{ACCENTED_LETTERS}]"
_TOKEN = re.compile(
    rf"(?P<word>{_LETTER}+(?:'{_LETTER}+)*(?:(?<=s)'(?=\s|$))?)|(?P<mark>[{re.escape(''.join(PUNCTUATION))}])|(?P<gap>[\s'-]+)"
)


def pieces(text: str, given: Container[str] = ()) -> list[Piece]:
    """The pieces of a text in letters, punctuation, apostrophes and hyphens, and characters that are ``given``.

    A single letter is read by its name, except ``I``, ``a``, and ``A`` where a sentence begins.

    Raises DataError for other characters, and for a text without words.

    >>> [(piece.kind, " ".join(piece.words)) for piece in pieces("A well-known F B I man, I say")]
    [('phrase', 'A well known'), ('letters', 'F B I'), ('phrase', 'man'), ('mark', ','), ('phrase', 'I say')]
    """
    found: list[Piece] = []
    place = 0
    while place < len(text):
        if text[place] in given:
            found.append(Piece("given", (text[place],)))
            place += 1
            continue
        token = _TOKEN.match(text, place)
        if token is None:
            raise DataError(
                f"{shown(text)}: {text[place]} can't be pronounced; with normalise: true it is read in words"
            )
        place = token.end()
        if token.lastgroup == "mark":
            found.append(Piece("mark", (token[0],)))
        elif token.lastgroup == "word":
            word = token[0]
            # Whether A and I are letters or words depends on their neighbours: "A B" against "A man".
            is_letter = _is_letter(word, found, text[place : place + 3])
            kind: Literal["letters", "phrase"] = "letters" if is_letter else "phrase"
            if found and found[-1].kind == kind:
                found[-1] = Piece(kind, (*found[-1].words, word))
            else:
                found.append(Piece(kind, (word,)))
    if not any(piece.kind != "mark" for piece in found):
        raise DataError(f"{shown(text)}: there is nothing to speak in it" if text else "the text is empty")
    return found


def with_senses(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a text, in which each heteronym carries its sense.

    >>> with_senses([Piece("phrase", ("She", "read", "the", "record"))])[0].words
    ('She', 'read_past', 'the', 'record_noun')
    """
    # Senses depend on words around, so find them in the whole text; punctuation limits what they look at.
    text = [word for piece in pieces for word in (piece.words if piece.kind != "mark" else (",",))]
    lower = [word.lower() for word in text]
    found, start = list[Piece](), 0
    for piece in pieces:
        marked = piece.words
        if piece.kind == "phrase":
            marked = tuple(
                word if (sense := find_sense(lower, start + index, word)) is None else f"{word}{MARK}{sense}"
                for index, word in enumerate(piece.words)
            )
        found.append(piece._replace(words=marked))
        start += len(piece.words)
    return found


def _is_letter(word: str, found: list[Piece], following: str) -> bool:
    if len(word) > 1:
        return word[0].isupper() and word[1:] == "'s"
    in_letters = bool(found) and found[-1].kind == "letters"
    letter_follows = re.match(r" [A-Z]\b", following) is not None
    if word == "I":
        return in_letters or (letter_follows and following[1] != "A")
    if word == "A":
        return in_letters or not re.match(r" [A-Za-z]{2}", following) or (bool(found) and found[-1].kind == "phrase")
    return word != "a"
