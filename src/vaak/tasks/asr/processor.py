"""What other software reads of a Whisper besides its weights, so that it writes what ``vaak transcribe`` writes.

    preprocessor_config.json                 how features are made
    tokenizer.json  tokenizer_config.json    tokens to text
    vocabulary.json                          prompt and special tokens, for Vaak, whose base the folder can be
    generation_config.json                   the same for transformers and CTranslate2, with how is searched

transformers makes every Whisper's tokenizer one of bytes. So one that was trained on transcripts is written as such,
with its ids, for writing only; Vaak's own is then in ``vocabulary``.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from vaak.core.storage.files import write_json
from vaak.tasks.asr.base import PURPOSE
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.data import WhisperFeatures
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.vocabulary import ABOUT, NO_TIMES, START, Vocabulary
from vaak.tasks.hub import config_of_tokenizer, transformers_of
from vaak.text.tokenizers.tokenizer import BYTES

log = logging.getLogger("vaak")

OWN = "vocabulary"
"""The folder of a vocabulary that transformers can't have as it is."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_CHARACTERS = {byte: character for character, byte in BYTES.items()}
END, TASKS = "<|endoftext|>", ("transcribe", "translate")


def exported_vocabulary(source: Path) -> Vocabulary | None:
    """The vocabulary of a folder that was exported here; None for another."""
    return next((Vocabulary.load(one) for one in (source / OWN, source) if (one / ABOUT).is_file()), None)


def write_processor(vocabulary: Vocabulary, features: WhisperFeatures, folder: Path) -> None:
    """Write tokenizer and options of features to ``folder``; warns where transformers can't have one of them."""
    transformers = transformers_of(PURPOSE, "asr")
    seconds = int(features.seconds) if float(features.seconds).is_integer() else features.seconds
    if seconds != int(seconds):
        log.warning("transformers reads whole seconds only; data.max_duration is %g, so only Vaak can use it", seconds)
    extractor = transformers.WhisperFeatureExtractor(feature_size=features.num_mel_bins, chunk_length=seconds)
    write_json(folder / "preprocessor_config.json", {**extractor.to_dict(), "processor_class": "WhisperProcessor"})
    if vocabulary.is_whispers:
        config = vocabulary.config or config_of_tokenizer(
            transformers.WhisperTokenizer(tokenizer_object=vocabulary.backend)
        )
        Vocabulary(vocabulary.content, vocabulary.ids, config).save(folder)
        return
    vocabulary.save(folder / OWN)
    written = _as_bytes(vocabulary)
    if written is None:
        log.warning("data.tokenizer has several tokens for the same text, as Whisper's can't: no tokenizer is written")
    else:
        transformers.WhisperTokenizer(tokenizer_object=written, predict_timestamps=True).save_pretrained(folder)


def _as_bytes(vocabulary: Vocabulary) -> Backend | None:
    """A tokenizer of bytes that writes the same text for the same ids; None where two would be the same token."""
    ids, backend = vocabulary.ids, vocabulary.backend
    special = {ids.prompt[0]: START, ids.end: END, ids.size: NO_TIMES}
    special |= {one: _name_of(backend, one) for one in ids.never if one not in special}
    names = [special.get(one) or _bytes_of(backend, one) for one in range(ids.size + 1)]
    if len(set(names)) < len(names):
        return None
    made = Backend(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(special[one], special=True) for one in sorted(special)])
    return made


def _bytes_of(backend: Backend, token: int) -> str:
    """A token by the characters of its bytes; a byte that is also a character keeps its name, and is never written."""
    name = _name_of(backend, token)
    if isinstance(backend.decoder, decoders.ByteLevel):
        return name
    if (byte := _BYTE.fullmatch(name)) is not None:
        content = bytes.fromhex(byte[1])
        if backend.token_to_id(content.decode("ascii", "replace")) is not None:
            return name
    else:  # a word is written with the space before it
        before = backend.decode([token])
        content = backend.decode([token, token])[len(before) :].encode()
    return "".join(_CHARACTERS[one] for one in content)


def _name_of(backend: Backend, token: int) -> str:
    return backend.id_to_token(token) or ""


def generation_of(model: AsrModel, vocabulary: Vocabulary, decoding: AsrDecodingConfig) -> Any:
    """The ``generation_config.json``: the base's, with the prompt that was trained, and the run's search."""
    ids, base = vocabulary.ids, cast("Any", model.whisper.generation_config).to_dict()
    beams = decoding.beam_size if decoding.method == "beam" else 1
    special = {token.content: number for number, token in vocabulary.backend.get_added_tokens_decoder().items()}
    never = set(ids.never)
    values: dict[str, Any] = {
        "decoder_start_token_id": ids.prompt[0],
        "eos_token_id": ids.end,
        "pad_token_id": ids.pad,
        "begin_suppress_tokens": list(ids.never_first) or None,
        "forced_decoder_ids": None,
        "return_timestamps": False,
        "max_length": model.max_target_length,
        "num_beams": beams,
        "do_sample": False,
    }
    if beams > 1:  # as ours: probabilities without what is suppressed, and until nothing better can come
        values |= {"length_penalty": decoding.length_penalty, "renormalize_logits": True, "early_stopping": "never"}
    if decoding.max_new_tokens is not None:
        values["max_length"] = min(decoding.max_new_tokens, model.max_target_length)  # besides the prompt
    if vocabulary.is_whispers:
        values |= _of_prompt(vocabulary, special)
        # Times and languages aren't suppressed in other Whispers: with return_timestamps, they are to be written.
        first_time = special.get(NO_TIMES, ids.size)
        never -= {*range(first_time, ids.size), *_languages(special).values()}
    values["suppress_tokens"] = sorted(never)
    given = {name: value for name, value in base.items() if not name.startswith("_")}
    return transformers_of(PURPOSE, "asr").GenerationConfig(**{**given, **values})


def _of_prompt(vocabulary: Vocabulary, special: dict[str, int]) -> dict[str, Any]:
    """What transformers makes the prompt of, which is how the model was trained."""
    prompt, languages = vocabulary.ids.prompt, _languages(special)
    found: dict[str, Any] = {"is_multilingual": len(prompt) > 2}
    if NO_TIMES in special:
        found["no_timestamps_token_id"] = special[NO_TIMES]
    if found["is_multilingual"]:
        found |= {
            "language": next(name[2:-2] for name, number in languages.items() if number == prompt[1]),
            "task": "transcribe",
            "lang_to_id": languages,
            "task_to_id": {name: special[f"<|{name}|>"] for name in TASKS if f"<|{name}|>" in special},
        }
    return found


def _languages(special: dict[str, int]) -> dict[str, int]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return {name: number for name, number in special.items() if name[2:-2] in LANGUAGES}
