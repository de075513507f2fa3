"""The tokens of transcripts: of Whisper's own tokenizer, or of one trained on the transcripts.

    what the decoder reads    prompt …   t1 t2 … tn
    what it is to write                  t1 t2 … tn end

A Whisper's prompt is <|startoftranscript|><|en|><|transcribe|><|notimestamps|>, without language and task where it
knows English only; that of a model trained from scratch is <s>.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, write_json, write_text
from vaak.tasks.hub import config_of_tokenizer
from vaak.text.tokenizers.tokenizer import Tokenizer

TOKENIZER, TOKENIZER_CONFIG, ABOUT = "tokenizer.json", "tokenizer_config.json", "vocabulary.json"
START, NO_TIMES = "<|startoftranscript|>", "<|notimestamps|>"
_ENGLISH_ONLY = 51864
"""The tokens of Whispers that know no other language."""


@dataclass(frozen=True)
class SpecialIds:
    """The tokens that aren't text."""

    prompt: tuple[int, ...]
    end: int
    pad: int
    size: int
    """Of the vocabulary: the rows of an embedding."""
    never: tuple[int, ...]
    """Tokens that no transcript contains: other special ones, times, and signs that are never said."""
    never_first: tuple[int, ...] = ()
    before_text: str = ""
    """What a transcript begins with, for a tokenizer whose words begin with a space."""


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
        """The ids of a transcript, without prompt and end."""
        found: list[int] = self.backend.encode(self.ids.before_text + text.strip(), add_special_tokens=False).ids
        return found

    def decode(self, ids: list[int]) -> str:
        """The transcript of ids."""
        return str(self.backend.decode(ids, skip_special_tokens=True)).strip()

    def tokens(self) -> list[str]:
        """Every token by its id, also those that have only a place."""
        return [self.backend.id_to_token(number) or "" for number in range(self.ids.size)]

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> Vocabulary:
        """That of a model trained from scratch."""
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
    def of_whisper(cls, tokenizer: Any, config: Any, generation: Any, language: str) -> Vocabulary:
        """That of a Whisper: its ``tokenizer``, ``config`` and ``generation`` options, as transformers has them.

        Raises UserError for a ``language`` that it doesn't know.
        """
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        backend: Backend = tokenizer.backend_tokenizer
        known = {token.content: number for number, token in backend.get_added_tokens_decoder().items()}
        prompt = [config.decoder_start_token_id]
        languages = [code for code in LANGUAGES if f"<|{code}|>" in known]
        if languages and getattr(generation, "is_multilingual", config.vocab_size != _ENGLISH_ONLY):
            if language not in languages:
                raise UserError(f"data.language: the base doesn't know {language}; expected {', '.join(languages)}")
            prompt += [known[f"<|{language}|>"], known["<|transcribe|>"]]
        times = range(0)
        if NO_TIMES in known:
            prompt.append(known[NO_TIMES])
            times = range(prompt[-1] + 1, config.vocab_size)
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
        return cls(backend.to_str(), ids, config_of_tokenizer(tokenizer))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TOKENIZER, self.content)
        write_json(folder / ABOUT, asdict(self.ids))
        if self.config is not None:
            write_json(folder / TOKENIZER_CONFIG, dict(self.config))

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        values: Any = {name: tuple(one) if isinstance(one, list) else one for name, one in about.items()}
        file = folder / TOKENIZER_CONFIG
        config = read_json(file) if file.is_file() else None
        return cls((folder / TOKENIZER).read_text(encoding="utf-8"), SpecialIds(**values), config)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.content, self.ids, self.config)
