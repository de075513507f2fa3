"""What gate, experts and joint training will take, from what the stage of embeddings has measured.

    seconds = (seconds of the embeddings / their utterances) · PASSES · (utterances read in all epochs)

Early stopping isn't counted, nor the length of transcripts: right to a factor of three.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaak.core.storage.files import read_json
from vaak.data.sampling import sample_size
from vaak.pipeline.manifest import MANIFEST
from vaak.pipeline.rows import RowStore
from vaak.pipeline.stage import Forecast
from vaak.tasks.asr.stages.embeddings import ABOUT, ROWS
from vaak.tasks.asr.stages.options import MoeOptions

PASSES = 3.0
"""What training, or evaluating, an utterance takes in passes of the encoder: forward, backward, and the decoder."""
KEPT = 5
"""Checkpoints that a run keeps: best, last, and three."""
TIMED = 10
"""Products that are timed."""
SURE = "by the embeddings' time for each utterance, to a factor of three; less where training stops early"


def gate_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Of the gate, where the embeddings are there."""
    record = _record(inputs)
    if record is None:
        return Forecast()
    store, rows, hidden = RowStore(inputs["embeddings"] / ROWS), options.batch_size_of("gate"), options.gate_width
    width = read_json(inputs["embeddings"] / ABOUT)["width"]
    steps = options.epochs_of("gate") * -(-len(store) // rows)
    seconds = 3 * steps * _seconds_of_product(rows, width, hidden)  # forward, and two backward
    memory = record["memory_bytes"] + 4 * len(store) * width
    return Forecast(seconds, KEPT * 12 * width * hidden, memory, "by timing a product of its size: at least this")


def experts_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Of the experts, where the embeddings are there."""
    return _of_training(options, inputs, "experts", options.experts)


def joint_forecast(options: MoeOptions, inputs: Mapping[str, Path]) -> Forecast:
    """Of joint training, where the embeddings are there."""
    return _of_training(options, inputs, "joint", 1)


def _of_training(options: MoeOptions, inputs: Mapping[str, Path], stage: str, num_runs: int) -> Forecast:
    record = _record(inputs)
    if record is None:
        return Forecast()
    number, part = _utterances(inputs), options.part_of(stage)
    trained = sample_size(number["train"], part.percent, part.most)
    epochs = options.epochs_of(stage)
    read = epochs * trained + epochs // options.eval_every_n_epochs * number["valid"]
    seconds = record["seconds"] / record["figures"]["utterances"] * PASSES * read
    weights = _weights(inputs)
    # Frozen weights are on disk once for all checkpoints of a run; the changes are small next to them.
    return Forecast(seconds, num_runs * weights, record["memory_bytes"] + weights, SURE)


def _seconds_of_product(rows: int, width: int, hidden: int) -> float:
    import numpy as np

    one, other = np.ones((rows, width), np.float32), np.ones((width, hidden), np.float32)
    begun = time.perf_counter()
    for _ in range(TIMED):
        one @ other
    return (time.perf_counter() - begun) / TIMED


def _record(inputs: Mapping[str, Path]) -> dict[str, Any] | None:
    """What the stage of embeddings took; None where it hasn't ended, or has no part."""
    path = inputs["embeddings"] / MANIFEST if "embeddings" in inputs else None
    found: dict[str, Any] | None = read_json(path) if path is not None and path.exists() else None
    return found


def _utterances(inputs: Mapping[str, Path]) -> dict[str, int]:
    """How many utterances there are to train on, all of them, and to validate on."""
    from vaak.tasks.asr.utterances import Utterances

    prepared = inputs["embeddings"] / "data" / "prepared"
    return {"train": len(Utterances(prepared / "train").cuts), "valid": len(Utterances(prepared / "valid"))}


def _weights(inputs: Mapping[str, Path]) -> int:
    """The bytes of a checkpoint's weights, by the sizes of the base that the embeddings were made with."""
    about = read_json(inputs["embeddings"] / "data" / "prepared" / "base" / "config.json")
    positions = read_json(inputs["embeddings"] / ABOUT)["positions"]
    width, layers = about["d_model"], (about["encoder_layers"], about["decoder_layers"])
    ff = (about["encoder_ffn_dim"], about["decoder_ffn_dim"])
    encoder = layers[0] * (4 * width * width + 2 * width * ff[0])
    decoder = layers[1] * (8 * width * width + 2 * width * ff[1])
    tables = width * (about["vocab_size"] + positions + about["max_target_positions"])
    return int(4 * (encoder + decoder + tables + 3 * width * (width + about["num_mel_bins"])))
