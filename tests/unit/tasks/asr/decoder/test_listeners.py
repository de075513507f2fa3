"""Every kind of language model that listens, made small: transformers' prompts, logits and text, trained, handed on."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel

import tiny_listener
import tiny_speech_models
from vaak.audio.audio_file import encode_wav
from vaak.core.errors import UserError
from vaak.engine.metrics_file import read_records
from vaak.runs.open_run import open_run
from vaak.tasks.asr.bases import DECODER_BASES, ListenerBase
from vaak.tasks.asr.config import AsrDecodingConfig, AsrModelConfig, WhisperLoraConfig
from vaak.tasks.asr.decoder.listener import PretrainedListener
from vaak.tasks.asr.decoder.request import (
    ListenedAudio,
    find_listener,
    load_audio,
    make_listener_vocabulary,
    make_request,
)
from vaak.tasks.asr.decoder.task import DecoderTranscriber, gather, keep_base, wrap

KINDS = [name for name, kind in DECODER_BASES.items() if isinstance(kind, ListenerBase)]
TEXT = [5, 6, 7]
SHORT = "data.decoding.max_new_tokens=20"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A small base of a kind, and the folder with the files kept by ``keep_base``."""
    folder, made = tmp_path_factory.mktemp("listeners"), dict[str, tuple[Path, Path]]()

    def make(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            torch.manual_seed(0)
            kept = folder / f"kept-{kind}"
            kept.mkdir()
            made[kind] = tiny_speech_models.LISTENERS[kind](folder / kind), kept
            keep_base(str(made[kind][0]), kept)
        return made[kind]

    return make


def load_network(base: Path, **options: Any) -> PretrainedListener:
    auto: Any = transformers.AutoModelForMultimodalLM
    found = wrap(auto.from_pretrained(base), AsrModelConfig(architecture="decoder", **options)).eval()
    assert isinstance(found, PretrainedListener)
    return found


def make_samples(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(scale=0.1, size=length).astype(np.float32) for length in lengths]


def read(network: PretrainedListener, audio: ListenedAudio, samples: list[np.ndarray]) -> torch.Tensor:
    """Logits of a text after the request, for several utterances at once."""
    heard = gather(audio, [audio(one) for one in samples])
    tokens = torch.tensor([[*audio.request.after, *TEXT]]).expand(len(samples), -1)
    with torch.no_grad():
        found = network(heard["features"], heard["feature_lengths"], tokens, prompts=heard["prompts"])
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_and_logits_are_those_of_transformers_whatever_is_beside_a_row(bases: Any, kind: str):
    base, kept = bases(kind)
    network, audio = load_network(base), load_audio(kept, 4.0, "en")
    # In the windows of GLM-ASR, of 2 s: less than one, more than one, and a whole number; the last is nearly nothing.
    samples = make_samples(13_120, 45_000, 32_000, 100)
    together = read(network, audio, samples)
    auto: Any = transformers.AutoModelForMultimodalLM
    theirs = auto.from_pretrained(base).eval()
    for one, logits in zip(samples, together, strict=True):
        [alone] = read(network, audio, [one])
        torch.testing.assert_close(alone, logits, rtol=1e-4, atol=1e-5)
        given = tiny_speech_models.ask(base, one)
        assert given["input_ids"][0].tolist() == [*audio.make_prompts([audio(one)])[0].tolist(), *audio.request.after]
        given["input_ids"] = torch.cat([given["input_ids"], torch.tensor([TEXT])], 1)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        with torch.no_grad():
            expected = theirs(**given).logits[0, -len(logits) :]
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_end_where_the_makers_end_them(bases: Any, kind: str):
    _, kept = bases(kind)
    auto: Any = transformers.AutoConfig
    vocabulary = make_listener_vocabulary(kept, auto.from_pretrained(kept), "en")
    ends = {"qwen3_asr": "<|im_end|>", "glmasr": "<|endoftext|>", "voxtral": "</s>"}
    assert vocabulary.raw([vocabulary.ids.end]) == ends[kind]
    assert vocabulary.decode([*vocabulary.encode("ba do"), vocabulary.ids.end]) == "ba do"


def test_a_request_names_the_language_as_its_makers_do(bases: Any):
    def say(kind: str, language: str) -> str:
        _, kept = bases(kind)
        auto: Any = transformers.AutoConfig
        vocabulary = make_listener_vocabulary(kept, auto.from_pretrained(kept), language)
        return vocabulary.raw(vocabulary.ids.prompt)

    assert say("qwen3_asr", "hi").endswith("assistant\nlanguage Hindi<asr_text>")
    assert say("qwen3_asr", "Hindi") == say("qwen3_asr", "hi")
    assert say("qwen3_asr", "none").endswith("language None<asr_text>")
    assert say("qwen3_asr", "auto").endswith("assistant\n")
    assert say("voxtral", "hi") == "[/INST]lang:hi[TRANSCRIBE]"
    assert say("voxtral", "auto") == "[/INST][TRANSCRIBE]"
    with pytest.raises(UserError, match=r"data.language: the base doesn't know 'klingon': it knows ar, yue.*none"):
        say("qwen3_asr", "klingon")
    with pytest.raises(UserError, match=r"data.language: 'klingon'; expected a code of two letters"):
        say("voxtral", "klingon")


def test_a_voxtral_is_asked_as_mistral_does(bases: Any):
    pytest.importorskip("mistral_common", reason="mistral-common, whose tokens are compared, isn't installed")
    from mistral_common.protocol.transcription.request import TranscriptionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    base, kept = bases("voxtral")
    tokenizer = MistralTokenizer.from_file(str(base / "tekken.json"))
    for language in ("en", "hi", None):
        request = make_request(kept, find_listener(load_network(base).base.config), language or "auto")
        [samples] = make_samples(13_120)
        audio = base64.b64encode(encode_wav(samples, 16_000)).decode()
        found = tokenizer.encode_transcription(TranscriptionRequest(audio=audio, language=language, model="voxtral"))
        assert found.tokens == [*request.before, *[request.audio] * 375, *request.after]


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_of_the_language_model_and_where_asked_of_the_projector(bases: Any, kind: str):
    base, _ = bases(kind)

    def find_adapted(*targets: str) -> set[str]:
        lora = WhisperLoraConfig(rank=2, targets=targets)
        trained = [n for n, one in load_network(base, lora=lora).named_parameters() if one.requires_grad]
        assert all(".lora_" in one for one in trained)
        return {one.split(".lora_")[0].removeprefix("base.model.") for one in trained}

    usual = {f"language_model.layers.{n}.self_attn.{name}" for n in range(2) for name in ("q_proj", "v_proj")}
    assert find_adapted("q_proj", "v_proj") == usual
    projector = {f"multi_modal_projector.linear_{n}" for n in (1, 2)}
    assert find_adapted("q_proj", "v_proj", "linear_1", "linear_2") == usual | projector
    assert find_adapted("audio_tower.layers.0.self_attn.q_proj") == {"audio_tower.layers.0.self_attn.q_proj"}
    with pytest.raises(UserError, match=r"model.lora.targets: no layer is called 'no_proj'"):
        find_adapted("no_proj")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # of peft
@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_resumes_bit_for_bit_and_goes_out_to_transformers(
    bases: Any, corpus: Path, tmp_path: Path, kind: str
):
    base, _ = bases(kind)
    model = {"architecture": "decoder", "base": str(base), "lora": {"rank": 2, "targets": ["q_proj", "linear_1"]}}
    options = ("training.checkpoint.interval=2", "training.max_steps=4", SHORT)
    run = tiny_listener.train(corpus, tmp_path / "run", *options, model=model)
    opened = open_run(run)
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    tiny_listener.train(corpus, run, *options, "training.checkpoint.resume=auto", model=model)
    resumed = open_run(run).model.state_dict()
    assert all(torch.equal(one, resumed[name]) for name, one in opened.model.state_dict().items())

    task: Any = opened.task
    task.export_hf(opened.model, tmp_path / "out")
    for seed in range(2):
        samples = np.random.default_rng(seed).normal(scale=0.1, size=13120).astype(np.float32)
        [text] = task.transcriber(opened.model, max_new_tokens=20).texts([task.features(samples)])
        assert tiny_speech_models.transcribe(tmp_path / "out", samples) == text
    task.export_peft(opened.model, tmp_path / "adapter")
    auto: Any = transformers.AutoModelForMultimodalLM
    adapted = PeftModel.from_pretrained(auto.from_pretrained(base), str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        given = tiny_speech_models.ask(base, samples)
        expected = auto.from_pretrained(tmp_path / "out").eval()(**given).logits
        torch.testing.assert_close(adapted(**given).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_it_learns(bases: Any, corpus: Path, tmp_path: Path, kind: str):
    """Trained whole, the loss of the training words falls, and beams are searched."""
    base, _ = bases(kind)
    model = {"architecture": "decoder", "base": str(base)}
    run = tiny_listener.train(
        corpus, tmp_path / "run", "training.max_steps=10", "training.optimizer.lr=0.02", SHORT, model=model
    )
    losses = [one["loss"] for one in read_records(run / "metrics.jsonl") if "loss" in one]
    assert losses[-1] < 0.8 * losses[0]
    opened = open_run(run)
    assert all(one.requires_grad for one in opened.model.parameters())
    task: Any = opened.task
    [samples] = make_samples(13_120)
    assert isinstance(
        task.transcriber(opened.model, method="beam", beam_size=3).texts([task.features(samples)])[0], str
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_is_used_as_it_is(
    bases: Any, corpus: Path, tmp_path: Path, kind: str, vaak: Callable[..., tuple[int, str, str]]
):
    base, _ = bases(kind)
    code, said, error = vaak("transcribe", base, corpus / "test0.wav")
    assert code == 0, error
    code, said, error = vaak("eval", base, "--data", corpus / "test.jsonl")
    assert (code, "wer" in said) == (0, True), error


def test_a_language_that_the_model_writes_first_is_not_of_the_transcript(bases: Any, monkeypatch: pytest.MonkeyPatch):
    base, kept = bases("qwen3_asr")
    network, audio = load_network(base), load_audio(kept, 4.0, "auto")
    vocabulary = make_listener_vocabulary(kept, network.base.config, "auto")
    language = vocabulary.backend.encode("language English", add_special_tokens=False).ids
    row = [*language, vocabulary.token("<asr_text>"), *vocabulary.encode("ba do"), vocabulary.ids.end]
    monkeypatch.setattr(network, "write", lambda encoded, prompt, **options: [row])
    transcriber = DecoderTranscriber(network, vocabulary, audio, AsrDecodingConfig())
    assert transcriber.texts([audio(one) for one in make_samples(9000)]) == ["ba do"]


def test_a_kind_that_is_not_read_says_why(tmp_path: Path):
    config: Any = transformers.GraniteSpeechConfig()
    config.save_pretrained(tmp_path / "base")
    with pytest.raises(UserError, match=r"is a granite_speech, which isn't read \(its encoder reads the padding"):
        keep_base(str(tmp_path / "base"), tmp_path / "kept")
