"""Several tasks in one loop: gradients and learned weights by the formula, what is shared, figures, commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vaak as library
from vaak.config.changes import changes_between
from vaak.config.load import load
from vaak.config.resolved import resolved_values
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term, get_divisor
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.trainer import Trainer
from vaak.nn.config import StackConfig
from vaak.nn.own_network import make_stack
from vaak.report.curves import panels
from vaak.report.page import run_page
from vaak.report.run_facts import read_facts, tabulate_groups
from vaak.runs.start import train
from vaak.tasks.multitask.data import Shares
from vaak.tasks.multitask.model import MultiTaskModel
from vaak.tasks.multitask.task import JointTask

CHILD = """\
task: classification
model: {architecture: cnn, embed_size: 8, num_filters: 8, filter_sizes: [1, 2], dropout: 0.1}
data:
  corpus: {train: FOLDER/texts.json, train_fraction: 0.6, valid_fraction: 0.2}
  tokenizer: {type: word, vocab_size: 200, min_frequency: 1}
  max_length: 20
training: {epochs: 77, optimizer: {lr: 5.0}, loss: {label_smoothing: 0.1}, early_stopping: {patience: 2}}
"""
CONFIG = """\
name: tiny
tasks:
  word: child.yml
  kind: {extends: child.yml, data: {corpus: {label_columns: kind}}}
shared: [embedding, filters]
loss_weights: {kind: 0.5}
training:
  epochs: 5
  batch_size: 8
  gradient_accumulation_steps: 2
  device: cpu
  optimizer: {lr: 5e-2}
  checkpoint: {metric: val_word/accuracy, mode: max}
  logging: {tensorboard: false, interval: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts of two label columns in which commands run."""
    monkeypatch.chdir(tmp_path)
    words = (("good", "fine"), ("bad", "poor"))
    rows = [
        {"text": f"w{n % 9} {words[n % 2][n % 3 % 2]} w{n % 11} k{n % 3}", "label": ("yes", "no")[n % 2], "kind": n % 3}
        for n in range(90)
    ]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    (tmp_path / "child.yml").write_text(CHILD.replace("FOLDER", str(tmp_path)))
    (tmp_path / "tiny.yml").write_text(CONFIG)
    return tmp_path


# The formula.


class Regressor(nn.Module):
    """A linear layer below a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.body(inputs)))[:, 0]
        return found


def squares(model: nn.Module, batch: Batch) -> dict[str, Term]:
    error = (model(batch["inputs"]) - batch["targets"]) ** 2
    return {"square": Term((error * batch["weights"]).sum(), "weight"), "size": Term(error.sqrt().sum(), "example")}


def collate(rows: list[Any]) -> Batch:
    inputs, targets, weights = (torch.tensor(np.array(column)) for column in zip(*rows, strict=True))
    counts = {"example": torch.ones(len(rows)), "weight": weights}
    return Batch({"inputs": inputs, "targets": targets, "weights": weights}, counts)


def examples(seed: int, number: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=3), rng.normal(), float(rng.integers(1, 4))) for _ in range(number)]


def joint(weights: Any, shared: tuple[dict[str, str], ...] = ({"a": "body", "b": "body"},)) -> JointTask:
    data = {"a": examples(1, 20), "b": examples(2, 11)}
    parts = {
        name: library.SimpleTask(
            data=data[name], model=Regressor(seed).double(), loss=squares, collate=collate, length=lambda one: 1.0
        )
        for seed, name in enumerate(data)
    }
    return JointTask(parts, weights, shared)


def trainer_of(task: JointTask, directory: Path) -> Trainer:
    directory.mkdir()
    values = {"device": "cpu", "batch_size": 3, "gradient_accumulation_steps": 6, "optimizer": {"lr": 0.1}}
    config = TrainingConfig.model_validate(values)
    return Trainer(task, config, directory)


@pytest.mark.parametrize("weights", [{"a": 0.7, "b": 0.3}, {}, "uncertainty"], ids=str)
def test_the_gradient_of_a_step_is_the_formulas_over_all_of_its_microbatches(weights, tmp_path):
    task = joint(weights)
    if task.uncertainty is not None:
        task.uncertainty.double().log_variances.data.copy_(torch.tensor([0.4, -0.6]))
    trainer = trainer_of(task, tmp_path / "run")
    data = next(trainer.data.steps(trainer.position))
    read: dict[str, list[Batch]] = {"a": [], "b": []}
    for microbatch in data.microbatches:
        assert microbatch.batch is not None
        read[microbatch.batch.extra["task"][0]].append(microbatch.batch)
    assert min(map(len, read.values())) > 0
    assert max(map(len, read.values())) > 1
    (descent,) = trainer.step.objectives
    trainer.step.gradients[0].begin()
    losses = descent.gradient.accumulate(trainer.state.chunk_rules, data, trainer.step.gradients[0])
    parameters = dict(trainer.model.named_parameters())
    logs = [] if task.uncertainty is None else [task.uncertainty.log_variances]
    models: Any = trainer.model.tasks
    expected, means = torch.zeros((), dtype=torch.float64), {}
    for place, (name, batches) in enumerate(read.items()):
        inputs, targets, counted = (
            torch.cat([one[key] for one in batches]) for key in ("inputs", "targets", "weights")
        )
        error = (models[name](inputs) - targets) ** 2
        means[name] = (error * counted).sum() / counted.sum() + error.sqrt().mean()
        if weights == "uncertainty":
            expected = expected + torch.exp(-logs[0][place]) * means[name] + logs[0][place] / 2
        else:
            expected = expected + weights.get(name, 1.0) * means[name]
    wanted = torch.autograd.grad(expected, [*parameters.values(), *logs])
    for found, gradient in zip([*parameters.values(), *logs], wanted, strict=True):
        torch.testing.assert_close(found.grad, gradient, rtol=1e-10, atol=1e-12)
    logged = {name: total / get_divisor(losses.counts, losses.units[name]) for name, total in losses.sums.items()}
    for name, mean in means.items():
        torch.testing.assert_close(logged[f"{name}/square"] + logged[f"{name}/size"], mean.detach())
    total = sum(trainer.loss_weights.get(name, 1.0) * value for name, value in logged.items())
    torch.testing.assert_close(total, expected.detach())


def test_a_shared_module_is_counted_trained_and_saved_once(tmp_path):
    task = joint({})
    model = task.model()
    assert sum(one.numel() for one in model.parameters()) == 16 + 2 * 5
    assert model.tasks["a"].body is model.tasks["b"].body
    trainer = trainer_of(task, tmp_path / "run")
    trainer.fit()
    saved = load_checkpoint(next(path for path in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))))
    assert {name for name in saved.model if "body" in name} == {"tasks.a.body.weight", "tasks.a.body.bias"}
    alone = joint({}, shared=()).model()
    assert sum(one.numel() for one in alone.parameters()) == 2 * (16 + 5)


def test_weights_learn_how_uncertain_a_task_is(tmp_path):
    """Where exp(-s) · loss + s / 2 is least, exp(s) is twice the loss."""
    task = joint("uncertainty", shared=())
    directory = tmp_path / "run"
    directory.mkdir()
    optimizer = {"type": "sgd", "lr": 0.2, "groups": [{"match": "tasks", "lr_scale": 1e-9}]}
    none = {"validation": {"interval_epochs": None}, "checkpoint": {"interval_epochs": None}}
    values = {"batch_size": 31, "gradient_accumulation_steps": 2, "max_steps": 100, "optimizer": optimizer, **none}
    config = TrainingConfig.model_validate({"device": "cpu", "gradient_clipping": {"norm": None}, **values})
    trainer = Trainer(task, config, directory)
    trainer.fit()
    assert task.uncertainty is not None
    assert trainer.last is not None
    losses = trainer.last[1].losses
    for place, name in enumerate(("a", "b")):
        mean = float(losses[f"{name}/square"] + losses[f"{name}/size"])
        assert float(task.uncertainty.log_variances[place].detach().exp()) == pytest.approx(2 * mean, rel=0.02)


def test_annealed_shares_end_nearly_equal():
    shares = Shares(annealed_over=11)
    assert [shares(epoch) for epoch in (0, 5, 10, 40)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert Shares(annealed_over=1)(0) == 1.0
    assert str(shares) != str(Shares(annealed_over=12))


def test_modules_that_cannot_be_shared_are_named():
    models = {"a": Regressor(0), "b": nn.Sequential(nn.Linear(2, 4))}
    with pytest.raises(UserError, match="the model of b has no module 'body'; it has 0"):
        MultiTaskModel(models, [{"a": "body", "b": "body"}])
    with pytest.raises(UserError, match=r"weight has shape \(4, 3\) in a.body, and \(4, 2\) in b.0"):
        MultiTaskModel(models, [{"a": "body", "b": "0"}])
    with pytest.raises(UserError, match="torch has type for itself"):
        MultiTaskModel({"type": Regressor(0)})


def test_a_decoder_does_not_share_with_an_encoder():
    """Their shapes are the same; the decoder would see the tokens that it has to predict, and its loss would be 0."""
    config = StackConfig(d_model=8, num_layers=1, num_heads=2)
    models = {name: nn.ModuleDict({"stack": make_stack(config, causal=name != "a")}) for name in "abc"}
    MultiTaskModel(models, [{"b": "stack", "c": "stack"}])
    with pytest.raises(UserError, match=r"one of a\.stack and b\.stack is a decoder's, which sees no later token"):
        MultiTaskModel(models, [{"a": "stack", "b": "stack"}])


# A YAML.


def test_a_run_of_two_tasks_is_evaluated_and_used_by_name(folder, vaak):
    outcome = train(load(["tiny.yml"]))
    steps = [json.loads(line) for line in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    losses = [one for one in steps if one["kind"] == "step"]
    assert {"word/cross_entropy", "kind/cross_entropy"} <= {name for one in losses for name in one}
    metrics = outcome.metrics
    assert metrics["val_loss"] == pytest.approx(metrics["val_word/loss"] + 0.5 * metrics["val_kind/loss"])
    assert metrics["val_word/accuracy"] > 0.6
    assert "test_kind/macro_f1" in vaak("eval", "runs/tiny", "--split", "test", "--output", "out")[1]
    assert {"word_predictions.csv", "kind_predictions.csv"} <= {
        path.name.removeprefix("test_") for path in Path("out").iterdir()
    }
    assert vaak("classify", "runs/tiny", "w1 good w2 k1", "--task", "word")[1].startswith(("yes", "no"))
    for arguments, said in (
        ((), "has several tasks:"),
        (("--task", "wrod"), "has no task 'wrod'; did you mean 'word'?;"),
    ):
        for command in ("classify", "predict"):
            code, _, err = vaak(command, "runs/tiny", "w1", *arguments)
            assert (code, err.strip()) == (2, f"runs/tiny {said} give --task with one of word, kind")
    assert "yes" in vaak("predict", "runs/tiny", "w1 good w2 k1", "--task", "word")[1]
    with pytest.raises(UserError, match=r"'w1' isn't a pair of a task's name \(word, kind\)"):
        library.open("runs/tiny").predict(["w1"])
    (folder / "child.yml").unlink()  # the run's own configuration has all of it
    (folder / "texts.json").unlink()
    again = train(load([folder / "runs/tiny/config.yml"], ["training.epochs=6", "training.checkpoint.resume=auto"]))
    assert again.step == 6 * outcome.step // 5


@pytest.mark.slow
def test_a_report_has_the_metrics_data_and_options_of_each_task(folder, pictures):
    train(load(["tiny.yml"], ["training.epochs=2"]))
    log = (folder / "runs/tiny/train.log").read_text()
    assert re.search("step 7  val_loss .* val_word/accuracy .* val_kind/loss", log)
    facts = read_facts(folder / "runs/tiny")
    page = run_page(facts)
    head = page.partition('<h2 id="examples"')[0]
    for task in ("word", "kind"):
        assert re.search(rf"\b{task}: \d+ of \d+ are right; guessing has \d+\.", head)
        assert f"Data of {task}: train " in head
        assert re.search(rf"<b>[\d.]+ %</b><span>val_{task}/accuracy</span><span>95 %: [^<]+</span><span>chance", head)
        assert {f"val_{task}/accuracy", f"val_{task}/loss"} <= {one.title for one in panels(facts)[0]}
        assert f"fingerprint of the data of {task}" in page
    assert facts.splits_to_evaluate == ["valid", "test"]
    changed = {name: value for name, _, value in facts.changed}
    assert (changed["data.tasks.word.model.embed_size"], changed["data.tasks.kind.task"]) == (8, "classification")
    assert "data.tasks" not in changed
    assert tabulate_groups(facts) == []


@pytest.mark.slow
def test_adapters_of_one_task_adapt_the_weights_that_all_begin_with(folder):
    options = ["shared=[]", "training.max_steps=2"]
    model = "model: {architecture: transformer, d_model: 16, num_layers: 1, num_heads: 2}"
    (folder / "child.yml").write_text(CHILD.replace("FOLDER", str(folder)).replace(CHILD.splitlines()[1], model))
    lora = "tasks.word.model.lora={rank: 2}"
    with pytest.raises(UserError, match=r"data.tasks.word.model.lora: .*give training.checkpoint.init_from"):
        load(["tiny.yml"], [*options, lora])
    train(load(["tiny.yml"], options))
    train(load(["tiny.yml"], [*options, "run_dir=runs/adapted", "training.checkpoint.init_from=runs/tiny", lora]))
    before, after = (library.open(f"runs/{name}").model.state_dict() for name in ("tiny", "adapted"))
    adapted = [name for name in after if name.startswith("tasks.word.") and name.endswith("base_layer.weight")]
    assert adapted
    assert all(torch.equal(after[name], before[name.replace("base_layer.", "")]) for name in adapted)


@pytest.mark.slow
def test_runs_are_compared_by_the_figures_of_one_task_on_its_own_examples(folder, vaak):
    for seed in (1, 2):
        train(load(["tiny.yml"], [f"training.random_seed={seed}", f"run_dir=runs/{seed}", "training.epochs=2"]))
    for metric, number in (("word/accuracy", 18), ("word/loss", 18), ("loss", 36)):
        code, out, err = vaak("compare", "runs/1", "runs/2", "--metric", metric, "--json")
        assert (code, err) == (0, "")
        [found] = json.loads(out)["comparisons"]
        assert found["pairs"] == number
        assert np.isfinite(found["interval"]).all()
        assert (found["effect"] is None) == (metric == "loss"), "an example has no loss of two tasks"
        names = [test["name"] for test in found["tests"][2:]]
        assert names == {"word/accuracy": ["McNemar"], "loss": []}.get(metric, ["paired t-test", "Wilcoxon"])
    assert "nan" not in vaak("compare", "runs/1", "runs/2", "--metric", "loss")[1]


def test_several_tasks_are_not_cross_validated_together(folder, vaak):
    code, _, err = vaak("crossval", "tiny.yml", "--folds", "2", "--output", "study")
    assert (code, err.splitlines()[-1].partition("; ")[0]) == (
        2, "several tasks (word, kind) aren't cross-validated together"
    )  # fmt: skip
    assert not (folder / "study" / "runs").exists()


def test_the_longest_batch_of_each_task_is_evaluated_before_training(folder):
    trainer = trainer_of(joint({}), folder / "run")
    assert trainer.evaluator.rehearse(trainer.model, "train") >= {"train_loss", "train_a/loss", "train_b/loss"}


def test_what_a_file_says_of_its_own_loop_is_left_out_but_its_loss(folder):
    experiment = load(["tiny.yml"]).experiment
    assert experiment.training.epochs == 5
    word, kind = experiment.data.inner_experiments.values()
    assert kind.data.corpus.label_columns == ("kind",)
    assert word.training.loss.label_smoothing == 0.1
    assert word.training.epochs != 77
    (warning,) = load(["tiny.yml"], ["training.loss.label_smoothing=0.1"]).warnings
    assert "training.loss: each task has its own" in warning
    values = resolved_values(experiment)
    assert set(values["data"]["tasks"]["word"]) == {"task", "model", "data", "training"}
    assert list(values["data"]["tasks"]["word"]["training"]) == ["loss"]
    other = resolved_values(
        load(["tiny.yml"], ["tasks.word.model.dropout=0.3", "tasks.kind.data.max_length=9"]).experiment
    )
    changes = {change.key: change.resume_class for change in changes_between(values, other)}
    assert changes == {"data.tasks.word.model.dropout": "other numbers", "data.tasks.kind.data.max_length": "refused"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tasks.word=nowhere.yml"], r"data.tasks.word.extends: \S*nowhere.yml does not exist"),
        (
            ["tasks.word={task: clasification}"],
            "data.tasks.word.task: is 'clasification'; .* did you mean classification",
        ),
        (["tasks.word.model.d_modell=3"], "data.tasks.word.model.d_modell: unknown key; did you mean d_model"),
        (["tasks.word.training.epochs=3"], "data.tasks.word.training.epochs: belongs to the whole experiment"),
        (["tasks.word.learning_rate=3"], "data.tasks.word.learning_rate: belongs to the whole experiment"),
        (["tasks.word=tiny.yml"], "data.tasks.word.data.tasks.word: an experiment inside another can't contain"),
        (["tasks.more={task: multitask}"], "data.tasks.more.task: is multitask, which can't be one of several"),
        (["tasks={word: child.yml}"], None),
        (["loss_weights={words: 1}"], "model.loss_weights: words is not among the tasks; .* did you mean word"),
        (["loss_weights={word: -1}"], "model.loss_weights"),
        (["shared=[{word: embedding, kinds: embedding}]"], "model.shared: kinds is not among the tasks"),
        (
            ["sampling={type: temperature, temperature: 0}"],
            "data.sampling.temperature: is 0; expected a number above 0",
        ),
        (["sampling=annealed", "training.max_steps=9"], r"data.sampling.epochs: max_steps \(9\) decides"),
        (["tasks.kind.data.tokenizer.vocab_size=9"], "data.tasks.kind.data.tokenizer: is not that of word"),
        (["training.batching={type: bucketed, max_duration: 9}"], "max_duration: word has no seconds"),
        (["training.checkpoint.metric=val_wort/accuracy"], "training.checkpoint.metric: is val_wort/accuracy"),
        (["tasks.a-b=child.yml"], "data.tasks: 'a-b' can't name a task"),
    ],
)
def test_mistakes_have_one_line(folder, overrides, message):
    if message is None:
        (folder / "tiny.yml").write_text("tasks: {word: child.yml}\n")
        overrides, message = [], "tiny.yml:1: data.tasks: has one task; give two or more"
    with pytest.raises(UserError, match=message):
        load(["tiny.yml"], overrides)


@pytest.mark.slow
def test_data_of_all_tasks_are_in_a_cache(folder):
    train(load(["tiny.yml"], ["data.cache_dir=cache", "training.max_steps=1"]))
    found = {(folder / "runs/tiny/tasks" / name / "prepared").resolve() for name in ("word", "kind")}
    assert [path.parent for path in found] == 2 * [(folder / "cache").resolve()]


def test_what_only_the_models_show_is_said_before_data_are_prepared(folder):
    for override, message in (
        ("shared=[stack]", "model.shared: the model of word has no module 'stack'; it has dropout, head"),
        ("tasks.kind.model.num_filters=9", "model.shared: .* has shape"),
    ):
        with pytest.raises(UserError, match=message):
            train(load(["tiny.yml"], [override]))
        assert not (folder / "runs/tiny/tasks").exists()
