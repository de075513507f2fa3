"""Every kind of pretrained network with a decoder, made small: transformers' logits and text, trained, handed on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor, pipeline

import tiny_bases
import tiny_listener
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.tasks.asr.bases import DECODER_BASES, Convolutions, DecoderBase
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.ctc.data import Waveforms, padded_features
from vaak.tasks.asr.decoder.model import PretrainedDecoder
from vaak.tasks.asr.decoder.task import keep_base

ATTENDING = [name for name, kind in DECODER_BASES.items() if isinstance(kind, DecoderBase)]
"""Those whose decoder attends to an encoder; test_listeners.py has the others."""


def test_every_kind_has_a_small_one_of_its_own():
    assert tiny_bases.DECODER.keys() == DECODER_BASES.keys()


def read_strides(kind: str) -> Convolutions:
    found = DECODER_BASES[kind]
    assert isinstance(found, DecoderBase)
    return found.strides


@pytest.mark.parametrize("kind", ATTENDING)
def test_logits_are_those_of_transformers_whatever_a_row_is_padded_to(tmp_path: Path, kind: str):
    folder = tiny_bases.DECODER[kind](tmp_path / "base")
    auto: Any = AutoModelForSpeechSeq2Seq
    ours = PretrainedDecoder(auto.from_pretrained(folder), AsrModelConfig(architecture="decoder")).eval()
    layers = tuple((kernel, stride) for kernel, stride, _ in read_strides(kind))
    waveforms, rng = Waveforms(layers, 16000, False, 4.0), np.random.default_rng(0)
    samples = [rng.normal(scale=0.1, size=length).astype(np.float32) for length in (13120, 9000, 100)]
    rows, lengths = padded_features([waveforms(one) for one in samples])
    tokens = torch.tensor([[1, 5, 6, 7]]).expand(3, -1)
    processor: Any = AutoProcessor.from_pretrained(folder)
    theirs: Any = auto.from_pretrained(folder).eval()
    with torch.no_grad():
        found = ours(rows, lengths, tokens)
        for one, logits in zip(samples[:2], found, strict=False):
            inputs = processor(one, sampling_rate=16000, return_tensors="pt", return_attention_mask=False)
            expected = theirs(**inputs, decoder_input_ids=tokens[:1]).logits[0]
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert found.isfinite().all()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", ATTENDING)
def test_it_trains_resumes_bit_for_bit_and_goes_out_to_transformers(corpus: Path, tmp_path: Path, kind: str):
    base = tiny_bases.DECODER[kind](tmp_path / "base")
    model = {"architecture": "decoder", "base": str(base), "lora": {}}
    options = ("training.checkpoint.interval=3", "training.max_steps=6")
    run = tiny_listener.train(corpus, tmp_path / "run", *options, model=model)
    opened = open_run(run)
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    tiny_listener.train(corpus, run, *options, "training.checkpoint.resume=auto", model=model)
    resumed = open_run(run).model.state_dict()
    assert all(torch.equal(one, resumed[name]) for name, one in opened.model.state_dict().items())
    assert all("lora" in name for name, one in opened.model.named_parameters() if one.requires_grad)

    task: Any = opened.task
    task.export_hf(opened.model, tmp_path / "out")
    recognise: Any = pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    for seed in range(3):
        samples = np.random.default_rng(seed).normal(scale=0.1, size=13120).astype(np.float32)
        text = task.transcriber(opened.model).texts([task.features(samples)])[0]
        assert recognise({"raw": samples, "sampling_rate": 16000})["text"].strip() == text
    task.export_peft(opened.model, tmp_path / "adapter")
    auto: Any = transformers.MoonshineForConditionalGeneration
    whole = auto.from_pretrained(tmp_path / "out").state_dict()
    by_itself = peft.AutoPeftModel.from_pretrained(str(tmp_path / "adapter")).merge_and_unload().state_dict()
    assert all(torch.allclose(by_itself[name], one, atol=1e-5) for name, one in whole.items())
    beam = task.transcriber(opened.model, method="beam", beam_size=3)
    assert isinstance(beam.texts([task.features(samples)])[0], str)


def test_a_base_is_used_as_it_is(corpus: Path, tmp_path: Path, vaak: Callable[..., tuple[int, str, str]]):
    base = tiny_bases.write_moonshine(tmp_path / "base")
    code, said, error = vaak("transcribe", base, corpus / "test0.wav")
    assert code == 0, error
    code, said, error = vaak("eval", base, "--data", corpus / "test.jsonl")
    assert (code, "wer" in said) == (0, True), error


def test_other_kinds_are_refused_in_a_line_that_names_what_reads_them(corpus: Path, tmp_path: Path):
    base = tiny_bases.write_parakeet(tmp_path / "base")
    with pytest.raises(UserError, match=r"is a parakeet_ctc, which model\.architecture: ctc reads, not decoder"):
        keep_base(str(base), tmp_path / "kept")
    options = tiny_listener.options(corpus, model={"architecture": "decoder"})
    (tmp_path / "case.yml").write_text(yaml_text(options))
    with pytest.raises(UserError, match=r"model.base.*architecture decoder begins with a base \(moonshine, qwen3_asr"):
        load([tmp_path / "case.yml"])
