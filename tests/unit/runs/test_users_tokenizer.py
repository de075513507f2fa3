"""Runs with a user's tokenizer: trained, resumed to the bit, evaluated, used with trust; what is wrong is one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import tiny_runs
import vaak as library
from users_classes import CHARACTERS as CODE
from vaak.config.base import REGISTERED
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.engine.checkpoint.files import load_checkpoint, newest_whole
from vaak.runs.start import train
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

OWN = """\
extends: tiny.yml
data: {tokenizer: {type: './characters.py:Characters', unknown: '#'}}
training: {checkpoint: {interval: 2}}
"""
TRANSLATOR = """\
task: seq2seq
name: translator
model: {global_config: {d_model: 16, num_layers: 1, num_heads: 2}, share_embeddings: false}
data:
  corpus: {num_sentences: 60}
  tokenizer: {type: './characters.py:Characters'}
  target_tokenizer: {type: './characters.py:Characters', unknown: '#'}
training:
  max_steps: 2
  device: cpu
  logging: {tensorboard: false, progress_bar: false}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    tiny_runs.write_corpus(folder)
    (folder / "characters.py").write_text(CODE)
    (folder / "own.yml").write_text(OWN)
    (folder / "translator.yml").write_text(TRANSLATOR)
    return folder


def trained(config: Path, run: Path, *overrides: str) -> Path:
    train(load([config], [f"run_dir={run}", *overrides], trust_code=True))
    return run


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(project / "own.yml", tmp_path_factory.mktemp("runs") / "whole")


def test_a_resume_changes_no_bit(project, whole, tmp_path):
    run = trained(project / "own.yml", tmp_path / "run", "training.max_steps=4")
    trained(run / "config.yml", run, "training.max_steps=8", "training.checkpoint.resume=auto")
    found, expected = (load_checkpoint(newest_whole(one / "checkpoints")[0] or one) for one in (run, whole))
    assert found.step == expected.step == 8
    assert all(tensor.equal(expected.model[name]) for name, tensor in found.model.items())
    marks = [read_json(one / "prepared" / "prepared.json")["fingerprint"] for one in (run, whole)]
    assert marks[0] == marks[1]


def test_it_is_evaluated_and_used_with_trust_alone(vaak, project, whole):
    for command in (("eval", whole), ("generate", whole, "वह"), ("predict", whole, "वह")):
        code, _, errors = vaak(*command)
        assert (code, errors.count("\n")) == (2, 1)
        assert "./code/characters.py:Characters" in errors
        assert "--trust-code" in errors
    code, said, errors = vaak("eval", whole, "--trust-code", "--split", "test")
    assert code == 0, errors
    assert "test_bits_per_byte" in said
    code, said, errors = vaak("generate", whole, "वह", "--max-new-tokens", "5", "--trust-code")
    assert code == 0, errors
    assert said.startswith("वह")
    code, _, errors = vaak("export", whole, "--format", "hf", "--trust-code")
    assert code == 2
    assert "transformers can't load" in errors


def test_other_text_is_read_with_what_the_run_has_learned(vaak, project, whole, tmp_path):
    (tmp_path / "other.txt").write_text("वह ℵ\n")
    given = f"data.corpus.test=[{tmp_path / 'other.txt'}]"
    code, said, errors = vaak("eval", whole, given, "--split", "test", "--trust-code")
    assert code == 0, errors
    assert "test_loss" in said
    run = library.open(whole, device="cpu", trust_code=True)
    assert run.tokenizer.decode(run.tokenizer.encode("वह ℵ")) == "वह #"
    assert run.evaluate(["वह ℵ"])["loss"] > 0


def test_changed_code_is_not_resumed_with_the_old_ids(project, whole, tmp_path):
    run = trained(project / "own.yml", tmp_path / "run", "training.max_steps=2")
    (tmp_path / "characters.py").write_text(CODE.replace("sorted(", "reversed(sorted(").replace("})]", "}))]"))
    (tmp_path / "own.yml").write_text(OWN.replace("tiny.yml", str(project / "tiny.yml")))
    with pytest.raises(UserError, match=r"data\.corpus or data\.tokenizer has other options"):
        trained(tmp_path / "own.yml", run, "training.max_steps=4", "training.checkpoint.resume=auto")


def test_a_translator_has_one_for_each_side(vaak, project, tmp_path):
    run = trained(project / "translator.yml", tmp_path / "run")
    code, _, errors = vaak("translate", run, "the boy")
    assert (code, errors.count("\n")) == (2, 1)
    assert "--trust-code" in errors
    code, said, errors = vaak("translate", run, "the boy", "--max-new-tokens", "4", "--trust-code", "--json")
    assert code == 0, errors
    assert '"source": "the boy"' in said
    code, said, errors = vaak("eval", run, "--trust-code")
    assert code == 0, errors
    assert "val_bleu" in said


@pytest.mark.parametrize("name", ["own.yml", pytest.param("translator.yml", marks=pytest.mark.slow)])
def test_what_only_the_tokenizer_knows_is_said_before_it_is_trained(vaak, project, tmp_path, name):
    asked = (project / name, f"run_dir={tmp_path / 'run'}", "--trust-code")
    code, said, errors = vaak("model", "show", *asked)
    assert (code, said, errors.count("\n")) == (2, "", 1)
    assert "is known once its data are prepared: train it, then give" in errors
    code, said, errors = vaak("doctor", *asked, "--json")
    assert (code, errors) == (0, "")
    findings = json.loads(said)["findings"]
    assert {one["name"]: one["mark"] for one in findings if one["about"] == "configuration"}["data"] == "ok"
    code, said, errors = vaak("config", "check", *asked)
    assert code == 0, errors


@pytest.mark.slow
def test_the_model_of_a_run_is_shown(vaak, whole):
    config = whole / "config.yml"
    code, said, errors = vaak("model", "show", config)
    assert (code, said, errors.count("\n")) == (2, "", 1)
    assert "--trust-code" in errors
    code, said, errors = vaak("model", "show", config, "--trust-code", "--json")
    assert (code, errors) == (0, "")
    run = library.open(whole, device="cpu", trust_code=True)
    shown = json.loads(said)
    assert shown["parameters"] == sum(parameter.numel() for parameter in run.model.parameters())
    assert shown["flops_per_unit"] > 0
    code, said, errors = vaak("doctor", config, "--trust-code", "--json")
    assert errors == ""
    problems = [one["name"] for one in json.loads(said)["findings"] if one["mark"] == "problem"]
    assert problems == ["run directory"], "it holds a run, and resume isn't asked for"


def test_a_registered_name(project, tmp_path, monkeypatch):
    monkeypatch.setitem(REGISTERED, "data.tokenizer", {})
    own: dict[str, type] = {}
    exec(CODE, own)
    library.register_tokenizer("characters", own["Characters"])
    run = trained(project / "tiny.yml", tmp_path / "run", "data.tokenizer=characters", "training.max_steps=1")
    assert library.open(run, device="cpu").tokenizer.encode("वह")
    with pytest.raises(UserError, match="'bpe' is built-in"):
        library.register_tokenizer("bpe", own["Characters"])


def made(folder: Path, code: str, **options: str) -> Tokenizer:
    (folder / "own.py").write_text(code)
    config = TokenizerConfig(type=f"{folder / 'own.py'}:Characters", options=options)
    return TokenizerFactory(config, folder).create_tokenizer(["ab", "ba"])


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (CODE.replace("def decode", "def decoded"), {}, r"own\.py:Characters lacks decode; a tokenizer's methods are"),
        (CODE, {"unknwon": "x"}, r"has no option unknwon; its options are unknown; did you mean unknown"),
        (
            CODE.replace("return len(self.characters)", "return 2"),
            {},
            "'ab' with id 2; its ids go from 0 to 1",
        ),
        (CODE.replace('{"characters": self', '{"characters": {1} and set(self').replace("ters}", "ters)}"), {}, "JSON"),
        (CODE.replace('state["characters"]', 'state["others"]'), {}, "load_state_dict of .* KeyError: 'others'"),
        ("Characters = 3\n", {}, "is not a class"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tmp_path, code, options, message):
    with pytest.raises(UserError, match=message) as error:
        made(tmp_path, code, **options).encode("ab")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("data.tokenizer: ")


def test_special_tokens_are_its_own_ids_before(tmp_path):
    tokenizer = made(tmp_path, CODE)
    assert [getattr(tokenizer, f"{role}_id") for role in tokenizer.special_tokens] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("ab?<s>") == [6, 7, 5, 5, 5, 5]
    assert tokenizer.vocab_size == 8
    ids = [tokenizer.bos_id, *tokenizer.encode("ab"), tokenizer.eos_id]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>ab</s>"
    assert tokenizer.are_reproduced([ids, [], ids], ["ab", "", "b"]) == [True, True, False]
    assert [tokenizer.readable(token) for token in ids] == ["<s>", "a", "b", "</s>"]
    with pytest.raises(UserError, match="8 is not a token; the tokenizer has 8"):
        tokenizer.readable(8)
    copied = pickle.loads(pickle.dumps(tokenizer))
    assert (copied.encode("ba"), copied.fingerprint) == ([7, 6], tokenizer.fingerprint)
