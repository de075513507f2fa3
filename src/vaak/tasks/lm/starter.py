"""The first YAML of a language model for the data found, and example data (``vaak init``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.core.splits import SPLITS
from vaak.core.storage.files import write_text
from vaak.runs import example_data
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import (
    CHARACTERS_PER_TOKEN,
    Amounts,
    Choice,
    choose_muon,
    choose_steps,
    choose_text_size,
    choose_token_budget,
    choose_vocabulary,
    explain_token_budget,
    floor_power_of_two,
    split_texts,
)


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Sections for the data found; each choice says why."""
    corpus = split_texts(corpora[0])
    is_chat = corpus["type"] in ("chat", "preferences")
    for key in ("label_columns", "target_column"):
        corpus.pop(key, None)
    for key in [one for one in corpus if one.endswith("_target")]:
        # Both sides are texts.
        corpus[key.removesuffix("_target")] = [*corpus[key.removesuffix("_target")], *corpus.pop(key)]
    if "source_column" in corpus:
        corpus["text_column"] = corpus.pop("source_column")
    if corpus["type"] == "folders":
        corpus |= {"type": "text", "document": "file"}
    elif corpus["type"] == "lines":
        corpus["type"] = "text"
    elif corpus["type"] in ("files", "tsv"):
        ending = str(next(corpus[split] for split in SPLITS if split in corpus)[0]).rpartition(".")[2]
        corpus["type"] = {"json": "json", "jsonl": "json", "parquet": "parquet"}.get(ending, "csv")
    width, layers, heads, why = choose_text_size(amounts, device)
    median = amounts.lengths[len(amounts.lengths) // 2] if amounts.lengths else 100
    most = 256 if device.kind == "cpu" else 1024
    longest = floor_power_of_two(2 * median / CHARACTERS_PER_TOKEN, 128 if is_chat else 32, most)
    is_long = median / CHARACTERS_PER_TOKEN > longest and not is_chat
    budget = choose_token_budget(amounts, device, longest)
    data: dict[str, Any] = {
        "corpus": corpus,
        "tokenizer": {"type": Choice("byte_level", "reads any script"), "vocab_size": choose_vocabulary(amounts)},
        "max_length": Choice(longest, f"tokens; half of the texts have up to {median:,} characters"),
    }
    if is_long:
        data["layout"] = Choice("stream", "long texts, one after another, are cut into such lengths")
        batch: dict[str, Any] = {"batch_size": Choice(max(1, budget // longest), explain_token_budget(budget, device))}
    else:
        batch = {"batching": {"type": "bucketed", "max_tokens": Choice(budget, explain_token_budget(budget, device))}}
    if unusable := sum(len(split.broken) for split in corpora[0].splits.values()):
        data["on_bad_example"] = Choice("skip", f"{unusable:,} texts can't be used: vaak data check names them")
    if corpus["type"] == "preferences":
        batch["loss"] = {"main": Choice("orpo", "learns from scratch; with a trained model as reference: dpo")}
    return {
        "model": {"d_model": Choice(width, why), "num_layers": layers, "num_heads": heads},
        "data": data,
        "training": {**batch, "optimizer": choose_muon(width), **choose_steps(amounts.tokens / budget, device)},
    }


def write_example(folder: Path) -> None:
    from vaak.text.grammar.corpus import sentences

    for split, share in example_data.SHARES.items():
        texts = sentences(split, round(share * example_data.NUM_TEXTS), 0)
        write_text(folder / f"{split}.txt", "\n".join(texts) + "\n")
