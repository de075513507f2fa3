"""The prompts of language models that listen, and the audio in them.

    request    before … <audio> … <audio> … after, transcript
                      └─ as many placeholders as the encoder makes of the audio

The words of a request are those of the model's own processor, or, of Voxtral, of Mistral's.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.core.storage.files import read_json
from vaak.core.task import Padding
from vaak.tasks.asr.bases import DECODER_BASES, ListenerBase
from vaak.tasks.asr.ctc.data import FrameFeatures, padded_features
from vaak.tasks.asr.languages import choose_language, suggest_language, tell_choice
from vaak.tasks.asr.model import BASE_KEY, PURPOSE
from vaak.tasks.asr.vocabulary import SpecialIds, Vocabulary
from vaak.tasks.base import pad_rows
from vaak.tasks.fetching import GENERATION, SAFELY, fetch_model, import_transformers, load_tokenizer
from vaak.tasks.pretrained import fetch_folder, load_config

NO_POSITION = -1
"""In a batch's prompts, what a shorter one is padded with."""
AUTO, NO_NAME = "auto", "none"
"""Languages that aren't named: the model finds out; or, of a model that writes the name, none that it knows."""


TEKKEN = "tekken.json"
"""Mistral's tokenizer."""


class Request(NamedTuple):
    """The tokens ``before`` audio and ``after`` it, and the one in place of which audio is read."""

    before: tuple[int, ...]
    audio: int
    after: tuple[int, ...]


def find_listener(config: Any) -> ListenerBase:
    """Return the kind of a network that reads audio in its prompt."""
    kind = DECODER_BASES[config.model_type]
    assert isinstance(kind, ListenerBase)
    return kind


def keep_listener(source: str, kind: ListenerBase, folder: Path) -> None:
    """Write what a listener's prompts and features are made by to ``folder``: tokenizer, template, extractor."""
    auto = import_transformers(PURPOSE, "asr")
    if kind.languages != "codes":
        processor = fetch_model(BASE_KEY, source, lambda: auto.AutoProcessor.from_pretrained(source, **SAFELY))
        processor.save_pretrained(folder)
        return
    fetch_model(BASE_KEY, source, lambda: _load_mistral_tokenizer(source)).save_pretrained(folder)
    extractor = fetch_model(BASE_KEY, source, lambda: auto.AutoFeatureExtractor.from_pretrained(source, **SAFELY))
    extractor.save_pretrained(folder)
    tekken = fetch_folder(source, [TEKKEN]) / TEKKEN
    if tekken.is_file():
        # Mistral's own tools read no other.
        shutil.copy(tekken, folder)


def _load_mistral_tokenizer(source: str | Path) -> Any:
    """Return a tokenizer of the tokenizers library, also where mistral-common is installed."""
    auto = import_transformers(PURPOSE, "asr")
    return auto.AutoTokenizer.from_pretrained(source, mistral_format=False, **SAFELY)


def find_end(folder: Path, kind: ListenerBase, ends: Sequence[int]) -> int:
    """Return which of the tokens that may end a text ends an answer of the model whose files are in ``folder``."""
    auto = import_transformers(PURPOSE, "asr")
    if kind.languages == "codes":
        tokenizer, after = _load_mistral_tokenizer(folder), []
    else:
        processor = auto.AutoProcessor.from_pretrained(folder, **SAFELY)
        tokenizer, answer = processor.tokenizer, "ba"
        turns = [("user", {"type": "audio"}), ("assistant", {"type": "text", "text": answer})]
        messages = [{"role": role, "content": [content]} for role, content in turns]
        text = processor.apply_chat_template(messages, tokenize=False)
        after = tokenizer(text.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
    # A template may end an answer by nothing.
    return int(next(one for one in (*after, tokenizer.eos_token_id, *ends) if one in ends))


def make_request(folder: Path, kind: ListenerBase, language: str, key: str = "data.language") -> Request:
    """Return how the model whose files are in ``folder`` is asked for a transcript in a ``language``.

    Raises UserError, naming the ``key``, for a language that it can't be asked for.
    """
    if kind.languages == "codes":
        return _make_mistral_request(folder, language, key)
    auto = import_transformers(PURPOSE, "asr")
    processor = fetch_model(BASE_KEY, str(folder), lambda: auto.AutoProcessor.from_pretrained(folder, **SAFELY))
    options = {} if kind.languages == "none" else {"language": _find_name(processor, language, key)}
    [text] = processor.apply_transcription_request(np.zeros(16_000, np.float32), tokenize=False, **options)
    if kind.marker and language == NO_NAME:
        text += f"language None{kind.marker}"
    return _split(processor.tokenizer(text)["input_ids"], processor.audio_token_id)


def load_audio(folder: Path, seconds: float, language: str, key: str = "data.language") -> ListenedAudio:
    """Return the features and the request of the model whose files are in ``folder``; raises as ``make_request``."""
    auto, config = import_transformers(PURPOSE, "asr"), load_config(BASE_KEY, str(folder))
    extractor = auto.AutoFeatureExtractor.from_pretrained(folder, **SAFELY)
    return ListenedAudio(extractor, config, make_request(folder, find_listener(config), language, key), seconds)


def make_listener_vocabulary(folder: Path, config: Any, language: str) -> Vocabulary:
    """Return the tokens of the model whose files are in ``folder``, with its request in a ``language`` as prompt."""
    kind, generation = find_listener(config), read_json(folder / GENERATION)
    found = _load_mistral_tokenizer(folder) if kind.languages == "codes" else load_tokenizer(BASE_KEY, str(folder))
    ends = generation.get("eos_token_id") or config.text_config.eos_token_id or found.eos_token_id
    end = find_end(folder, kind, ends if isinstance(ends, list) else [ends])
    never = {one for one, token in found.added_tokens_decoder.items() if token.special} - {end}
    if kind.marker:
        never.add(found.convert_tokens_to_ids(kind.marker))
    pad = end if found.pad_token_id is None else found.pad_token_id
    after, size = make_request(folder, kind, language).after, config.text_config.vocab_size
    ids = SpecialIds(after, end, pad, size, tuple(sorted(never)))
    return Vocabulary(found.backend_tokenizer.to_str(), ids)


def _find_name(processor: Any, language: str, key: str) -> str | None:
    """Return a language as the processor names it; None for one that isn't named."""
    known: Mapping[str, str] = sys.modules[type(processor).__module__].LANGUAGE_CODE_TO_NAME
    if language in (AUTO, NO_NAME):
        return None
    if language in known.values():
        return language
    choice = choose_language(language, known)
    if choice.code is None:
        named = f"{language!r}{suggest_language(language, known)}"
        raise UserError(
            f"{key}: the base doesn't know {named}: it knows {list_names(known)}; {NO_NAME} names no language"
        )
    tell_choice(key, choice.remark)
    return known[choice.code]


def _make_mistral_request(folder: Path, language: str, key: str) -> Request:
    """Return the tokens that mistral-common writes for a transcription: its text isn't in any file of the model."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    tokenizer = _load_mistral_tokenizer(folder)
    choice = choose_language(language, [one for one in LANGUAGES if len(one) == 2])
    tell_choice(key, choice.remark if choice.code else "")
    language = choice.code or language
    named = [] if language == AUTO else tokenizer(f"lang:{language}", add_special_tokens=False)["input_ids"]
    if language != AUTO and not re.fullmatch("[a-z]{2}", language):
        raise UserError(f"{key}: {language!r}; expected a code of two letters, such as hi, or {AUTO}")
    names = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", "[TRANSCRIBE]")
    start, begin, begin_audio, audio, end, transcribe = (tokenizer.convert_tokens_to_ids(name) for name in names)
    if tokenizer.convert_ids_to_tokens(transcribe) != "[TRANSCRIBE]":
        raise UserError(f"{BASE_KEY}: the base has no token [TRANSCRIBE]: it isn't a Voxtral that transcribes")
    return Request((start, begin, begin_audio), audio, (end, *named, transcribe))


def _split(ids: Sequence[int], audio: int) -> Request:
    at = [place for place, token in enumerate(ids) if token == audio]
    if len(at) != 1:
        raise UserError(f"{BASE_KEY}: the base's request has {len(at)} places for audio; expected one")
    return Request(tuple(ids[: at[0]]), audio, tuple(ids[at[0] + 1 :]))


class ListenedAudio(FrameFeatures):
    """The features of one utterance, by the base's own extractor, with a last bin that is 1 where a frame is real."""

    def __init__(self, extractor: Any, config: Any, request: Request, seconds: float) -> None:
        """``config`` is that of the whole network; ``seconds`` are those of the longest utterance."""
        self.extractor, self.config, self.request, self.seconds = extractor, config, request, seconds
        self.window = self.kind.find_window(config)
        self.sampling_rate = extractor.sampling_rate
        self.frame_shift = extractor.hop_length / extractor.sampling_rate
        self.key = [extractor.to_dict(), list(request), seconds]
        self.num_bins = extractor.feature_size + 1

    @property
    def kind(self) -> ListenerBase:
        return find_listener(self.config)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return ``(bin, frame)``, whole windows of frames."""
        samples = samples.astype(np.float32) if len(samples) else np.zeros(1, np.float32)
        if self.kind.silence == "masked":
            return self._extract(samples, padding=True)
        size = self.window * self.extractor.hop_length
        windows = [samples[at : at + size] for at in range(0, len(samples), size)]
        return np.concatenate([self._extract(one, padding="max_length", max_length=size) for one in windows], axis=1)

    def _extract(self, samples: np.ndarray, **options: Any) -> np.ndarray:
        found = self.extractor(
            samples, sampling_rate=self.sampling_rate, return_attention_mask=True, return_tensors="np", **options
        )
        return np.concatenate([found["input_features"][0], found["attention_mask"]]).astype(np.float32)

    def count_positions(self, features: np.ndarray) -> int:
        """Return the number of places that features ``(bin, frame)`` take in a prompt."""
        return self.encoded(features.shape[1] if self.kind.silence == "kept" else int(features[-1].sum()))

    def make_prompts(self, rows: Sequence[np.ndarray]) -> Tensor:
        """Return the tokens up to the end of the audio of each row ``(bin, frame)``: ``(row, position)``."""
        before, audio, _ = self.request
        prompts = [np.array([*before, *[audio] * self.count_positions(one)]) for one in rows]
        return torch.from_numpy(pad_rows(prompts, NO_POSITION))

    def gather(self, rows: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """Return the network's inputs for rows ``(bin, frame)``."""
        features, lengths = padded_features(rows)
        return {"features": features, "feature_lengths": lengths, "prompts": self.make_prompts(rows)}

    def frames(self, num_samples: int) -> int:
        return self.encoded(self._count_frames(num_samples))

    def _count_frames(self, num_samples: int) -> int:
        frames = math.ceil(num_samples / int(self.extractor.hop_length))
        return -(-frames // self.window) * self.window if self.kind.silence == "kept" else frames

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest request, with its audio."""
        before, _, after = self.request
        return len(before) + self.frames(round(self.seconds * self.sampling_rate)) + len(after)

    def encoded(self, num_features: int) -> int:
        return self.kind.count_positions(self.config, num_features)

    @property
    def encoded_shift(self) -> float:
        return self.frame_shift * self.window / self.encoded(self.window)

    def lengths(self, durations: np.ndarray) -> np.ndarray:
        """Return the seconds that the encoder reads: whole windows, where it reads silence, too."""
        seconds = self.window * self.frame_shift
        return np.ceil(durations / seconds) * seconds if self.kind.silence != "masked" else durations

    def padding(self) -> Padding:
        return Padding(axis=2, step=self.window)
