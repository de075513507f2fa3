"""The tokens of transcripts: those of Whisper's own tokenizer, or of one trained on the transcripts.

    what the decoder reads    prompt …   t1 t2 … tn
    what it is to write                  t1 t2 … tn end

A Whisper's prompt is <|startoftranscript|><|en|><|transcribe|><|notimestamps|>, without language and task where it
knows English only; that of a model trained from scratch is <s>.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend

from vaak.core.errors import UserError
from vaak.core.names import list_names, require_known
from vaak.core.storage.files import read_json, write_json, write_text
from vaak.tasks.asr.languages import LanguageChoice, choose_language, suggest_language, tell_choice
from vaak.tasks.asr.model import BASE_KEY
from vaak.tasks.fetching import TOKENIZER_CONFIG
from vaak.tasks.kept_base import make_tokenizer_config
from vaak.text.coverage import find_unwritable
from vaak.text.tokenizer import BYTES, Tokenizer

log = logging.getLogger("vaak")
TOKENIZER, VOCABULARY_FILE = "tokenizer.json", "vocabulary.json"
START, NO_TIMES = "<|startoftranscript|>", "<|notimestamps|>"
BEFORE = "<|startofprev|>"
"""The token before a text that is read as if it had been said before."""
LONG_PROMPT = 3
"""Tokens of a prompt that has a language and a task."""
NUM_TIME_TOKENS = 1501
"""Tokens of times, <|0.00|> to <|30.00|> in steps of 0.02 s."""
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
_NAMED = ("<|endoftext|>", START, "<|translate|>", "<|transcribe|>", "<|startoflm|>", BEFORE, *NO_SPEECH, NO_TIMES)
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""The token of a byte, of tokenizers that write as bytes what they have no token for."""
_LANGUAGE = re.compile(r"<\|[a-z][a-z_-]{1,15}\|>")
"""The token of a language."""
ENGLISH = "en"
_ENGLISH_ONLY = 51864
"""The tokens of Whispers that know no other language."""


@dataclass(frozen=True)
class SpecialIds:
    """Tokens other than text."""

    prompt: tuple[int, ...]
    end: int
    pad: int
    size: int
    """The size of the vocabulary: the rows of an embedding."""
    never: tuple[int, ...]
    """Tokens that no transcript contains: other special ones, times, and signs that are never said."""
    never_first: tuple[int, ...] = ()
    before_text: str = ""
    """The prefix of a transcript, for a tokenizer whose words begin with a space."""


def make_unnamed_ids(size: int) -> SpecialIds:
    """Return the special tokens of a vocabulary of which only the size is known."""
    return SpecialIds((0,), 0, 0, size, ())


def _find_times(backend: Backend, size: int) -> range:
    """Return the tokens named <|0.00|>, <|0.02|> … of a vocabulary of ``size``, which follow one another.

    Older tokenizers have no names for times: there, the model's first tokens after <|notimestamps|> without a name.
    """
    names = [f"<|{place / 50:.2f}|>" for place in range(NUM_TIME_TOKENS)]
    first, before = backend.token_to_id(names[0]), backend.token_to_id(NO_TIMES)
    if first is not None:
        begin = first
    elif before is not None:
        begin = before + 1
    else:
        return range(0)
    last = begin
    while last < min(size, begin + NUM_TIME_TOKENS):
        if backend.id_to_token(last) != (None if first is None else names[last - begin]):
            break
        last += 1
    return range(begin, last)


def _with_added_text(backend: Backend, languages: Iterable[str] = ()) -> Backend:
    """Return a Whisper's tokenizer in which special are its own tokens and times alone; others are added, and text.

    transformers' ``add_tokens`` and ``add_special_tokens`` both put new ones after all others. Special ones would be
    letters when texts are read, and nothing when they are written. ``languages`` are codes of further ones.
    """
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    content = json.loads(backend.to_str())
    last, times = backend.token_to_id(NO_TIMES), _find_times(backend, backend.get_vocab_size())
    own = {*_NAMED, *(f"<|{code}|>" for code in (*LANGUAGES, *languages))}
    added = list[str]()
    for token in content["added_tokens"]:
        # A Whisper's own special tokens come before <|notimestamps|>; languages and times are known by name.
        is_own = token["content"] in own or token["id"] in times or last is None or token["id"] <= last
        token["special"] = is_own
        added += [] if is_own else [token["content"]]
    if added:
        log.info("%s: tokens added to the Whisper's are text: %s", BASE_KEY, list_names(added))
    return Backend.from_str(json.dumps(content))


def _find_languages(special: Mapping[str, int]) -> dict[str, int]:
    """Return the languages among special tokens, by their codes: those of Whisper in its order, then others."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    others = [name[2:-2] for name in special if _LANGUAGE.fullmatch(name) and name not in _NAMED]
    codes = dict.fromkeys((*LANGUAGES, *others))
    return {code: special[f"<|{code}|>"] for code in codes if f"<|{code}|>" in special}


class Vocabulary:
    """Transcripts to token ids and back."""

    def __init__(self, content: str, ids: SpecialIds, config: Mapping[str, Any] | None = None) -> None:
        """``content`` is that of a ``tokenizer.json``; ``config``, of the ``tokenizer_config.json`` of a Whisper."""
        self.content, self.ids, self.config = content, ids, config

    @property
    def is_whispers(self) -> bool:
        """Whether it is a Whisper's own, and not one that was trained on transcripts."""
        return self.backend.id_to_token(self.ids.prompt[0]) == START

    @cached_property
    def backend(self) -> Backend:
        backend = Backend.from_str(self.content)
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True
        return backend

    def encode(self, text: str) -> list[int]:
        """Return the ids of a transcript, without prompt and end."""
        found: list[int] = self.backend.encode(self.ids.before_text + text.strip(), add_special_tokens=False).ids
        # A tokenizer without an unknown token writes padding for what it doesn't know.
        return [one for one in found if one != self.ids.pad]

    def find_unwritable(self, words: Sequence[str]) -> list[str]:
        """Return of each word the characters that no transcript of the model has (``vaak.text.coverage``)."""
        unknown = {*self.ids.never, self.ids.pad}
        return find_unwritable(self.backend, [self.ids.before_text + word for word in words], unknown)

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The UTF-8 that each token adds to a transcript, with the space before a word; a space for a time."""
        silent, is_of_bytes = {self.ids.pad, *self.ids.never}, isinstance(self.backend.decoder, decoders.ByteLevel)
        found = [b""] * self.ids.size
        for token in range(self.ids.size):
            name = self.backend.id_to_token(token)
            if token in self.times:
                found[token] = b" "
            elif token in silent or name is None or not self.is_text(token):
                continue
            elif byte := _BYTE.fullmatch(name):
                found[token] = bytes.fromhex(byte[1])
            elif is_of_bytes and all(letter in BYTES for letter in name):
                found[token] = bytes(BYTES[letter] for letter in name)
            else:
                # Twice, since decoders leave out the space before the first token of a text.
                alone = len(self.backend.decode([token]))
                found[token] = self.backend.decode([token, token])[alone:].encode()
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The transcript of ids, without those of times, composed (NFC) where tokens are of decomposed letters."""
        text = str(self.backend.decode([one for one in ids if one not in self.times], skip_special_tokens=True)).strip()
        return unicodedata.normalize("NFC", text) if self._decomposes else text

    @cached_property
    def _decomposes(self) -> bool:
        """Whether texts are decomposed before they become tokens."""
        return re.search(r'"type":\s*"NFK?D"', self.content) is not None

    def raw(self, ids: Sequence[int]) -> str:
        """Return the unchanged text of ids, with that of special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def token(self, name: str) -> int:
        """Return the id of a special token, as ``<|startofprev|>``. Raises KeyError if there is none."""
        found = self.backend.token_to_id(name)
        if found is None:
            raise KeyError(name)
        return int(found)

    @cached_property
    def times(self) -> range:
        """The tokens of times, from 0 s on in steps of 0.02 s; none of a model that was trained from scratch."""
        return _find_times(self.backend, self.ids.size)

    @cached_property
    def no_speech(self) -> int | None:
        """The token for silence; None where the tokenizer has none."""
        found = (self.backend.token_to_id(name) for name in NO_SPEECH)
        return next((one for one in found if one is not None), None)

    def is_text(self, token: int) -> bool:
        """Return whether a token is a part of transcripts, and not a sign to or from the model."""
        return token not in self._signs

    @cached_property
    def added(self) -> list[str]:
        """The tokens of text that were added to a Whisper's own, after its times."""
        names = self.backend.get_added_tokens_decoder()
        return [names[one].content for one in sorted(names) if self.is_whispers and self.is_text(one)]

    @cached_property
    def _signs(self) -> frozenset[int]:
        special = (one for one, token in self.backend.get_added_tokens_decoder().items() if token.special)
        return frozenset({*special, *self.times, *self.ids.prompt, self.ids.end, self.ids.pad})

    @cached_property
    def languages(self) -> dict[str, int]:
        """The tokens of languages by their codes, Whisper's own first; none where the model knows one only."""
        return {} if len(self.ids.prompt) < LONG_PROMPT else self.named_languages

    @property
    def named_languages(self) -> dict[str, int]:
        """The same, also of a tokenizer whose model never learned to read them (English only)."""
        special = self.backend.get_added_tokens_decoder().items()
        return _find_languages({token.content: one for one, token in special if token.special})

    def find_code(self, language: str) -> str:
        """Return the code by which a language is known here (``choose_language``); the language itself if it isn't."""
        return self.choose_language(language).code or language

    def choose_language(self, language: str) -> LanguageChoice:
        """Return the code by which a language is known here, with what is to be said of it."""
        return choose_language(language, self.languages or (ENGLISH,))

    def with_language(self, language: str, like: str | None = None) -> Vocabulary:
        """Return the vocabulary with a ``language`` in its prompt; one that it doesn't know is added after all tokens.

        It is added only where the one that it is ``like`` is named. Raises UserError for a language that the base
        doesn't know otherwise.
        """
        known, asked, choice = self.languages, language, self.choose_language(language)
        language = choice.code or asked
        if self.is_whispers:
            tell_choice("data.language", choice.remark if choice.code else "")
        if not known:
            if self.is_whispers and (language != ENGLISH or like is not None):
                raise UserError(f"data.language: the base doesn't know {language!r}: it knows English only ({ENGLISH})")
            if language != ENGLISH or like is not None:
                log.warning("data.language has no effect: the base was trained from scratch and has no languages")
            return self
        if like is not None:
            require_known([self.find_code(like)], known, "data.language_like: the base doesn't know", error=UserError)
        if language not in known and like is not None:
            return self._with_new_language(language)
        if choice.remark and choice.code is None:
            raise UserError(f"data.language: the base doesn't know {asked!r}{suggest_language(asked, known)}")
        advice = f"it knows {list_names(known)}; data.language_like, the nearest of these, adds it"
        require_known([language], known, "data.language: the base doesn't know", error=UserError, remedy=advice)
        prompt = (self.ids.prompt[0], known[language], *self.ids.prompt[2:])
        return Vocabulary(self.content, replace(self.ids, prompt=prompt), self.config)

    def _with_new_language(self, language: str) -> Vocabulary:
        token = f"<|{language}|>"
        if _LANGUAGE.fullmatch(token) is None or self.backend.token_to_id(token) is not None:
            raise UserError(f"data.language: {language!r} can't be a new language's code; give letters such as mni")
        backend, new = Backend.from_str(self.content), self.ids.size
        # Older tokenizers name neither times nor what a model has beyond them; a new token would have their place.
        times = {self.times.start + place: f"<|{place / 50:.2f}|>" for place in range(len(self.times))}
        unnamed = range(backend.get_vocab_size(with_added_tokens=True), new)
        names = [*(times.get(one, f"<|unused {one}|>") for one in unnamed), token]
        backend.add_special_tokens([AddedToken(name, special=True) for name in names])
        assert backend.token_to_id(token) == new
        never = tuple(sorted({*self.ids.never, *range(self.times.stop, new), new}))
        ids = replace(self.ids, prompt=(self.ids.prompt[0], new, *self.ids.prompt[2:]), size=new + 1, never=never)
        return Vocabulary(backend.to_str(), ids, self.config)

    @property
    def trained_language(self) -> str | None:
        """The code of the language in the prompt."""
        return next((code for code, token in self.languages.items() if token == self.ids.prompt[1]), None)

    def tokens(self) -> list[str]:
        """Return every token by its id, also those that have only a place."""
        return [self.backend.id_to_token(number) or "" for number in range(self.ids.size)]

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Make the vocabulary of a model trained from scratch."""
        special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id, tokenizer.mask_id}
        ids = SpecialIds(
            (tokenizer.bos_id,),
            tokenizer.eos_id,
            tokenizer.pad_id,
            tokenizer.vocab_size,
            tuple(sorted(special - {tokenizer.eos_id})),
        )
        return cls(tokenizer.to_json(), ids)

    @classmethod
    def of_whisper(
        cls, tokenizer: Any, config: Any, generation: Any, language: str, like: str | None = None
    ) -> Vocabulary:
        """Make a Whisper's vocabulary from its ``tokenizer``, ``config`` and ``generation`` options in transformers.

        ``language`` and ``like`` are as in ``with_language``. Raises UserError for a language that it doesn't know.
        """
        further = getattr(generation, "lang_to_id", None) or {}
        backend = _with_added_text(tokenizer.backend_tokenizer, [name.strip("<|>") for name in further])
        largest = max(backend.get_vocab(with_added_tokens=True).values())
        # Such a token would have no row in the embedding.
        if largest >= config.vocab_size:
            raise UserError(
                f"{BASE_KEY}: its tokenizer has {largest + 1:,} tokens, its model {config.vocab_size:,}; call "
                "model.resize_token_embeddings(len(tokenizer)) in transformers and save both again"
            )
        known = {token.content: one for one, token in backend.get_added_tokens_decoder().items() if token.special}
        prompt = [config.decoder_start_token_id]
        languages = _find_languages(known)
        # Older folders don't say whether a Whisper knows several languages; the size of its vocabulary does.
        if languages and getattr(generation, "is_multilingual", config.vocab_size != _ENGLISH_ONLY):
            prompt += [next(iter(languages.values())), known["<|transcribe|>"]]
        times = _find_times(backend, config.vocab_size)
        if NO_TIMES in known:
            prompt.append(known[NO_TIMES])
        end = config.eos_token_id
        never = {*known.values(), *times, *(generation.suppress_tokens or ())} - {end}
        ids = SpecialIds(
            tuple(prompt),
            end,
            end if config.pad_token_id is None else config.pad_token_id,
            config.vocab_size,
            tuple(sorted(never)),
            tuple(generation.begin_suppress_tokens or ()),
            " ",
        )
        return cls(backend.to_str(), ids, make_tokenizer_config(tokenizer)).with_language(language, like)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TOKENIZER, self.content)
        write_json(folder / VOCABULARY_FILE, asdict(self.ids))
        if self.config is not None:
            write_json(folder / TOKENIZER_CONFIG, dict(self.config))

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        about = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))
        values: Any = {name: tuple(one) if isinstance(one, list) else one for name, one in about.items()}
        file = folder / TOKENIZER_CONFIG
        config = read_json(file) if file.is_file() else None
        return cls((folder / TOKENIZER).read_text(encoding="utf-8"), SpecialIds(**values), config)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.content, self.ids, self.config)
