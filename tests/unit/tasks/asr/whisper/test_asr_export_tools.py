"""An exported Whisper, in the tools that people load it with, writes what ``vaak transcribe`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import tiny_listener
from quick_cases import mostly_slow
from tiny_whisper import write_whisper
from vaak.audio.audio_file import AudioFile
from vaak.config.load import load
from vaak.runs.open_run import open_run
from vaak.runs.start import prepare
from vaak.tasks.asr.export import exported_vocabulary
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.export import write_processor
from vaak.tasks.asr.whisper.features import WhisperFeatures
from vaak.tasks.asr.whisper.task import WhisperTask
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer_training import TokenizerFactory

transformers = pytest.importorskip("transformers")

SECONDS = 2
"""That the encoder reads: fewer than the base's, so all tools must take it from the folder."""
DATA = {"max_duration": SECONDS, "language": "hi"}
MOST = 20
"""Tokens that the English one writes at most."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tones") / "corpus"
    tiny_listener.write_listener(folder)
    return folder


def recordings(corpus: Path) -> list[Path]:
    return sorted([*corpus.glob("test*.wav"), *corpus.glob("valid*.wav")])


def make_samples(path: Path) -> np.ndarray:
    with AudioFile(path, 16_000, "mix") as file:
        return np.array(file.read(0.0, file.duration))


def trained(corpus: Path, run: Path, *options: str, **more: Any) -> Path:
    return tiny_listener.train(corpus, run, "training.max_steps=60", "training.optimizer.lr=1e-2", *options, **more)


@pytest.fixture(scope="module")
def multilingual(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper that knows several languages, which reads two seconds and writes Hindi."""
    folder = tmp_path_factory.mktemp("multilingual")
    base = write_whisper(folder / "base", max_target_positions=448)
    return trained(corpus, folder / "run", model={"base": str(base)}, data=DATA)


@pytest.fixture(scope="module")
def english(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper that knows English only and reads half a minute, hardly trained."""
    folder = tmp_path_factory.mktemp("english")
    base = write_whisper(folder / "base", 3, multilingual=False, max_target_positions=448)
    data = {"max_duration": 30, "decoding": {"max_new_tokens": MOST, "valid_examples": 1}}
    few = ("training.max_steps=2", "training.batch_size=2", "training.optimizer.lr=1e-3")
    return trained(corpus, folder / "run", *few, model={"base": str(base)}, data=data)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multilingual Whisper, also to CTranslate2, that reads half a minute, hardly trained."""
    folder = tmp_path_factory.mktemp("whole")
    base = write_whisper(folder / "base", 3, max_target_positions=448, empty=True)
    data = {"max_duration": 30, "language": "hi", "decoding": {"max_new_tokens": MOST, "valid_examples": 1}}
    few = ("training.max_steps=2", "training.batch_size=2", "training.optimizer.lr=1e-3")
    return trained(corpus, folder / "run", *few, model={"base": str(base)}, data=data)


@pytest.fixture(scope="module")
def half_a_minute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording as long as what a Whisper reads: faster-whisper pads features, where others pad audio."""
    path, rng = tmp_path_factory.mktemp("long") / "long.wav", np.random.default_rng(0)
    words = [str(word) for word in rng.choice(list(tiny_listener.WORDS), 120)]
    soundfile.write(path, tiny_listener.make_samples(words, "low", rng), tiny_listener.RATE)
    return path


@pytest.fixture(scope="module")
def scratch(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper that was trained from scratch, on characters."""
    return trained(
        corpus,
        tmp_path_factory.mktemp("scratch") / "run",
        "training.optimizer.lr=5e-3",
        "training.max_steps=90",
        data=DATA,
    )


def transcripts(run: Path, files: list[Path], **decoding: Any) -> list[str]:
    opened = open_run(run, device="cpu")
    transcriber = opened.task.transcriber(opened.model, **decoding)
    return [transcriber.transcribe(file).text for file in files]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exports a run, once."""
    made: dict[Path, Path] = {}

    def folder(run: Path) -> Path:
        if run not in made:
            opened = open_run(run, device="cpu")
            made[run] = tmp_path_factory.mktemp("exported") / "whisper"
            opened.task.export_hf(opened.model, made[run])
        return made[run]

    return folder


@pytest.mark.slow  # faster-whisper reads the same folder, below
@pytest.mark.parametrize("kind", ["multilingual", "scratch"])
def test_the_pipeline_of_transformers_writes_the_same_text(
    kind: str, corpus: Path, folders: Any, request: pytest.FixtureRequest
):
    run, files = request.getfixturevalue(kind), recordings(corpus)
    expected = transcripts(run, files)
    assert len(set(expected)) > 2, "they must differ for a comparison"
    listen = transformers.pipeline("automatic-speech-recognition", str(folders(run)))
    assert [listen(make_samples(file))["text"].strip() for file in files] == expected


@pytest.mark.slow
@pytest.mark.parametrize("early_stopping", [True, False])
def test_the_search_of_a_run_is_exported(early_stopping: bool, multilingual: Path, corpus: Path, tmp_path: Path):
    opened, files = open_run(multilingual, device="cpu"), recordings(corpus)
    beam = {"method": "beam", "beam_size": 3, "length_penalty": 0.5, "max_new_tokens": 12}
    beam |= {"early_stopping": early_stopping}
    opened.task.data = opened.task.data.model_copy(
        update={"decoding": opened.task.data.decoding.model_copy(update=beam)}
    )
    opened.task.export_hf(opened.model, tmp_path / "out")
    listen = transformers.pipeline("automatic-speech-recognition", str(tmp_path / "out"))
    # Languages and times stay open in the folder; a search of one that was hardly trained would write them.
    never = {"suppress_tokens": list(opened.task.prepared.vocabulary.ids.never)}
    found = [listen(make_samples(file), generate_kwargs=never)["text"].strip() for file in files]
    assert found == transcripts(multilingual, files, **beam)


def test_features_and_prompt_are_those_of_training(multilingual: Path, corpus: Path, folders: Any):
    folder, opened = folders(multilingual), open_run(multilingual, device="cpu")
    processor = transformers.AutoProcessor.from_pretrained(folder)
    assert type(processor).__name__ == "WhisperProcessor"
    samples = make_samples(recordings(corpus)[0])
    features = processor(samples, sampling_rate=16_000, return_tensors="np").input_features[0]
    np.testing.assert_array_equal(features, opened.task.features(samples))
    about = json.loads((folder / "generation_config.json").read_text())
    assert (about["language"], about["task"], about["is_multilingual"]) == ("hi", "transcribe", True)
    # Whisper's way to times stays open: they are not suppressed, and what comes before them is.
    known = processor.tokenizer.get_vocab()
    assert not {known["<|0.00|>"], known["<|notimestamps|>"], known["<|en|>"]} & set(about["suppress_tokens"])
    assert {known["<|startofprev|>"], known["<|translate|>"], known["#"]} <= set(about["suppress_tokens"])


@pytest.mark.parametrize("kind", ["multilingual", pytest.param("scratch", marks=pytest.mark.slow)])
def test_an_exported_whisper_is_a_base_with_the_same_tokens(
    kind: str, folders: Any, corpus: Path, tmp_path: Path, request: pytest.FixtureRequest
):
    run = request.getfixturevalue(kind)
    values = tiny_listener.options(corpus, model={"base": str(folders(run))}, data=DATA)
    (tmp_path / "again.yml").write_text(json.dumps(values))
    loaded: Any = load([tmp_path / "again.yml"], [f"run_dir={tmp_path / 'again'}"])
    prepare(loaded)
    own: Any = open_run(run, device="cpu").task.prepared.vocabulary
    again = own.load(tmp_path / "again" / "prepared" / "vocabulary")
    assert (again.ids, again.encode("ba do")) == (own.ids, own.encode("ba do"))
    task: Any = WhisperTask(loaded.experiment, tmp_path / "again", tmp_path)
    task.export_hf(task.model(), tmp_path / "out")
    for name in ("tokenizer.json", "generation_config.json", "preprocessor_config.json"):
        assert (tmp_path / "out" / name).read_text() == (folders(run) / name).read_text(), name


@pytest.mark.parametrize("quantization", mostly_slow((None, "int8"), None))
def test_ctranslate2_writes_the_same_tokens(
    quantization: str | None, multilingual: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    folder, files = tmp_path / "ct2", recordings(corpus)
    opened: Any = open_run(multilingual, device="cpu")
    opened.task.export_ct2(opened.model, folder, quantization=quantization)
    assert "faster-whisper reads half a minute" in caplog.text
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = ctranslate2.models.Whisper(str(folder), device="cpu")
    prompt = list(opened.task.prepared.vocabulary.ids.prompt)
    found = []
    for file in files:
        features = processor(make_samples(file), sampling_rate=16_000, return_tensors="np").input_features
        with torch.no_grad():
            heard = opened.model.whisper.model.encoder(torch.from_numpy(features)).last_hidden_state.numpy()
        states = np.array(model.encode(ctranslate2.StorageView.from_array(features)))
        assert np.std(states - heard) < {None: 1e-5, "int8": 0.2}[quantization] * np.std(heard)
        (result,) = model.generate(ctranslate2.StorageView.from_array(features), [prompt], beam_size=1)
        found.append(processor.decode(result.sequences_ids[0], skip_special_tokens=True).strip())
    expected = transcripts(multilingual, files)
    assert sum(map(str.__eq__, found, expected)) >= {None: len(files), "int8": len(files) - 3}[quantization], found


@pytest.mark.parametrize("kind", mostly_slow(("english", "whole"), "whole"))
def test_faster_whisper_opens_the_folder_and_writes_the_same_text(
    kind: str, half_a_minute: Path, vaak: Any, tmp_path: Path, request: pytest.FixtureRequest
):
    faster_whisper = pytest.importorskip("faster_whisper", reason="faster-whisper isn't installed")
    run: Path = request.getfixturevalue(kind)
    (expected,) = transcripts(run, [half_a_minute])
    assert len(set(expected)) > 4
    code, _, err = vaak("export", run, "--format", "ct2", "--output", tmp_path / "ct2")
    assert (code, err) == (0, "")
    model = faster_whisper.WhisperModel(str(tmp_path / "ct2"), device="cpu")
    assert model.model.is_multilingual == (kind == "whole")
    guesses = dict.fromkeys(("no_speech_threshold", "log_prob_threshold", "compression_ratio_threshold"))
    ids = open_run(run, device="cpu").task.prepared.vocabulary.ids
    most = 2 * MOST - len(ids.prompt)  # CTranslate2 takes half of the sum of this and the prompt
    segments, about = model.transcribe(
        make_samples(half_a_minute),
        beam_size=1,
        temperature=0.0,
        without_timestamps=True,
        max_new_tokens=most,
        suppress_tokens=list(ids.never),  # random weights write times and signs, too
        **guesses,
        **({"language": "hi"} if kind == "whole" else {}),
    )
    assert "".join(segment.text for segment in segments).strip() == expected
    assert about.language == ("hi" if kind == "whole" else "en")
    assert "WhisperModel" in (tmp_path / "ct2" / "README.md").read_text()


def test_the_pipeline_writes_the_same_text_of_half_a_minute(english: Path, half_a_minute: Path, folders: Any):
    (expected,) = transcripts(english, [half_a_minute])
    listen = transformers.pipeline("automatic-speech-recognition", str(folders(english)))
    assert listen(make_samples(half_a_minute))["text"].strip() == expected


@pytest.mark.slow
def test_one_trained_from_scratch_is_told_why_not(scratch: Path, vaak: Any, tmp_path: Path):
    code, out, err = vaak("export", scratch, "--format", "ct2", "--output", tmp_path / "ct2")
    assert (code, out) == (2, "")
    assert err.startswith("--format ct2: faster-whisper begins each text with <|startoftranscript|><|notimestamps|>")
    assert not (tmp_path / "ct2").exists()


TEXTS = ("ba do mi su", "मैं घर जाता हूँ", "it's 42, no?", "do do ba")


def make_vocabulary(kind: str) -> Vocabulary:
    options = TokenizerConfig.model_validate({"type": kind, "vocab_size": 400 if kind == "byte_level" else 330})
    return Vocabulary.of_tokenizer(TokenizerFactory(options, Path()).create_tokenizer(TEXTS))


@pytest.mark.parametrize("kind", ["character", "byte_level", "bpe", "unigram", "word"])
def test_tokens_of_transcripts_are_the_same_text_in_whispers_tokenizer(kind: str, tmp_path: Path):
    vocabulary = make_vocabulary(kind)
    write_processor(vocabulary, WhisperFeatures(80, 2.0), tmp_path)
    theirs = transformers.WhisperTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "unheard ज्ञ 🙂", "su mi"):
        ids = vocabulary.encode(text)
        assert theirs.decode(ids, skip_special_tokens=True).strip() == vocabulary.decode(ids)
    assert theirs.convert_tokens_to_ids("<|startoftranscript|>") == vocabulary.ids.prompt[0]
    own = exported_vocabulary(tmp_path)
    assert own is not None
    assert [own.encode(text) for text in TEXTS] == [vocabulary.encode(text) for text in TEXTS]


def test_what_whispers_tokenizer_and_features_cannot_be_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_processor(make_vocabulary("wordpiece"), WhisperFeatures(80, 0.8), tmp_path)
    assert "this model reads 0.8 s, so only Vaak can use it" in caplog.text
    assert "data.tokenizer has several tokens for the same text" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"preprocessor_config.json", "vocabulary"}


@pytest.mark.slow
def test_sherpa_onnx_opens_the_files_which_write_the_same_text(vaak: Any, tmp_path: Path):
    """Of Whisper's features, token by token from their caches; of sherpa-onnx's own, what these files give of them."""
    sherpa_onnx, knf = pytest.importorskip("sherpa_onnx"), pytest.importorskip("kaldi_native_fbank")
    onnxruntime = pytest.importorskip("onnxruntime")
    corpus, folder = tmp_path / "corpus", tmp_path / "out"
    tiny_listener.write_listener(corpus)
    base = write_whisper(tmp_path / "base", max_target_positions=64)
    run = tiny_listener.train(corpus, tmp_path / "run", model={"base": str(base)})
    code, _, err = vaak("export", run, "--format", "sherpa-onnx", "--quantization", "int8", "--output", folder)
    assert code == 0, err
    names = ["README.md", *(f"{name}.{kind}" for name in ("decoder", "encoder") for kind in ("int8.onnx", "onnx"))]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "tokens.txt"]
    assert "OfflineRecognizer.from_whisper(" in (folder / "README.md").read_text()
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    opened: Any = open_run(run, device="cpu")
    vocabulary = opened.task.prepared.vocabulary

    def written(mel: np.ndarray, longest: int) -> list[int]:
        cross = dict(zip(("n_layer_cross_k", "n_layer_cross_v"), encoder.run(None, {"mel": mel}), strict=True))
        keys = values = np.zeros((2, 1, 64, 32), np.float32)
        tokens, found, offset = np.array([vocabulary.ids.prompt]), list[int](), 0
        while len(found) < longest:
            caches = {"in_n_layer_self_k_cache": keys, "in_n_layer_self_v_cache": values}
            given = {"tokens": tokens, **caches, **cross, "offset": np.array([offset])}
            logits, keys, values = decoder.run(None, given)
            offset += tokens.shape[1]
            best = int(logits[0, -1].argmax())
            if best == vocabulary.ids.end:
                break
            found.append(best)
            tokens = np.array([[best]])
        return found

    recogniser = sherpa_onnx.OfflineRecognizer.from_whisper(
        *(str(folder / name) for name in ("encoder.onnx", "decoder.onnx", "tokens.txt")), language="en"
    )
    texts = []
    for file in sorted([*corpus.glob("test*.wav"), *corpus.glob("valid*.wav")]):
        with AudioFile(file, 16_000, "mix") as audio:
            samples = np.asarray(audio.read(0.0, audio.duration), np.float32)
        ours = opened.task.transcriber(opened.model).transcribe(file).text
        assert vocabulary.decode(written(opened.task.features(samples)[None], 40)) == ours
        options = knf.WhisperFeatureOptions()
        options.dim = 80
        made = knf.OnlineWhisperFbank(options)
        made.accept_waveform(16_000, samples.tolist())
        made.input_finished()
        logarithms = np.log10(np.maximum([made.get_frame(one) for one in range(made.num_frames_ready)], 1e-10))
        mel = (np.maximum(logarithms, logarithms.max() - 8) + 4).T[None] / 4
        stream = recogniser.create_stream()
        stream.accept_waveform(16_000, samples)
        recogniser.decode_stream(stream)
        expected = vocabulary.decode(written(mel.astype(np.float32), int(mel.shape[2] / 100 * 6)))
        assert stream.result.text.strip() == expected.replace("\ufffd", "").strip()
        texts.append(ours)
    assert len(set(texts)) > 3
