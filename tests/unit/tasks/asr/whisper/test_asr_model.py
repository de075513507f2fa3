"""A Whisper in Vaak is transformers' Whisper: the same features, tokens, logits, loss and transcripts."""

from __future__ import annotations

import copy
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.integrations import sdpa_attention

from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import Hypothesis
from vaak.nn.lora import iterate_adapters
from vaak.nn.lora_experts import choices_by
from vaak.tasks.asr.config import AsrDecodingConfig, AsrModelConfig, ExpertsConfig, WhisperLoraConfig
from vaak.tasks.asr.data import AsrExample
from vaak.tasks.asr.languages import _SAME, choose_language, tell_choice
from vaak.tasks.asr.model import resolve_base
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.data import collate
from vaak.tasks.asr.whisper.export import write_adapter, write_whisper
from vaak.tasks.asr.whisper.features import SAMPLING_RATE, WhisperFeatures
from vaak.tasks.asr.whisper.model import AsrModel, Encoded, _attend
from vaak.tasks.asr.whisper.network import loaded_whisper
from vaak.tasks.asr.whisper.predict import TranscriptWriter, WhisperTranscriber, require_decoding

EXPERTS = ExpertsConfig(num_experts=3, rank=2, top_k=1, targets=("q_proj", "fc1"), gate_width=8)


@pytest.fixture(scope="module")
def original(whisper_folder: Path) -> WhisperForConditionalGeneration:
    model: WhisperForConditionalGeneration = WhisperForConditionalGeneration.from_pretrained(whisper_folder)
    return model.eval()


@pytest.fixture(scope="module")
def vocabulary(whisper_folder: Path, original: Any) -> Vocabulary:
    tokenizer = WhisperTokenizer.from_pretrained(whisper_folder)
    return Vocabulary.of_whisper(tokenizer, original.config, original.generation_config, "hi")


def compute_features(num_rows: int) -> Tensor:
    rng = np.random.default_rng(5)
    extract = WhisperFeatures(80, 30.0)
    return torch.from_numpy(np.stack([extract(rng.standard_normal(8000).astype(np.float32)) for _ in range(num_rows)]))


@pytest.mark.parametrize("num_bins", [80, 128])
def test_features_are_those_of_transformers_to_the_bit(num_bins: int):
    samples = np.random.default_rng(0).normal(0, 0.1, 40_123).astype(np.float32)
    extract = WhisperFeatureExtractor(feature_size=num_bins)
    expected = extract(samples, sampling_rate=SAMPLING_RATE, return_tensors="np")["input_features"][0]
    np.testing.assert_array_equal(WhisperFeatures(num_bins, 30.0)(samples), expected)
    # Of a shorter context: those of the same audio with less silence after it.
    alone = extract(np.pad(samples, (0, 48_000 - len(samples))), sampling_rate=SAMPLING_RATE, padding="longest")
    np.testing.assert_array_equal(WhisperFeatures(num_bins, 3.0)(samples), np.array(alone["input_features"][0]))


@pytest.mark.parametrize("num_samples", [1, 199, 200, 201, 320, 8_001, 47_840, 47_999, 48_000, 60_000])
def test_features_of_every_length_are_those_of_transformers(num_samples: int):
    """Only the frames that reach into the audio are transformed."""
    samples = np.random.default_rng(1).normal(0, 0.1, num_samples).astype(np.float32)
    samples.flags.writeable = False
    extract, features = WhisperFeatureExtractor(), WhisperFeatures(80, 3.0)
    options: Any = {"sampling_rate": SAMPLING_RATE, "return_tensors": "np"}
    expected = extract(samples, max_length=48_000, **options)["input_features"][0]
    np.testing.assert_array_equal(features(samples), expected)
    if num_samples > 200:
        expected = extract(samples, truncation=False, padding="longest", **options)["input_features"][0]
        np.testing.assert_array_equal(features.of_all(samples), expected)


def test_tokens_are_those_of_transformers_and_text_is_only_text(whisper_folder: Path, vocabulary: Vocabulary):
    tokenizer = WhisperTokenizer.from_pretrained(whisper_folder)
    assert vocabulary.encode("so नमस्ते") == tokenizer(" so नमस्ते", add_special_tokens=False).input_ids
    prompt = ("<|startoftranscript|>", "<|hi|>", "<|transcribe|>", "<|notimestamps|>")
    assert list(vocabulary.ids.prompt) == tokenizer.convert_tokens_to_ids(list(prompt))
    assert vocabulary.decode(vocabulary.encode("<|endoftext|> so")) == "<|endoftext|> so"
    assert vocabulary.ids.end not in vocabulary.encode("<|endoftext|>")


def test_hebrew_and_javanese_are_found_by_both_of_their_codes(vocabulary: Vocabulary):
    """transformers calls them he and jw; tokenizers of 2022 had iw, and the language's code is jv today."""
    for code, other in (("he", "iw"), ("iw", "he"), ("jw", "jv")):
        content = vocabulary.content.replace("<|hi|>", f"<|{code}|>")
        tokenizer = Vocabulary(content, vocabulary.ids, vocabulary.config)
        assert tokenizer.languages.keys() == {"en", code}
        for asked in (code, other):
            assert tokenizer.with_language(asked).trained_language == code
            require_decoding(tokenizer, AsrDecodingConfig(language=asked))
    with pytest.raises(UserError, match="the base doesn't know"):
        vocabulary.with_language("he")


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("hi-IN", "hi", "hi-IN is taken as hi: IN is ignored"),
        ("hi_Deva_IN", "hi", "hi_Deva_IN is taken as hi: Deva_IN is ignored"),
        ("hin", "hi", "hin is taken as hi"),
        ("en-US", "en", "en-US is taken as en: US is ignored"),
        ("eng", "en", "eng is taken as en"),
        ("HI", "hi", ""),
        ("Hindi", "hi", ""),
    ],
)
def test_tags_and_longer_codes_are_the_languages_that_they_name(
    vocabulary: Vocabulary, caplog: pytest.LogCaptureFixture, asked: str, code: str, said: str
):
    tell_choice.cache_clear()
    with caplog.at_level(logging.WARNING, "vaak"):
        for _ in range(2):
            assert vocabulary.with_language(asked).trained_language == code
            assert require_decoding(vocabulary, AsrDecodingConfig(language=asked)).language == code
    told = [record.getMessage() for record in caplog.records]
    assert told == ([f"data.language: {said}", f"data.decoding.language: {said}"] if said else [])


def test_a_language_that_may_be_one_of_several_is_refused_with_these(vocabulary: Vocabulary):
    content = vocabulary.content.replace("<|hi|>", "<|zh|>").replace("<|en|>", "<|yue|>")
    chinese = Vocabulary(content, vocabulary.ids, vocabulary.config)
    for use in (chinese.with_language, lambda one: require_decoding(chinese, AsrDecodingConfig(language=one))):
        with pytest.raises(UserError, match=r"doesn't know '?zh-HK'? \(zh-HK may be yue, zh: give one of them\)"):
            use("zh-HK")
        with pytest.raises(UserError, match=r"doesn't know '?wuu'? \(wuu may be zh: give zh, if that is meant\)"):
            use("wuu")


def test_every_language_of_whisper_has_its_codes():
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    three_letters = {"en": "eng", "de": "deu", "el": "ell", "sw": "swh", "jw": "jav", "no": "nob", "my": "mya"}
    assert {code: choose_language(one, LANGUAGES).code for code, one in three_letters.items()} == {
        code: code for code in three_letters
    }
    without = {code for code in LANGUAGES if not any(choose_language(one, LANGUAGES).code == code for one in _SAME)}
    assert without == {"haw", "yue"}, "codes of three letters themselves"


def test_logits_and_loss_are_those_of_transformers(original: Any, vocabulary: Vocabulary):
    features = compute_features(2)
    examples = [
        AsrExample(str(row), "", "all", features[row].numpy(), np.array(vocabulary.encode(text)), True)
        for row, text in enumerate(("so it is", "no"))
    ]
    batch = collate(examples, vocabulary, features.shape[2])
    model = AsrModel(original).eval()
    with torch.no_grad():
        logits = model(batch["features"], batch["inputs"]).logits
        # What is ignored in the targets is padding or prompt: transformers gets the same tokens to read.
        expected = original(features, decoder_input_ids=batch["inputs"], labels=batch["targets"])
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=0)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss / batch.counts["token"].sum(), expected.loss)


def test_greedy_transcripts_are_those_of_generate(original: Any, vocabulary: Vocabulary):
    features = compute_features(3)
    expected = original.generate(features, language="hi", task="transcribe", return_timestamps=False, num_beams=1)
    transcriber = WhisperTranscriber(AsrModel(original), vocabulary, WhisperFeatures(80, 30.0), AsrDecodingConfig())
    special = {*vocabulary.ids.prompt, vocabulary.ids.end}
    with torch.no_grad():
        found = transcriber.written(transcriber.model.encode(features))
    texts = [[token for token in row if token not in special] for row in expected.tolist()]
    assert any(texts)
    for hypothesis, text in zip(found, texts, strict=True):
        length = min(len(hypothesis.tokens), len(text))
        assert length > 3
        assert list(hypothesis.tokens)[:length] == text[:length]


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_hotwords_are_written_and_the_log_probability_stays_that_of_the_model(
    original: Any, vocabulary: Vocabulary, method: Any
):
    def transcribe(**more: Any) -> Hypothesis:
        options = AsrDecodingConfig(method=method, beam_size=3, max_new_tokens=8, **more)
        transcriber = WhisperTranscriber(AsrModel(original), vocabulary, WhisperFeatures(80, 30.0), options)
        with torch.no_grad():
            (found,) = transcriber.written(transcriber.model.encode(compute_features(1)))
        return found

    assert len(vocabulary.token_bytes) == vocabulary.ids.size
    usual = transcribe()
    assert "so" not in vocabulary.decode(usual.tokens).lower().split()
    assert transcribe(hotwords="so", hotword_weight=1e-9).tokens == usual.tokens
    assert transcribe(hotwords="so", hotword_weight=1e-9).log_probability == pytest.approx(usual.log_probability)
    found = transcribe(hotwords="so", hotword_weight=40.0)
    assert "so" in re.findall(r"\w+", vocabulary.decode(found.tokens).lower())
    if method == "beam":
        assert found.log_probability < usual.log_probability


class Recomputing(TranscriptWriter):
    """Without a cache: all that was written is read again for each token."""

    def __init__(self, model: AsrModel, encoded: Encoded, vocabulary: Vocabulary, *more: Any) -> None:
        super().__init__(model, encoded, vocabulary)
        self.written = torch.tensor([vocabulary.ids.prompt[:-1]]).expand(len(encoded.states), -1)

    def next_logits(self, tokens: Tensor) -> Tensor:
        self.written = torch.cat((self.written, tokens[:, None]), 1)
        logits = self.model.decode(self.written, self.encoded)[:, -1].index_fill(1, self.never, -torch.inf)
        logits = logits.index_fill(1, self.never_first, -torch.inf) if self.is_first else logits
        self.is_first = False
        return logits

    def select(self, rows: Tensor) -> None:
        self.written, self.encoded = self.written[rows], self.encoded.rows(rows)


def test_no_mask_is_made_and_later_tokens_are_never_seen(original: Any, monkeypatch: pytest.MonkeyPatch):
    """Also of several tokens that follow those of a cache; transformers' own attention says the same."""
    model, states = AsrModel(copy.deepcopy(original)).eval(), torch.randn(2, 30, original.config.d_model)
    tokens = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = original.eval().model.decoder(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
        expected = original.proj_out(expected)
        monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", None)  # it would be an error
        assert torch.equal(model.decode(tokens, Encoded(states)), expected)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        parts = [model.decode(part, Encoded(states), cache) for part in tokens.split([3, 1, 5], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=1e-5)
    assert model.whisper.config.to_dict() == original.config.to_dict(), "an export would have it"


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_the_cache_changes_nothing(original: Any, vocabulary: Vocabulary, method: Any, monkeypatch: pytest.MonkeyPatch):
    options = AsrDecodingConfig(method=method, beam_size=3, max_new_tokens=12)
    model = AsrModel(copy.deepcopy(original), experts=EXPERTS if method == "beam" else None)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_b"):
                value.normal_(0, 0.3)
    transcriber = WhisperTranscriber(model, vocabulary, WhisperFeatures(80, 30.0), options)

    def written() -> list[Hypothesis]:
        with torch.no_grad():
            return transcriber.written(transcriber.model.encode(compute_features(3)))

    cached = written()
    monkeypatch.setattr("vaak.tasks.asr.whisper.predict.TranscriptWriter", Recomputing)
    for one, other in zip(cached, written(), strict=True):
        assert one.tokens == other.tokens
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-3)


def test_a_base_with_a_shorter_context_has_the_first_of_its_positions(whisper_folder: Path, original: Any):
    model = AsrModel(loaded_whisper(str(whisper_folder), 0.4)).eval()
    features = compute_features(1)[..., :40]
    with torch.no_grad():
        states = model.encode(features).states
        hidden = original.model.encoder
        found = torch.nn.functional.gelu(hidden.conv2(torch.nn.functional.gelu(hidden.conv1(features))))
        expected = found.transpose(1, 2) + hidden.embed_positions.weight[:20]
        for layer in hidden.layers:
            output = layer(expected, None)
            expected = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(states, hidden.layer_norm(expected))
    with pytest.raises(UserError, match=r"model.window: .* reads at most 30 s"):
        loaded_whisper(str(whisper_folder), 31.0)


def test_lora_is_its_formula_and_trains_nothing_else(whisper_folder: Path, original: Any):
    options = WhisperLoraConfig(rank=3, alpha=4.5, targets=("q_proj", "fc1"))
    model = AsrModel(loaded_whisper(str(whisper_folder), 30.0), options).eval()
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert {name.split(".")[-3] for name in trained} == {"lora_A", "lora_B"}
    with torch.no_grad():
        for value in trained.values():
            value.normal_(0, 0.2)
    layer: Any = model.whisper.model.decoder.layers[1].fc1
    first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert first.shape == (3, 32)
    rows = torch.randn(5, 32)
    with torch.no_grad():
        expected = original.model.decoder.layers[1].fc1(rows) + rows @ (second @ first).T * (4.5 / 3)
        torch.testing.assert_close(layer(rows), expected)


def test_each_row_is_changed_by_its_own_expert(whisper_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The logits of a row are those of a model whose weights have the change of the row's expert merged."""
    torch.manual_seed(1)
    model = AsrModel(loaded_whisper(str(whisper_folder), 0.4), experts=EXPERTS).double().eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("lora_b"):
                value.normal_(0, 0.3)
    features, tokens = torch.randn(6, 80, 40, dtype=torch.float64), torch.randint(0, 200, (6, 5))
    chosen = [0, 2, 1, 2, 2, 0]
    gate = 2.0 * torch.nn.functional.one_hot(torch.tensor(chosen), 3).double()
    monkeypatch.setattr(model.gate, "forward", lambda vectors: gate)
    with torch.no_grad():
        found = model(features, tokens)
        assert found.encoded.weights is not None
        for row, expert in enumerate(chosen):
            merged = loaded_whisper(str(whisper_folder), 0.4).double().eval()
            weight = float(found.encoded.weights[row, expert])
            for name, base, first, second, scale, _ in iterate_adapters(model.whisper, expert):
                merged.get_submodule(name).weight += weight * scale * second @ first
                assert base.weight.shape == (second @ first).shape
            expected = AsrModel(merged)(features[row : row + 1], tokens[row : row + 1]).logits
            torch.testing.assert_close(found.logits[row : row + 1], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.filterwarnings("default:Model has `tie_word_embeddings=True`:UserWarning")  # of peft, to its own users
@pytest.mark.parametrize("kind", ["lora", "experts"])
def test_exports_have_the_same_logits_in_transformers_and_peft(
    whisper_folder: Path, vocabulary: Vocabulary, tmp_path: Path, kind: str
):
    import peft

    sizes: dict[str, Any] = {"rank": 3, "alpha": 4.5, "targets": ("q_proj", "fc1", "proj_out")}
    made: Any = ExpertsConfig(**sizes, num_experts=3) if kind == "experts" else WhisperLoraConfig(**sizes)
    options = AsrModelConfig(base=str(whisper_folder), **{kind: made})
    model = AsrModel(loaded_whisper(str(whisper_folder), 30.0), options.lora, options.experts).eval()
    expert = 2 if kind == "experts" else None
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad and "gate" not in name:
                value.normal_(0, 0.2)
    transcriber = WhisperTranscriber(model, vocabulary, WhisperFeatures(80, 30.0), AsrDecodingConfig())
    write_whisper(transcriber, tmp_path / "hf", expert)
    said = json.loads((tmp_path / "hf" / "config.json").read_text())["tie_word_embeddings"]
    assert said is False, "or other tools would tie the adapted output layer again"
    write_adapter(model, options, tmp_path / "peft", expert)
    features, tokens = compute_features(1), torch.tensor([[*vocabulary.ids.prompt, 7, 8]])
    whole = WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    base = WhisperForConditionalGeneration.from_pretrained(whisper_folder)
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft")).eval()
    # On the base that the adapter names.
    by_itself = peft.AutoPeftModel.from_pretrained(str(tmp_path / "peft")).eval()
    with torch.no_grad():
        if expert is None:
            expected = model(features, tokens).logits
        else:
            only = torch.nn.functional.one_hot(torch.tensor([expert]), 3).float()
            with model.routing.of(choices_by(only)):
                states = model.whisper.model.encoder(features).last_hidden_state
            expected = model.decode(tokens, Encoded(states, None, only, choices_by(only)))
        for one in (whole, adapted, by_itself):
            found = one(input_features=features, decoder_input_ids=tokens).logits
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert Vocabulary.load(tmp_path / "hf").ids == vocabulary.ids
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        write_whisper(transcriber, tmp_path / "hf", expert)
    with pytest.raises(UserError, match="expert"):
        write_adapter(model, options, tmp_path / "other", 3 if kind == "experts" else 0)


def test_targets_that_no_layer_has_are_named(whisper_folder: Path):
    with pytest.raises(UserError, match=r"model\.lora\.targets: no layer is called 'wq'; there are .*q_proj"):
        AsrModel(loaded_whisper(str(whisper_folder), 30.0), WhisperLoraConfig(targets=("wq",)))


def test_bases_that_cannot_be_had_are_named_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"no such folder: \./nowhere"):
        resolve_base(AsrModelConfig(base="./nowhere"), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no weights; expected model\.safetensors"):
        resolve_base(AsrModelConfig(base=str(tmp_path / "empty")), tmp_path)
    (tmp_path / "empty" / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match="pickles"):
        resolve_base(AsrModelConfig(base="empty"), tmp_path)
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"^model\.base: .*can't be loaded: [^\n]*$"):
        loaded_whisper(str(tmp_path / "empty"), 30.0)
    assert resolve_base(AsrModelConfig(base="v3"), tmp_path) == "openai/whisper-large-v3"


def test_a_name_of_the_hub_without_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as caught:
        loaded_whisper("vaak-nobody/no-whisper", 30.0)
    assert str(caught.value) == (
        "model.base: vaak-nobody/no-whisper can't be loaded: no such folder, and the Hugging Face Hub has no such "
        "model or can't be reached"
    )


def test_hypotheses_that_share_their_audio_read_it_once(monkeypatch: pytest.MonkeyPatch):
    read, attend = list[int](), sdpa_attention.sdpa_attention_forward

    def watched(module: Any, query: torch.Tensor, key: torch.Tensor, *more: Any, **options: Any) -> Any:
        read.append(len(key))
        return attend(module, query, key, *more, **options)

    monkeypatch.setattr(sdpa_attention, "sdpa_attention_forward", watched)
    module: Any = torch.nn.Module()
    module.is_causal = False
    query, key, value = torch.randn(5, 2, 1, 8), torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    shared, _ = _attend(module, query, key.expand(5, -1, -1, -1), value.expand(5, -1, -1, -1), None)
    apart, _ = _attend(module, query, key.repeat(5, 1, 1, 1), value.repeat(5, 1, 1, 1), None)
    torch.testing.assert_close(shared, apart, rtol=1e-5, atol=1e-6)
    assert read == [1, 5]
