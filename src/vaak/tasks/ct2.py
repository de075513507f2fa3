"""A model of transformers in CTranslate2's format, which faster-whisper and others run fast on a CPU or a GPU.

    model.bin  config.json (CTranslate2's own)  vocabulary.json
    tokenizer, generation settings, preprocessor_config.json: as --format hf writes them

CTranslate2's converter reads the folder of ``--format hf``, which is written first, and removed.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json, sync_file, whole_folder
from vaak.tasks.fetching import SAFELY, import_transformers, quiet_transformers

TOLERANCES = {"float32": 0.01, "float16": 0.02, "bfloat16": 0.05, "int16": 0.02}
"""How far outputs may be from the run's by the type of weights, relative to their deviation (root mean square)."""
_TOLERANCE_OF_INT8 = 0.25
Check = Callable[[Path], tuple[np.ndarray, np.ndarray]]
"""Texts of a converted folder, computed in 32 bits, and those of the run."""


def write_ct2(
    write_hf: Callable[[Path], object], folder: Path, quantization: str | None, check: Check | None = None
) -> None:
    """Write ``folder``, completely or not at all: the export of ``write_hf`` for transformers, converted.

    ``quantization`` is the type of weights, by CTranslate2's name; None leaves them unchanged. Raises UserError
    without the package, for a model that it doesn't convert, where the outputs of ``check`` differ, and for a folder
    that has something in it.
    """
    with optional_import("--format ct2 requires ctranslate2", "ct2"):
        converter = _define_converter()
    transformers = import_transformers("--format ct2")
    with whole_folder(folder) as made:
        source, converted = made / "hf", made / "ct2"
        write_hf(source)
        # CTranslate2 has files of these names.
        left = ("config.json", "vocabulary.json")
        files = [one.name for one in source.iterdir() if one.name not in left and ".safetensors" not in one.suffixes]
        try:
            with quiet_transformers(transformers), warnings.catch_warnings():
                # What its tokenizers recommend.
                warnings.simplefilter("ignore")
                converter(str(source), copy_files=sorted(files)).convert(str(converted), quantization=quantization)
        except Exception as error:
            # Each of its loaders raises its own.
            raise UserError(f"--format ct2: CTranslate2 can't convert this model: {_last_line(error)}") from error
        if check is not None:
            _compare(check, converted, quantization or "float32")
        shutil.rmtree(source)
        for file in list(converted.iterdir()):
            file.rename(made / file.name)
            sync_file(made / file.name)
        converted.rmdir()


def _define_converter() -> Any:
    """Return CTranslate2's converter with what it lacks; its package is imported. Raises ImportError without it."""
    import ctranslate2.converters

    class Converter(ctranslate2.converters.TransformersConverter):
        """With a name for each row of the embedding, and for unknown tokens: it requires both."""

        ends: Sequence[str] = ()

        def load_model(self, model_class: Any, name: str, **options: Any) -> Any:
            self.config = options["config"]
            if self.config.model_type == "gemma2":
                raise ValueError("it doesn't cap the logits of Gemma 2")
            model = super().load_model(model_class, name, **options, **SAFELY)
            # transformers 5 says of every T5 that its embeddings are tied, and the converter takes that for "scale the
            # decoder's output": it gets the right value of that option.
            if self.config.model_type == "t5":
                model.config.tie_word_embeddings = model.config.scale_decoder_outputs
            return model

        def load_tokenizer(self, tokenizer_class: Any, name: str, **options: Any) -> Any:
            tokenizer = super().load_tokenizer(tokenizer_class, name, **options, **SAFELY)
            if self.config.model_type == "whisper":
                # The converter names its times.
                return tokenizer
            size, names = self.config.get_text_config().vocab_size, tokenizer.get_vocab()
            # CTranslate2 numbers the names that it finds: without one for each number, all after it would be others'.
            free = {*range(size)} - {*names.values()}
            whole = {**names, **{f"<|unused {number}|>": number for number in free}}
            tokenizer.get_vocab = lambda: dict(sorted(whole.items(), key=itemgetter(1)))
            tokenizer.unk_token = tokenizer.unk_token or tokenizer.eos_token
            generation = Path(name) / "generation_config.json"
            ends = (read_json(generation).get("eos_token_id") if generation.is_file() else None) or []
            named = {number: text for text, number in whole.items()}
            self.ends = [named[one] for one in (ends if isinstance(ends, list) else [ends]) if one in named]
            return tokenizer

        def _load(self) -> Any:
            spec = super()._load()
            # Of Gemmas, the converter says that they stop at <end_of_turn>, whatever they were taught.
            if self.ends and spec.config.eos_token not in self.ends:
                spec.config.eos_token = self.ends[0]
            return spec

    return Converter


def _compare(check: Check, folder: Path, quantization: str) -> None:
    try:
        found, expected = check(folder)
    except Exception as error:
        # RuntimeError, ValueError, by what goes wrong.
        raise UserError(f"--format ct2: CTranslate2 can't run the converted model: {_last_line(error)}") from error
    difference = float(np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected))
    if not difference <= TOLERANCES.get(quantization, _TOLERANCE_OF_INT8):
        raise UserError(
            f"--format ct2: the converted model's outputs differ from PyTorch's by {100 * difference:.3g} % of their "
            f"deviation, with weights in {quantization}: CTranslate2 computes another model"
        )


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
