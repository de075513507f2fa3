"""The library's classes: the Hindi trainer's complete example, and that its numbers are those of the YAML run."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from vaak.audio.config import AudioConfig
from vaak.callbacks import Callback
from vaak.compat.hindi_lm import (
    CorpusBuilder,
    ExperimentConfig,
    HindiLanguageModelTrainer,
    ModelFactory,
    TokenizerFactory,
)
from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import CheckpointError, UserError
from vaak.engine import find_latest_checkpoint, load_checkpoint
from vaak.engine.metrics_file import read_records
from vaak.runs.evaluate import evaluate_run
from vaak.runs.start import train as train_run

BASE_CONFIG = """\
experiment_name: base
learning_rate: 1e-3
weight_decay: 0.01
num_epochs: 2
batch_size: 8
warmup_steps: 5
d_model: 32
num_layers: 1
num_heads: 2
dropout: 0.1
vocab_size: 500
max_length: 32
data:
  corpus: {type: text, train: corpus.txt}
  token_dropout: 0.1
device: cpu
logging: {interval: 1, tensorboard: false}
"""

EXAMPLE = """\
from vaak.compat.hindi_lm import ModelFactory
from vaak.compat.hindi_lm import TokenizerFactory
from vaak.compat.hindi_lm import CorpusBuilder
from vaak.compat.hindi_lm import HindiLanguageModelTrainer
from vaak.compat.hindi_lm import ExperimentConfig

# 1. Load configuration
config = ExperimentConfig.load_config('configs/base_config.yaml')

# 2. Load data
corpus_builder = CorpusBuilder(config)
splits = corpus_builder.load_splits()

# 3. Create tokenizer
tokenizer_factory = TokenizerFactory(config)
tokenizer = tokenizer_factory.create_tokenizer(splits['train'])

# 4. Create dataloaders
train_loader = corpus_builder.create_dataloader(splits['train'], tokenizer, 'train')
val_loader = corpus_builder.create_dataloader(splits['val'], tokenizer, 'val')

# 5. Create model
model_factory = ModelFactory(config)
model = model_factory.create_model(tokenizer.vocab_size)

# 6. Create trainer
trainer = HindiLanguageModelTrainer(
    model=model,
    tokenizer=tokenizer,
    config=config.__dict__
)

# 7. Train
trainer.train(
    train_dataloader=train_loader,
    val_dataloader=val_loader,
    num_epochs=config.num_epochs
)

# 8. Save final model
model_factory.save_model(model, tokenizer, "final_model")
"""
"""The Hindi trainer's example, unchanged but for the five lines of imports."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the example's configuration and a small corpus, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    lines = [
        f"{name} ने {number} {thing} देखे ।"
        for number in range(9)
        for name in ("राम", "सीता")
        for thing in ("घर", "पेड़", "फल")
    ]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "configs" / "base_config.yaml").write_text(BASE_CONFIG, encoding="utf-8")
    return tmp_path


@pytest.fixture
def parts(project):
    """Everything up to the trainer: configuration, tokenizer, both loaders, model."""
    config = ExperimentConfig.load_config("configs/base_config.yaml")
    builder = CorpusBuilder(config)
    splits = builder.load_splits()
    tokenizer = TokenizerFactory(config).create_tokenizer(splits["train"])
    train, valid = (builder.create_dataloader(splits[name], tokenizer, name) for name in ("train", "val"))
    return config, tokenizer, train, valid, ModelFactory(config).create_model(tokenizer.vocab_size)


def figures(path):
    """The records of a run without what depends on the time of day."""
    return [{name: value for name, value in record.items() if name != "clock"} for record in read_records(path)]


def test_seed_4s_example_gives_the_numbers_of_the_same_yaml(project):
    names: dict = {}
    exec(EXAMPLE, names)
    trainer, model = names["trainer"], names["model"]
    outcome = train_run(load(["configs/base_config.yaml"], ["task=lm", "name=yaml"]))

    assert figures(project / "runs/base/metrics.jsonl") == figures(project / "runs/yaml/metrics.jsonl")
    newest = find_latest_checkpoint(project / "runs/yaml/checkpoints")
    assert newest is not None
    wanted = load_checkpoint(newest).model
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items() if name in wanted)
    assert trainer.metrics["val_loss"][-1] == outcome.metrics["val_loss"]
    assert trainer.metrics["perplexity"][-1] == outcome.metrics["val_perplexity"]
    assert [len(trainer.metrics[name]) for name in ("train_loss", "val_loss", "perplexity", "learning_rate")] == [2] * 4
    assert trainer.metrics["learning_rate"] == [1e-3, 1e-3]


def test_the_run_of_the_library_is_a_run_like_any_other(project):
    names: dict = {}
    exec(EXAMPLE, names)
    report = evaluate_run(project / "runs/base/checkpoints/last", [], [], ["valid"], "cpu")
    assert report["metrics"]["val_loss"] == pytest.approx(names["trainer"].metrics["val_loss"][-1], rel=1e-6)
    assert json.loads((project / "runs/base/status.json").read_text())["reason"] == "finished"


def test_save_model_and_back(parts):
    config, tokenizer, _, _, model = parts
    factory = ModelFactory(config)
    folder = factory.save_model(model, tokenizer, "final_model")
    assert folder == config.experiment.run_dir / "models" / "final_model"
    loaded, its_tokenizer = factory.load_model("final_model")
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("राम ने फल")]])
    assert torch.equal(loaded(ids), model.eval()(ids))
    assert its_tokenizer.fingerprint == tokenizer.fingerprint
    assert "head.weight" not in load_file(folder / "model.safetensors")  # tied: stored once
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="final_model is not a saved model"):
        factory.load_model("final_model")
    with pytest.raises(UserError, match="is not a valid model name"):
        factory.save_model(model, tokenizer, "../elsewhere")


def test_a_loader_has_each_epoch_its_own_order_and_every_document(parts):
    _, tokenizer, train, valid, _ = parts
    first, second = list(train), list(train)
    assert len(first) == len(second) == len(train)
    order = [[index for batch in epoch for row in batch.indices for index in row] for epoch in (first, second)]
    assert order[0] != order[1]
    assert sorted(order[0]) == sorted(order[1]) == list(range(len(train.dataset.lengths)))
    batch = next(iter(valid))
    assert torch.equal(batch["input_ids"], batch["inputs"])
    assert torch.equal(batch["attention_mask"], batch["inputs"] != tokenizer.pad_id)
    assert [indices.indices for indices in valid] == [indices.indices for indices in valid]


def test_a_plain_loop_learns(parts):
    _, _, train, _, model = parts
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(3):
        for batch in train:
            logits = model(batch["input_ids"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_epoch_by_epoch_is_the_whole_run(parts, project):
    config, tokenizer, train, valid, model = parts
    whole = HindiLanguageModelTrainer(ModelFactory(config).create_model(tokenizer.vocab_size), tokenizer, config)
    config.experiment_name = "stepwise"
    steps = HindiLanguageModelTrainer(model, tokenizer, config.__dict__)
    history = whole.train(train, valid)
    assert (project / "runs/base/metrics.jsonl").exists()
    for epoch in range(2):
        train_loss = steps.train_epoch(train)
        metrics = steps.evaluate(valid)
        folder = steps.save_checkpoint(epoch, metrics["val_loss"])
        assert train_loss == pytest.approx(history["train_loss"][epoch], rel=1e-6)
        assert metrics == {"val_loss": history["val_loss"][epoch], "perplexity": history["perplexity"][epoch]}
    assert folder.resolve() == find_latest_checkpoint(project / "runs/stepwise/checkpoints")
    assert (folder.parent / "best").read_text().strip() == folder.name
    with pytest.raises(UserError, match="the 2 epochs of the configuration are over"):
        steps.train_epoch(train)
    with pytest.raises(UserError, match="in the middle of train_epoch"):
        steps.train(train, valid)
    steps.close()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.model.parameters(), strict=True))


def test_evaluate_weighs_tokens_not_batches(parts):
    config, tokenizer, _, valid, model = parts
    found = HindiLanguageModelTrainer(model, tokenizer, config).evaluate(valid)
    model.eval()
    nats = tokens = 0.0
    with torch.no_grad():
        for batch in valid:
            scored = batch["targets"] != -100
            nats += float(F.cross_entropy(model(batch["inputs"])[scored], batch["targets"][scored], reduction="sum"))
            tokens += int(scored.sum())
    assert found["val_loss"] == pytest.approx(nats / tokens, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-6)


def test_a_run_goes_on_and_its_history_with_it(parts):
    config, tokenizer, train, valid, model = parts
    first = HindiLanguageModelTrainer(model, tokenizer, config.__dict__ | {"max_steps": 6})
    steps_per_epoch = len(train)
    assert steps_per_epoch < 6 < 2 * steps_per_epoch
    first.train(train, valid)
    again = ModelFactory(config).create_model(tokenizer.vocab_size)
    second = HindiLanguageModelTrainer(again, tokenizer, config.__dict__ | {"resume": "auto"})
    history = second.train(train, valid, num_epochs=3)
    assert history["train_loss"][:1] == first.metrics["train_loss"]
    assert len(history["train_loss"]) == 3
    with pytest.raises(UserError, match="already holds a run"):
        HindiLanguageModelTrainer(again, tokenizer, config).train(train, valid)


def test_what_is_set_on_a_configuration_is_what_runs(project):
    config = ExperimentConfig.load_config("configs/base_config.yaml")
    assert (config.num_epochs, config.batch_size, config.learning_rate) == (2, 8, 1e-3)
    assert (config.project_name, config.experiment_name, config.vocab_size) == ("hindi-babylm", "base", 500)
    assert json.loads(json.dumps(config.__dict__)) == config.__dict__
    config.learning_rate, config.experiment_name = 2e-3, "other"
    experiment = ExperimentConfig(config.__dict__).experiment
    assert (experiment.training.optimizer.lr, str(experiment.run_dir)) == (2e-3, "runs/other")
    alone = ExperimentConfig({"learning_rate": 2e-4, "num_epochs": 1, "project_name": "p"}).experiment
    assert (alone.training.optimizer.lr, alone.training.epochs, alone.wandb.project) == (2e-4, 1, "p")
    with pytest.raises(ConfigError, match=r"set in Python: training.epochs: is 0"):
        _ = ExperimentConfig(config.__dict__ | {"num_epochs": 0}).experiment
    with pytest.raises(ConfigError, match="learning_rat: unknown key; did you mean learning_rate"):
        _ = ExperimentConfig({"learning_rat": 1.0}).experiment


def test_what_does_not_fit_together_is_refused(parts, project):
    config, tokenizer, train, valid, model = parts
    small = ModelFactory(config).create_model(tokenizer.vocab_size - 1)
    with pytest.raises(UserError, match="the model has"):
        HindiLanguageModelTrainer(small, tokenizer, config)
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    with pytest.raises(UserError, match="was not made by CorpusBuilder"):
        trainer.train([1, 2], valid)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="training hasn't begun"):
        trainer.save_checkpoint(0, 1.0)
    with pytest.raises(UserError, match="unknown split 'dev'"):
        CorpusBuilder(config).create_dataloader(["राम"], tokenizer, "dev")
    character = config.__dict__ | {"tokenizer_type": "character"}
    other = TokenizerFactory(ExperimentConfig(character)).create_tokenizer(["राम राम"] * 3)
    with pytest.raises(UserError, match="another tokenizer"):
        HindiLanguageModelTrainer(model, other, config).train(train, valid)
    stopping = config.__dict__ | {"early_stopping_patience": 1}
    with pytest.raises(UserError, match="use train"):
        HindiLanguageModelTrainer(model, tokenizer, stopping).train_epoch(train)
    assert not (project / "runs").exists()


def test_the_console_has_the_originals_lines(parts, capfd):
    config, tokenizer, train, valid, model = parts
    HindiLanguageModelTrainer(model, tokenizer, config).train(train, valid, num_epochs=2)
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    epoch = ["Train Loss", "Val Loss", "Perplexity", "Checkpoint saved"]
    assert [line.partition(":")[0] for line in lines] == ["Epoch 1/2", *epoch, "Epoch 2/2", *epoch]
    saved = [line.removeprefix("Checkpoint saved: ") for line in lines if line.startswith("Checkpoint saved: ")]
    assert len(saved) == 2
    assert all("runs/base/checkpoints/step-" in path for path in saved)


def test_a_checkpoint_that_is_slow_to_write_is_said_before_the_next_epoch(parts, capfd, monkeypatch):
    """It is written in the background, while the next epoch has begun already."""
    config, tokenizer, train, valid, model = parts
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)

    class Late(list):
        def __bool__(self):  # nothing is known to be written before the next epoch's second step
            return trainer.engine.position.step % len(train) >= 2 and len(self) > 0

    class Slow(Callback):
        def on_fit_start(self, engine):
            engine.saving.writer.finished = Late()

    trainer.callbacks = (Slow(),)
    trainer.train(train, valid, num_epochs=2)
    lines = [line.partition(":")[0] for line in capfd.readouterr().out.splitlines() if line]
    assert len(train) > 2
    assert lines.index("Checkpoint saved") < lines.index("Epoch 2/2")


def test_what_is_saved_by_hand_is_said_at_once(parts, capfd):
    config, tokenizer, train, valid, model = parts
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    for epoch in range(2):
        trainer.train_epoch(train)
        trainer.save_checkpoint(epoch, trainer.evaluate(valid)["val_loss"])
        print(f"after {epoch}", flush=True)
    trainer.close()
    lines = [line.partition(":")[0] for line in capfd.readouterr().out.splitlines() if line]
    assert lines == ["Epoch 1/2", "Checkpoint saved", "after 0", "Checkpoint saved", "after 1"]


@pytest.mark.slow
def test_a_program_that_does_not_close_ends_without_a_word_of_wandbs(project):
    """W&B's own exit comes after the run's, so that there is a run to end."""
    pytest.importorskip("wandb")
    code = (
        "from vaak.compat.hindi_lm import *\n"
        "config = ExperimentConfig.load_config('configs/base_config.yaml')\n"
        "config.use_wandb = True\n"
        "builder = CorpusBuilder(config)\nsplits = builder.load_splits()\n"
        "tokenizer = TokenizerFactory(config).create_tokenizer(splits['train'])\n"
        "train = builder.create_dataloader(splits['train'], tokenizer, 'train')\n"
        "model = ModelFactory(config).create_model(tokenizer.vocab_size)\n"
        "trainer = HindiLanguageModelTrainer(model, tokenizer, config.__dict__)\n"
        "trainer.train_epoch(train)\n"
    )
    environment = {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Run summary" in done.stdout + done.stderr
    assert "can't end" not in done.stdout + done.stderr


def test_a_model_called_as_the_original_gives_its_loss(parts):
    _, _, train, _, model = parts
    batch = next(iter(train))
    model.eval()
    outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["input_ids"])
    scored = batch["attention_mask"][:, 1:]
    expected = F.cross_entropy(model(batch["input_ids"])[:, :-1][scored], batch["input_ids"][:, 1:][scored])
    torch.testing.assert_close(outputs.loss, expected)
    outputs.loss.backward()
    assert model.embedding.weight.grad.abs().sum() > 0
    assert model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).loss is None


def test_the_test_split_of_a_library_run_is_evaluated(parts):
    config, tokenizer, train, valid, model = parts
    HindiLanguageModelTrainer(model, tokenizer, config).train(train, valid, num_epochs=1)
    metrics = evaluate_run(Path("runs/base"), [], [], ["test"])["metrics"]
    builder = CorpusBuilder(config)
    loader = builder.create_dataloader(builder.load_splits()["test"], tokenizer, "test")
    expected = HindiLanguageModelTrainer(model, tokenizer, config).evaluate(loader)
    assert metrics["test_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)


@pytest.mark.slow
def test_checkpoints_elsewhere_open_with_their_run_and_without(parts, project, tmp_path_factory):
    config, tokenizer, train, valid, model = parts
    config.checkpoint_dir = "kept"
    HindiLanguageModelTrainer(model, tokenizer, config).train(train, valid, num_epochs=1)
    newest = find_latest_checkpoint(Path("kept/base"))
    assert newest is not None
    expected = evaluate_run(Path("runs/base"), [], [], ["valid"])["metrics"]
    assert evaluate_run(newest, [], [], ["valid"])["metrics"] == expected
    assert evaluate_run(Path("kept/base"), [], [], ["valid"])["metrics"] == expected
    alone = tmp_path_factory.mktemp("elsewhere") / "base"
    Path("kept/base").rename(alone)
    shutil.rmtree("runs")
    assert evaluate_run(alone, [], [], ["valid"])["metrics"] == expected, "prepared again, from the same sources"
    Path(project / "corpus.txt").rename(project / "elsewhere.txt")
    with pytest.raises(UserError, match=r"the data of valid aren't kept with these checkpoints, and .*corpus\.txt"):
        evaluate_run(alone, [], [], ["valid"])
    Path(project / "elsewhere.txt").rename(project / "corpus.txt")
    data = [f"data.corpus={{type: text, train: {project / 'corpus.txt'}, seed: 1}}"]
    assert evaluate_run(alone / newest.name, [], data, ["valid"])["metrics"]["val_loss"] > 0


def test_train_again_continues_as_a_staged_curriculum(parts, project):
    config, tokenizer, _, valid, model = parts
    builder = CorpusBuilder(config)
    texts = builder.load_splits()["train"]
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    losses = []
    for part in (texts[: len(texts) // 2], texts):
        loader = builder.create_dataloader(part, tokenizer, "train")
        losses = trainer.train(loader, valid, num_epochs=3)["val_loss"]
    assert len(losses) == 6
    assert losses[3] < losses[2]
    assert sorted(path.name for path in (project / "runs").iterdir()) == ["base", "base-2"]
    first, second = (load([project / f"runs/{name}/config.yml"]).experiment.training for name in ("base", "base-2"))
    assert second.random_seed == first.random_seed + 1
    evaluate_run(Path("runs/base-2"), [], [], ["valid", "test"])


@pytest.mark.slow
def test_freeze_train_lower_a_rate_and_train_on(parts, project):
    config, tokenizer, train, valid, model = parts
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {1e-3}
    model.freeze_parameters(["stack"])
    frozen = {name: value.clone() for name, value in model.stack.named_parameters()}
    embedding = model.embedding.weight.detach().clone()
    trainer.train(train, valid, epochs=2)
    assert all(torch.equal(value, frozen[name]) for name, value in model.stack.named_parameters())
    moments = trainer.optimizer.state[model.embedding.weight]["exp_avg_sq"].clone()
    steps = int(trainer.optimizer.state[model.embedding.weight]["step"])
    model.unfreeze_parameters(["stack"])
    trainer.optimizer.param_groups[0]["lr"] = 1e-5
    trainer.train(epochs=3)
    assert len(trainer.metrics["val_loss"]) == 5
    assert not all(torch.equal(value, frozen[name]) for name, value in model.stack.named_parameters())
    assert not torch.equal(embedding, model.embedding.weight)
    assert load([project / "runs/base-2/config.yml"]).experiment.training.optimizer.lr == 1e-5
    assert int(trainer.optimizer.state[model.embedding.weight]["step"]) > steps
    assert moments.abs().sum() > 0
    with pytest.raises(UserError, match="num_epochs and epochs are the same"):
        trainer.train(num_epochs=1, epochs=1)


@pytest.mark.slow
def test_a_rate_that_was_set_stays_until_it_is_set_again(parts, project):
    config, tokenizer, train, valid, model = parts
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    trainer.train(train, valid, epochs=1)
    trainer.optimizer.param_groups[0]["lr"] = 1e-5
    for _ in range(2):
        trainer.train(epochs=1)
        assert max(trainer.metrics["learning_rate"][1:]) <= 1e-5, "it returned to the configuration's"
    groups = trainer.optimizer.param_groups
    assert len(groups) > 1
    groups[1]["lr"] = 1e-6
    with pytest.raises(UserError, match=r"given different rates, .*training\.optimizer\.groups and layer_decay"):
        trainer.train(epochs=1)
    for group in groups:
        group["lr"] = 1e-6
    trainer.train(epochs=1)
    assert load([project / "runs/base-4/config.yml"]).experiment.training.optimizer.lr == 1e-6


def test_a_rate_set_before_the_first_training_is_its_rate(parts, project):
    config, tokenizer, train, valid, model = parts
    trainer = HindiLanguageModelTrainer(model, tokenizer, config)
    trainer.optimizer.param_groups[0]["lr"] = 2e-4
    trainer.train(train, valid, num_epochs=1)
    assert load([project / "runs/base/config.yml"]).experiment.training.optimizer.lr == 2e-4
    with pytest.raises(UserError, match="the first train requires"):
        HindiLanguageModelTrainer(model, tokenizer, config).train(epochs=1)


SNIPPETS = """\
from vaak.compat.hindi_lm import CorpusBuilder, ExperimentConfig, HindiLanguageModelTrainer, ModelFactory
from vaak.compat.hindi_lm import TokenizerFactory

config = ExperimentConfig.load_config('configs/base_config.yaml')
corpus_builder = CorpusBuilder(config)
splits = corpus_builder.load_splits()
tokenizer = TokenizerFactory(config).create_tokenizer(splits['train'])
dataloader = corpus_builder.create_dataloader(splits['train'], tokenizer, 'train')
model = ModelFactory(config).create_model(tokenizer.vocab_size)
trainer = HindiLanguageModelTrainer(model=model, tokenizer=tokenizer, config=config.__dict__)
optimizer = trainer.optimizer

accumulation_steps = 4
for i, batch in enumerate(dataloader):
    loss = model(batch).loss / accumulation_steps
    loss.backward()

    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()

outputs = model(batch)
print("own", outputs.loss.item())
print("epoch", trainer.train_epoch(dataloader))
"""
"""The original's snippets of accumulation and of mixed precision, and an epoch after which nothing is closed."""


def test_the_snippets_train(project, capsys):
    exec(SNIPPETS, {"__name__": "snippets"})
    check_what_snippets_say(capsys.readouterr().out)


def check_what_snippets_say(printed: str) -> None:
    said = dict(line.split() for line in printed.splitlines() if line.startswith(("own ", "epoch ")))
    assert 0 < float(said["epoch"]) < float(said["own"]) + 1 < 9


@pytest.mark.slow
def test_a_program_may_end_without_close(project):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", SNIPPETS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
    check_what_snippets_say(done.stdout)


def test_a_batch_has_the_loss_that_training_gives_it(parts):
    _, _, _, loader, model = parts
    model.eval()
    for batch in loader:
        [term] = loader.task.losses(model, batch).values()
        torch.testing.assert_close(model(batch).loss, term.total / batch.totals()["token"])
    ids = batch["input_ids"][:, :5]
    torch.testing.assert_close(model({"input_ids": ids}).loss, model(ids, labels=ids).loss)
    given = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    torch.testing.assert_close(model(given).loss, model(ids, labels=ids).loss)


def test_a_mistake_in_a_section_is_one_line():
    with pytest.raises(UserError) as error:
        AudioConfig(num_mel_bins="many", colour=3)
    assert "\n" not in str(error.value)
    for word in ("AudioConfig.num_mel_bins: ", "AudioConfig.colour: "):
        assert word in str(error.value)
    assert error.value.__suppress_context__  # nor is there another exception above it
