"""The language of a Whisper is checked on every way in; one that it doesn't know gets a token, which is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny_listener
from tiny_whisper import whisper_tokenizer, write_whisper
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.nn.lora import merged
from vaak.runs.open_run import open_run
from vaak.runs.start import prepare
from vaak.tasks.asr.model import find_written_language
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.asr.whisper.model import AsrModel

DATA = {"max_duration": 2, "language": "mni", "language_like": "hi"}
LORA = {"rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tones") / "corpus"
    tiny_listener.write_listener(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("multilingual") / "base", max_target_positions=48)


@pytest.fixture(scope="module")
def run(corpus: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper with low-rank adapters that learned a language which its base doesn't know."""
    folder = tmp_path_factory.mktemp("mni") / "run"
    few = ("training.max_steps=6", "training.optimizer.lr=1e-2", "training.checkpoint.interval=3")
    return tiny_listener.train(corpus, folder, *few, model={"base": str(base), "lora": LORA}, data=DATA)


def prepared(corpus: Path, base: Path, folder: Path, **data: Any) -> Vocabulary:
    values = tiny_listener.options(corpus, model={"base": str(base)}, data={"max_duration": 2, **data})
    folder.mkdir(exist_ok=True)
    (folder / "run.yml").write_text(json.dumps(values))
    loaded: Any = load([folder / "run.yml"], [f"run_dir={folder / 'run'}"])
    prepare(loaded)
    return Vocabulary.load(folder / "run" / "prepared" / "vocabulary")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.filterwarnings("default:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_language_that_the_base_lacks_is_learned_and_goes_out(run: Path, base: Path, tmp_path: Path):
    peft = pytest.importorskip("peft")
    opened: Any = open_run(run, device="cpu")
    original: Any = transformers.WhisperForConditionalGeneration.from_pretrained(base).eval()
    vocabulary, whisper, size = opened.task.prepared.vocabulary, opened.model.whisper, original.config.vocab_size
    assert (vocabulary.trained_language, vocabulary.ids.prompt[1], vocabulary.ids.size) == ("mni", size, size + 1)
    assert list(vocabulary.languages) == ["en", "hi", "mni"]
    frozen = original.get_input_embeddings().weight
    embedding = whisper.get_input_embeddings().weight
    assert torch.equal(embedding[:size], frozen), "the rows of the base are as they were"
    assert not torch.equal(embedding[size], frozen[vocabulary.languages["hi"]]), "the new one was learned"
    assert torch.equal(whisper.get_output_embeddings().weight, embedding), "it is tied as the base is"

    opened.task.export_hf(opened.model, tmp_path / "hf")
    opened.task.export_peft(opened.model, tmp_path / "peft")
    whole: Any = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    resized: Any = transformers.WhisperForConditionalGeneration.from_pretrained(base)
    resized.resize_token_embeddings(size + 1)
    adapted = peft.PeftModel.from_pretrained(resized, str(tmp_path / "peft")).eval()
    samples = np.random.default_rng(0).standard_normal(32_000).astype(np.float32)
    features = torch.from_numpy(opened.task.features(samples))[None]
    tokens = torch.tensor([[*vocabulary.ids.prompt, 7, 8]])
    with torch.no_grad():
        expected = opened.model(features, tokens).logits
        torch.testing.assert_close(whole(features, decoder_input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-4)
        # The adapter is for the base, whose encoder reads 30 s.
        long = torch.nn.functional.pad(features, (0, 2800))
        alone = AsrModel(merged(opened.model.whisper)).whisper.model.decoder
        states = adapted.base_model.model.model.encoder(long).last_hidden_state
        hidden = alone(input_ids=tokens, encoder_hidden_states=states).last_hidden_state
        found = adapted(input_features=long, decoder_input_ids=tokens).logits
        torch.testing.assert_close(found, hidden @ embedding.T, rtol=1e-4, atol=1e-4)
    spoken = whole.generate(features, max_new_tokens=5)
    assert torch.equal(whole.generate(features, language="mni", max_new_tokens=5), spoken), "it is the default"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").convert_tokens_to_ids("<|mni|>") == size


def test_the_export_is_a_base_whose_language_is_checked(
    run: Path, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    opened: Any = open_run(run, device="cpu")
    opened.task.export_hf(opened.model, tmp_path / "hf")
    again = prepared(corpus, tmp_path / "hf", tmp_path / "again", language="mni")
    assert again.ids == opened.task.prepared.vocabulary.ids
    assert "was trained to write" not in capfd.readouterr().err
    other = prepared(corpus, tmp_path / "hf", tmp_path / "other", language="hi")
    assert other.trained_language == "hi"
    assert "data.language is hi, but the base was trained to write mni" in capfd.readouterr().err
    with pytest.raises(UserError, match=r"data\.language: the base doesn't know 'klingon'; it knows en, hi, mni"):
        prepared(corpus, tmp_path / "hf", tmp_path / "none", language="klingon")


def test_what_a_base_doesnt_know_is_named(corpus: Path, base: Path, tmp_path: Path):
    english = write_whisper(tmp_path / "english", multilingual=False, max_target_positions=48)
    with pytest.raises(UserError, match=r"the base doesn't know 'klingon': it knows English only \(en\)"):
        prepared(corpus, english, tmp_path / "one", language="klingon")
    with pytest.raises(UserError, match=r"the base doesn't know 'hi': it knows English only"):
        prepared(corpus, english, tmp_path / "two", language="hi", language_like="en")
    with pytest.raises(UserError, match=r"'mni'; it knows en, hi; data\.language_like, the nearest of these, adds it"):
        prepared(corpus, base, tmp_path / "three", language="mni")
    with pytest.raises(UserError, match=r"data\.language_like: the base doesn't know 'bn'"):
        prepared(corpus, base, tmp_path / "four", language="mni", language_like="bn")
    with pytest.raises(UserError, match=r"'M i' can't be a new language's code"):
        prepared(corpus, base, tmp_path / "five", language="M i", language_like="hi")


def test_times_without_names_keep_their_places():
    tokenizer = whisper_tokenizer(num_times=0)
    ids = tokenizer.get_vocab()
    config = transformers.WhisperConfig(
        vocab_size=len(ids) + 1501,
        decoder_start_token_id=ids["<|startoftranscript|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
    )
    make: Any = transformers.GenerationConfig
    known = Vocabulary.of_whisper(tokenizer, config, make(is_multilingual=True), "hi")
    new = Vocabulary.of_whisper(tokenizer, config, make(is_multilingual=True), "mni", "hi")
    assert new.times == known.times
    assert (new.ids.prompt[1], new.ids.size) == (config.vocab_size, config.vocab_size + 1)
    assert new.decode([new.times[3], *new.encode("ab")]) == "ab"
    assert new.ids.prompt[1] in new.ids.never, "no transcript has it"


@pytest.mark.parametrize(
    "strange",
    [
        {"forced_decoder_ids": [[1, 7, 9], 5, None], "lang_to_id": {"<|hi|>": 7}},
        {"forced_decoder_ids": "1, 7", "lang_to_id": {"<|hi|>": 7}},
        {"forced_decoder_ids": [[1, 7]], "lang_to_id": ["<|hi|>"]},
        {"forced_decoder_ids": [[1, None]], "lang_to_id": {"<|hi|>": 7}},
    ],
)
def test_a_strangers_generation_settings_name_no_language(strange: dict[str, Any]):
    assert find_written_language(strange) is None
    as_theirs = {"forced_decoder_ids": [(1, 7), (2, 9)], "lang_to_id": {"<|hi|>": 7}}
    assert find_written_language(as_theirs) == "hi"
