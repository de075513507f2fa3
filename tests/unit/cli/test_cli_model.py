"""``vaak model show``: the tree, the figures, as text and as JSON; nothing is read or written."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from vaak.tasks.lm.model import LanguageModel

CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED = [
    pytest.param(
        path.relative_to(CONFIGS),
        marks=[] if name == "quickstart.yml" and path.parent.name == "configs" else [pytest.mark.slow],
    )
    for name in ("quickstart.yml", "builtin_voice.yml")
    for path in sorted(CONFIGS.rglob(name))
    if path.parent.name != "classification"  # its classes are known once its data are prepared
]
SEQ2SEQ = """\
task: seq2seq
model:
  global_config: {d_model: 64, num_heads: 4, num_layers: 1}
  encoder: {attention_type: linear}
  decoder: {attention_type: causal_linear}
data: {tokenizer: {vocab_size: 500}, max_source_length: 30, max_target_length: 20}
training: {device: cpu, batch_size: 8, loss: {auxiliary: {norm_reg: 0.1}}}
"""
LM = """\
task: lm
model: {d_model: 64, num_layers: 3, num_heads: 4}
data: {corpus: {type: text, train: [there/is/no.txt]}, tokenizer: {vocab_size: 500}, max_length: 32}
training: {device: cpu, batch_size: 8, ema: 0.99}
"""


@pytest.fixture
def shown(vaak, tmp_path, monkeypatch):
    """A function from YAML text and overrides to what the command prints as JSON."""
    monkeypatch.chdir(tmp_path)

    def of(text, *overrides):
        (tmp_path / "f.yml").write_text(text)
        code, out, errors = vaak("model", "show", "f.yml", *overrides, "--json")
        assert (code, errors) == (0, "")
        assert [path.name for path in tmp_path.iterdir()] == ["f.yml"]
        return json.loads(out)

    return of


CTC = """\
task: asr
model: {architecture: ctc, conformer: {d_model: 32, num_layers: 1, num_heads: 2}}
data: {tokenizer: {vocab_size: 50}, max_duration: 2}
training: {device: cpu, batch_size: 4}
"""


def test_a_conformer_before_its_data(shown):
    found = shown(CTC)
    assert found["parameters"] == found["trained"] > 0
    assert found["memory_bytes"]["activations"] > 0


def test_a_language_model(shown):
    found = shown(LM)
    assert found["parameters"] == found["trained"] == found["tree"][0]["parameters"]
    memory = found["memory_bytes"]
    numbers = 4 * found["parameters"]
    assert [memory[name] for name in ("weights", "gradients", "optimizer", "average")] == [
        numbers, numbers, 2 * numbers, numbers,
    ]  # fmt: skip
    assert memory["needed"] == 5 * numbers + memory["activations"]
    assert (found["unit"], found["microbatch_rows"]) == ("token", 8)
    blocks = [branch for branch in found["tree"] if branch["repeats"] == 3]
    assert [branch["name"] for branch in blocks] == ["0–2"]
    assert found["tree"][-1]["same_as"] == "embedding"


def test_operations_are_those_of_the_formula(shown):
    found = shown(LM)
    attention = 12 * 3 * 64 * 32  # layers, width, length
    in_products = found["parameters"] - 7 * 64  # but for the norms
    assert found["flops_per_unit"] == pytest.approx(6 * in_products + attention, rel=0.02)


@pytest.mark.slow  # tests/unit/engine/test_dry_pass.py measures them
def test_activations_follow_the_batch(shown):
    activations = [
        shown(LM, *overrides)["memory_bytes"]["activations"]
        for overrides in (
            [],
            ["training.batch_size=16"],
            ["training.batching={type: bucketed, max_tokens: 256}"],
            ["training.performance.gradient_checkpointing=true"],
        )
    ]
    assert activations[1] > 1.7 * activations[0]
    assert activations[2] == activations[0]
    assert activations[3] < 0.7 * activations[0]


@pytest.mark.parametrize("config", SHIPPED, ids=str)
def test_a_shipped_configuration(vaak, tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    code, out, errors = vaak("model", "show", str(CONFIGS / config), "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["parameters"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["transformer", "flow_matching"])
def test_learned_durations_are_counted_too(vaak, tmp_path, monkeypatch, decoder):
    monkeypatch.chdir(tmp_path)
    sizes = ("model.global_config={d_model: 32, num_layers: 1, num_heads: 2}", "data.max_duration=0.5")
    options = ("model.durations=learned", f"model.decoder_type={decoder}", *sizes)
    code, out, errors = vaak("model", "show", str(CONFIGS / "tts" / "quickstart.yml"), *options, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["memory_bytes"]["activations"] > 0


def test_frozen_parameters_take_no_gradient(shown):
    found = shown(LM, "training.freeze=[{match: embedding}]")
    assert found["parameters"] - found["trained"] == 500 * 64
    assert found["memory_bytes"]["gradients"] == 4 * found["trained"]


def test_a_translator(shown):
    found = shown(SEQ2SEQ)
    kinds = {branch["name"]: branch for branch in found["tree"]}
    assert kinds["source_embedding"]["same_as"] == "target_embedding"
    assert any("projection" in branch["tensors"] for branch in found["tree"])
    assert found["memory_bytes"]["activations"] > 0
    assert found["microbatch_rows"] == 8


def test_text(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yml").write_text(LM)
    code, out, _ = vaak("model", "show", "f.yml")
    assert code == 0
    for words in ("Block × 3", "tied to embedding", "MFLOPs per token", "8 rows", "activations", "weight 500×64"):
        assert words in out


def test_mistakes(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yml").write_text(LM)
    code, _, errors = vaak("model", "show", "f.yml", "model.d_model=65")
    assert (code, len(errors.splitlines())) == (2, 1)
    code, _, errors = vaak("model", "show", "f.yml", "training.freeze=[{match: zzz}]")
    assert code == 2
    assert "matches no parameter" in errors


def test_what_a_task_does_not_tell_is_said(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yml").write_text(LM)
    forward = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda self, ids, **k: forward(self, ids[ids.nonzero()[:, 0]], **k))
    code, out, _ = vaak("model", "show", "f.yml")
    assert code == 0
    assert "activations     unknown  a shape depends on numbers" in out
    assert "\n  total" not in out
    code, out, _ = vaak("model", "show", "f.yml", "--json")
    assert (code, json.loads(out)["memory_bytes"]["needed"]) == (0, None)


@pytest.mark.slow
def test_a_diarizer_is_shown_before_there_are_recordings(shown):
    text = (
        "task: diarization\nmodel: {preset: small}\ndatasets: [{name: there_is_none, type: json, train: [no.jsonl]}]\n"
    )
    about = shown(text + "training: {device: cpu, batch_size: 4, eval_knobs: {label_type: multilabel}}\n")
    assert about["parameters"] > 100_000


def test_a_model_for_gpus_that_this_machine_lacks(vaak, tmp_path, monkeypatch, shown):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = shown(LM, "training.device=cuda", "training.batch_size=64")
    assert (found["device"], found["precision"], found["memory_bytes"]["limit"]) == ("cuda", "bf16", None)
    on_cpu = shown(LM, "training.mixed_precision=bf16", "training.batch_size=64")
    assert {**found, "device": "cpu"} == on_cpu | {"memory_bytes": on_cpu["memory_bytes"] | {"limit": None}}
    code, out, errors = vaak("model", "show", "f.yml", "training.device=cuda", "--gpus", "8", "--memory", "80")
    assert (code, errors) == (0, "")
    assert "memory of training on cuda (this machine has none: counted as on a CPU), precision bf16" in out
    assert "of 80.0 GiB" in out
    assert "fits for 80 GiB" in out
    code, _, errors = vaak("model", "show", "f.yml", "training.device=cuba")
    assert (code, len(errors.splitlines())) == (2, 1)


LLAMA = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
BERT = {
    "model_type": "bert", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
MODERNBERT = {
    "model_type": "modernbert", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
    "sep_token_id": 2,
}  # fmt: skip
T5 = {
    "model_type": "t5", "vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
BASES = {
    "llama": ("lm", LLAMA, "pretrained"),
    "a module of transformers": ("lm", FALCON, "pretrained"),
    "bert": ("classification", BERT, "pretrained_model"),
    # Its weights are drawn until all of them are in a range.
    "modernbert": ("classification", MODERNBERT, "pretrained_model"),
    "t5": ("seq2seq", T5, "pretrained"),
}


@pytest.mark.parametrize(("task", "config", "key"), BASES.values(), ids=BASES)
def test_a_base_is_known_by_its_configuration_alone(shown, tmp_path_factory, task, config, key):
    base = tmp_path_factory.mktemp("base")
    (base / "config.json").write_text(json.dumps(config))
    text = f"task: {task}\nmodel: {{{key}: {base}}}\ntraining: {{device: cpu, batch_size: 2}}\n"
    data = "{max_source_length: 30, max_target_length: 20}" if task == "seq2seq" else "{max_length: 32}"
    found = shown(text + f"data: {data}\n")
    auto = {"lm": AutoModelForCausalLM, "classification": AutoModel, "seq2seq": AutoModelForSeq2SeqLM}[task]
    theirs = sum(one.numel() for one in auto.from_config(AutoConfig.from_pretrained(base)).parameters())
    head = 2 * 32 + 2 if task == "classification" else 0
    pooler = 32 * 32 + 32 if task == "classification" else 0
    assert found["parameters"] in (theirs + head, theirs + head - pooler)
    assert found["memory_bytes"]["activations"] is None if task == "classification" else found["unit"] == "token"
    assert [path.name for path in base.iterdir()] == ["config.json"]
    if config is LLAMA:
        assert shown(text + f"data: {data}\n", "model.lora={rank: 2}")["trained"] < theirs / 4


def test_a_base_of_another_kind_is_a_mistake(vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "f.yml").write_text("task: lm\nmodel: {pretrained: base}\n")
    code, _, errors = vaak("model", "show", "f.yml")
    assert code == 2
    assert errors.splitlines() == [
        "model.pretrained: base is a bert, which isn't a causal language model; give a decoder, such as Llama or Gemma"
    ]
