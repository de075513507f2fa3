"""A Conformer that streams reads in chunks what it reads as a whole, with frames that see no later chunk."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_listener
from vaak.audio.audio_file import AudioFile
from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features, FeatureStream
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.nn.config import ConformerConfig
from vaak.nn.conformer import ConformerStream
from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import CtcStream, ctc_beam_search
from vaak.runs.open_run import open_run
from vaak.tasks.asr.ctc.export import refused_online
from vaak.tasks.asr.ctc.model import CtcModel, draw_chunk
from vaak.tasks.asr.live import ChunkedTranscriber, Event, LiveOptions, make_live

SIZES = {
    "d_model": 48,
    "num_layers": 2,
    "num_heads": 2,
    "kernel_size": 5,
    "dropout": 0.0,
    "subsampling": 4,
    "streaming": True,
    "largest_chunk": 16,
    "left_frames": 64,
}
MODEL = {"architecture": "ctc", "conformer": SIZES}
CHUNKS = {"160 ms": 4, "320 ms": 8, "640 ms": 16}


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, trained to its end; tests don't change it."""
    options = ("training.max_steps=120", "training.optimizer.lr=0.01")
    return tiny_listener.train(corpus, tmp_path_factory.mktemp("run") / "streaming", *options, model=MODEL)


def make_model(**more: Any) -> CtcModel:
    torch.manual_seed(0)
    config = ConformerConfig(**{**SIZES, "left_frames": 12, **more})
    model = CtcModel(config, 20, 11).eval()
    model.fix_normalisation([np.random.default_rng(1).normal(-8, 4, (20, 300)).astype(np.float32)])
    return model


def read_in_chunks(model: CtcModel, features: torch.Tensor, chunk: int, pieces: list[int]) -> torch.Tensor:
    """Return logits of features ``(1, bin, frame)`` that come in ``pieces``, given as numbers of frames."""
    stream, found = ConformerStream(model.encoder, chunk), []
    rows = model.normalise(features.mT, torch.tensor([features.shape[2]]))
    parts = rows.split(pieces, 1)
    with torch.no_grad():
        for number, part in enumerate(parts, 1):
            found.append(model.project(stream.read(part, is_last=number == len(parts))))
    return torch.cat(found, 1)


@pytest.mark.parametrize("subsampling", [1, 4, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 8))])
@pytest.mark.parametrize("chunk", [1, 4, 8, 16, 1000])
@pytest.mark.parametrize("num_frames", [1, 7, 130])
def test_logits_of_chunks_are_those_of_the_whole_under_their_mask(num_frames: int, chunk: int, subsampling: int):
    """However the features come; more than the left frames are read, so that some are no longer seen."""
    model = make_model(subsampling=subsampling)
    rng = np.random.default_rng(num_frames)
    features = torch.from_numpy(rng.normal(-8, 4, (1, 20, num_frames)).astype(np.float32))
    with torch.no_grad():
        whole = model(features, torch.tensor([num_frames]), chunk=chunk)
    pieces = [1] * min(num_frames, 9)
    pieces += [num_frames - len(pieces)] if num_frames > len(pieces) else []
    found = read_in_chunks(model, features, chunk, pieces)
    assert found.shape == whole.logits.shape == (1, int(whole.lengths), 11)
    torch.testing.assert_close(found, whole.logits, rtol=1e-4, atol=2e-5)


def test_a_row_is_what_it_is_alone_and_full_context_sees_everything():
    model = make_model()
    rng = np.random.default_rng(2)
    long, short = (torch.from_numpy(rng.normal(-8, 4, (20, n)).astype(np.float32)) for n in (120, 50))
    batch, lengths = torch.zeros(2, 20, 120), torch.tensor([120, 50])
    batch[0], batch[1, :, :50] = long, short
    with torch.no_grad():
        for chunk in (None, 4):
            both, alone = model(batch, lengths, chunk=chunk), model(short[None], lengths[1:], chunk=chunk)
            torch.testing.assert_close(both.logits[1, : int(alone.lengths)], alone.logits[0], rtol=1e-4, atol=2e-5)
            assert bool(both.logits.isfinite().all())
        changed = long.clone()
        changed[:, -1] += 5
        first = {
            chunk: model(one[None], lengths[:1], chunk=chunk).logits[0, 0] for one in (long,) for chunk in (None, 4)
        }
        other = {chunk: model(changed[None], lengths[:1], chunk=chunk).logits[0, 0] for chunk in (None, 4)}
    assert not torch.equal(first[None], other[None]), "the first frame sees the last one"
    assert torch.equal(first[4], other[4]), "and doesn't where audio comes in chunks"


def test_training_draws_chunks_by_the_seed():
    torch.manual_seed(5)
    drawn = [draw_chunk(25) for _ in range(2000)]
    torch.manual_seed(5)
    assert drawn == [draw_chunk(25) for _ in range(2000)]
    sizes = [one for one in drawn if one is not None]
    assert 0.45 < len(sizes) / len(drawn) < 0.55
    assert {*sizes} == {*range(1, 26)}


@pytest.mark.parametrize("options", [{}, {"snip_edges": True}, {"feature_type": "mfcc", "num_ceps": 13}])
@pytest.mark.parametrize("num_samples", [0, 50, 161, 5000, 40011])
def test_features_are_those_of_the_whole(num_samples: int, options: dict[str, Any]):
    features = Features(AudioConfig(sampling_rate=16000, **options))
    rng = np.random.default_rng(num_samples)
    samples = rng.normal(0, 0.1, num_samples).astype(np.float32)
    stream, found, place = FeatureStream(features), [], 0
    while place < num_samples:
        size = int(rng.integers(1, 2000))
        found.append(stream.read(samples[place : place + size]))
        place += size
    found.append(stream.read(samples[:0], is_last=True))
    np.testing.assert_allclose(np.concatenate(found), features(samples), rtol=0, atol=2e-5)


def test_a_beam_that_comes_in_parts_is_that_of_the_whole_and_only_grows():
    rng = np.random.default_rng(0)
    pieces = ["", "a", "b", " c"]
    search = CtcBeam(pieces, 0, 4)
    for _ in range(20):
        scores = rng.normal(0, 2, (40, 4))
        log_probs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        stream, before = CtcStream(search), tuple[int, ...]()
        for part in np.split(log_probs, [3, 4, 17, 30]):
            agreed = stream.read(part)
            assert agreed[: len(before)] == before
            before = agreed
        whole = ctc_beam_search(log_probs, search)[0][1]
        assert stream.finish() == whole
        assert whole[: len(before)] == before


@pytest.fixture(scope="module")
def talk(corpus: Path) -> np.ndarray:
    """Three utterances of validation, with a second of faint noise between them."""
    rng = np.random.default_rng(0)
    parts = [1e-3 * rng.standard_normal(16000)]
    for index in range(3):
        with AudioFile(corpus / f"valid{index}.wav", 16000, "mix") as file:
            parts += [file.samples(0, round(file.duration * 16000)), 1e-3 * rng.standard_normal(16000)]
    return np.concatenate(parts).astype(np.float32)


def hear(live: Any, samples: np.ndarray, size: int) -> Iterator[Event]:
    for first in range(0, len(samples), size):
        yield from live.feed(samples[first : first + size])
    yield from live.finish()


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_live_text_only_grows_and_ends_as_the_whole_under_the_mask(method: str, run: Path, talk: np.ndarray):
    opened: Any = open_run(run)
    how = {"chunk": 0.32, "method": method, "beam_size": 4, "timestamps": "word"}
    transcriber = opened.task.transcriber(opened.model, **how)
    live = make_live(transcriber, LiveOptions())
    assert isinstance(live, ChunkedTranscriber)
    events = list(hear(live, talk, 1000))
    finals = [one for one in events if one.type == "final"]
    assert len(finals) == 3
    shown = ""
    for one in events:
        if one.type == "partial":
            assert one.text.startswith(shown)
            assert len(one.text) > len(shown)
        shown = "" if one.type == "final" else one.text
    assert any(one.type == "partial" for one in events)
    assert all(one.segments[0].words for one in finals)
    # However the audio comes.
    for size in (160, 7000, len(talk)):
        again = [one for one in hear(make_live(transcriber, LiveOptions()), talk, size) if one.type == "final"]
        assert [one.text for one in again] == [one.text for one in finals]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_the_final_text_is_that_of_the_whole_under_the_mask(method: str, run: Path, corpus: Path):
    opened: Any = open_run(run)
    transcriber = opened.task.transcriber(opened.model, chunk=0.16, method=method, beam_size=4)
    lines = [json.loads(line) for line in (corpus / "valid.jsonl").read_text().splitlines()]
    right = 0
    for line in lines:
        with AudioFile(corpus / line["audio"], 16000, "mix") as file:
            samples = file.samples(0, round(file.duration * 16000))
        stream = transcriber.stream()
        for part in np.array_split(samples, 7):
            stream.read(part, is_last=False)
        text = stream.read(samples[:0], is_last=True)
        assert [text] == transcriber.texts_of_windows([opened.task.features(samples)])
        right += text == line["text"]
    assert right >= len(lines) / 2


@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_streamed_logits_of_a_run_are_those_of_its_evaluation(chunk: str, run: Path, corpus: Path):
    opened: Any = open_run(run)
    seconds = CHUNKS[chunk] * 0.04
    transcriber = opened.task.transcriber(opened.model, chunk=seconds)
    assert transcriber.chunk_frames == CHUNKS[chunk]
    with AudioFile(corpus / "valid2.wav", 16000, "mix") as file:
        samples = file.samples(0, round(file.duration * 16000))
    features = opened.task.features(samples)
    [whole] = transcriber.log_probs([features])
    stream = transcriber.stream()
    found = [stream.log_probs(features.T[:30], is_last=False), stream.log_probs(features.T[30:], is_last=True)]
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-4, atol=1e-4)


def test_the_command_reads_in_chunks(run: Path, talk: np.ndarray, vaak: Any, monkeypatch: Any, tmp_path: Path):
    raw = tmp_path / "talk.raw"
    raw.write_bytes((talk * 32767).astype("<i2").tobytes())
    command = ("transcribe", run, "--live", "--rate", 16000)
    with raw.open(encoding="utf-8") as content:
        monkeypatch.setattr(sys, "stdin", content)
        code, out, err = vaak(*command, "--chunk", "0.32", "--json")
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    assert [one["type"] for one in events].count("final") == 3
    partial = [one for one in events if one["type"] == "partial"]
    assert partial
    assert all(one["heard"] - one["start"] < 3 for one in partial)
    code, _, err = vaak(*command, "--chunk", "0.33")
    assert code == 2
    assert "0.33 s isn't a multiple of 0.04 s, the encoder's step" in err


def test_evaluation_says_its_chunks_and_is_about_as_good(run: Path, vaak: Any):
    results = {}
    for chunk in ("0.16", "0.64", "null"):
        code, out, err = vaak("eval", run, "--split", "valid", "--json", f"data.decoding.chunk={chunk}")
        assert code == 0, err
        report = json.loads(out)
        results[chunk] = report["metrics"]["val_wer"]
        assert report["protocol"]["valid"].get("chunk") == (None if chunk == "null" else f"{chunk} s")
    assert max(results.values()) <= 0.2


def test_a_model_that_does_not_stream_has_no_chunks(corpus: Path, tmp_path: Path):
    file = tmp_path / "case.yml"
    whole = {"architecture": "ctc", "conformer": {**SIZES, "streaming": False}}
    file.write_text(yaml_text(tiny_listener.options(corpus, model=whole, data={"decoding": {"chunk": 0.32}})))
    with pytest.raises(UserError, match=r"data\.decoding\.chunk: .*doesn't stream"):
        load([file])


def test_a_position_that_counts_from_the_beginning_is_refused():
    with pytest.raises(ValueError, match="position_type sinusoidal counts from the beginning"):
        ConformerConfig(**{**SIZES, "position_type": "sinusoidal"})


@pytest.mark.slow
def test_sherpa_onnx_reads_it_online_and_writes_the_same_text(run: Path, corpus: Path, vaak: Any, tmp_path: Path):
    """With its own features, of the same samples."""
    sherpa_onnx = pytest.importorskip("sherpa_onnx", reason="sherpa-onnx isn't installed")
    opened, folder = open_run(run, device="cpu"), tmp_path / "out"
    code, _, err = vaak("export", run, "--format", "sherpa-onnx", "--output", folder)
    assert code == 0, err
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.onnx", "online.onnx", "tokens.txt"]
    recogniser = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
        str(folder / "tokens.txt"), str(folder / "online.onnx"), chunk_size=8, num_left_chunks=8, feature_dim=40
    )
    task: Any = opened.task
    transcriber, texts = task.transcriber(opened.model, chunk=0.32), set[str]()
    # A chunk that isn't full is never read there, so silence comes after each.
    silence = np.zeros(9600, np.float32)
    for file in sorted([*corpus.glob("test*.wav"), *corpus.glob("valid*.wav")]):
        with AudioFile(file, 16000, "mix") as audio:
            samples = np.concatenate([audio.read(0.0, audio.duration), silence])
        stream, ours = recogniser.create_stream(), transcriber.stream()
        for part in np.array_split(samples, 5):
            stream.accept_waveform(16000, part)
            while recogniser.is_ready(stream):
                recogniser.decode_stream(stream)
            text = ours.read(part, is_last=False)
        assert recogniser.get_result(stream).strip() == text.strip(), file.name
        texts.add(text)
    assert len(texts) > 4
    card = (folder / "README.md").read_text()
    assert "from_wenet_ctc(" in card
    assert "chunk_size=8, num_left_chunks=8" in card
    # Without it, the code of the card lost the end of a recording.
    assert "stream.accept_waveform(rate, [0.0] * round(0.42 * rate))" in card


def test_what_sherpa_onnx_can_not_read_online_is_said():
    config = ConformerConfig(**SIZES)
    assert refused_online(config, 8) is None
    assert "left_frames (64) isn't a multiple of a chunk's 9 frames" in str(refused_online(config, 9))
    grouped = ConformerConfig(**{**SIZES, "num_key_value_heads": 1})
    assert "as many keys and values as queries" in str(refused_online(grouped, 8))
