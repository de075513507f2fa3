"""The first YAML of an encoder and decoder for the data found, and example data (``vaak init``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    width, layers, heads, why = choose_text_size(amounts, device)
    greatest = amounts.lengths[-1] if amounts.lengths else 200
    longest = floor_power_of_two(2 * greatest / CHARACTERS_PER_TOKEN + 32, 64, 512)
    budget = choose_token_budget(amounts, device, longest)
    said = f"tokens; the longest source has {greatest:,} characters"
    return {
        "model": {"global_config": {"d_model": Choice(width, why), "num_layers": layers, "num_heads": heads}},
        "data": {
            "corpus": split_texts(corpora[0]),
            "tokenizer": {"type": Choice("byte_level", "reads any script"), "vocab_size": choose_vocabulary(amounts)},
            "max_source_length": Choice(longest, said),
            "max_target_length": longest,
        },
        "training": {
            "batching": {"type": "bucketed", "max_tokens": Choice(budget, explain_token_budget(budget, device))},
            "optimizer": choose_muon(width),
            "loss": {"label_smoothing": Choice(0.1, "against sure mistakes (Vaswani et al. 2017)")},
            **choose_steps(amounts.tokens / budget, device),
        },
    }


def write_example(folder: Path) -> None:
    from vaak.text.grammar.translation import grammar_pairs

    for split, share in example_data.SHARES.items():
        rows = grammar_pairs(split, round(share * example_data.NUM_TEXTS), 0)
        lines = (json.dumps({"source": english, "target": hindi}, ensure_ascii=False) for english, hindi in rows)
        write_text(folder / f"{split}.jsonl", "\n".join(lines) + "\n")
