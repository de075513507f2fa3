"""What the original systems' documents contain trains here: sections, examples and commands, run on a small corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tiny_runs import MODEL_AND_DATA
from vaak.callbacks import Callback, EarlyStoppingCallback, GradientClippingCallback
from vaak.callbacks.trackers import numbers
from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import CheckpointError, UserError
from vaak.engine import LossRegistry, Snapshot, find_latest_checkpoint, load_checkpoint, save_checkpoint
from vaak.engine.checkpoint.files import step_folder
from vaak.engine.metrics_file import read_records
from vaak.engine.snapshot import load_weights
from vaak.runs.start import train

ROOT = Path(__file__).parents[2]

SEED_1_TRAINING = """\
training:
  epochs: 50
  batch_size: 4
  random_seed: 42
  optimizer:
    type: adamw
    lr: 2e-4
    weight_decay: 0.01
    betas: [0.9, 0.999]
  scheduler:
    type: cosine
    min_lr: 1e-6
    warmup_steps: 4
  gradient_clipping: 1.0
  gradient_accumulation_steps: 4
  mixed_precision: true
  feature_redraw_interval: 100
  fixed_projection: false
  loss:
    main: cross_entropy
    label_smoothing: 0.1
    auxiliary:
      z_loss: 0.1
  validation:
    interval: 5
    batch_size: 64
  early_stopping:
    patience: 5
    metric: val_loss
    min_delta: 0.001
    mode: min
  checkpoint:
    save_dir: ./checkpoints
    interval: 3
    save_total_limit: 1
    resume: null
  logging:
    interval: 2
    tensorboard: true
    wandb: true
    wandb_project: my-project
    log_metrics: [loss, accuracy]
  performance:
    num_workers: 1
    pin_memory: true
  eval_knobs:
    label_type: binary
    max_duration: null
"""
"""The section of the universal pipeline, with shorter intervals; norm_reg requires layers that aren't built yet."""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains what some YAML texts and overrides say, each in a separate file, in an empty folder with a corpus."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    lines = [
        f"{name} ने {number} {thing} देखे ।" for number in range(9) for name in ("राम", "सीता") for thing in ("घर", "फल")
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(*texts, overrides=(), callbacks=()):
        for number, text in enumerate(texts):
            (tmp_path / f"f{number}.yml").write_text(text, encoding="utf-8")
        common = ["name=run", "training.device=cpu", *overrides]
        return train(load([f"f{number}.yml" for number in range(len(texts))], common), callbacks)

    return run


QUICK = "training: {max_steps: 4, batch_size: 8, logging: {interval: 1, tensorboard: false}}\n"


def records(outcome, kind):
    return [record for record in read_records(outcome.directory / "metrics.jsonl") if record["kind"] == kind]


def test_universal_pipelines_training_section_trains(trained):
    outcome = trained(MODEL_AND_DATA, SEED_1_TRAINING, overrides=["training.max_steps=8"])
    assert (outcome.reason, outcome.step) == ("finished", 8)
    steps, evaluations = records(outcome, "step"), records(outcome, "evaluation")
    assert [record["step"] for record in steps] == [1, 2, 4, 6, 8]
    assert {"loss", "cross_entropy", "z_loss", "learning_rate", "gradient_norm", "clock"} <= set(steps[0])
    assert steps[0]["loss"] == pytest.approx(steps[0]["cross_entropy"] + 0.1 * steps[0]["z_loss"])
    assert steps[0]["learning_rate"] == pytest.approx(2e-4 / 4)
    assert [record["step"] for record in evaluations] == [5, 8]
    kept = sorted(path.name for path in Path("checkpoints/run").glob("step-*"))
    assert kept == [step_folder(8)]
    assert (outcome.directory / "checkpoints").resolve() == Path("checkpoints/run").resolve()
    said = (outcome.directory / "train.log").read_text(encoding="utf-8")
    assert "fp32" in said  # what becomes of fp16 on a CPU
    assert "feature_redraw_interval" in said
    assert tags(outcome.directory / "tensorboard") == {"train/loss", "evaluation/val_loss", "evaluation/val_accuracy"}


def tags(folder):
    """The names of the figures in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag for tag in events.Tags()["scalars"] if "/" in tag and not tag.startswith("epoch/")}


SEED_5_MODEL = "model:\n  hidden_size: 16\n  num_layers: 1\n  num_attention_heads: 2\n  hidden_dropout_prob: 0.1\n"
SEED_5_TRAINING = """\
training:
  learning_rate: 2e-3
  batch_size: 16
  num_epochs: 10
  warmup_steps: 5
  weight_decay: 0.01
  gradient_accumulation_steps: 1
  max_grad_norm: 1.0
  fp16: true
  logging_steps: 1
  eval_steps: 3
  optimizer: "adamw"
  adam_epsilon: 1e-8
  adam_beta1: 0.9
  adam_beta2: 0.999
  scheduler_type: "linear"
  early_stopping_patience: 3
  early_stopping_threshold: 0.01
  save_steps: 3
  save_total_limit: 3
wandb:
  project: "your-project-name"
  entity: "your-wandb-entity"
  name: null
  tags: ["experiment", "baseline"]
  notes: "Baseline model training"
"""
SEED_5_DATA = """\
task: lm
data:
  corpus: {type: json, train: data.json}
  tokenizer: {type: character, vocab_size: 300}
  max_length: 32
"""


def test_research_kits_files_train(trained, tmp_path):
    texts = (tmp_path / "corpus.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "data.json").write_text(json.dumps([{"text": text, "label": 0} for text in texts], indent=2))
    outcome = trained(SEED_5_MODEL, SEED_5_TRAINING, SEED_5_DATA, overrides=["max_steps=6"])
    assert (outcome.reason, outcome.step) == ("finished", 6)
    assert {"val_loss", "val_accuracy"} <= set(records(outcome, "evaluation")[0])
    assert {"loss", "learning_rate", "gradient_norm"} <= set(records(outcome, "step")[0])
    assert {path.name for path in (outcome.directory / "prepared").iterdir()} > {"tokenizer", "train", "valid"}
    [sizes] = records(outcome, "model")
    assert f"{sizes['parameters']:,} parameters" in (outcome.directory / "train.log").read_text(encoding="utf-8")
    assert sizes["trained_parameters"] == sizes["parameters"]
    assert numbers(sizes, None)["model/parameters"] == sizes["parameters"]
    assert "commit" in json.loads((outcome.directory / "environment.json").read_text())
    assert load([outcome.directory / "config.yml"]).experiment.training.scheduler.warmup_steps == 5


class MyCustomLoss(nn.Module):
    """The universal pipeline's example with a body: it gives one number, the mean."""

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


class MyCallback(Callback):
    """The universal pipeline's example with a body."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, trainer, epoch, metrics):
        self.seen.append((epoch, trainer.position.step, metrics))


def test_universal_pipelines_loss_and_callback_examples(trained):
    LossRegistry.register("my_loss", MyCustomLoss)
    callback = MyCallback()
    own = trained(MODEL_AND_DATA, QUICK, overrides=["training.loss=my_loss"], callbacks=(callback,))
    built_in = trained(MODEL_AND_DATA, QUICK, overrides=["name=other"])
    assert [record["my_loss"] for record in records(own, "step")] == pytest.approx(
        [record["cross_entropy"] for record in records(built_in, "step")], rel=1e-5
    )
    [(epoch, step, metrics)] = callback.seen
    [logged] = records(own, "epoch")
    means = {name: value for name, value in logged.items() if name.startswith("train_")}
    assert (epoch, step, metrics) == (0, own.step, {**means, **own.metrics, "evaluation_step": own.step})
    assert metrics["train_loss"] == metrics["train_my_loss"] > 0


class Epochs(MyCallback):
    """The same, of a run whose last evaluation is from within an epoch, or isn't there yet."""


def test_an_epochs_end_is_told_its_means_and_which_step_was_evaluated_last(trained):
    """Four steps an epoch, evaluations at 6 and the last: the first epoch has none, the second the one of step 6."""
    callback = Epochs()
    options = ["training.max_steps=null", "training.epochs=3", "training.validation={interval: 6}"]
    outcome = trained(MODEL_AND_DATA, QUICK, overrides=options, callbacks=(callback,))
    per_epoch = outcome.step // 3
    assert per_epoch == 4
    evaluations = {record["step"]: record for record in records(outcome, "evaluation")}
    for (epoch, step, metrics), logged in zip(callback.seen, records(outcome, "epoch"), strict=True):
        assert (epoch, step) == (logged["epoch"], logged["step"])
        assert metrics["train_loss"] == logged["train_loss"]
        assert metrics["train_cross_entropy"] == logged["train_cross_entropy"]
        last = max((at for at in evaluations if at <= step), default=None)
        assert metrics.get("evaluation_step") == last
        assert metrics.get("val_loss") == (None if last is None else evaluations[last]["val_loss"])
    assert [metrics.get("evaluation_step") for *_, metrics in callback.seen] == [None, 6, 12]


def test_a_resumed_epochs_end_is_told_the_same(trained):
    """The means and the last evaluation are part of what is resumed."""
    whole, halves = Epochs(), (Epochs(), Epochs())
    options = ["training.max_steps=null", "training.epochs=2", "training.validation={interval: 3}"]
    trained(MODEL_AND_DATA, QUICK, overrides=[*options, "name=whole"], callbacks=(whole,))

    class Stops(Callback):
        def on_step_end(self, trainer, report):
            if report.step == 6:
                trainer.request_stop("halfway")

    half = [*options, "name=half"]
    trained(MODEL_AND_DATA, QUICK, overrides=half, callbacks=(halves[0], Stops()))
    trained(MODEL_AND_DATA, QUICK, overrides=[*half, "training.checkpoint.resume=auto"], callbacks=(halves[1],))
    assert halves[0].seen + halves[1].seen == whole.seen
    assert len(halves[1].seen) == 1


OWN_LOSS = """\
from torch import nn

class Own(nn.Module):
    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)
"""


def test_the_universal_pipelines_loss_is_auxiliary_by_its_file_and_by_its_name(trained, tmp_path):
    LossRegistry.register("my_loss", MyCustomLoss)
    (tmp_path / "own.py").write_text(OWN_LOSS)
    for loss in ("{my_loss: 0.1}", "{in_a_file: {type: './own.py:Own', weight: 0.1}}"):
        name = loss.strip("{").partition(":")[0]
        text = f"training: {{loss: {{main: cross_entropy, auxiliary: {loss}}}}}\n"
        steps = records(trained(MODEL_AND_DATA, QUICK, text, overrides=[f"name={name}"]), "step")
        assert [record[name] for record in steps] == pytest.approx(
            [record["cross_entropy"] for record in steps], rel=1e-5
        )
        assert steps[0]["loss"] == pytest.approx(1.1 * steps[0]["cross_entropy"])


def test_universal_pipelines_callbacks_by_name(trained):
    named = (
        "training: {callbacks: [{type: gradient_clipping, max_norm: 0.1}, {type: lr_monitor, every: 2}, "
        "{type: feature_redraw, interval: 3}, {type: early_stopping, patience: 9}]}\n"
    )
    by_name = trained(MODEL_AND_DATA, QUICK, named)
    by_option = trained(MODEL_AND_DATA, QUICK, overrides=["name=option", "training.gradient_clipping=0.1"])
    in_python = trained(MODEL_AND_DATA, QUICK, overrides=["name=python"], callbacks=(GradientClippingCallback(0.1),))
    losses = [[record["loss"] for record in records(outcome, "step")] for outcome in (by_name, by_option, in_python)]
    assert losses[0] == losses[1] == losses[2]
    assert [record["step"] for record in records(by_name, "learning_rates")] == [2, 4]
    callbacks = load(["runs/run/config.yml"]).experiment.training.callbacks
    assert [callback.type for callback in callbacks][2:] == ["feature_redraw", "early_stopping"]


def test_callbacks_by_the_names_of_their_classes(trained):
    classes = (
        "training: {callbacks: [EarlyStoppingCallback, {type: LRMonitorCallback, every: 2}, "
        "{type: GradientClippingCallback, max_norm: 0.1}]}\n"
    )
    outcome = trained(MODEL_AND_DATA, QUICK, classes)
    assert [record["step"] for record in records(outcome, "learning_rates")] == [2, 4]
    callbacks = load(["runs/run/config.yml"]).experiment.training.callbacks
    assert [callback.type for callback in callbacks] == ["early_stopping", "lr_monitor", "gradient_clipping"]


def test_early_stopping_stops_when_nothing_improves(trained):
    stopping = "training: {early_stopping: {patience: 2, metric: val_loss, min_delta: 50, mode: min}}\n"
    every_step = "training.validation.interval=1"
    outcome = trained(MODEL_AND_DATA, QUICK, stopping, overrides=[every_step])
    assert outcome.step == 3
    assert outcome.reason.startswith("early stopping: val_loss has not improved")
    falling_is_worse = EarlyStoppingCallback(1, "val_loss", 0.0, "max")
    again = trained(MODEL_AND_DATA, QUICK, overrides=[every_step, "name=python"], callbacks=(falling_is_worse,))
    assert again.step == 2


def test_tts_trainers_settings_of_training(trained):
    text = (
        "batch_size: 16\nlearning_rate: 1e-4\nhidden_dim: 16\nuse_wandb: false\nenable_profiling: false\n"
        "training:\n  scheduler: {type: CosineAnnealingWarmRestarts, T_0: 2, T_mult: 2, eta_min: 1e-6}\n"
        "  logging: {interval: 10, tensorboard: false}\n  checkpoint: {interval_epochs: 5}\n  epochs: 6\n"
    )
    outcome = trained(text + MODEL_AND_DATA.replace("d_model: 16, ", ""))
    per_epoch = outcome.step // 6
    saved = sorted(path.name for path in (outcome.directory / "checkpoints").glob("step-*"))
    assert {step_folder(5 * per_epoch), step_folder(6 * per_epoch)} <= set(saved)
    assert [record["step"] for record in records(outcome, "step")] == [1, *range(10, outcome.step + 1, 10)] + (
        [outcome.step] if outcome.step % 10 else []
    )
    schedule = load([outcome.directory / "config.yml"]).experiment.training.scheduler
    assert (schedule.type, schedule.first_cycle_epochs, schedule.cycle_growth) == ("cosine_restarts", 2, 2)


def test_a_cycle_of_the_cosine_in_epochs_is_its_steps(trained):
    rates, steps = [], 0
    for name in ("first_cycle_epochs", "first_cycle_steps"):
        first = 2 * (steps // 5 or 1)  # the second time, of two epochs
        text = f"training: {{epochs: 5, scheduler: {{type: cosine_restarts, {name}: {first}}}}}\n"
        overrides = [f"name={name}", "training.max_steps=null", "training.logging.interval=1"]
        outcome = trained(MODEL_AND_DATA, QUICK, text, overrides=overrides)
        rates.append([record["learning_rate"] for record in records(outcome, "step")])
        steps = outcome.step
    assert steps // 5 > 1
    assert rates[0] == rates[1]


def test_both_lengths_of_a_cycle_are_one_too_many(trained):
    both = "training: {scheduler: {type: cosine_restarts, first_cycle_epochs: 2, first_cycle_steps: 6}}\n"
    with pytest.raises(UserError, match="first_cycle_epochs: given together with first_cycle_steps; give one of them"):
        trained(MODEL_AND_DATA, QUICK, both)


def test_universal_pipelines_max_duration_is_the_budget_of_bucketing(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("task: lm\ntraining:\n  eval_knobs:\n    label_type: binary\n    max_duration: 30.0\n")
    with pytest.raises(ConfigError, match=r"run.yml:5: training.batching.max_duration: text has no duration"):
        load([path])


def test_steps_are_epochs_times_batches(trained):
    outcome = trained(MODEL_AND_DATA, QUICK.replace("max_steps: 4", "epochs: 2"))
    about = json.loads((outcome.directory / "prepared" / "prepared.json").read_text(encoding="utf-8"))
    documents = about["statistics"]["train"]["documents"]
    assert outcome.step == outcome.total_steps == 2 * -(-documents // 8)


def test_hindi_trainers_console_has_its_figures(trained):
    outcome = trained(MODEL_AND_DATA, QUICK)
    said = (outcome.directory / "train.log").read_text(encoding="utf-8")
    for words in ("step 4/4  loss ", "  lr ", "  grad ", "val_loss ", "val_perplexity ", "tokens/s"):
        assert words in said, words


def test_a_checkpoint_holds_what_the_original_ones_have(trained):
    outcome = trained(MODEL_AND_DATA, QUICK, overrides=["training.max_steps=3", "training.scheduler={type: plateau}"])
    newest = find_latest_checkpoint(outcome.directory / "checkpoints")
    assert newest is not None
    saved, state = json.loads((newest / "state.json").read_text()), load_checkpoint(newest).state
    assert saved["position"] == state["position"] | {"duties_pending": True}  # it is saved before it is evaluated
    assert (state["position"]["step"], state["position"]["epoch"]) == (3, 0)
    assert state["best"]["metric"] == "val_loss"
    assert state["best"]["value"] == outcome.metrics["val_loss"]
    assert {"loss_scale", "plateau", "callbacks", "optimizer"} <= set(state)
    epoch = next(values for name, values in state["callbacks"] if name == "StepLogCallback")["epoch"]
    assert epoch["cross_entropy"][1] > 0
    content = load_checkpoint(newest)
    assert content.model
    assert any("embedding.weight" in name for name in content.optimizer)
    assert (outcome.directory / "config.yml").exists()


def test_checkpoints_by_hand(tmp_path):
    model = nn.Linear(3, 2)
    for step in (5, 12):
        weights = {name: tensor.detach().clone() + step for name, tensor in model.named_parameters()}
        path = save_checkpoint(tmp_path, Snapshot(step, weights, state={"position": {"step": step}}))
        assert path == tmp_path / step_folder(step)
    newest = find_latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == step_folder(12)
    load_weights(model, load_checkpoint(newest).model, newest)
    assert torch.equal(model.weight, weights["weight"])
    with pytest.raises(CheckpointError, match=r"from another model: weight has shape \(2, 3\), the model \(1, 3\)"):
        load_weights(nn.Linear(3, 1), load_checkpoint(newest).model, newest)
    (newest / "model.safetensors").write_bytes(b"half")
    assert find_latest_checkpoint(tmp_path) == tmp_path / step_folder(5)


def test_research_kits_evaluation_command(trained, tmp_path, vaak):
    outcome = trained(MODEL_AND_DATA, QUICK)
    (tmp_path / "data.yml").write_text("data: {corpus: {train: corpus.txt, test: other.txt}}\n")
    (tmp_path / "other.txt").write_text("राम ने 3 घर देखे ।\nसीता ने 4 फल देखे ।\n", encoding="utf-8")
    checkpoint = outcome.directory / "checkpoints" / "best"
    as_typed = ("--model_path", checkpoint, "--data_config", "data.yml", "--output_dir", "evaluation_results")
    code, said, errors = vaak("eval", *as_typed)
    assert code == 0, errors
    note = "--model-path and --data-config: evaluating test; for the other split, add --split valid\n"
    assert errors.startswith(note)
    report = json.loads((tmp_path / "evaluation_results" / "evaluation.json").read_text(encoding="utf-8"))
    assert report["checkpoint"].endswith(step_folder(4))
    assert {"test_loss", "test_perplexity", "test_accuracy"} <= set(report["metrics"])
    assert "test_loss" in said
    assert "val_loss" not in said
    assert vaak("eval", checkpoint, "data.yml", "--split", "test")[1] == said
    assert vaak("eval", "--model-path", checkpoint, "data.yml")[1] == said
    assert vaak("eval", checkpoint, "--data_config", "data.yml")[1] == said
    assert "val_loss" in vaak("eval", checkpoint)[1]
    assert "val_loss" in vaak("eval", "--model_path", checkpoint, "--split", "valid")[1]
    assert vaak("eval", "--data_config", "data.yml")[::2] == (
        2,
        "give a run or a checkpoint: vaak eval RUN, or --model-path RUN\n",
    )
