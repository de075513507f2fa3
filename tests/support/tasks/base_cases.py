"""Training of each kind of pretrained base, whole and with adapters, in its smallest form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tiny_bases
import tiny_decoder
import tiny_encoder_decoder
import tiny_listener
from task_case import TaskCase
from tiny_whisper import write_whisper

Write = Callable[[Path], Any]
BF16 = {"mixed_precision": "bf16"}


def make_listener_case(write: Write, **model: Any) -> TaskCase:
    def write_both(folder: Path) -> Sequence[Any]:
        write(folder / "base")
        return tiny_listener.write_listener(folder)

    options = tiny_listener.sections("FOLDER", model={"base": "FOLDER/base", **model})
    return TaskCase("asr", options, {}, {}, write_both)


def _language_model(kind: str, training: dict[str, Any] | None = None, **model: Any) -> TaskCase:
    def write(folder: Path) -> Sequence[Any]:
        tiny_decoder.write_folder(folder, kind)
        return ["लड़का"]

    corpus = {"corpus": {"type": "grammar", "num_sentences": 60}, "max_length": 40}
    own = {"pretrained": "FOLDER", "dropout": 0.1, **model}
    return TaskCase("lm", {"model": own, "data": corpus}, training or {}, {}, write)


def _translator(kind: str) -> TaskCase:
    def write(folder: Path) -> Sequence[Any]:
        tiny_encoder_decoder.write_folder(folder, kind)
        pairs = [{"en": f"{number} " + "ab" * (number % 5), "hi": "ba" * (number % 5)} for number in range(60)]
        (folder / "pairs.json").write_text(json.dumps(pairs), encoding="utf-8")
        return ["7 abab"]

    data = {"corpus": {"type": "json", "train": ["FOLDER/pairs.json"]}, "decoding": {"max_new_tokens": 9}}
    return TaskCase("seq2seq", {"model": {"pretrained": "FOLDER"}, "data": data}, {}, {}, write)


def _classifier(write: Write, **model: Any) -> TaskCase:
    def write_both(folder: Path) -> Sequence[Any]:
        write(folder / "base")
        rows = [
            {
                "text": " ".join("bado"[number >> place & 3] * 2 for place in range(6)),
                "label": ("good", "bad")[number % 2],
            }
            for number in range(40)
        ]
        (folder / "texts.json").write_text(json.dumps(rows), encoding="utf-8")
        return ["ba do"]

    corpus = {"train": "FOLDER/texts.json", "train_fraction": 0.7, "valid_fraction": 0.2}
    options = {"model": {"pretrained": "FOLDER/base", **model}, "data": {"corpus": corpus, "max_length": 12}}
    return TaskCase("classification", options, {}, {}, write_both)


LORA = {"lora": {"rank": 4, "dropout": 0.1}}
PACKED = {"batching": {"type": "packed"}}
BASE_CASES: dict[str, TaskCase] = {
    "whisper": make_listener_case(write_whisper),
    "whisper, low-rank adapters": make_listener_case(write_whisper, **LORA),
    **{f"ctc, {kind}": make_listener_case(write, architecture="ctc") for kind, write in tiny_bases.CTC.items()},
    "ctc, wav2vec2, low-rank adapters": make_listener_case(tiny_bases.CTC["wav2vec2"], architecture="ctc", **LORA),
    **{
        f"decoder, {kind}": make_listener_case(write, architecture="decoder")
        for kind, write in tiny_bases.DECODER.items()
    },
    **{f"lm, {kind}": _language_model(kind) for kind in tiny_decoder.OTHERS},
    **{f"lm, {kind}, packed": _language_model(kind, PACKED) for kind in ("gpt_neox", "gemma3_text")},
    "lm, gpt_neox, low-rank adapters": _language_model("gpt_neox", **LORA),
    **{f"lm, {kind}": _language_model(kind) for kind in tiny_decoder.MODELS if "," not in kind},
    **{f"seq2seq, {kind}": _translator(kind) for kind in ("t5", "marian")},
    **{f"classification, {kind}": _classifier(write) for kind, write in tiny_bases.ENCODERS.items()},
}
