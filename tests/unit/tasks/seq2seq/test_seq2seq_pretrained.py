"""T5 and Marian become ours with the same logits, train, and go out again as they came in."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quick_cases import mostly_slow
from tiny_decoder import VOCAB_SIZE
from tiny_encoder_decoder import MODELS, write_folder
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import train as train_run
from vaak.tasks.ct2 import write_ct2
from vaak.tasks.seq2seq.config import Seq2SeqConfig, Seq2SeqDataConfig
from vaak.tasks.seq2seq.pretrained import export_hf, load_model, save_base

transformers = pytest.importorskip("transformers")

YAML = """\
task: seq2seq
model: {{pretrained: {source}, encoder: {{dropout: 0}}, decoder: {{dropout: 0}}, lora: {lora}}}
data:
  corpus: {{num_sentences: 40}}
  max_source_length: 250
  max_target_length: 250
  decoding: {{valid_examples: 1, max_new_tokens: 9}}
training:
  max_steps: 2
  batch_size: 4
  device: cpu
  logging: {{interval: 1, tensorboard: false, progress_bar: false}}
"""


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_transformers_and_a_round_trip_is_the_identity(kind: str, tmp_path: Path):
    source, prepared = tmp_path / "theirs", tmp_path / "prepared"
    peer = write_folder(source, kind)
    tokenizer = save_base(str(source), prepared)
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (0, 0, 1, 259)
    own = Seq2SeqConfig(pretrained=str(source))
    model = load_model(str(source), prepared, own, Seq2SeqDataConfig(), tokenizer.vocab_size).eval()
    draw = torch.Generator().manual_seed(0)
    ids, target = (torch.randint(2, VOCAB_SIZE, (2, time), generator=draw) for time in (40, 160))
    real = torch.arange(40) < torch.tensor([[40], [23]])
    with torch.no_grad():
        expected = peer(input_ids=ids, attention_mask=real.long(), decoder_input_ids=target).logits
        torch.testing.assert_close(model(ids, real, target), expected, rtol=0, atol=1e-5)

    export_hf(model, prepared, tokenizer, tmp_path / "again")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = type(peer).from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        found = again(input_ids=ids, attention_mask=real.long(), decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        ("t5", {"relative_attention_num_buckets": 16}, "has relative_attention_num_buckets 16, which"),
        ("t5", {"feed_forward_proj": "gelu"}, "has feed_forward_proj gelu, which"),
        ("marian", {"scale_embedding": False}, "has scale_embedding False, which"),
        ("marian", {"activation_function": "tanh"}, "has activation_function tanh, which"),
    ],
)
def test_what_does_not_fit_is_named(kind: str, others: dict[str, Any], said: str, tmp_path: Path):
    write_folder(tmp_path / "theirs", kind, **others)
    with pytest.raises(UserError, match=rf"^model\.pretrained: .*theirs {said} vaak's model doesn't$"):
        save_base(str(tmp_path / "theirs"), tmp_path / "prepared")


def test_other_models_are_refused_in_a_line(tmp_path: Path):
    write_folder(tmp_path / "theirs", "t5")
    about = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**about, "model_type": "bart"}))
    with pytest.raises(UserError, match=r"theirs is a bart; expected one of t5, marian"):
        save_base(str(tmp_path / "theirs"), tmp_path / "prepared")


def test_what_ctranslate2_has_not_is_said(tmp_path: Path):
    """Its converter drops the last token, for OPUS-MT's padding is there: this Marian's is the first."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    write_folder(tmp_path / "theirs", "marian")
    with pytest.raises(UserError, match=r"^--format ct2: CTranslate2 can't convert this model: Source vocabulary"):
        write_ct2(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "ct2", None)
    assert not (tmp_path / "ct2").exists()


@pytest.mark.parametrize(
    ("kind", "lora"), mostly_slow([("t5", "null"), ("marian", "{rank: 2}"), ("t5 1.1", "null")], "marian")
)
def test_a_run_begins_with_them_and_is_exported(kind: str, lora: str, tmp_path: Path):
    write_folder(tmp_path / "theirs", kind)
    (tmp_path / "run.yml").write_text(YAML.format(source=tmp_path / "theirs", lora=lora))
    outcome = train_run(load([tmp_path / "run.yml"], [f"run_dir={tmp_path / 'run'}"]))
    assert math.isfinite(outcome.metrics["val_loss"])
    opened = open_run(tmp_path / "run", device="cpu")
    opened.task.export_hf(opened.model, tmp_path / "out")
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    names = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = [*names("a boy", add_special_tokens=False)["input_ids"], 1]
    translator = opened.task.translator(opened.model)
    assert translator.source_ids("a boy") == ids
    ((ours, *_),) = translator.written([ids], opened.task.decoding(max_new_tokens=12))
    options = {"max_new_tokens": 12, "do_sample": False, "num_beams": 1, "suppress_tokens": [0], "use_cache": False}
    theirs = peer.generate(torch.tensor([ids]), **options)[0, 1:].tolist()
    assert [token for token in theirs if token != 1][:11] == list(ours.tokens)[:11]
    if kind != "marian":
        check_ct2(opened, names, ids, list(ours.tokens), tmp_path / "ct2")


def check_ct2(opened: Any, names: Any, ids: list[int], expected: list[int], folder: Path) -> None:
    """CTranslate2 translates to the same tokens, and gives a target the same log-probabilities."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    opened.task.export_ct2(opened.model, folder)
    translator = ctranslate2.Translator(str(folder), device="cpu")
    source, target = names.convert_ids_to_tokens(ids), [5, 9, 30, 77]
    (found,) = translator.translate_batch([source], beam_size=1, max_decoding_length=12, suppress_sequences=[["<pad>"]])
    known = [token for token in expected if token < len(names)]  # others have a row only
    assert [one for one in names.convert_tokens_to_ids(found.hypotheses[0]) if one != names.unk_token_id] == known
    (scored,) = translator.score_batch([source], [names.convert_ids_to_tokens(target)])
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    with torch.no_grad():
        log_probs = opened.model(torch.tensor([ids]), mask, torch.tensor([[0, *target]]))[0].log_softmax(-1)
    own = [float(log_probs[at, token]) for at, token in enumerate([*target, 1])]
    assert scored.log_probs == pytest.approx(own, abs=1e-4)


def test_a_drawn_translator_is_not_exported(tmp_path: Path):
    sizes = "model: {global_config: {d_model: 16, num_layers: 1, num_heads: 2}"
    text = YAML.format(source="null", lora="null").replace("model: {pretrained: null", sizes)
    (tmp_path / "run.yml").write_text(text.replace("max_steps: 2", "max_steps: 1"))
    train_run(load([tmp_path / "run.yml"], [f"run_dir={tmp_path / 'run'}"]))
    opened = open_run(tmp_path / "run", device="cpu")
    with pytest.raises(
        UserError,
        match=r"--format hf: transformers has no translator .*; use --format onnx",
    ):
        opened.task.export_hf(opened.model, tmp_path / "out")
