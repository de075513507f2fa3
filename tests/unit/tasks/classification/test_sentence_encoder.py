"""Sentence encoders embed as transformers does with the folder's pooling; unsupported folders are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    T5EncoderModel,
)

import tiny_decoder
import tiny_encoder_decoder
from tiny_whisper import write_whisper

Vaak = Callable[..., tuple[int, str, str]]
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "so", "it", "is")
TEXTS = ["so it is", "so", "it is so so so it is"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **sizes)).eval().save_pretrained(folder)
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    return folder


def write_modules(folder: Path, pooling: dict[str, Any], *further: str) -> None:
    kinds = ("Transformer", "Pooling", *further)
    about = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"st.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(about))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **pooling}))


def compute_hidden(folder: Path, text: str) -> np.ndarray:
    ids = [2, *(WORDS.index(word) for word in text.split()), 3]
    with torch.no_grad():
        return BertModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0].numpy()


@pytest.mark.parametrize(
    ("modes", "further", "pool"),
    [
        (None, (), lambda x: x.mean(0)),
        (("mean_tokens",), ("Normalize",), lambda x: x.mean(0) / np.linalg.norm(x.mean(0))),
        (("cls_token", "max_tokens"), (), lambda x: np.concatenate([x[0], x.max(0)])),
        (("lasttoken",), (), lambda x: x[-1]),
        (("mean_sqrt_len_tokens",), (), lambda x: x.sum(0) / len(x) ** 0.5),
        (("weightedmean_tokens",), (), lambda x: np.average(x, 0, np.arange(1, len(x) + 1))),
        # Whatever the order in the file, the maximum comes before the mean.
        (("mean_tokens", "max_tokens"), (), lambda x: np.concatenate([x.max(0), x.mean(0)])),
    ],
)
def test_embeddings_are_those_of_its_modules(
    encoder: Path, vaak: Vaak, caplog: pytest.LogCaptureFixture, modes: Any, further: Any, pool: Any
):
    (encoder / "modules.json").unlink(missing_ok=True)
    if modes is not None:
        write_modules(encoder, {f"pooling_mode_{mode}": True for mode in modes}, *further)
    code, said, error = vaak("predict", encoder, *TEXTS, "--embeddings")
    assert code == 0, error
    assert ("no modules.json: the embedding of a text is the mean over its tokens" in caplog.text) == (modes is None)
    rows = [json.loads(line) for line in said.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    for row in rows:
        np.testing.assert_allclose(row["embedding"], pool(compute_hidden(encoder, row["text"])), atol=1e-5)


@pytest.mark.parametrize(
    ("named", "pool"),
    [("cls", lambda x: x[0]), (["lasttoken", "mean"], lambda x: np.concatenate([x[-1], x.mean(0)]))],
)
def test_folders_of_sentence_transformers_6_name_their_pooling(
    encoder: Path, vaak: Vaak, named: Any, pool: Callable[[np.ndarray], np.ndarray]
):
    """These had the mean, without a word."""
    write_modules(encoder, {"embedding_dimension": 8, "pooling_mode": named, "include_prompt": True})
    code, said, error = vaak("predict", encoder, "so it is", "--embeddings")
    assert code == 0, error
    np.testing.assert_allclose(json.loads(said)["embedding"], pool(compute_hidden(encoder, "so it is")), atol=1e-5)


def test_texts_are_read_after_the_default_prompt_in_the_case_of_the_folder(
    encoder: Path, vaak: Vaak, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    write_modules(encoder, {"pooling_mode_mean_tokens": True})
    about, case = encoder / "config_sentence_transformers.json", encoder / "sentence_bert_config.json"
    about.write_text(json.dumps({"prompts": {"query": "It is ", "document": ""}, "default_prompt_name": "query"}))
    case.write_text('{"max_seq_length": 16, "do_lower_case": true}')
    code, said, error = vaak("predict", encoder, "SO", "--embeddings")
    assert code == 0, error
    assert "each text is read after the prompt 'It is ' (query)" in caplog.text
    row = json.loads(said)
    assert row["text"] == "SO"
    np.testing.assert_allclose(row["embedding"], compute_hidden(encoder, "it is so").mean(0), atol=1e-5)
    write_modules(encoder, {"pooling_mode": "mean", "include_prompt": False})
    code, _, error = vaak("predict", encoder, "so", "--embeddings")
    assert code == 2
    assert "leaves its prompt out of the pooling (include_prompt)" in error
    about.write_text(json.dumps({"prompts": {"query": "It is "}, "default_prompt_name": None}))
    code, said, _ = vaak("predict", encoder, "so", "--embeddings")
    assert "has prompts (query): put one before the texts yourself" in caplog.text
    np.testing.assert_allclose(json.loads(said)["embedding"], compute_hidden(encoder, "so").mean(0), atol=1e-5)
    about.unlink()
    case.unlink()


def test_what_is_cut_is_counted_and_what_isn_t_read_refused(
    encoder: Path, vaak: Vaak, caplog: pytest.LogCaptureFixture
):
    write_modules(encoder, {"pooling_mode_mean_tokens": True})
    (encoder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    code, _, error = vaak("predict", encoder, *TEXTS, "--embeddings")
    (encoder / "sentence_bert_config.json").unlink()
    assert code == 0
    assert "1 texts are longer than 5 tokens; only their beginning was read" in caplog.text
    for change, expected in (
        ({"pooling_mode_odd_tokens": True}, "has the pooling mode 'pooling_mode_odd_tokens'"),
        ({"pooling_mode": "odd"}, "has the pooling mode 'odd'"),
        ({}, "Dense"),
    ):
        write_modules(encoder, change, *([] if change else ["Dense"]))
        code, _, error = vaak("predict", encoder, "so", "--embeddings")
        assert code == 2
        assert expected in error


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_decoders_without_padding_and_encoders_of_translators_embed_too(kind: str, tmp_path: Path, vaak: Vaak):
    """Both ended in a traceback of transformers."""
    (tiny_decoder if kind == "llama" else tiny_encoder_decoder).write_folder(tmp_path, kind)
    code, said, error = vaak("predict", tmp_path, *TEXTS, "--embeddings")
    assert code == 0, error
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    model: Any = (AutoModel if kind == "llama" else T5EncoderModel).from_pretrained(tmp_path).eval()
    for text, line in zip(TEXTS, said.splitlines(), strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([tokenizer(text).input_ids])).last_hidden_state[0]
        np.testing.assert_allclose(json.loads(line)["embedding"], hidden.mean(0).numpy(), atol=1e-5)


def test_what_reads_no_text_has_no_embeddings(tmp_path: Path, vaak: Vaak):
    write_whisper(tmp_path)
    code, _, error = vaak("predict", tmp_path, "so", "--embeddings")
    assert (code, "is a whisper, which reads input_features; give an encoder of text" in error) == (2, True), error
    assert len(error.splitlines()) == 1
