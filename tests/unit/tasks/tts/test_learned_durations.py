"""Durations that are learned from three minutes of LJ Speech, against those of a forced alignment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.nn.speech.alignment import Aligner, beta_binomial_prior, forward_sum_loss, monotonic_alignment
from vaak.nn.speech.masks import length_mask
from vaak.tasks.tts.data import collate

RECIPE = Path(__file__).resolve().parents[4] / "configs" / "tts" / "ljspeech_mini.yml"


@pytest.mark.slow
def test_symbols_end_where_a_forced_alignment_says(
    vaak_data: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("VAAK_DATA", str(vaak_data("ljspeech_mini").parent))
    task = task_class("tts")(load([RECIPE], []).experiment, tmp_path, RECIPE.parent)
    task.prepare()
    dataset = task.dataset("train")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(dataset.lengths))]
    batch = collate(examples, dataset.pad_id).tensors
    symbols, mel = batch["symbols"].long(), batch["mel"]
    lengths = batch["frame_lengths"], batch["symbol_lengths"]
    frame_mask, symbol_mask = length_mask(lengths[0], mel.shape[1]), length_mask(lengths[1], symbols.shape[1])
    mel = (mel - mel[frame_mask].mean(0)) / mel[frame_mask].std(0)
    torch.manual_seed(0)
    embedding, aligner = nn.Embedding(int(symbols.max()) + 1, 256), Aligner(256, mel.shape[2])
    nn.init.normal_(embedding.weight, std=0.06)
    optimizer = torch.optim.Adam([*embedding.parameters(), *aligner.parameters()], 2e-3)
    prior = beta_binomial_prior(*lengths)
    for _ in range(100):
        scores = aligner(embedding(symbols), mel, symbol_mask, frame_mask, prior)
        optimizer.zero_grad()
        (forward_sum_loss(scores, *lengths).total / frame_mask.sum()).backward()
        optimizer.step()
    ends, given = (found.cumsum(1) for found in (monotonic_alignment(scores, *lengths), batch["durations"]))
    inner = length_mask(lengths[1] - 1, symbols.shape[1])
    distances = 1000 * task.audio.frame_shift * (ends - given).abs()[inner]
    assert distances.median() <= 24, "two frames"
    assert (distances <= 50).float().mean() >= 0.8
