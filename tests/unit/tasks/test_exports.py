"""Every task's run is exported as ONNX with our outputs, its adapters for peft; else its formats are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from quick_cases import mostly_slow
from small_diarizers import NUM_BINS, small_diarizer
from tiny_decoder import write_folder as write_decoder
from tiny_encoder_decoder import write_folder as write_pair
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import OpenedRun, open_run
from vaak.runs.start import train as train_run
from vaak.runs.use import available_formats, require_format
from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.predict import export_onnx as export_diarizer
from vaak.tasks.diarization.task import DiarizationTask
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import export_onnx as export_language_model
from vaak.tasks.lm.model import LanguageModel
from vaak.text.tokenizer import Tokenizer

onnxruntime = pytest.importorskip("onnxruntime")

PAIRS = """\
task: seq2seq
model: {global_config: {d_model: 16, num_layers: 1, num_heads: 2}}
data:
  corpus: {num_sentences: 40}
  max_source_length: 80
  max_target_length: 80
  decoding: {valid_examples: 1, max_new_tokens: 9}
training:
  {max_steps: 2, batch_size: 4, device: cpu, optimizer: {lr: 1e-2}, logging: {tensorboard: false, progress_bar: false},
   memory: {rehearsal: false}}
"""
TASKS = """\
name: both
tasks:
  word: child.yml
  text: tiny.yml
training: {max_steps: 2, batch_size: 4, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""
CHILD = """\
task: classification
model: {architecture: cnn, embed_size: 8, num_filters: 8, filter_sizes: [1, 2]}
data: {corpus: {num_sentences: 200}, max_length: 20}
"""


def run_onnx(file: Path, **inputs: Any) -> list[np.ndarray]:
    found: list[np.ndarray] = onnxruntime.InferenceSession(file).run(None, {k: v.numpy() for k, v in inputs.items()})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"front_end": "stacked", "subsampling": 10, "upsampling": 1},
        {"attention_type": "linear"},
        {"embedding_dim": 0},
    ],
)
def test_a_diarizer_says_in_onnxruntime_who_speaks(options: dict[str, Any], tmp_path: Path):
    model = small_diarizer(**options)
    export_diarizer(Diarizer(model, InferenceConfig(), 0.01), NUM_BINS, "{}", tmp_path / "onnx")
    check_who_speaks(tmp_path / "onnx" / "model.onnx", model, NUM_BINS)


def check_who_speaks(file: Path, model: Any, num_bins: int) -> None:
    time = 8 * model.config.subsampling
    features = torch.randn(2, time, num_bins)
    mask = torch.arange(time) < torch.tensor([[time], [time - 5]])
    found = run_onnx(file, features=features, mask=mask)
    with torch.no_grad():
        expected = model.infer(features, mask)
    np.testing.assert_allclose(found[0], expected.probabilities, atol=1e-4)
    assert (len(found) == 2) == (model.embedding is not None)


@pytest.mark.slow
def test_a_diarizers_run_is_exported(diarizer_run: Path, vaak: Any, tmp_path: Path):
    code, _, err = vaak("export", diarizer_run, "--format", "onnx", "--output", tmp_path / "onnx")
    assert code == 0, err
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["features"])["num_mel_bins"] == 24
    assert json.loads(about["names"]) is None
    model: Any = open_run(diarizer_run, device="cpu").model.eval()
    check_who_speaks(tmp_path / "onnx" / "model.onnx", model, 24)
    code, _, err = vaak("export", diarizer_run)
    assert (code, err) == (2, "--format hf: a run of task diarization can't be exported so; use --format onnx\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "decoder", "position_type": "alibi"},
        {"position_type": "convolutional"},
        {"position_type": "learned"},
        {"position_type": "t5"},
        {"attention_type": "linear"},
        {"attention_type": "local", "window": 4},
        {"model_type": "decoder", "attention_type": "causal_linear"},
    ],
)
def test_language_models_score_tokens_in_onnxruntime(options: dict[str, Any], tiny_run: Path, tmp_path: Path):
    sizes = {"model_type": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**{**sizes, **options}), 40, 90).eval()
    export_language_model(model, Tokenizer.load(tiny_run / "prepared" / "tokenizer"), 90, tmp_path / "onnx")
    ids = torch.randint(40, (2, 77))
    mask = torch.arange(77) < torch.tensor([[77], [20]])
    is_encoder = model.config.model_type == "encoder"
    given = {"inputs": ids, "mask": mask} if is_encoder else {"inputs": ids}
    logits, hidden = run_onnx(tmp_path / "onnx" / "model.onnx", **given)
    with torch.no_grad():
        expected = model(ids, mask=mask if is_encoder else None)
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(logits[1, :20], expected[1, :20], atol=1e-4)
    assert hidden.shape == (2, 77, 16)


@pytest.mark.slow
def test_a_masked_language_model_is_told_what_it_can_be(tiny_text: Path, tmp_path: Path, vaak: Any):
    tiny_runs.train(tiny_text, tmp_path / "run", "model.model_type=encoder", "training.max_steps=1")
    code, _, err = vaak("export", tmp_path / "run")
    assert code == 2
    assert err.startswith("--format hf: Only a decoder can be exported")
    assert err.endswith("; use --format onnx\n")
    code, _, err = vaak("export", tmp_path / "run", "--format", "onnx")
    assert code == 0, err
    assert {"model.onnx", "tokenizer.json"} <= {path.name for path in (tmp_path / "run" / "export" / "onnx").iterdir()}


def test_adapters_of_gpt2_are_merged(tmp_path: Path, tiny_text: Path):
    write_decoder(tmp_path / "gpt2", "gpt2")
    options = [f"model={{pretrained: {tmp_path / 'gpt2'}, lora: {{targets: [query]}}}}", "training.max_steps=1"]
    text = tiny_runs.loaded(tiny_text, tmp_path / "run").folder / "tiny.yml"
    lines = [line for line in text.read_text().splitlines() if not line.startswith(("model", "  tokenizer"))]
    (tmp_path / "gpt2.yml").write_text("\n".join(lines))
    train_run(load([tmp_path / "gpt2.yml"], [f"run_dir={tmp_path / 'run'}", *options]))
    run = open_run(tmp_path / "run", device="cpu")
    with pytest.raises(
        UserError, match=r"one layer for several of ours, so they are merged; use --format hf, onnx or ct2$"
    ):
        require_format(run.task, "peft")


def trained(folder: Path, name: str, *options: str) -> OpenedRun:
    train_run(load([folder / "pairs.yml"], [f"run_dir={folder / name}", *options]))
    return open_run(folder / name, device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("model.copy_source=true", "data.tokenizer.type=character"), marks=pytest.mark.slow),
        pytest.param(
            ("model.encoder.attention_type=linear", "model.decoder.attention_type=causal_linear"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("model.global_config.position_type=learned",), marks=pytest.mark.slow),
    ],
)
def test_a_drawn_translator_is_an_encoder_and_a_decoder_in_onnxruntime(options: tuple[str, ...], tmp_path: Path):
    (tmp_path / "pairs.yml").write_text(PAIRS)
    run = trained(tmp_path, "run", "training.max_steps=1", *options)
    with pytest.raises(UserError, match=r"--format hf: transformers has no translator .*; use --format onnx$"):
        require_format(run.task, "hf")
    run.task.export_onnx(run.model, tmp_path / "onnx")
    model: Any = run.model
    source, target = torch.randint(5, 40, (2, 50)), torch.randint(5, 40, (2, 60))
    mask = torch.arange(50) < torch.tensor([[50], [30]])
    (memory,) = run_onnx(tmp_path / "onnx" / "encoder.onnx", source=source, source_mask=mask)
    given = {"target": target, "memory": torch.from_numpy(memory), "source_mask": mask}
    given |= {"source": source} if model.copying is not None else {}
    (logits,) = run_onnx(tmp_path / "onnx" / "decoder.onnx", **given)
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(source, mask, target), atol=1e-3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", mostly_slow(("drawn", "t5", "marian"), "t5"))
def test_adapters_of_a_translator_are_for_its_base(kind: str, tmp_path: Path):
    peft = pytest.importorskip("peft")
    (tmp_path / "pairs.yml").write_text(PAIRS)
    base: Any
    if kind == "drawn":
        base = trained(tmp_path, "first").model
        options = [f"training.checkpoint.init_from={tmp_path / 'first'}"]
    else:
        base = write_pair(tmp_path / "theirs", kind).eval()
        text = PAIRS.replace("{global_config: {d_model: 16, num_layers: 1, num_heads: 2}}", "{pretrained: theirs}")
        (tmp_path / "pairs.yml").write_text(text)
        options = [f"model.pretrained={tmp_path / 'theirs'}"]
    run = trained(tmp_path, "lora", "model.lora={rank: 2}", "training.optimizer.lr=0.3", *options)
    assert "peft" in available_formats(run.task)
    source, target = torch.randint(5, 40, (2, 9)), torch.randint(5, 40, (2, 6))
    mask = torch.ones(2, 9, dtype=torch.bool)
    with torch.no_grad():
        expected = run.model(source, mask, target)
        plain = base(source, mask, target) if kind == "drawn" else None
        run.task.export_peft(run.model, tmp_path / "adapter")
        adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
        if plain is not None:
            assert (plain - expected).abs().max() > 1e-3, "training changed something"
            found = adapted(source, mask, target)
            assert f'vaak.open("{tmp_path / "first"}")' in (tmp_path / "adapter" / "README.md").read_text()
        else:
            found = adapted(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
            by_itself = peft.AutoPeftModelForSeq2SeqLM.from_pretrained(tmp_path / "adapter").eval()
            again = by_itself(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
            torch.testing.assert_close(again, found, rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("diarizer_run", "voice_run", "vocoder_run")]
)
def test_adapters_of_speech_are_for_the_run_that_they_began_with(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
):
    peft = pytest.importorskip("peft")
    first = request.getfixturevalue(name)
    layers = {"diarizer_run": "query, value", "voice_run": "query, value", "vocoder_run": "down, up, head"}[name]
    options = [f"run_dir={tmp_path / 'lora'}", f"model.lora={{rank: 2, targets: [{layers}]}}", "training.max_steps=2"]
    options += [f"training.checkpoint.init_from={first}", "training.checkpoint.resume=null"]
    train_run(load([first / "config.yml"], options))
    run = open_run(tmp_path / "lora", device="cpu")
    run.task.export_peft(run.model, tmp_path / "adapter")
    base = open_run(first, device="cpu").model
    adapted: Any = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).base_model.model
    theirs, ours = adapted.state_dict(), run.model.state_dict()
    of_use = [key for key in theirs if "discriminators" not in key]
    assert any("lora_B" in key and theirs[key].any() for key in of_use)
    assert all(torch.equal(theirs[key], ours[key]) for key in of_use)


@pytest.fixture
def folder(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of two tasks and of both, in which commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yml").write_text((tiny_text / "tiny.yml").read_text())
    (tmp_path / "child.yml").write_text(CHILD)
    (tmp_path / "both.yml").write_text(TASKS)
    return tmp_path


@pytest.mark.slow
def test_each_task_of_several_has_a_folder(folder: Path, vaak: Any, caplog: pytest.LogCaptureFixture):
    train_run(load(["both.yml"]))
    code, _, err = vaak("export", "runs/both", "--format", "hf", "--output", "out")
    assert code == 0, err
    assert "word: --format hf: transformers has classifiers on its own encoders only" in caplog.text
    assert (folder / "out" / "text" / "model.safetensors").exists()
    assert (folder / "out" / "word" / "model.onnx").exists()
    code, _, err = vaak("export", "runs/both", "--format", "peft")
    assert code == 2
    assert err.endswith("text: this model has no low-rank adapters (model.lora); use --format hf or onnx\n")


def test_a_diarizer_with_attractors_has_no_format(made_recordings: Path, tmp_path: Path):
    experiment: Any = load(
        [made_recordings / "tiny.yml"], ["model.head=attractors", "training.loss.auxiliary={attractor: 1.0}"]
    ).experiment
    task: Any = DiarizationTask(experiment, tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"^--format onnx: model.head attractors .*; this run has no other format"):
        task.export_onnx(None, tmp_path / "onnx")
