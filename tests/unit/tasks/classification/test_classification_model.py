"""A TextCNN is Kim's formula, pooling is that of the real tokens, and a pretrained encoder is transformers' own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tiny_bert import write_bert
from vaak.core.errors import UserError
from vaak.nn.config import LoraConfig
from vaak.nn.lora import add_lora
from vaak.nn.models import TransformerModel
from vaak.tasks.classification.config import ClassifierConfig, WordVectorsConfig
from vaak.tasks.classification.data import load_vectors
from vaak.tasks.classification.export import export_hf
from vaak.tasks.classification.model import TextCNN, TransformerClassifier
from vaak.tasks.classification.pretrained import Pretrained, save_base
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer_training import TokenizerFactory


def config(**options: Any) -> ClassifierConfig:
    return ClassifierConfig(**{"d_model": 16, "num_heads": 2, "num_layers": 2, "dropout": 0.0, **options})


def cnn(vectors: Tensor | None = None, **options: Any) -> TextCNN:
    torch.manual_seed(0)
    sizes = {"embed_size": 6, "num_filters": 4, "filter_sizes": (1, 3), "architecture": "cnn"}
    return TextCNN(config(**sizes, **options), 20, 3, vectors).double()


def by_hand(model: TextCNN, row: list[int], table: Tensor) -> Tensor:
    """Kim's equations 2 to 4, window by window, over a text with size - 1 zero vectors on both sides."""
    pooled = []
    for size, filters in zip(model.config.filter_sizes, model.filters.values(), strict=True):
        zeros = torch.zeros(size - 1, table.shape[1], dtype=table.dtype)
        words = torch.cat([zeros, table[row], zeros])
        assert isinstance(filters, torch.nn.Conv1d)
        assert filters.bias is not None
        for weight, bias in zip(filters.weight, filters.bias, strict=True):
            windows = [(weight.T * words[first : first + size]).sum() + bias for first in range(len(words) - size + 1)]
            pooled.append(torch.relu(torch.stack(windows)).max())
    return model.head.weight @ torch.stack(pooled) + model.head.bias


@pytest.mark.parametrize("use", [None, "static", "tuned", "two_channel"])
def test_a_text_cnn_is_the_formula_whatever_its_batch(use: Any):
    given = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    given[7] = torch.nan
    vectors = None if use is None else given
    model = cnn(vectors, word_vectors=None if use is None else WordVectorsConfig(path="v", use=use))
    rows = [[1], [2, 3], [4, 5, 6, 7, 8, 9]]
    inputs = torch.tensor([row + [0] * (8 - len(row)) for row in rows])
    mask = torch.tensor([[place < len(row) for place in range(8)] for row in rows])
    table = model.embedding.weight if model.static is None else model.embedding.weight + model.static.weight
    expected = torch.stack([by_hand(model, row, table) for row in rows])
    assert torch.allclose(model(inputs, mask), expected, atol=1e-12)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert ("embedding.weight" in trained) == (use != "static")
    assert "static.weight" not in trained
    if use:
        others = [token for token in range(20) if token != 7]
        assert torch.equal(model.embedding.weight[others].float(), given[others])
        assert model.embedding.weight[7].abs().max() <= 0.25


def test_the_weights_of_classes_are_bounded():
    model = cnn(max_norm=0.5)
    with torch.no_grad():
        model.head.weight.mul_(100)
        model.head.bias.zero_()
    inputs, mask = torch.tensor([[1, 2, 3]]), torch.ones(1, 3, dtype=torch.bool)
    weight = model.head.weight
    expected = (weight / weight.norm(dim=1, keepdim=True) * 0.5) @ model.represent(inputs, mask)[0]
    assert torch.allclose(model(inputs, mask)[0], expected, atol=1e-12)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("pooling", ["first", "mean", "max", "max_mean"])
def test_pooling_sees_real_tokens_alone(pooling: str, kernel: int):
    options = config(pooling=pooling, feed_forward_kernel=kernel)
    model = TransformerClassifier(options, TransformerModel(options, 20, causal=False), 3).double().eval()
    alone = torch.tensor([[1, 2, 3]])
    padded = torch.tensor([[1, 2, 3, 0, 0]])
    mask = torch.tensor([[True, True, True, False, False]])
    found = model.represent(padded, mask)
    hidden = model.transformer.hidden(alone, mask=mask[:, :3])[0]
    mean, maximum = hidden.mean(0), hidden.amax(0)
    expected = {"first": hidden[0], "mean": mean, "max": maximum, "max_mean": torch.cat([maximum, mean])}[pooling]
    assert torch.allclose(found[0], expected, atol=1e-12)
    assert model(padded, mask).shape == (1, 3)


def test_a_kernel_of_three_reads_pairs_that_tokens_alone_do_not():
    """Without positions, two orders of the same words are one to tokens alone."""
    texts = torch.tensor([[1, 2, 3, 4], [3, 1, 4, 2]])
    for kernel in (1, 3):
        torch.manual_seed(0)
        options = config(pooling="max", feed_forward_kernel=kernel, position_type="none", num_layers=1)
        model = TransformerClassifier(options, TransformerModel(options, 20, causal=False), 3).double().eval()
        one, other = model(texts, torch.ones_like(texts, dtype=torch.bool))
        assert torch.allclose(one, other, atol=1e-12) == (kernel == 1)


@pytest.mark.parametrize(("given", "expected"), [(None, 0.25), (0.0, 0.0), (0.5, 0.5)])
def test_dropout_before_the_classes_is_that_of_the_network_unless_given(given: float | None, expected: float):
    options = config(dropout=0.25, classifier_dropout=given, max_norm=None)
    model = TransformerClassifier(options, TransformerModel(options, 20, causal=False), 3)
    model.transformer.eval()  # what is left to drop is what the classes read
    torch.nn.init.ones_(model.head.weight)
    texts = torch.randint(1, 20, (1, 6)).expand(4000, 6)
    mask = torch.ones_like(texts, dtype=torch.bool)
    with torch.no_grad():
        represented = model.represent(texts[:1], mask[:1])
        scores = model(texts, mask)[:, 0]
    variance = expected / (1 - expected) * represented.square().sum()
    assert scores.var().item() == pytest.approx(variance.item(), rel=0.15, abs=1e-9)


def test_word_vectors_are_read_for_the_words_there_are(tmp_path: Path):
    options = TokenizerConfig(type="word", vocab_size=50, min_frequency=1)
    tokenizer = TokenizerFactory(options).create_tokenizer(["The boy isn't here ."])
    (tmp_path / "v.txt").write_text("3 2\nthe 0.5 1\nboy -1 2\ngirl 3 3\n")
    vectors = load_vectors(tmp_path / "v.txt", tokenizer)
    assert vectors[tokenizer.encode("THE boy")].tolist() == [[0.5, 1.0], [-1.0, 2.0]]
    assert torch.from_numpy(vectors).isnan().all(1).sum() == tokenizer.vocab_size - 2
    assert [tokenizer.readable(token) for token in tokenizer.encode("isn't girl")] == ["isn't", "<unk>"]
    (tmp_path / "v.txt").write_text("the 0.5 1\nboy -1\n")
    with pytest.raises(UserError, match=r"v.txt:2: 1 numbers, but 2 in the lines before"):
        load_vectors(tmp_path / "v.txt", tokenizer)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as a folder of transformers."""
    return write_bert(tmp_path_factory.mktemp("bert"), ("the", "boy", "##s", "good", "bad"))


def test_a_pretrained_encoder_gives_what_transformers_gives(bert: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    with pytest.raises(UserError, match=r"data.max_length is 21, but .* reads at most 20 tokens"):
        save_base(str(bert), tmp_path, 21)
    tokenizer = save_base(str(bert), tmp_path, 20)
    theirs = transformers.AutoTokenizer.from_pretrained(bert)("the boys", return_tensors="pt")
    ids = [tokenizer.bos_id, *tokenizer.encode("the boys"), tokenizer.eos_id]
    assert ids == theirs["input_ids"][0].tolist()
    options = config(dropout=0.2, attention_dropout=0.3)
    model = Pretrained.load(str(bert), tokenizer.vocab_size, options).eval()
    expected = transformers.AutoModel.from_pretrained(bert).eval()(**theirs).last_hidden_state
    mask = torch.tensor([[True] * len(ids) + [False] * 3])
    found = model.hidden(torch.tensor([ids + [0] * 3]), mask=mask)[:, : len(ids)]
    assert torch.allclose(found, expected, atol=1e-5)
    assert model.base.config.hidden_dropout_prob == 0.2
    assert model.base.config.attention_probs_dropout_prob == 0.3
    drawn = Pretrained.drawn(tmp_path, tokenizer.vocab_size, options)
    assert {name: value.shape for name, value in drawn.state_dict().items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_transformers_loads_an_exported_classifier_with_the_same_scores(bert: Path, tmp_path: Path, lora: Any):
    transformers = pytest.importorskip("transformers")
    tokenizer = save_base(str(bert), tmp_path, 20)
    options = config(pooling="first", max_norm=0.05)
    model = TransformerClassifier(options, Pretrained.load(str(bert), tokenizer.vocab_size, options), 3)
    model = add_lora(model, lora, also_trained=("head",)).eval()
    assert {name for name, one in model.named_parameters() if one.requires_grad} >= {"head.weight", "head.bias"}
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_B" in name:
                assert one.requires_grad
                one.normal_(0, 0.3)
    export_hf(model, tokenizer, tmp_path, {"label": ["a", "b", "c"]}, False, tmp_path / "hf")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("the boys", return_tensors="pt")
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("the boys"), tokenizer.eos_id]])
    assert torch.equal(read["input_ids"], ids)
    with torch.no_grad():
        torch.testing.assert_close(peer(**read).logits, model(ids, torch.ones_like(ids) > 0), rtol=1e-4, atol=1e-5)
    assert peer.config.id2label == {0: "a", 1: "b", 2: "c"}
    with pytest.raises(UserError, match="transformers has one label column; use --format onnx"):
        export_hf(model, tokenizer, tmp_path, {"label": ["a", "b"], "other": ["c"]}, False, tmp_path / "two")
    with pytest.raises(UserError, match="transformers has classifiers on its own encoders only"):
        export_hf(cnn(), tokenizer, tmp_path, {"label": ["a", "b", "c"]}, False, tmp_path / "two")


def test_the_head_which_is_trained_anyway_is_not_adapted():
    with pytest.raises(UserError, match=r"model\.lora\.targets: no layer is called 'head'; there are none"):
        add_lora(cnn(), LoraConfig(targets=("head",)), also_trained=("head",))


def test_what_cant_be_had_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(importlib.import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"nobody/nothing can't be loaded: no such folder, and the Hugging Face Hub has no"
    ):
        save_base("nobody/nothing", tmp_path, 20)
