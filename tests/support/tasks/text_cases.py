"""Language models and translators that the contract is held against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_decoder
import tiny_encoder_decoder
from task_case import PERFORMER, TaskCase
from vaak.core.batch import Batch


def _tokens_and_examples(batch: Batch) -> dict[str, float]:
    """Targets that are real; documents by their numbers (-1 is padding)."""
    targets, documents = batch["targets"].tolist(), batch["documents"].tolist()
    return {
        "token": float(sum(target >= 0 for row in targets for target in row)),
        "example": float(sum(len({number for number in row if number >= 0}) for row in documents)),
        "position": float(sum(number >= 0 for row in documents for number in row)),
    }


def _language_model(
    *,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    inputs: tuple[str, ...] = (),
    training: dict[str, Any] | None = None,
) -> TaskCase:
    corpus = {"corpus": {"type": "grammar", "num_sentences": 120}, "tokenizer": {"type": "character"}, "max_length": 40}
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "dropout": 0.1, **(model or {})}
    about = {"counted": _tokens_and_examples, "inputs": inputs}
    return TaskCase("lm", {"model": sizes, "data": corpus | (data or {})}, training or {}, about)


def _write_decoder(folder: Path) -> Sequence[str]:
    tiny_decoder.write_folder(folder, "llama")
    return ["लड़का"]


def _adapted() -> TaskCase:
    """A pretrained decoder with low-rank adapters of all of its layers, and little else that could be learned."""
    targets = ["query", "key", "value", "output", "gate", "up", "down"]
    model = {"pretrained": "FOLDER", "dropout": 0.1, "lora": {"rank": 8, "dropout": 0.1, "targets": targets}}
    data = {"corpus": {"type": "grammar", "num_sentences": 60}, "max_length": 40}
    about = {"counted": _tokens_and_examples, "learning_rate": 0.03, "learned": 0.8}
    return TaskCase("lm", {"model": model, "data": data}, {}, about, _write_decoder)


def _of_transformers() -> TaskCase:
    """A pretrained decoder that is transformers' own module, trained whole, on rows of several documents."""

    def write(folder: Path) -> Sequence[str]:
        tiny_decoder.write_folder(folder, "gpt_neox")  # its norms keep float64
        return ["लड़का"]

    corpus = {"corpus": {"type": "grammar", "num_sentences": 60}, "max_length": 40}
    about = {"counted": _tokens_and_examples}
    model = {"pretrained": "FOLDER", "dropout": 0.1}
    return TaskCase("lm", {"model": model, "data": corpus}, {"batching": {"type": "packed"}}, about, write)


def _write_chats(folder: Path) -> Sequence[str]:
    """Conversations, some with a system message, some with a tool, some longer than what the model reads."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(60):
        talk = [{"role": "system", "content": "कम बोलो।"}] if number % 3 == 0 else []
        for turn in range(1 + number % 4):
            answer = {"role": "assistant", "content": "अब" * (1 + turn)}
            talk += [{"role": "user", "content": f"{number + turn}?"}, answer]
            talk += [{"role": "tool", "content": f"{number}"}, answer] if number % 5 == 0 else []
        rows.append({"messages": talk})
    (folder / "chats.json").write_text(json.dumps(rows), encoding="utf-8")
    return ["लड़का"]


def _conversations(**training: Any) -> TaskCase:
    case = _language_model(data={"corpus": {"type": "chat", "train": ["FOLDER/chats.json"]}, "max_length": 70})
    return replace(case, training=training, write=_write_chats)


def _write_preferences(folder: Path) -> Sequence[str]:
    """A decoder, and pairs of answers of several lengths, some longer than what the model reads."""
    tiny_decoder.write_folder(folder, "gpt_neox")
    rows = [
        {"prompt": f"{number}?", "chosen": "अब" * (1 + number % 4), "rejected": "कब" * (1 + number % 7)}
        for number in range(60)
    ]
    (folder / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    return ["लड़का"]


def _answers_of_pairs(batch: Batch) -> dict[str, float]:
    """Pairs, tokens of chosen answers and of both, and all that is read."""
    scored = batch["targets"] >= 0
    pairs = float(len(batch["targets"]))
    found = {"pair": pairs, "example": pairs, "token": float(scored[:, 0].sum()), "answer_token": float(scored.sum())}
    return found | {"position": float((batch["documents"] >= 0).sum())}


def _preferences(main: Any) -> TaskCase:
    corpus = {"type": "preferences", "train": ["FOLDER/pairs.json"]}
    about = {"counted": _answers_of_pairs}
    model = {"pretrained": "FOLDER", "dropout": 0.1}
    data = {"corpus": corpus, "max_length": 50, "chat_template": "chatml"}
    return TaskCase("lm", {"model": model, "data": data}, {"loss": {"main": main}}, about, _write_preferences)


def _targets_and_sources(batch: Batch) -> dict[str, float]:
    """Targets and source tokens that are real."""
    targets = float(sum(target >= 0 for row in batch["targets"].tolist() for target in row))
    sources = float(sum(real for row in batch["source_mask"].tolist() for real in row))
    return {
        "token": targets,
        "source_token": sources,
        "position": targets + sources,
        "example": float(len(batch["targets"])),
    }


def _twice_the_longer_side(batch: Batch) -> float:
    return 2.0 * max(batch["source"].shape[1], batch["targets"].shape[1])


def _translator(
    *, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, training: dict[str, Any] | None = None
) -> TaskCase:
    corpus = {"corpus": {"type": "grammar", "num_sentences": 120}, "tokenizer": {"type": "character"}}
    corpus |= {"decoding": {"max_new_tokens": 6}}
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    options = {"model": {"global_config": sizes, **(model or {})}, "data": corpus | (data or {})}
    about = {"counted": _targets_and_sources, "row_length": _twice_the_longer_side, "inputs": ("The boy is good.", "")}
    return TaskCase("seq2seq", options, training or {}, about)


def _write_translator(folder: Path) -> Sequence[str]:
    """A T5, and pairs of a few letters: each is a token."""
    tiny_encoder_decoder.write_folder(folder, "t5")
    repeated = ((number, number % 5) for number in range(60))
    pairs = [{"en": f"{number} " + "ab" * times, "hi": "ba" * times + f" {number}"} for number, times in repeated]
    (folder / "pairs.json").write_text(json.dumps(pairs), encoding="utf-8")
    return ["7 abab"]


def _adapted_translator() -> TaskCase:
    """A pretrained T5 with low-rank adapters of all of its layers, and little else that could be learned."""
    targets = ["query", "key", "value", "output", "up", "down"]
    sides = {side: {"dropout": 0.1} for side in ("encoder", "decoder")}
    model = {"pretrained": "FOLDER", **sides, "lora": {"rank": 8, "dropout": 0.1, "targets": targets}}
    corpus = {"type": "json", "train": ["FOLDER/pairs.json"]}
    data = {"corpus": corpus, "decoding": {"max_new_tokens": 9}}
    about = {"counted": _targets_and_sources, "row_length": _twice_the_longer_side, "learning_rate": 0.03}
    return TaskCase("seq2seq", {"model": model, "data": data}, {}, about | {"learned": 0.8}, _write_translator)


TEXT_CASES = {
    "lm decoder, documents": _language_model(data={"token_dropout": 0.1}, inputs=("", "लड़का")),
    "lm decoder, stream": _language_model(data={"layout": "stream"}, inputs=("लड़का",)),
    "lm decoder, packed": _language_model(inputs=("लड़का",), training={"batching": {"type": "packed"}}),
    "lm decoder, all losses": _language_model(
        inputs=("लड़का",), training={"loss": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}}
    ),
    "lm encoder": _language_model(model={"model_type": "encoder"}),
    "lm encoder, packed": _language_model(model={"model_type": "encoder"}, training={"batching": {"type": "packed"}}),
    "lm Performer": _language_model(model={"attention_type": "causal_linear"}, inputs=("", "लड़का"), training=PERFORMER),
    "lm Performer encoder, packed": _language_model(
        model={"model_type": "encoder", "attention_type": "linear"},
        training=PERFORMER | {"batching": {"type": "packed"}},
    ),
    "lm local, convolutional, packed": _language_model(
        model={"attention_type": "local", "window": 4, "position_type": "convolutional"},
        inputs=("लड़का",),
        training={"batching": {"type": "packed"}},
    ),
    "lm experts": _language_model(
        model={"moe": {"num_experts": 3, "num_shared": 1, "d_ff": 24, "balancing_bias": 0.05}}, inputs=("लड़का",)
    ),
    "lm pretrained, low-rank adapters": _adapted(),
    "lm of transformers, packed": _of_transformers(),
    "lm chat": _conversations(),
    "lm chat, packed": _conversations(batching={"type": "packed"}),
    "lm preferences, dpo": _preferences({"type": "dpo", "beta": 0.5}),
    "lm preferences, orpo": _preferences({"type": "orpo", "weight": 0.5}),
    "seq2seq": _translator(),
    "seq2seq, two tokenizers": _translator(
        model={"share_embeddings": False},
        data={"target_tokenizer": {"type": "character"}, "token_dropout": 0.2},
        training={"loss": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}},
    ),
    "seq2seq, glossed, copying": _translator(
        model={"copy_source": True}, data={"gloss": True, "max_source_length": 256}
    ),
    "seq2seq Performer": _translator(
        model={"encoder": {"attention_type": "linear"}, "decoder": {"attention_type": "causal_linear"}},
        training=PERFORMER,
    ),
    "seq2seq experts": _translator(
        model={
            "encoder": {"moe": {"num_experts": 3, "d_ff": 24, "balancing_bias": 0.05}},
            "decoder": {"num_layers": 2, "moe": {"num_experts": 2, "top_k": 1, "first_layer": 1, "scores": "softmax"}},
        }
    ),
    "seq2seq pretrained, low-rank adapters": _adapted_translator(),
}
