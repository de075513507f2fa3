"""The first YAML of a classifier for the data found, and example data (``vaak init``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.runs import example_data
from vaak.runs.example_data import write_table
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import CHARACTERS_PER_TOKEN, Amounts, Choice, choose_steps, floor_power_of_two, split_texts

FEW_TEXTS = 100
"""Texts of each label with which a pretrained encoder was still ahead (benchmarks/few_texts.py)."""
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Sections for the data found; each choice says why."""
    if len(amounts.labels) == 1:
        raise UserError(
            f"{corpora[0].folder}: all its texts have one label, {next(iter(amounts.labels))!r}: there is nothing to "
            "tell apart; if another column has the labels, name it label"
        )
    width = 64 if amounts.examples < 10_000 else 128 if device.kind == "cpu" else 300
    longest = floor_power_of_two(2 * (amounts.lengths[-1] if amounts.lengths else 200) / CHARACTERS_PER_TOKEN, 16, 512)
    batch = floor_power_of_two(amounts.examples / 40, 8, 32 if device.kind == "cpu" else 128)
    counts = amounts.labels.most_common()
    rarest = f"the rarest of {len(counts)} labels, {counts[-1][0]!r}, has {counts[-1][1]:,} texts" if counts else ""
    each = amounts.examples / max(1, len(counts))
    why = f"quick, and hard to beat with {amounts.examples:,} texts; pretrained models: docs/classification.md"
    if each <= FEW_TEXTS:
        why = (
            f"quick; with {each:,.0f} texts of each label, a pretrained encoder is usually better "
            f"(docs/classification.md); to compare: vaak baseline THIS.yml model.architecture=transformer "
            f"model.pretrained_model={ENCODER} model.pooling=mean"
        )
    return {
        "model": {
            "architecture": Choice("cnn", why),
            "embed_size": Choice(width, "by the number of texts"),
            "num_filters": width,
            "filter_sizes": Choice([2, 3, 4], "words that are seen together"),
            "dropout": 0.5,
        },
        "data": {"corpus": Choice(split_texts(corpora[0], len(counts)), rarest), "max_length": longest},
        "training": {
            "batch_size": batch,
            "batching": Choice("bucketed", "texts of like lengths together: little padding"),
            "optimizer": {"lr": 2e-3},
            **choose_steps(amounts.examples / batch, device),
        },
    }


def write_example(folder: Path) -> None:
    from vaak.text.grammar import PHENOMENA, minimal_pairs

    # Of twins, one is taken.
    pairs = islice(minimal_pairs(2 * (example_data.NUM_TEXTS // len(PHENOMENA)), 0), 0, None, 2)
    write_table(folder / "sentences.csv", ("text", "label"), ((one.sentence_good, one.phenomenon) for one in pairs))
