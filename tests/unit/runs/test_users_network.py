"""Runs whose network is a user's: trained, resumed to the bit, used with trust; what is wrong is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
import vaak as library
from users_classes import NETWORK, STEPPING
from vaak.config.base import REGISTERED
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import load_checkpoint, newest_whole
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.own_network import InputCache, StateCache
from vaak.runs.start import train
from vaak.tasks.lm.predict import generate_batch

LEAK = "    def forward(self, x, mask, memory=None, memory_mask=None):\n        return x + x.flip(1)\n"
OWN = """\
extends: tiny.yml
model: {type: './mine.py:Net', d_model: 16, hidden: 12, dropout: 0.1}
training: {checkpoint: {interval: 2}}
"""
CLASSIFIER = """\
task: classification
name: classifier
model: {type: './mine.py:Net', d_model: 16}
data: {corpus: {num_sentences: 200}, tokenizer: {vocab_size: 300}, max_length: 32}
training: {max_steps: 2, batch_size: 8, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""
TRANSLATOR = """\
task: seq2seq
name: translator
model:
  global_config: {d_model: 16, num_layers: 1, num_heads: 2}
  encoder: {type: './mine.py:Net'}
  decoder: {type: './mine.py:Net', hidden: 6}
data: {corpus: {num_sentences: 60}, tokenizer: {vocab_size: 400}, decoding: {method: beam, beam_size: 2}}
training: {max_steps: 2, batch_size: 8, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""


SEVERAL = """\
task: multitask
name: several
data:
  tasks:
    kind: {task: classification, model: {type: './mine.py:Net', d_model: 16}, data: DATA}
    words: {task: lm, model: {type: './mine.py:Net', d_model: 16, model_type: encoder}, data: DATA}
model: {shared: [{kind: transformer.stack, words: stack}]}
training: {max_steps: 2, batch_size: 8, device: cpu, logging: {tensorboard: false, progress_bar: false}}
""".replace("DATA", "{corpus: {num_sentences: 200}, tokenizer: {type: character, vocab_size: 300}, max_length: 24}")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    tiny_runs.write_corpus(folder)
    (folder / "mine.py").write_text(NETWORK)
    (folder / "leak.py").write_text(NETWORK.partition("    def forward")[0] + LEAK)
    for name, text in {"own": OWN, "classifier": CLASSIFIER, "translator": TRANSLATOR, "several": SEVERAL}.items():
        (folder / f"{name}.yml").write_text(text)
    return folder


def trained(config: Path, run: Path, *overrides: str) -> Path:
    train(load([config], [f"run_dir={run}", *overrides], trust_code=True))
    return run


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(project / "own.yml", tmp_path_factory.mktemp("runs") / "whole")


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(newest_whole(run / "checkpoints")[0] or run).model


def test_a_resume_changes_no_bit_nor_does_recomputing(project, whole, tmp_path):
    run = trained(project / "own.yml", tmp_path / "run", "training.max_steps=4")
    again = "training.performance.gradient_checkpointing=true"
    trained(run / "config.yml", run, "training.max_steps=8", "training.checkpoint.resume=auto", again)
    found, expected = weights_of(run), weights_of(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert {name for name in found if name.startswith("stack.")} == {
        f"stack.network.{part}.{kind}" for part in ("inner", "output") for kind in ("weight", "bias")
    }


def test_its_attention_is_not_recomputed_alone(project, tmp_path):
    again = "training.performance.activation_checkpointing=attention"
    with pytest.raises(
        UserError, match="gradient_checkpointing: attention: which part of a network of yours is attention isn't known"
    ):
        trained(project / "own.yml", tmp_path / "run", again)


def test_other_options_of_it_are_refused_at_a_resume(whole):
    with pytest.raises(UserError, match=r"model\.hidden was 12, is 13"):
        trained(whole / "config.yml", whole, "model.hidden=13", "training.checkpoint.resume=auto")


def test_it_is_evaluated_used_and_replayed_with_trust_alone(vaak, whole):
    for command in (("eval", whole), ("generate", whole, "वह"), ("replay", whole, "--step", "3")):
        code, _, errors = vaak(*command)
        assert (code, errors.count("\n")) == (2, 1)
        assert "code/mine.py:Net" in errors
        assert "--trust-code" in errors
    code, said, errors = vaak("eval", whole, "--trust-code", "--split", "test")
    assert (code, errors) == (0, "")
    assert "test_bits_per_byte" in said
    code, said, errors = vaak("generate", whole, "वह", "--max-new-tokens", "5", "--trust-code")
    assert code == 0, errors
    assert said.startswith("वह")
    code, said, errors = vaak("replay", whole, "--step", "3", "--trust-code")
    assert code == 0, errors


def test_what_it_writes_is_what_its_scores_say(whole):
    """Decoding token by token, several texts at once, gives what reading each whole text gives."""
    run = library.open(whole, device="cpu", trust_code=True)
    model: Any = run.model
    prompts = [[run.tokenizer.bos_id, *run.tokenizer.encode(text)] for text in ("वह", "राम घर जाता")]
    written = generate_batch(model, prompts, SamplingSettings(max_new_tokens=4, temperature=0.0))
    for prompt, found in zip(prompts, written, strict=True):
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(4):
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert found == ids[len(prompt) :]


def test_with_steps_it_writes_the_same_texts(project, whole, tmp_path):
    """The same training, so the same weights; now it continues from a state."""
    (project / "steps.py").write_text(STEPPING)
    (project / "steps.yml").write_text(OWN.replace("mine.py", "steps.py"))
    stepping = trained(project / "steps.yml", tmp_path / "stepping")
    prompts = ["वह", "राम घर जाता", "वह"]
    texts = []
    for run, kind in ((whole, InputCache), (stepping, StateCache)):
        opened: Any = library.open(run, device="cpu", trust_code=True)
        assert isinstance(opened.model.new_cache(), kind)
        ids = [[opened.tokenizer.bos_id, *opened.tokenizer.encode(text)] for text in prompts]
        for settings in (SamplingSettings(max_new_tokens=6, temperature=0.0), SamplingSettings(max_new_tokens=6)):
            texts.append(generate_batch(opened.model, ids, settings))
    assert texts[:2] == texts[2:]


@pytest.mark.parametrize("format", ["hf", "ct2", "gguf"])
def test_exports_that_only_vaaks_own_network_has(vaak, whole, format):
    code, _, errors = vaak("export", whole, "--format", format, "--trust-code")
    assert (code, errors.count("\n")) == (2, 1)
    assert "model.type is mine.py:Net, a network that transformers doesn't have; use --format onnx" in errors


@pytest.mark.slow
def test_it_is_exported_as_onnx(vaak, whole, tmp_path):
    code, _, errors = vaak("export", whole, "--format", "onnx", "--output", tmp_path / "onnx", "--trust-code")
    assert code == 0, errors
    assert (tmp_path / "onnx" / "model.onnx").is_file()


def test_a_classifier(vaak, project, tmp_path):
    run = trained(project / "classifier.yml", tmp_path / "run")
    code, _, errors = vaak("classify", run, "वह घर जाता है")
    assert (code, errors.count("\n")) == (2, 1)
    code, said, errors = vaak("classify", run, "वह घर जाता है", "--trust-code", "--json")
    assert code == 0, errors
    assert json.loads(said.splitlines()[0])
    code, said, errors = vaak("eval", run, "--trust-code")
    assert code == 0, errors
    assert "val_accuracy" in said


def test_a_translator_has_one_on_each_side(vaak, project, tmp_path):
    """What both sides share (``global_config``) isn't an option of them; a picture of attention is for Vaak's."""
    run = trained(project / "translator.yml", tmp_path / "run")
    experiment = load([run / "config.yml"]).experiment
    assert (experiment.model.encoder.options, experiment.model.decoder.options) == ({}, {"hidden": 6})
    code, said, errors = vaak("translate", run, "the boy", "--max-new-tokens", "4", "--trust-code", "--json")
    assert code == 0, errors
    assert '"source": "the boy"' in said
    asked = (run, "the boy", "--trust-code", "--attention", tmp_path / "attention.png")
    code, _, errors = vaak("translate", *asked)
    assert (code, errors.count("\n")) == (2, 1)
    assert "model.decoder.type is mine.py:Net, whose attention isn't known" in errors


def test_several_tasks_share_one(vaak, project, tmp_path):
    run = trained(project / "several.yml", tmp_path / "run")
    saved = weights_of(run)
    assert {name.partition(".stack.network")[0] for name in saved if ".network." in name} == {"tasks.kind.transformer"}
    code, _, errors = vaak("classify", run, "वह घर जाता है", "--task", "kind")
    assert (code, errors.count("\n")) == (2, 1)
    code, _, errors = vaak("classify", run, "वह घर जाता है", "--task", "kind", "--trust-code")
    assert code == 0, errors
    decoder = load([project / "several.yml"], [f"run_dir={run}2", "data.tasks.words.model.model_type=decoder"])
    with pytest.raises(UserError, match="is a decoder's, which sees no later token"):
        train(decoder)


def test_a_leak_is_said_before_any_data_is_prepared(vaak, project, tmp_path):
    message = "leak.py:Net: what it makes of the first 1 places changes with those after them"
    config = tmp_path / "config_of_it.yml"
    config.write_text(f"extends: {project / 'tiny.yml'}\nmodel: {{type: {project / 'leak.py'}:Net, d_model: 16}}\n")
    code, _, errors = vaak("train", config, f"run_dir={tmp_path / 'run'}")
    assert (code, errors.splitlines()[-1].partition(message)[0]) == (2, f"{config}:2: model.type: ")
    assert not (tmp_path / "run" / "prepared").exists()
    with pytest.raises((UserError, AssertionError), match=message):
        library.check(config)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{type: './mine.py:Nett'}", r"model\.type: .*armed\.py has no Nett; did you mean Net\?"),
        ("{type: './none.py:Net'}", r"model\.type: .*none\.py can't be read"),
        ("{type: unheard}", 'is "unheard"; expected one of transformer, or ./file'),
        (
            "{type: './mine.py:Net', hiden: 3}",
            r"model\.hiden: armed\.py:Net has no option hiden.* mean hidden\?",
        ),
        ("{type: './mine.py:Net', num_layers: 3}", r"model\.num_layers: armed\.py:Net has no option num_layers"),
        ("{type: './mine.py:Net', hidden_size: 3, d_model: 4}", "the same option as model.d_model"),
        ("{type: './mine.py:Net', pretrained: gpt2}", r"is armed\.py:Net, but pretrained has its own network"),
    ],
)
def test_check_finds_it_without_running_the_file(vaak, project, tmp_path, model, message):
    (project / "armed.py").write_text(f"raise SystemExit\n{NETWORK}")
    (project / "wrong.yml").write_text(f"extends: tiny.yml\nmodel: {model.replace('mine', 'armed')}\n")
    code, _, errors = vaak("config", "check", project / "wrong.yml")
    assert code == 2
    assert re.search(message, errors), errors


def test_a_type_in_a_later_layer_leaves_vaaks_options_behind(project):
    loaded = load([project / "own.yml"])
    assert loaded.experiment.model.options == {"hidden": 12}
    assert any("num_layers: not used" in warning for warning in loaded.warnings)
    back = load([project / "own.yml"], ["model.type=transformer"])
    assert back.experiment.model.options == {}
    assert load([project / "own.yml"], ["model.preset=tiny"]).experiment.model.d_model == 16


def test_the_model_is_shown_and_packing_refused_where_it_is_not_told_apart(vaak, project, whole, tmp_path):
    code, said, errors = vaak("model", "show", whole / "config.yml", "--trust-code", "--json")
    assert (code, errors) == (0, "")
    run = library.open(whole, device="cpu", trust_code=True)
    assert json.loads(said)["parameters"] == sum(parameter.numel() for parameter in run.model.parameters())
    packed = (project / "own.yml", f"run_dir={tmp_path / 'run'}", "training.batching=packed")
    code, _, errors = vaak("train", *packed)
    assert code == 2
    assert "training.batching.type is packed, which its forward must take as documents" in errors
    with pytest.raises(UserError, match=r"fsdp divides Vaak's own networks, and model\.type is mine"):
        run.task.blocks(run.model)


def test_a_registered_name(project, tmp_path, monkeypatch):
    monkeypatch.setitem(REGISTERED, "model", {})
    own: dict[str, Any] = {}
    exec(NETWORK, own)
    library.register_network("mean", own["Net"])
    given = ("model={type: mean, d_model: 16, hidden: 4}", "training.max_steps=1")
    run = trained(project / "tiny.yml", tmp_path / "run", *given)
    assert library.open(run, device="cpu").model.get_parameter("stack.network.inner.weight").shape == (4, 32)
    with pytest.raises(UserError, match="'transformer' is built-in"):
        library.register_network("transformer", own["Net"])
    REGISTERED["model"].clear()
    with pytest.raises(UserError, match=r'is "mean"; expected one of .* register it here, too'):
        library.open(run, device="cpu")
