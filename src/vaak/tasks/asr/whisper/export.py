"""A trained Whisper for other software: transformers, peft, faster-whisper, onnxruntime.

    hf         config.json  model.safetensors  generation_config.json  preprocessor_config.json  tokenizer files
               vocabulary.json: prompt and special tokens, for Vaak, whose base the folder can be
    peft       adapter_config.json  adapter_model.safetensors
    mixture    as vaak.tasks.asr.export says
    ct2        as vaak.tasks.ct2 says, for faster-whisper
    onnx       encoder.onnx  features (row, bin, frame) -> states (row, position, width), experts and weights
                             (row, choice)
               decoder.onnx  tokens (row, token), states, experts, weights -> logits (row, token, vocab)

hf merges low-rank adapters, peft has them alone. transformers makes every Whisper's tokenizer one of bytes: one that
was trained on transcripts is written as such, for writing only, and Vaak's own in ``vocabulary``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from vaak.core.names import list_names
from vaak.core.storage.files import scratch_folder, whole_folder, write_json, write_text
from vaak.nn import lora
from vaak.nn.new_tokens import iterate_new_rows
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, write_onnx
from vaak.tasks.asr.config import CONTEXT_SECONDS, AsrDecodingConfig, AsrModelConfig
from vaak.tasks.asr.export import (
    VOCABULARY_FOLDER,
    ChosenExperts,
    collect_mixture_tensors,
    describe_experts,
    gathered,
    require_one,
    write_mixture_folder,
)
from vaak.tasks.asr.model import PURPOSE
from vaak.tasks.asr.vocabulary import NO_TIMES, START, TOKENIZER, Vocabulary
from vaak.tasks.asr.whisper.features import SAMPLING_RATE, WhisperFeatures
from vaak.tasks.asr.whisper.model import AsrModel
from vaak.tasks.asr.whisper.predict import WhisperTranscriber
from vaak.tasks.ct2 import write_ct2
from vaak.tasks.fetching import import_transformers
from vaak.tasks.kept_base import make_tokenizer_config
from vaak.tasks.older_names import write_older_names
from vaak.tasks.pretrained import tell_untied
from vaak.text.tokenizer import BYTES

log = logging.getLogger("vaak")


def write_whisper(
    transcriber: WhisperTranscriber, folder: Path, expert: int | None = None, weight: float = 1.0
) -> None:
    """Write ``folder``, completely or not at all: the Whisper that transcribes as ``transcriber`` does.

    All changes are merged; that of an ``expert`` times ``weight``.

    Raises UserError where the folder has something in it, or no ``expert`` is chosen of several.
    """
    model, vocabulary = transcriber.model, transcriber.vocabulary
    require_one(model, expert)
    merged = lora.merged(model.whisper, expert, weight)
    tell_untied(merged)
    with whole_folder(folder) as temporary:
        merged.save_pretrained(temporary)
        make_generation_config(model, vocabulary, transcriber.decoding).save_pretrained(temporary)
        write_processor(vocabulary, transcriber.features, temporary)
        write_older_names(temporary)


def write_whisper_ct2(
    transcriber: WhisperTranscriber, folder: Path, expert: int | None, weight: float, quantization: str | None
) -> None:
    """Write ``folder`` as ``write_whisper`` does, for CTranslate2 and faster-whisper; ``quantization`` is by its name.

    Warns where faster-whisper, which fills what it hears up to half a minute, can't use it.
    """
    if transcriber.features.seconds != CONTEXT_SECONDS:
        log.warning(
            "faster-whisper reads half a minute; this model reads %g s, so only CTranslate2 itself can use it",
            transcriber.features.seconds,
        )
    write_ct2(lambda made: write_whisper(transcriber, made, expert, weight), folder, quantization)


def write_adapter(
    model: AsrModel,
    options: AsrModelConfig,
    folder: Path,
    expert: int | None = None,
    weight: float = 1.0,
    files: Mapping[str, str] | None = None,
) -> None:
    """Write ``folder``, completely or not at all, with the low-rank adapters alone, and rows of new tokens.

    Those of an ``expert`` are multiplied by ``weight``; ``files`` are further ones.
    They name the base of ``options``, which is to be the one that peft finds (``vaak.tasks.asr.model.name_base``).

    Raises UserError for a model without any, where the folder has something in it, or no ``expert`` is chosen.
    """
    require_one(model, expert)
    section = options.experts or options.lora
    targets = section.targets if section is not None else ()
    adapters, rows = list(lora.iterate_adapters(model.whisper, expert, weight)), dict(iterate_new_rows(model.whisper))
    lora.write_adapter(
        adapters, section, targets, options.base, folder, whole=rows, files=files, kind=type(model.whisper)
    )


def make_files_of_new_tokens(transcriber: WhisperTranscriber, base: str, folder: Path) -> dict[str, str]:
    """The files that an adapter in ``folder`` needs for tokens that its ``base`` lacks; none where it has all."""
    rows = [one for _, one in iterate_new_rows(transcriber.model.whisper)]
    if not rows:
        return {}
    with scratch_folder("processor") as made:
        make_generation_config(transcriber.model, transcriber.vocabulary, transcriber.decoding).save_pretrained(made)
        write_processor(transcriber.vocabulary, transcriber.features, made)
        files = {one.name: one.read_text(encoding="utf-8") for one in made.iterdir()}
    readme = README_OF_NEW_TOKENS.format(base=base, size=rows[0].ids.stop, folder=folder.name)
    return files | {"README.md": readme}


README_OF_NEW_TOKENS = """\
# Low-rank adapters of a Whisper with a token that its base lacks

The row of the token is in the adapter (`trainable_token_indices`); tokenizer and `generation_config.json` are next to
it. The base is given as many rows as the tokenizer has tokens, then the adapter is put on it:

```python
import peft
import transformers

base = transformers.WhisperForConditionalGeneration.from_pretrained("{base}")
base.resize_token_embeddings({size})
model = peft.PeftModel.from_pretrained(base, "{folder}")
model.generation_config = transformers.GenerationConfig.from_pretrained("{folder}")
processor = transformers.WhisperProcessor.from_pretrained("{folder}")
```

`vaak export RUN --format hf` writes the whole model.
"""


_BYTE = re.compile("<0x([0-9A-F]{2})>")


_CHARACTERS = {byte: character for character, byte in BYTES.items()}


END, TASKS = "<|endoftext|>", ("transcribe", "translate")


def write_processor(vocabulary: Vocabulary, features: WhisperFeatures, folder: Path) -> None:
    """Write tokenizer and options of features to ``folder``; warns where transformers can't have one of them."""
    transformers = import_transformers(PURPOSE, "asr")
    seconds = int(features.seconds) if float(features.seconds).is_integer() else features.seconds
    if seconds != int(seconds):
        log.warning("transformers reads whole seconds only; this model reads %g s, so only Vaak can use it", seconds)
    extractor = transformers.WhisperFeatureExtractor(feature_size=features.num_mel_bins, chunk_length=seconds)
    write_json(folder / "preprocessor_config.json", {**extractor.to_dict(), "processor_class": "WhisperProcessor"})
    if vocabulary.added:
        log.warning(
            "tokens that were added to the Whisper's (%s) are text here and for transformers' generate and decode; its "
            "pipeline, and faster-whisper, take all after <|notimestamps|> for times and leave them out",
            list_names(vocabulary.added),
        )
    if vocabulary.is_whispers:
        config = vocabulary.config or make_tokenizer_config(
            transformers.WhisperTokenizer(tokenizer_object=vocabulary.backend)
        )
        Vocabulary(vocabulary.content, vocabulary.ids, config).save(folder)
        return
    vocabulary.save(folder / VOCABULARY_FOLDER)
    written = _as_bytes(vocabulary)
    if written is None:
        log.warning("data.tokenizer has several tokens for the same text, as Whisper's can't: no tokenizer is written")
    else:
        transformers.WhisperTokenizer(tokenizer_object=written, predict_timestamps=True).save_pretrained(folder)


def _as_bytes(vocabulary: Vocabulary) -> Backend | None:
    """A tokenizer of bytes that writes the same text for the same ids; None where two would be the same token."""
    ids, backend = vocabulary.ids, vocabulary.backend
    special = {ids.prompt[0]: START, ids.end: END, ids.size: NO_TIMES}
    special |= {one: _name_token(backend, one) for one in ids.never if one not in special}
    names = [special.get(one) or _spell_bytes(backend, one) for one in range(ids.size + 1)]
    if len(set(names)) < len(names):
        return None
    made = Backend(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(special[one], special=True) for one in sorted(special)])
    return made


def _spell_bytes(backend: Backend, token: int) -> str:
    """A token by the characters of its bytes; a byte that is also a character keeps its name, and is never written."""
    name = _name_token(backend, token)
    if isinstance(backend.decoder, decoders.ByteLevel):
        return name
    if (byte := _BYTE.fullmatch(name)) is not None:
        content = bytes.fromhex(byte[1])
        if backend.token_to_id(content.decode("ascii", "replace")) is not None:
            return name
    else:
        # A word is written with the space before it.
        before = backend.decode([token])
        content = backend.decode([token, token])[len(before) :].encode()
    return "".join(_CHARACTERS[one] for one in content)


def _name_token(backend: Backend, token: int) -> str:
    return backend.id_to_token(token) or ""


def make_generation_config(model: AsrModel, vocabulary: Vocabulary, decoding: AsrDecodingConfig) -> Any:
    """Return the ``generation_config.json``: the base's, with the prompt that was trained, and the run's search."""
    ids, base = vocabulary.ids, cast("Any", model.whisper.generation_config).to_dict()
    beams = decoding.beam_size if decoding.method == "beam" else 1
    special = {token.content: number for number, token in vocabulary.backend.get_added_tokens_decoder().items()}
    never = set(ids.never)
    values: dict[str, Any] = {
        "decoder_start_token_id": ids.prompt[0],
        "eos_token_id": ids.end,
        "pad_token_id": ids.pad,
        "begin_suppress_tokens": list(ids.never_first) or None,
        # Older bases force language and task by these; they would override the prompt that was trained.
        "forced_decoder_ids": None,
        "return_timestamps": False,
        "max_length": model.max_target_length,
        "num_beams": beams,
        "do_sample": False,
    }
    if beams > 1:
        # As in our own search, probabilities leave out what is suppressed.
        early = True if decoding.early_stopping else "never"
        values |= {"length_penalty": decoding.length_penalty, "renormalize_logits": True, "early_stopping": early}
    if decoding.max_new_tokens is not None:
        # The prompt doesn't count.
        values["max_length"] = min(decoding.max_new_tokens, model.max_target_length)
    if vocabulary.is_whispers:
        values |= _prompt_options(vocabulary, special)
        # Times and languages aren't suppressed in other Whispers: with return_timestamps, they are to be written.
        before = {special[NO_TIMES]} if NO_TIMES in special else set()
        never -= {*before, *vocabulary.times, *vocabulary.named_languages.values()}
    values["suppress_tokens"] = sorted(never)
    given = {name: value for name, value in base.items() if not name.startswith("_")}
    return import_transformers(PURPOSE, "asr").GenerationConfig(**{**given, **values})


def _prompt_options(vocabulary: Vocabulary, special: dict[str, int]) -> dict[str, Any]:
    """Return the options by which transformers makes the prompt that the model was trained with."""
    prompt, languages = vocabulary.ids.prompt, _languages(vocabulary)
    found: dict[str, Any] = {"is_multilingual": len(prompt) > 2}
    if NO_TIMES in special:
        found["no_timestamps_token_id"] = special[NO_TIMES]
    if found["is_multilingual"]:
        found |= {
            "language": vocabulary.trained_language,
            "task": "transcribe",
            "lang_to_id": languages,
            "task_to_id": {name: special[f"<|{name}|>"] for name in TASKS if f"<|{name}|>" in special},
        }
    return found


def _languages(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens of languages as ``generate`` finds them: codes that aren't Whisper's have to be here as such."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    found = vocabulary.languages
    new = {code: token for code, token in found.items() if code not in LANGUAGES}
    return {**{f"<|{code}|>": token for code, token in found.items()}, **new}


OF_WHISPER = """\
from transformers import WhisperFeatureExtractor
from tokenizers import Tokenizer

whisper, about = load_mixture("{folder}")
extract = WhisperFeatureExtractor(feature_size=about["mel_bins"])
features = extract(
    samples, sampling_rate=16000, return_tensors="pt", padding="max_length",
    max_length=round(16000 * about["seconds"]), truncation=True,
).input_features
tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")
texts = [tokenizer.decode(ids).strip() for ids in write_tokens(whisper, about, features)]
"""


def write_mixture(model: AsrModel, vocabulary: Vocabulary, base: str, folder: Path) -> None:
    """Write ``folder``, completely or not at all, with gate and experts, and how they are put on ``base``.

    Raises UserError for a model without experts, or where the folder has something in it.
    """
    about, readme = describe_mixture(model, vocabulary, base), (OF_WHISPER, SAMPLING_RATE)
    write_mixture_folder(collect_mixture_tensors(model, model.whisper), about, vocabulary, readme, folder)


def describe_mixture(model: AsrModel, vocabulary: Vocabulary, base: str) -> dict[str, Any]:
    """Return ``mixture.json`` for experts on a Whisper. Raises UserError for a model without experts."""
    ids, config = vocabulary.ids, model.whisper.config
    return {
        **describe_experts(model, model.whisper, vocabulary, base),
        "positions": config.max_source_positions,
        "seconds": config.max_source_positions / 50,
        "mel_bins": config.num_mel_bins,
        "prompt": list(ids.prompt),
        "end": ids.end,
        "never_first": list(ids.never_first),
        "longest": model.max_target_length + 1,
    }


def write_mixture_onnx(model: AsrModel, vocabulary: Vocabulary, base: str, folder: Path) -> float:
    """Write ``folder``, completely or not at all, with encoder and decoder for onnxruntime.

    Returns how far their outputs are from PyTorch's at most. Raises UserError as ``write_onnx`` does, and where the
    folder has something in it.
    """
    about = describe_mixture(model, vocabulary, base)
    chosen = ChosenExperts()
    whole: AsrModel = gathered(model, "whisper", chosen)

    def encode(given: AsrModel, features: Tensor) -> tuple[Tensor, ...]:
        # The gate reads the base's own states, so a first pass is without experts; the second is with those that it
        # chose. The choice of an earlier call is forgotten before.
        chosen.experts = chosen.weights = None
        encoder = given.whisper.model.encoder
        chosen.choose(given.gate, encoder(features).last_hidden_state.mean(1), about["top_k"])
        assert chosen.experts is not None
        assert chosen.weights is not None
        return encoder(features).last_hidden_state, chosen.experts, chosen.weights

    def decode(given: AsrModel, tokens: Tensor, states: Tensor, experts: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Logits of ``given`` for ``tokens`` and encoder ``states``, by the chosen ``experts`` and ``weights``."""
        chosen.experts, chosen.weights = experts, weights
        hidden = given.whisper.model.decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)
        return (given.whisper.proj_out(hidden.last_hidden_state),)

    def inputs(rows: int, length: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(rows)
        features = torch.randn(rows, about["mel_bins"], 2 * about["positions"], generator=generator)
        tokens = torch.randint(vocabulary.ids.size, (rows, length), generator=generator)
        with torch.no_grad():
            states, experts, weights = encode(whole, features)
        return {"features": features}, {"tokens": tokens, "states": states, "experts": experts, "weights": weights}

    longest = about["longest"] - 1
    given = [inputs(rows, min(length, longest)) for rows, length in ((2, 5), (1, 3), (3, 9))]
    rows = {name: {0: "row"} for name in ("features", "states", "experts", "weights")}
    encoder = OnnxModule(
        ExportWrapper(whole, encode), given[0][0], {"features": {0: "row"}}, ("states", "experts", "weights"),
        [one for one, _ in given[1:]],
    )  # fmt: skip
    axes = {**{name: rows[name] for name in ("states", "experts", "weights")}, "tokens": {0: "row", 1: "token"}}
    decoder = OnnxModule(ExportWrapper(whole, decode), given[0][1], axes, ("logits",), [one for _, one in given[1:]])
    with whole_folder(folder) as made:
        differences = [write_onnx(made / "encoder.onnx", encoder), write_onnx(made / "decoder.onnx", decoder)]
        write_json(made / "mixture.json", about)
        write_text(made / TOKENIZER, vocabulary.content)
    return max(differences)
