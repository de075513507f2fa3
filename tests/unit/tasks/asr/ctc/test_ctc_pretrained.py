"""wav2vec 2.0, HuBERT and WavLM, made small: the logits of transformers, trained by CTC, and back to transformers."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCTC, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC, pipeline

import tiny_listener
from tiny_wav2vec2 import write_base
from tiny_whisper import write_whisper
from vaak.audio.audio_file import AudioFile
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.ctc.data import padded_features
from vaak.tasks.asr.ctc.pretrained import PretrainedCtc, keep_base, load_features, span_mask


@pytest.mark.parametrize(
    ("family", "norm"), [("wav2vec2", "group"), ("wav2vec2", "layer"), ("hubert", "group"), ("wavlm", "layer")]
)
def test_logits_are_those_of_transformers_whatever_a_row_is_padded_to(tmp_path: Path, family: str, norm: str):
    folder = write_base(tmp_path / "base", family, norm)
    theirs: Any = AutoModelForCTC.from_pretrained(folder).eval()
    ours = PretrainedCtc(AutoModelForCTC.from_pretrained(folder), AsrModelConfig(architecture="ctc")).eval()
    keep_base(str(folder), tmp_path / "kept")
    waveforms, rng = load_features(tmp_path / "kept", 4.0), np.random.default_rng(0)
    samples = [rng.normal(size=length).astype(np.float32) for length in (9000, 16000, 100)]
    rows, lengths = padded_features([waveforms(one) for one in samples])
    found = ours(rows, lengths)
    assert found.lengths.tolist() == [waveforms.frames(len(one)) for one in samples] == [27, 49, 1]
    extract: Any = Wav2Vec2FeatureExtractor.from_pretrained(folder)
    for one, logits, frames in zip(samples[:2], found.logits, found.lengths, strict=False):
        values = extract(one, sampling_rate=16000, return_tensors="pt").input_values
        torch.testing.assert_close(logits[:frames], theirs(values).logits[0], rtol=1e-5, atol=1e-5)


def test_spans_are_drawn_by_the_examples_own_key():
    masks = [span_mask(200, 0.3, 10, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert (masks[0] == masks[1]).all()
    assert (masks[0] != masks[2]).any()
    edges = np.flatnonzero(np.diff(masks[0].astype(int), prepend=0, append=0)).reshape(-1, 2)
    assert (edges[:, 1] - edges[:, 0] >= 10).all()
    assert 0.1 < np.mean([span_mask(200, 0.3, 10, np.random.default_rng(seed)).mean() for seed in range(50)]) < 0.3
    assert not span_mask(5, 0.9, 10, np.random.default_rng(0)).any()


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a base, which has gone since."""
    folder = tmp_path_factory.mktemp("pretrained")
    write_base(folder / "base", "wav2vec2", "layer")
    model = {"architecture": "ctc", "base": str(folder / "base"), "lora": {}}
    options = ("training.max_steps=40", "training.checkpoint.interval=20", "training.optimizer.layer_decay=0.9")
    run = tiny_listener.train(corpus, folder / "run", *options, model=model)
    (folder / "base").rename(folder / "gone")
    return run


def test_it_trains_what_is_not_frozen_and_goes_out_to_transformers(run: Path, corpus: Path, tmp_path: Path):
    opened = open_run(run)
    task: Any = opened.task
    trained = {name for name, one in opened.model.named_parameters() if one.requires_grad}
    assert all("lora" in name or "lm_head" in name for name in trained)
    example = task.dataset("train").example(0, np.random.default_rng(0))
    assert example.hidden.frames.shape == (task.features.encoded(example.features.shape[1]),)
    task.export_hf(opened.model, tmp_path / "out")
    recognise: Any = pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    transcriber = task.transcriber(opened.model)
    with AudioFile(corpus / "test2.wav", 16000, "mix") as file:
        samples = np.asarray(file.read(0.0, file.duration), np.float32)
    theirs = recognise({"raw": samples, "sampling_rate": 16000})["text"]
    assert theirs.strip() == transcriber.texts([task.features(samples)])[0]
    base: Any = AutoModelForCTC.from_pretrained(tmp_path / "out")
    values = torch.from_numpy(task.features(samples))
    logits = opened.model(values[None], torch.tensor([values.shape[1]])).logits
    names = task.prepared.vocabulary.tokens()
    kept = [number for number, name in enumerate(names) if len(name) == 1 or name == "<pad>"]
    torch.testing.assert_close(base(values).logits[..., kept], logits[..., kept], rtol=1e-4, atol=1e-5)


def test_an_export_is_a_base_and_other_models_are_refused(run: Path, corpus: Path, tmp_path: Path):
    opened = open_run(run)
    task: Any = opened.task
    task.export_hf(opened.model, tmp_path / "out")
    options = tiny_listener.options(corpus, model={"architecture": "ctc", "base": str(tmp_path / "out")})
    (tmp_path / "case.yml").write_text(yaml_text(options))
    experiment: Any = load([tmp_path / "case.yml"]).experiment
    again: Any = type(task)(experiment, tmp_path / "again", tmp_path)
    again.prepare()
    assert again.prepared.vocabulary.ids == task.prepared.vocabulary.ids
    samples = again.features(np.random.default_rng(0).normal(size=8000).astype(np.float32))
    values, length = torch.from_numpy(samples)[None], torch.tensor([8000])
    whole = again.model().eval()
    first, second = opened.model.eval()(values, length).logits, whole(values, length).logits
    again.export_hf(whole, tmp_path / "once more")
    assert torch.equal(whole(values, length).logits, second), "an export doesn't change the model"
    kept = [number for number, name in enumerate(task.prepared.vocabulary.tokens()) if len(name) == 1]
    torch.testing.assert_close(first[..., kept], second[..., kept], rtol=1e-4, atol=1e-5)
    write_whisper(tmp_path / "whisper")
    with pytest.raises(UserError, match=r"is a whisper, which model\.architecture: whisper reads, not ctc"):
        keep_base(str(tmp_path / "whisper"), tmp_path / "kept")


LANGUAGES = {"eng": "abcdefghi", "hin": "abdimosu"}


def with_adapter(corpus: Path, folder: Path, language: str, *, base: Path) -> Any:
    """A task on the adapter of a language, prepared."""
    model = {"architecture": "ctc", "base": str(base), "adapter": language}
    folder.mkdir()
    (folder / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, model=model)))
    experiment: Any = load([folder / "case.yml"]).experiment
    task: Any = task_class("asr")(experiment, folder, folder)
    task.prepare()
    return task


def logits_of(model: Any, samples: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(torch.from_numpy(samples)).logits
    return logits


@pytest.mark.slow
def test_an_adapter_is_that_of_transformers_and_goes_back(corpus: Path, tmp_path: Path):
    base = write_base(tmp_path / "base", "wav2vec2", "layer", LANGUAGES)
    task = with_adapter(corpus, tmp_path / "task", "hin", base=base)
    vocabulary = task.prepared.vocabulary
    assert vocabulary.encode("ba do") == [4, 3, 2, 5, 8]
    assert vocabulary.decode([4, 3, 2, 5, 8]) == "ba do"
    assert vocabulary.ids.never == (1,), "the word separator is written, though transformers calls it special"
    samples = task.features(np.random.default_rng(0).normal(size=8000).astype(np.float32))

    def ours(model: Any) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model.eval()(torch.from_numpy(samples)[None], torch.tensor([8000])).logits
        return logits

    theirs: Any = Wav2Vec2ForCTC
    expected = logits_of(theirs.from_pretrained(base, target_lang="hin", ignore_mismatched_sizes=True), samples)
    torch.testing.assert_close(ours(task.model()), expected, rtol=1e-5, atol=1e-5)
    # Training changes the adapter and the output layer, and no bit of anything else.
    settings = {"architecture": "ctc", "base": str(base), "adapter": "hin"}
    run = tiny_listener.train(corpus, tmp_path / "run", "training.max_steps=6", model=settings)
    opened = open_run(run)
    before, after = task.model().state_dict(), opened.model.state_dict()
    changed = {name.partition("base.")[2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(load_file(base / "adapter.hin.safetensors"))
    # Back in transformers: the whole, and the adapter alone on the base.
    trained: Any = opened.task
    trained.export_hf(opened.model, tmp_path / "out")
    names = trained.prepared.vocabulary.tokens()
    kept = [number for number, name in enumerate(names) if len(name) == 1]
    mine = ours(opened.model)[..., kept]
    whole = theirs.from_pretrained(tmp_path / "out", target_lang="hin")
    torch.testing.assert_close(logits_of(whole, samples)[..., kept], mine, rtol=1e-4, atol=1e-5)
    shutil.copy(tmp_path / "out" / "adapter.hin.safetensors", base)
    alone = theirs.from_pretrained(base, target_lang="hin", ignore_mismatched_sizes=True)
    torch.testing.assert_close(logits_of(alone, samples)[..., kept], mine, rtol=1e-4, atol=1e-5)
    recognise: Any = pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    raw = np.random.default_rng(0).normal(size=8000).astype(np.float32)
    text = recognise({"raw": raw, "sampling_rate": 16000})["text"]
    assert text.strip() == trained.transcriber(opened.model).texts([trained.features(raw)])[0]
    again = with_adapter(corpus, tmp_path / "again", "hin", base=tmp_path / "out")
    assert again.prepared.vocabulary.encode("ba do") == [4, 3, 2, 5, 8]
    torch.testing.assert_close(ours(again.model())[..., kept], mine, rtol=1e-4, atol=1e-5)


def test_a_new_adapter_is_drawn_and_what_has_none_is_refused(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    base = write_base(tmp_path / "base", "wav2vec2", "layer", LANGUAGES)
    task = with_adapter(corpus, tmp_path / "new", "bho", base=base)
    assert task.prepared.vocabulary.ids.size > len("abdimosu"), "tokens are those of the transcripts"
    with caplog.at_level(logging.WARNING, "vaak"):
        model = task.model()
    assert f"{base} has no adapter for bho: a new one is trained" in caplog.text
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {f"base.{name}" for name in load_file(base / "adapter.hin.safetensors")}
    with pytest.raises(UserError, match=r"plain has no adapters by language \(adapter_attn_dim\), as MMS has"):
        with_adapter(corpus, tmp_path / "none", "hin", base=write_base(tmp_path / "plain", "wav2vec2", "layer"))
    shutil.copy(base / "adapter.eng.safetensors", base / "adapter.hin.safetensors")
    wrong = with_adapter(corpus, tmp_path / "wrong", "hin", base=base)
    with pytest.raises(UserError, match=r"the adapter for hin in .* is for 12 tokens, but vocab\.json has 11"):
        wrong.model()
