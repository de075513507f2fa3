"""The tokenizer of a base goes out as it came in: the same class, special tokens, and ids, alone and in pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import tiny_listener
import tokenizer_families as families
from tiny_decoder import SIZES
from tiny_encoder_decoder import T5
from tiny_whisper import write_whisper
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.runs.start import prepare
from vaak.tasks.asr.whisper.task import WhisperTask
from vaak.tasks.classification.task import ClassificationTask
from vaak.tasks.lm.task import LanguageModelTask
from vaak.tasks.seq2seq.task import Seq2SeqTask

SENTENCES = [*families.TEXTS, "", " two  spaces ", "unseen 🙂 क्ष", "<s> [CLS] <|endoftext|> <pad>"]
DECODERS = {"gpt2": "gpt2", "qwen": "qwen3", "llama": "llama", "llama3": "llama"}
ENCODERS = ("bert", "roberta", "xlm_roberta")
ENCODER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}


def exported(task: type, values: dict[str, Any], folder: Path) -> Path:
    """The folder of a model that is exported as it came in."""
    values = {**values, "data": {**values["data"], "max_unknown": 100}}  # toy vocabularies lack most of the text
    (folder / "job.yml").write_text(yaml_text(values))
    loaded: Any = load([folder / "job.yml"], [f"run_dir={folder / 'run'}"])
    prepare(loaded)
    made = task(loaded.experiment, folder / "run", folder)
    made.export_hf(made.model(), folder / "out")
    return folder / "out"


def save(tokenizer: Any, architecture: str, config: Any, folder: Path) -> None:
    getattr(transformers, architecture).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def assert_same(base: Path, out: Path) -> None:
    """As AutoTokenizer loads both, and as a program that reads ``tokenizer.json`` alone does."""
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (base, out))
    assert type(after) is type(before)
    for text in SENTENCES:
        assert after(text).data == before(text).data, text
        assert after(text, "the boy").data == before(text, "the boy").data, text
        ids = before(text).input_ids
        assert after.decode(ids) == before.decode(ids)
        assert after.decode(ids, skip_special_tokens=True) == before.decode(ids, skip_special_tokens=True)
    assert after.special_tokens_map == before.special_tokens_map
    assert (after.model_input_names, after.padding_side) == (before.model_input_names, before.padding_side)
    raw = [transformers.PreTrainedTokenizerFast(tokenizer_file=str(one / "tokenizer.json")) for one in (base, out)]
    assert [raw[1](text).input_ids for text in SENTENCES] == [raw[0](text).input_ids for text in SENTENCES]


@pytest.mark.parametrize("kind", [*DECODERS, "llama without bos"])
def test_of_a_language_model(kind: str, tiny_text: Path, tmp_path: Path):
    name = kind.split()[0]
    tokenizer = families.llama(bos=False) if " " in kind else getattr(families, kind)()
    options = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64} if name == "gpt2" else {**SIZES}
    config = transformers.AutoConfig.for_model(DECODERS[name], vocab_size=len(tokenizer), **options)
    save(tokenizer, "AutoModelForCausalLM", config, tmp_path / "base")
    corpus = {"type": "text", **{split: [str(tiny_text / f"{split}.txt")] for split in ("train", "valid", "test")}}
    values = {"task": "lm", "model": {"pretrained": "base"}, "data": {"corpus": corpus, "max_length": 32}}
    assert_same(tmp_path / "base", exported(LanguageModelTask, values, tmp_path))


def make_generation_config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "generation_config.json").read_text())
    return {name: value for name, value in found.items() if name != "transformers_version"}


def test_how_a_base_generates_goes_out_too(tiny_text: Path, tmp_path: Path):
    tokenizer = families.llama3()
    config = transformers.AutoConfig.for_model("llama", vocab_size=len(tokenizer), **SIZES)
    save(tokenizer, "AutoModelForCausalLM", config, tmp_path / "base")
    given = {"eos_token_id": [5, 1], "do_sample": True, "temperature": 0.6, "pad_token_id": 1}
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(given))
    corpus = {"type": "text", **{split: [str(tiny_text / f"{split}.txt")] for split in ("train", "valid", "test")}}
    values = {"task": "lm", "model": {"pretrained": "base"}, "data": {"corpus": corpus, "max_length": 32}}
    out = exported(LanguageModelTask, values, tmp_path)
    assert make_generation_config(out) == {**given, "bos_token_id": 0}
    assert transformers.AutoModelForCausalLM.from_pretrained(out).generation_config.eos_token_id == [5, 1]


@pytest.mark.parametrize("kind", ENCODERS)
def test_of_a_classifier(kind: str, tmp_path: Path):
    tokenizer = getattr(families, kind)()
    sizes = {**ENCODER, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config = transformers.AutoConfig.for_model(kind.replace("_", "-"), **sizes)
    save(tokenizer, "AutoModel", config, tmp_path / "base")
    rows = [{"text": f"{families.TEXTS[n % 4]} {n}", "label": "yn"[n % 2]} for n in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    corpus = {"train": str(tmp_path / "rows.json"), "train_fraction": 0.6, "valid_fraction": 0.2}
    values = {
        "task": "classification",
        "model": {"pretrained_model": str(tmp_path / "base"), "pooling": "first"},
        "data": {"corpus": corpus, "max_length": 32},
    }
    assert_same(tmp_path / "base", exported(ClassificationTask, values, tmp_path))


def test_of_a_translator(tmp_path: Path):
    tokenizer = families.t5()
    config = transformers.AutoConfig.for_model("t5", **{**T5, "vocab_size": len(tokenizer)})
    save(tokenizer, "AutoModelForSeq2SeqLM", config, tmp_path / "base")
    given = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "num_beams": 3, "bad_words_ids": [[0]]}
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps(given))
    values = {"task": "seq2seq", "model": {"pretrained": "base"}, "data": {"corpus": {"num_sentences": 40}}}
    out = exported(Seq2SeqTask, values, tmp_path)
    assert_same(tmp_path / "base", out)
    assert make_generation_config(out) == given


def test_of_a_whisper(tmp_path: Path):
    write_whisper(tmp_path / "base")
    families.whisper().save_pretrained(tmp_path / "base")
    tiny_listener.write_listener(tmp_path / "corpus")
    data = {"language": "en", "max_duration": 2}
    values = tiny_listener.options(tmp_path / "corpus", model={"base": str(tmp_path / "base")}, data=data)
    assert_same(tmp_path / "base", exported(WhisperTask, values, tmp_path))
