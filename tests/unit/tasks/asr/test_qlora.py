"""Speech bases in four bits (QLoRA): trained, evaluated, resumed to the same bits, and read elsewhere alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

import tiny_bases
import tiny_listener
from tiny_whisper import write_whisper
from vaak.nn.lora import NF4Linear
from vaak.runs.open_run import open_run
from vaak.tasks.asr.bases import count_steps
from vaak.tasks.asr.decoder.model import RealGroupNorm

ARCHITECTURES = {
    **dict.fromkeys(tiny_bases.CTC, "ctc"),
    **dict.fromkeys(tiny_bases.DECODER, "decoder"),
    "whisper": "whisper",
}
CLASSES: dict[str, Any] = {
    "ctc": transformers.AutoModelForCTC,
    "decoder": transformers.AutoModelForSpeechSeq2Seq,
    "whisper": transformers.WhisperForConditionalGeneration,
    "qwen3_asr": transformers.AutoModelForMultimodalLM,
    "glmasr": transformers.AutoModelForSeq2SeqLM,
    "voxtral": transformers.AutoModelForSeq2SeqLM,
}
OPTIONS = ("training.checkpoint.interval=2", "training.max_steps=3", "training.validation.interval=2")


def write_base(kind: str, folder: Path) -> Path:
    if kind == "whisper":
        return write_whisper(folder, seconds=tiny_listener.SECONDS)
    return {**tiny_bases.CTC, **tiny_bases.DECODER}[kind](folder)


def get_network(model: Any) -> Any:
    """The network of transformers in a recogniser."""
    return model.whisper if hasattr(model, "whisper") else model.base


def make_inputs(kind: str, base: Path) -> dict[str, Any]:
    """What the network of transformers reads of a second of noise, or a few tokens where it is a language model."""
    if kind == "whisper":
        return {"input_features": torch.randn(1, 80, 80), "decoder_input_ids": torch.arange(4)[None]}
    if kind not in ("moonshine", *tiny_bases.CTC):
        return {"input_ids": torch.arange(3, 9)[None]}
    read: Any = transformers.AutoFeatureExtractor.from_pretrained(base)
    samples = np.random.default_rng(0).normal(scale=0.1, size=12800).astype(np.float32)
    inputs = dict(read(samples, sampling_rate=16000, return_tensors="pt"))
    return {**inputs, **({"decoder_input_ids": torch.arange(1, 5)[None]} if kind == "moonshine" else {})}


@torch.no_grad()
def compute_logits(network: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = network.eval()(**inputs).logits
    return logits


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Support for mismatched")  # of transformers' WavLM
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_base_in_four_bits_is_trained_resumed_evaluated_and_goes_out(
    corpus: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
):
    base = write_base(kind, tmp_path / "base")
    model = {"architecture": ARCHITECTURES[kind], "base": str(base), "lora": {"base_dtype": "nf4", "rank": 4}}
    run = tiny_listener.train(corpus, tmp_path / "run", *OPTIONS, model=model)
    opened: Any = open_run(run)
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    tiny_listener.train(corpus, run, *OPTIONS, "training.checkpoint.resume=auto", model=model)
    resumed = open_run(run).model.state_dict()
    assert all(torch.equal(one, resumed[name]) for name, one in opened.model.state_dict().items())
    network = get_network(opened.model)
    in_nf4 = {name: one for name, one in network.named_modules() if isinstance(one, NF4Linear)}
    assert len(in_nf4) > 4
    changes = [one for name, one in network.named_parameters() if "lora_B" in name]
    assert all(one.any() for one in changes), "every adapter has learned something"

    inputs = make_inputs(kind, base)
    for module in network.modules():
        if isinstance(module, RealGroupNorm):
            module.lengths = torch.tensor([count_steps(inputs["input_values"].shape[1], ((127, 64, 0),))])
    auto = CLASSES.get(kind, CLASSES[ARCHITECTURES[kind]])
    ours = compute_logits(network, inputs)
    assert (ours - compute_logits(auto.from_pretrained(base), inputs)).abs().max() > 1e-3

    opened.task.export_hf(opened.model, tmp_path / "hf")
    theirs = compute_logits(auto.from_pretrained(tmp_path / "hf"), inputs)
    is_said = theirs > -1e3  # tokens that are never written have this score in an export
    torch.testing.assert_close(theirs[is_said], ours[is_said], rtol=1e-3, atol=1e-4)

    if kind == "wavlm":
        return
    assert "on a base in 4 bits" not in caplog.text
    opened.task.export_peft(opened.model, tmp_path / "peft")
    assert "these adapters were trained on a base in 4 bits, so with the unrounded base outputs differ" in caplog.text
    rounded = auto.from_pretrained(base)
    with torch.no_grad():
        for name, layer in in_nf4.items():
            rounded.get_submodule(name.replace(".base_layer", "")).weight.copy_(layer.whole().weight)
        for name, one in network.named_parameters():
            if one.dtype == torch.bfloat16:
                rounded.get_parameter(name).copy_(one)
    adapted = peft.PeftModel.from_pretrained(rounded, str(tmp_path / "peft"))
    torch.testing.assert_close(compute_logits(adapted, inputs), ours, rtol=1e-3, atol=1e-4)
