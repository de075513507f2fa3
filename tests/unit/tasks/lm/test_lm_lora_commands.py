"""Low-rank adapters by the commands: trained, resumed, replayed, evaluated, used, given to transformers and peft."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny_decoder
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.snapshot import Snapshot
from vaak.library.trained_run import open as opened
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel

CONFIG = """\
task: lm
name: adapted
model: {pretrained: llama, lora: {rank: 2, alpha: 4, dropout: 0.1, targets: [query, value]}}
data: {corpus: {type: text, train: train.txt, valid: valid.txt, test: test.txt}, max_length: 48}
training:
  max_steps: 6
  batch_size: 4
  device: cpu
  optimizer: {lr: 1e-2}
  validation: {interval: 3}
  checkpoint: {interval: 3}
  logging: {interval: 1, tensorboard: false}
"""


@pytest.fixture
def folder(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Llama, texts and the configuration, in which commands run."""
    for split in ("train", "valid", "test"):
        shutil.copy(tiny_text / f"{split}.txt", tmp_path)
    (tmp_path / "adapted.yml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checkpoint(run: str, step: int) -> Snapshot:
    return load_checkpoint(Path(f"runs/{run}/checkpoints/step-{step:08d}"))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
def test_a_llama_is_adapted_from_the_command_to_peft(vaak: Any, folder: Path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    base = tiny_decoder.write_folder(folder / "llama", "llama")

    def run(*arguments: str) -> str:
        code, out, err = vaak(*arguments)
        assert code == 0, err
        return str(out)

    run("train", "adapted.yml")
    early, late = checkpoint("adapted", 3), checkpoint("adapted", 6)
    changed = {name for name, one in late.model.items() if not torch.equal(one, early.model[name])}
    assert changed == {name for name in late.model if ".lora_" in name} != set()
    assert all(".lora_" in name for name in late.optimizer)
    frozen = [f"runs/adapted/checkpoints/step-{step:08d}/frozen.safetensors" for step in (3, 6)]
    assert os.path.samefile(*frozen), "the base is on disk once"
    shutil.copytree("runs/adapted", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000006")
    run("train", "adapted.yml", "run_dir=runs/cut", "training.checkpoint.resume=runs/cut/checkpoints/step-00000003")
    again = checkpoint("cut", 6)
    assert all(torch.equal(one, again.model[name]) for name, one in late.model.items())

    whole = Path(frozen[1]).read_bytes()
    Path(frozen[1]).write_bytes(whole[:-1] + b"?")  # of both checkpoints
    assert "test_perplexity" in run("eval", "runs/adapted", "--split", "test", "--json"), "the base has them, too"
    run("train", "adapted.yml", "--resume", "auto")
    assert Path(frozen[1]).read_bytes() == whole, "a resume restores them"
    shutil.rmtree("llama")  # the run's checkpoints have all weights
    assert "test_perplexity" in run("eval", "runs/adapted", "--split", "test", "--json")
    assert run("generate", "runs/adapted", "राम", "--max-new-tokens", "4").startswith("राम")
    run("export", "runs/adapted", "--format", "hf", "--output", "merged")
    run("export", "runs/adapted", "--format", "peft", "--output", "adapter")
    ids = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(0))
    merged = transformers.AutoModelForCausalLM.from_pretrained("merged")
    plain = base(ids).logits
    adapted = peft.PeftModel.from_pretrained(base, "adapter").eval()
    with torch.no_grad():
        expected = opened("runs/adapted", device="cpu").model(ids)
        assert (expected - plain).abs().max() > 1e-3, "training changed something"
        torch.testing.assert_close(adapted(ids).logits, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(merged(ids).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
def test_dora_of_a_llama_is_resumed_to_the_same_bits_and_read_by_peft(vaak: Any, folder: Path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    base = tiny_decoder.write_folder(folder / "llama", "llama")

    def run(*arguments: str) -> None:
        code, _, err = vaak(*arguments)
        assert code == 0, err

    changes = ("model.lora.dora=true", "model.lora.rslora=true", "model.neftune_noise_alpha=5")
    run("train", "adapted.yml", *changes)
    shutil.copytree("runs/adapted", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000006")
    half = "training.checkpoint.resume=runs/cut/checkpoints/step-00000003"
    run("train", "adapted.yml", "run_dir=runs/cut", half, *changes)
    late, again = checkpoint("adapted", 6).model, checkpoint("cut", 6).model
    assert any("lora_magnitude_vector" in name for name in late)
    assert all(torch.equal(one, again[name]) for name, one in late.items())
    run("export", "runs/adapted", "--format", "hf", "--output", "merged")
    run("export", "runs/adapted", "--format", "peft", "--output", "adapter")
    ids = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(0))
    whole = transformers.AutoModelForCausalLM.from_pretrained("merged")
    adapted = peft.PeftModel.from_pretrained(base, "adapter").eval()
    with torch.no_grad():
        expected = opened("runs/adapted", device="cpu").model(ids)
        torch.testing.assert_close(adapted(ids).logits, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(whole(ids).logits, expected, rtol=0, atol=1e-4)


def test_noise_moves_vectors_of_tokens_by_what_the_paper_says_and_in_training_alone():
    config = LanguageModelConfig(d_model=16, num_layers=1, num_heads=2, dropout=0.0, neftune_noise_alpha=5.0)
    model, ids = LanguageModel(config, 50), torch.arange(36).view(3, 12)
    exact = model.embedding.weight[ids]
    moved = model.train().embedding(ids) - exact
    most = 5 / (12 * 16) ** 0.5
    assert 0.98 * most < moved.abs().max() <= most + 1e-6
    assert moved.std().item() == pytest.approx(most / 3**0.5, rel=0.1), "of a uniform distribution"
    assert torch.equal(model.eval().embedding(ids), exact)


@pytest.mark.slow
def test_a_base_whose_experts_a_bias_balances_is_trained_and_keeps_its_bias(vaak: Any, folder: Path):
    tiny_decoder.write_folder(folder / "theirs", "glm4_moe")
    options = [
        "model={pretrained: theirs}",
        "model.lora=null",
        "training.max_steps=2",
        "training.validation.interval=2",
        "run_dir=runs/glm",
    ]
    for command in (["train", "adapted.yml", *options], ["export", "runs/glm", "--output", "glm"]):
        code, out, err = vaak(*command)
        assert code == 0, out + err
    before, after = (load_file(folder / name / "model.safetensors") for name in ("theirs", "glm"))
    assert before.keys() == after.keys()
    same = {name for name, one in before.items() if torch.equal(one, after[name])}
    assert {name for name in before if name.endswith("e_score_correction_bias")} <= same
    assert "model.layers.1.mlp.gate.weight" not in same


TARGETS = {"gpt_neox": "query_key_value", "bloom": "query_key_value", "phi3": "qkv_proj", "mamba": "x_proj"}
"""Its logits are bounded, its windows slide, and its norms are before and after each layer."""


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in tiny_decoder.OTHERS])
def test_transformers_own_modules_are_adapted_resumed_and_exported(
    vaak: Any, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it is asked for long for what is gone
    base = tiny_decoder.write_folder(folder / "theirs", kind)
    target = TARGETS.get(kind, "q_proj")
    packed = "fixed" if kind in ("opt", "bloom", "mamba") else "packed"

    def run(*arguments: str) -> str:
        code, out, err = vaak(*arguments)
        assert code == 0, err
        return str(out)

    lora = f"{{rank: 2, alpha: 4, dropout: 0.1, targets: [{target}], base_dtype: bf16}}"
    options = [f"model={{pretrained: theirs, dropout: 0.1, lora: {lora}}}", "data.minimal_pairs=[pairs.jsonl]"]
    options += ["training.max_steps=4", "training.checkpoint.interval=2", "training.validation.interval=2"]
    options += [f"training.batching={packed}", "training.performance.gradient_checkpointing=true"]
    pair = {"sentence_good": "राम घर जाता है", "sentence_bad": "राम घर जाती है", "UID": "gender"}
    (folder / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    if kind == "mamba":
        code, _, err = vaak("train", "adapted.yml", *options)
        assert (code, "base_dtype is bf16: mamba of transformers needs all its weights in fp32" in err) == (2, True)
        options.append("model.lora.base_dtype=fp32")
    run("train", "adapted.yml", *options)
    early, late = checkpoint("adapted", 2), checkpoint("adapted", 4)
    changed = {name for name, one in late.model.items() if not torch.equal(one, early.model[name])}
    assert changed == {name for name in late.model if ".lora_" in name} != set()
    shutil.copytree("runs/adapted", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000004")
    shutil.rmtree("theirs")  # the run's checkpoints have all weights
    resume = "training.checkpoint.resume=runs/cut/checkpoints/step-00000002"
    run("train", "adapted.yml", *options, "run_dir=runs/cut", resume)
    again = checkpoint("cut", 4)
    assert [name for name, one in late.model.items() if not torch.equal(one, again.model[name])] == []
    assert "the weights after it are equal to" in run("replay", "runs/adapted", "--step", "4")
    assert "pairs_accuracy" in run("eval", "runs/adapted", "--split", "test", "--split", "pairs", "--json")
    assert run("generate", "runs/adapted", "राम", "--max-new-tokens", "4").startswith("राम")
    run("export", "runs/adapted", "--format", "hf", "--output", "merged")
    run("export", "runs/adapted", "--format", "peft", "--output", "adapter")
    code, _, err = vaak("export", "runs/adapted", "--format", "onnx", "--output", "file")
    assert (code, "the model is transformers' own module" in err) == (2, True)
    ids = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(0))
    merged = transformers.AutoModelForCausalLM.from_pretrained("merged")
    plain = base(ids).logits
    adapted = peft.PeftModel.from_pretrained(base, "adapter").eval()
    with torch.no_grad():
        expected = opened("runs/adapted", device="cpu").model(ids)
        rounded = (expected - plain).abs().max()  # weights are kept in bf16, and exported so
        torch.testing.assert_close(merged(ids).logits, expected, rtol=0, atol=1e-4)
        assert (adapted(ids).logits - expected).abs().max() <= rounded + 1e-4
