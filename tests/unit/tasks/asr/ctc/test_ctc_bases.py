"""Every kind of pretrained encoder, made small: transformers' features, logits and text, trained and handed on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoFeatureExtractor, AutoModelForCTC, AutoTokenizer, pipeline

import tiny_bases
import tiny_listener
from vaak.runs.open_run import open_run
from vaak.tasks.asr.bases import CTC_BASES
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.ctc.data import padded_features
from vaak.tasks.asr.ctc.pretrained import PretrainedCtc, keep_base, load_features, own_vocabulary

FEATURES = [name for name, kind in CTC_BASES.items() if kind.reads == "features"]


PADS = ("wav2vec2-bert", "parakeet_ctc")
"""Of one utterance, transformers' extractor pads the features, and hides what it added."""


def test_every_kind_has_a_small_one_of_its_own():
    assert tiny_bases.CTC.keys() == CTC_BASES.keys()


def read_by_transformers(folder: Path, samples: np.ndarray) -> torch.Tensor:
    """The logits of one utterance, by transformers' feature extractor and model."""
    extract: Any = AutoFeatureExtractor.from_pretrained(folder)
    theirs: Any = AutoModelForCTC.from_pretrained(folder).eval()
    with torch.no_grad():
        logits: torch.Tensor = theirs(**extract(samples, sampling_rate=16000, return_tensors="pt")).logits[0]
    return logits


@pytest.mark.parametrize("kind", [*FEATURES, "unispeech-sat", "adapted w2v-bert"])
def test_logits_are_those_of_transformers_whatever_a_row_is_padded_to(tmp_path: Path, kind: str):
    if kind == "adapted w2v-bert":
        folder = tiny_bases.write_w2v_bert(tmp_path / "base", adapts=True)
    else:
        folder = tiny_bases.CTC[kind](tmp_path / "base")
    base: Any = AutoModelForCTC
    ours = PretrainedCtc(base.from_pretrained(folder), AsrModelConfig(architecture="ctc")).eval()
    keep_base(str(folder), tmp_path / "kept")
    features, rng = load_features(tmp_path / "kept", 4.0), np.random.default_rng(0)
    samples = [rng.normal(scale=0.1, size=length).astype(np.float32) for length in (13120, 9920, 100)]
    rows, lengths = padded_features([features(one) for one in samples])
    with torch.no_grad():
        found = ours(rows, lengths)
    assert found.lengths.tolist() == [features.frames(len(one)) for one in samples]
    for one, logits, frames in zip(samples[:2], found.logits, found.lengths, strict=False):
        torch.testing.assert_close(logits[:frames], read_by_transformers(folder, one)[:frames], rtol=1e-4, atol=1e-5)
    assert found.logits.isfinite().all(), "audio shorter than a frame is padded with silence"


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_w2v_bert_equals_transformers_at_every_number_of_frames(tmp_path: Path, layers: int):
    """Alone and in a batch. Half a step is filled up and hidden: an adapter's convolutions read it, no more."""
    folder = tiny_bases.write_w2v_bert(tmp_path / "base", adapts=layers > 0, num_adapter_layers=max(1, layers))
    base: Any = AutoModelForCTC
    ours = PretrainedCtc(base.from_pretrained(folder), AsrModelConfig(architecture="ctc")).eval()
    keep_base(str(folder), tmp_path / "kept")
    features, rng = load_features(tmp_path / "kept", 4.0), np.random.default_rng(0)
    numbers = (83, 84, 97, 81, 82, 96, 85, 86)
    clips = [rng.normal(scale=0.1, size=240 + 160 * number).astype(np.float32) for number in numbers]
    read = [features(one) for one in clips]
    lengths = torch.tensor([features.shape(one)[0] for one in read])
    assert lengths.tolist() == [number // 2 for number in numbers]
    batches = [(*padded_features(read)[:1], lengths), *(padded_features([one]) for one in read)]
    with torch.no_grad():
        together, *alone = [ours(*batch) for batch in batches]
    for row, clip in enumerate(clips):
        theirs = read_by_transformers(folder, clip)
        for found, at in ((together, row), (alone[row], 0)):
            frames = int(found.lengths[at])
            assert frames == features.frames(len(clip))
            assert len(theirs) - frames in (0, 1), "a hidden step may leave one more, which isn't of the recording"
            torch.testing.assert_close(found.logits[at, :frames], theirs[:frames], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Support for mismatched")  # of transformers' WavLM
@pytest.mark.parametrize("kind", [*CTC_BASES])
def test_lengths_and_logits_are_transformers_at_every_remainder_of_the_stride(tmp_path: Path, kind: str):
    """Rows of one batch, against each alone: every number of features modulo the stride, and a sample around each."""
    folder = tiny_bases.CTC[kind](tmp_path / "base")
    base: Any = AutoModelForCTC
    ours = PretrainedCtc(base.from_pretrained(folder), AsrModelConfig(architecture="ctc")).eval()
    keep_base(str(folder), tmp_path / "kept")
    features = load_features(tmp_path / "kept", 4.0)
    step = round(features.encoded_shift * 16000)
    hop = 80 if CTC_BASES[kind].reads == "samples" else 160
    first = 14 * step + hop
    lengths = [first + more + near for more in range(0, step + 1, hop) for near in (-1, 0, 1)]
    assert len({features.frames(length) for length in lengths}) > 1
    if kind in PADS:
        extract: Any = AutoFeatureExtractor.from_pretrained(folder)
        for length in lengths:
            read = extract(np.ones(length, np.float32), sampling_rate=16000, return_tensors="pt")
            real = read["attention_mask"].sum(-1)
            if kind == "parakeet_ctc":
                real = ours.base.encoder._get_subsampling_output_length(real)
            assert int(real) == features.frames(length)
    rng = np.random.default_rng(0)
    samples = [rng.normal(scale=0.1, size=length).astype(np.float32) for length in rng.permutation(lengths)]
    with torch.no_grad():
        found = ours(*padded_features([features(one) for one in samples]))
    for one, logits, frames in zip(samples, found.logits, found.lengths.tolist(), strict=True):
        assert frames == features.frames(len(one))
        theirs = read_by_transformers(folder, one)
        assert len(theirs) - frames in ((0, 1) if kind in PADS else (0,))
        torch.testing.assert_close(logits[:frames], theirs[:frames], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["wav2vec2", *FEATURES])
def test_the_output_layer_and_the_tokens_are_the_bases_own(tmp_path: Path, kind: str):
    folder = tiny_bases.CTC[kind](tmp_path / "base")
    vocabulary = own_vocabulary(str(folder))
    assert vocabulary is not None
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCTC.from_pretrained(folder)
    assert vocabulary.ids.size == model.config.vocab_size, "another number of rows would be drawn again"
    assert vocabulary.ids.pad == model.config.pad_token_id
    ids = vocabulary.encode("ba do mi")
    assert vocabulary.decode(ids) == theirs.decode(ids) == "ba do mi"
    assert not {*ids} & {*vocabulary.ids.never}


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=() if name == "parakeet_ctc" else pytest.mark.slow) for name in FEATURES]
)
def test_it_trains_by_adapters_resumes_bit_for_bit_and_goes_out_to_transformers(
    corpus: Path, tmp_path: Path, kind: str
):
    base = tiny_bases.CTC[kind](tmp_path / "base")
    model = {"architecture": "ctc", "base": str(base), "lora": {}}
    options = ("training.checkpoint.interval=3", "training.max_steps=6")
    run = tiny_listener.train(corpus, tmp_path / "run", *options, model=model)
    opened = open_run(run)
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    tiny_listener.train(corpus, run, *options, "training.checkpoint.resume=auto", model=model)
    resumed = open_run(run).model.state_dict()
    assert all(torch.equal(one, resumed[name]) for name, one in opened.model.state_dict().items())
    network: Any = opened.model
    trained = {name for name, one in network.named_parameters() if one.requires_grad}
    assert all("lora" in name or CTC_BASES[kind].head in name for name in trained)
    statistics = {name: one for name, one in network.base.state_dict().items() if "running_" in name}
    first: Any = AutoModelForCTC.from_pretrained(base).state_dict()
    assert all(torch.equal(one, first[name]) for name, one in statistics.items()), "a step changes no statistics"

    task: Any = opened.task
    task.export_hf(opened.model, tmp_path / "out")
    samples = np.random.default_rng(0).normal(scale=0.1, size=12960).astype(np.float32)
    text = task.transcriber(opened.model).texts([task.features(samples)])[0]
    recognise: Any = pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    assert recognise({"raw": samples, "sampling_rate": 16000})["text"].strip() == text
    exported = own_vocabulary(str(tmp_path / "out"))
    assert exported is not None
    assert exported.encode("ba do mi") == task.prepared.vocabulary.encode("ba do mi")


def write_other_letters(base: Path, file: Path) -> int:
    """Write a tokenizer of letters in another order, for some bases of as many tokens; return its size."""
    own = own_vocabulary(str(base))
    assert own is not None
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *reversed(tiny_bases.LETTERS), " "]
    names += ["x", "y", "z"][: max(0, own.ids.size - len(names))]
    other = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, "<unk>"))
    other.pre_tokenizer, other.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    other.save(str(file))
    return len(names)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(name, marks=() if name == "wav2vec2" else pytest.mark.slow) for name in ("wav2vec2", *FEATURES)],
)
def test_tokens_that_are_given_replace_a_bases_own_and_its_output_layer_which_is_said(
    corpus: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
):
    base = tiny_bases.CTC[kind](tmp_path / "base")
    size = write_other_letters(base, tmp_path / "letters.json")
    model, given = {"architecture": "ctc", "base": str(base)}, {"tokenizer": {"path": str(tmp_path / "letters.json")}}
    run = tiny_listener.train(corpus, tmp_path / "run", "training.max_steps=2", model=model, data=given)
    assert f"the output layer of {base} is drawn, for {size} tokens" in capsys.readouterr().err
    opened: Any = open_run(run)
    assert opened.task.prepared.vocabulary.ids.size == size
    assert opened.task.prepared.vocabulary.decode(opened.task.prepared.vocabulary.encode("ba do mi")) == "ba do mi"
    theirs: Any = AutoModelForCTC.from_pretrained(base)
    before, now = (one.get_submodule(CTC_BASES[kind].head).weight for one in (theirs, opened.model.base))
    assert now.shape[0] == size
    far = (now - before).abs().mean() if now.shape == before.shape else 1.0
    assert far > 1e-2, "rows of the base's output layer would stand for other letters"
    opened.task.export_hf(opened.model, tmp_path / "out")
    # An even number of frames: at an odd one, transformers' pipeline writes what w2v-BERT says of the half frame.
    samples = np.random.default_rng(0).normal(scale=0.1, size=13120).astype(np.float32)
    text = opened.task.transcriber(opened.model).texts([opened.task.features(samples)])[0]
    recognise: Any = pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    assert recognise({"raw": samples, "sampling_rate": 16000})["text"].strip() == text


def test_other_options_of_tokens_are_not_read_of_a_base_that_has_its_own_which_is_said(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    base = tiny_bases.CTC["wav2vec2"](tmp_path / "base")
    model, given = {"architecture": "ctc", "base": str(base)}, {"tokenizer": {"type": "byte_level", "vocab_size": 300}}
    options = ("training.max_steps=1", "training.validation.interval=1000")
    tiny_listener.train(corpus, tmp_path / "run", *options, model=model, data=given)
    assert f"data.tokenizer: the tokens of {base} are used" in capsys.readouterr().err
    tiny_listener.train(corpus, tmp_path / "again", *options, model=model)
    said = capsys.readouterr().err
    assert "data.tokenizer" not in said
    assert "is drawn" not in said
