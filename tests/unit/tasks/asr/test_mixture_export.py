"""A mixture in other people's tools: one of its experts, as much of it as the mixture applies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

import tiny_listener
from vaak.runs.open_run import OpenedRun, open_run
from vaak.tasks.asr.base import loaded_whisper

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(corpus: Path, whisper_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained mixture of two experts whose gate is undecided; each is chosen by some utterances."""
    experts = {"num_experts": 2, "rank": 2, "gate_width": 8, "targets": ["q_proj", "fc1"], "balancing_bias": 0.01}
    model = {"base": str(whisper_folder), "experts": experts}
    training = {"max_steps": 20, "loss": {"auxiliary": {"load_balancing": 0.1}}}
    folder = tmp_path_factory.mktemp("mixture") / "run"
    return tiny_listener.train(corpus, folder, model=model, training=training)


@pytest.fixture(scope="module")
def opened(run: Path) -> OpenedRun:
    return open_run(run, device="cpu")


def validation(opened: OpenedRun) -> tuple[torch.Tensor, torch.Tensor]:
    """The features of validation utterances, and a few tokens of each."""
    dataset = opened.task.dataset("valid")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(dataset.utterances))]
    tokens = torch.tensor([[*opened.task.prepared.vocabulary.ids.prompt, 7, 8]] * len(examples))
    return torch.from_numpy(np.stack([one.features for one in examples])), tokens


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@torch.no_grad()
def test_an_exported_expert_changes_the_base_as_much_as_the_mixture_does(
    run: Path, opened: OpenedRun, whisper_folder: Path, vaak: Command, tmp_path: Path
) -> None:
    """At the weight that the gate gave it in an utterance, to rounding; by default at the mean of these."""
    import peft

    features, tokens = validation(opened)
    found: Any = opened.model(features, tokens)
    weights = found.encoded.weights
    assert 0.3 < float(weights.max(1).values.mean()) < 0.95, "the gate is undecided"
    for row in (0, 3):
        expert = int(weights[row].argmax())
        given = ["--expert", str(expert), "--expert-weight", repr(float(weights[row, expert])), "--json"]
        code, out, err = vaak("export", run, "--format", "hf", "--output", tmp_path / f"hf-{row}", *given)
        assert code == 0, err
        whole = WhisperForConditionalGeneration.from_pretrained(tmp_path / f"hf-{row}").eval()
        code, out, err = vaak("export", run, "--format", "peft", "--output", tmp_path / f"peft-{row}", *given)
        assert code == 0, err
        base = loaded_whisper(str(whisper_folder), tiny_listener.SECONDS)
        adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / f"peft-{row}")).eval()
        one = slice(row, row + 1)
        for model in (whole, adapted):
            logits = model(input_features=features[one], decoder_input_ids=tokens[one]).logits
            torch.testing.assert_close(logits, found.logits[one], rtol=1e-4, atol=1e-4)
    for expert in range(2):
        code, out, err = vaak("export", run, "--expert", str(expert), "--output", tmp_path / f"mean-{expert}", "--json")
        own = weights[:, expert][weights[:, expert] > 0]
        if len(own):
            assert json.loads(out)["weight"] == pytest.approx(float(own.mean()), rel=1e-5), err
        else:
            assert (code, "no validation utterance chose it" in err) == (2, True), err


def test_a_weight_without_an_expert_is_one_line(run: Path, vaak: Command) -> None:
    code, _, err = vaak("export", run, "--expert-weight", "0.5")
    assert (code, "give --expert, too" in err) == (2, True), err
