"""Rows of tokens that a base lacks begin as the mean of the others, learn next to adapters, and are in exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_encoder_decoder
from quick_cases import mostly_slow
from tiny_bert import write_bert
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.nn.lora import merged
from vaak.nn.new_tokens import get_stored_weight, iterate_new_rows
from vaak.runs.open_run import open_run
from vaak.runs.start import train

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
NEW = ["zig", "zag"]
"""Words that the tokenizer has, and the base has no rows for."""
TRAINING = {
    "max_steps": 3,
    "batch_size": 4,
    "device": "cpu",
    "optimizer": {"lr": 0.05},
    "checkpoint": {"interval": 2, "interval_epochs": None, "save_total_limit": None},
    "memory": {"rehearsal": False},
    "logging": {"interval": 1, "tensorboard": False, "progress_bar": False},
}


def _add_words(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]  # some bases have more of them than tokens
    tokenizer.add_tokens([f"<unused-{number}>" for number in range(rows - len(tokenizer))])
    assert (len(tokenizer), tokenizer.add_tokens(NEW)) == (rows, len(NEW))
    tokenizer.save_pretrained(folder)


def _write_classifier(folder: Path) -> dict[str, Any]:
    write_bert(folder / "base", ["good", "bad", "film"])
    words = [(word, new, number) for number in range(1, 9) for word in ("good", "bad") for new in NEW]
    texts = [{"text": f"{word}{' film' * number} {new}", "label": word} for word, new, number in words]
    (folder / "texts.json").write_text("".join(json.dumps(one) + "\n" for one in texts))
    corpus = {"train": str(folder / "texts.json"), "train_fraction": 0.6, "valid_fraction": 0.2}
    return {
        "task": "classification",
        "model": {
            "pretrained_model": str(folder / "base"),
            "pooling": "first",
            "lora": {"rank": 2, "targets": ["query"]},
        },
        "data": {"corpus": corpus, "max_length": 12},
    }


def _write_translator(kind: str, folder: Path) -> dict[str, Any]:
    tiny_encoder_decoder.write_folder(folder / "base", kind)
    pairs = [{"en": f"{NEW[number % 2]} {number}", "hi": f"{number} {NEW[1 - number % 2]}"} for number in range(40)]
    (folder / "pairs.json").write_text("".join(json.dumps(one) + "\n" for one in pairs))
    corpus = {"train": str(folder / "pairs.json"), "train_fraction": 0.6, "valid_fraction": 0.2}
    return {
        "task": "seq2seq",
        "model": {"pretrained": str(folder / "base"), "lora": {"rank": 2, "targets": ["query", "value"]}},
        "data": {"corpus": corpus, "max_source_length": 60, "max_target_length": 60, "decoding": {"valid_examples": 1}},
    }


def _write(kind: str, folder: Path) -> dict[str, Any]:
    options = _write_classifier(folder) if kind == "bert" else _write_translator(kind, folder)
    _add_words(folder / "base")
    return options


def _logits(kind: str, model: Any, ids: torch.Tensor) -> torch.Tensor:
    read = {"input_ids": ids} if kind == "bert" else {"input_ids": ids, "decoder_input_ids": ids}
    with torch.no_grad():
        found: torch.Tensor = model(**read).logits
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", ["t5", "t5 1.1"])
def test_adapters_of_a_t5_without_new_tokens_are_right_on_its_base(kind: str, tmp_path: Path):
    """Also with a separate output layer, though transformers' configuration says that it is tied."""
    file = tmp_path / "run.yml"
    file.write_text(yaml_text({**_write_translator(kind, tmp_path), "training": TRAINING}))
    train(load([file], [f"run_dir={tmp_path / 'run'}"]))
    opened = open_run(tmp_path / "run", device="cpu")
    task: Any = opened.task
    task.export_peft(opened.model, tmp_path / "adapter")
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base").eval()
    ids = torch.tensor([[2, 7, 9, 5]])
    before = _logits(kind, base, ids)
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    real = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        expected = opened.model(ids, real, ids)
    assert not torch.allclose(before, expected, atol=1e-2), "the adapters learned"
    torch.testing.assert_close(_logits(kind, adapted, ids), expected, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", mostly_slow(["bert", "t5", "t5 1.1", "marian"], "bert"))
def test_new_rows_learn_next_to_adapters_and_are_in_exports(kind: str, tmp_path: Path):
    options = _write(kind, tmp_path)
    file = tmp_path / "run.yml"
    file.write_text(yaml_text({**options, "training": TRAINING}))
    train(load([file], [f"run_dir={tmp_path / 'run'}"]))
    opened = open_run(tmp_path / "run", device="cpu")
    task: Any = opened.task
    rows = dict(iterate_new_rows(opened.model))
    assert len(rows) == (2 if kind == "t5 1.1" else 1), "tied ones count once"
    for name, one in rows.items():
        stored = get_stored_weight(opened.model.get_submodule(name))
        assert len(one.ids) == len(NEW)
        assert not stored.requires_grad
        mean = stored[: one.ids.start].mean(0).expand(len(NEW), -1)
        torch.testing.assert_close(stored[one.ids.start : one.ids.stop], mean)
        assert not torch.allclose(one.rows, mean, atol=1e-3), "they were trained"

    ids = torch.tensor([[2, one.ids.start, one.ids.start + 1, 5]])
    task.export_hf(opened.model, tmp_path / "hf")
    auto = transformers.AutoModelForSequenceClassification if kind == "bert" else transformers.AutoModelForSeq2SeqLM
    whole = auto.from_pretrained(tmp_path / "hf").eval()
    expected = _logits(kind, whole, ids)
    ours = merged(opened.model).eval()
    real = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        torch.testing.assert_close(
            ours(ids, real) if kind == "bert" else ours(ids, real, ids), expected, rtol=0, atol=1e-4
        )
    resume = f"training.checkpoint.resume={tmp_path / 'run' / 'checkpoints' / 'step-00000002'}"
    train(load([file], [f"run_dir={tmp_path / 'again'}", resume]))
    again = open_run(tmp_path / "again", device="cpu").model.state_dict()
    assert [name for name, one in opened.model.state_dict().items() if not torch.equal(one, again[name])] == []

    if kind in ("t5 1.1", "marian"):  # peft would put the rows into one embedding of several
        with pytest.raises(UserError, match=r"--format peft: .* lacks 2 tokens.*; use --format hf"):
            task.export_peft(opened.model, tmp_path / "adapter")
        return
    task.export_peft(opened.model, tmp_path / "adapter")
    base = auto.from_pretrained(tmp_path / "base", **({"num_labels": 2} if kind == "bert" else {}))
    base.resize_token_embeddings(rows[name].ids.stop, mean_resizing=False)
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(_logits(kind, adapted, ids), expected, rtol=0, atol=1e-4)
    assert "resize_token_embeddings" in (tmp_path / "adapter" / "README.md").read_text()
