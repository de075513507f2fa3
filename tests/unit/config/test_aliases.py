"""Other spellings: each sets its canonical name, within its file, and giving both is an error."""

import pytest

from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.yaml.aliases import flat_names, option_aliases
from vaak.config.yaml.text import yaml_text
from vaak.config.yaml.tree import ConfigError, Placed, PlacedDict, place_all, put
from vaak.tasks.lm.config import ALIASES, LanguageModelConfig

VALUES = {
    "mixed_precision": True, "scheduler.type": "cosine", "gradient_clipping.norm": 0.5, "optimizer.betas": [0.5, 0.6],
    "checkpoint.save_dir": "./checkpoints", "checkpoint.resume": "auto", "wandb.project": "p", "wandb.entity": "e",
    "logging.wandb": True, "performance.pin_memory": True, "performance.persistent_workers": False,
    "performance.gradient_checkpointing": True, "profiling": True, "name": "n", "model.preset": "tiny",
    "tokenizer.type": "bpe", "model.model_type": "encoder", "d_model": 64, "d_ff": 64, "num_layers": 3, "num_heads": 4,
    "optimizer.weight_decay": 0.2, "model.dropout": 0.2, "attention_dropout": 0.2, "optimizer.betas.0": 0.7,
    "optimizer.betas.1": 0.8, "optimizer.lr": 0.5, "optimizer.eps": 0.1, "loss.label_smoothing": 0.3,
    "early_stopping.min_delta": 0.01, "scheduler.min_lr": 1e-5, "multiprocessing_context": "spawn",
}  # fmt: skip


def sample(name):
    return next((value for end, value in VALUES.items() if name.endswith(end)), 7)


def value_at(experiment, name):
    value = experiment
    for key in name.split("."):
        value = value[int(key)] if key.isdecimal() else getattr(value, key)
    return list(value) if isinstance(value, tuple) else value


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def from_text(*texts, overrides=()):
        for number, text in enumerate(texts):
            (tmp_path / f"f{number}.yml").write_text(text)
        return load([f"f{number}.yml" for number in range(len(texts))], ["task=lm", *overrides])

    return from_text


def cases():
    aliases = option_aliases(ALIASES)
    return [(alias, name) for alias, name in aliases.items() if not name.endswith("max_duration")]


@pytest.mark.parametrize(("alias", "name"), cases())
def test_every_alias_sets_its_canonical_name(loaded, alias, name):
    value = sample(name)
    kind = ["training.scheduler.type=cosine_restarts"] if alias.startswith("training.scheduler.") else []
    experiment = loaded("task: lm\n", overrides=[*kind, f"{alias}={str(value).lower()}"]).experiment
    expected = "fp16" if value is True and name.endswith("precision") else value
    if alias.endswith("bf16"):
        expected = "bf16"
    assert value_at(experiment, name) == expected


@pytest.mark.parametrize(("alias", "name"), cases())
def test_an_alias_and_its_name_in_one_file_are_an_error_with_both_lines(loaded, alias, name):
    tree = PlacedDict()
    put(tree, alias.split("."), Placed(place_all(sample(name))))
    put(tree, name.split("."), Placed("other"))
    with pytest.raises(ConfigError) as error:
        loaded(yaml_text(tree))
    line = next(line for line in str(error.value).splitlines() if "the same option as" in line)
    assert line.count("f0.yml:") == 2


@pytest.mark.parametrize(
    "text",
    [
        "training:\n  learning_rate: 1e-3\n  optimizer:\n    lr: 1e-3\n",
        "training:\n  optimizer: {lr: 1e-3}\n  learning_rate: 2e-3\n",
        "training:\n  num_epochs: 3\n  epochs: 3\n",
        "training:\n  adam_beta1: 0.8\n  optimizer: {betas: [0.9, 0.99]}\n",
        "learning_rate: 1\ntraining: {learning_rate: 2}\n",
        "optimizer: sgd\ntraining: {optimizer: adamw}\n",
        "model: {hidden_size: 64, d_model: 128}\n",
        "model: {global_config: {batch_size: 8}}\ntraining: {batch_size: 16}\n",
        "training: {fp16: true, bf16: true}\n",
        "training: {early_stopping: null, early_stopping_patience: 3}\n",
    ],
)
def test_two_spellings_in_one_file(loaded, text):
    with pytest.raises(ConfigError) as error:
        loaded(text)
    assert str(error.value).count("f0.yml:") == 2
    assert len(str(error.value).splitlines()) == 1


def test_two_spellings_on_the_command_line(loaded):
    with pytest.raises(ConfigError, match="the same option as"):
        loaded("task: lm\n", overrides=["training.learning_rate=1", "training.optimizer.lr=2"])


def test_aliases_resolve_before_files_merge(loaded):
    experiment = loaded("training: {optimizer: {lr: 1.0}}\n", "training: {learning_rate: 2.0}\n").experiment
    assert experiment.training.optimizer.lr == 2.0
    experiment = loaded("learning_rate: 1.0\n", "training: {optimizer: {lr: 3.0}}\n").experiment
    assert experiment.training.optimizer.lr == 3.0


def test_one_beta_leaves_the_other(loaded):
    experiment = loaded("training: {optimizer: {betas: [0.5, 0.6]}}\n", "training: {adam_beta2: 0.7}\n").experiment
    assert experiment.training.optimizer.betas == (0.5, 0.7)
    assert loaded("training: {adam_beta1: 0.8}\n").experiment.training.optimizer.betas == (0.8, 0.999)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("fp16: true", "fp16"),
        ("bf16: true", "bf16"),
        ("fp16: false", "no"),
        ("fp16: false, bf16: true", "bf16"),
        ("fp16: true, bf16: false", "fp16"),
        ("fp16: false, bf16: false", "no"),
        ("mixed_precision: true", "fp16"),
        ("mixed_precision: false", "no"),
        ("mixed_precision: no", "no"),
    ],
)
def test_precision_flags(loaded, text, precision):
    assert loaded(f"training: {{{text}}}\n").experiment.training.mixed_precision == precision


def test_every_section_of_training_may_stand_at_the_top(loaded):
    experiment = loaded("logging: {interval: 9, wandb_project: p}\noptimizer: sgd\nepochs: 2\n").experiment
    assert experiment.training.logging.interval == 9
    assert experiment.wandb.project == "p"
    assert experiment.training.optimizer.type == "sgd"
    assert experiment.training.epochs == 2
    assert not set(flat_names(experiment_type("lm"))) & {
        "task",
        "name",
        "run_dir",
        "model",
        "data",
        "wandb",
        "datasets",
        "extends",
    }


def test_the_seed_may_repeat_the_batch_size(loaded):
    text = "model: {global_config: {batch_size: 16}}\ntraining: {batch_size: 16}\n"
    assert loaded(text).experiment.training.batch_size == 16
    assert loaded("model: {global_config: {batch_size: 16}}\n").experiment.training.batch_size == 16


def test_model_aliases(loaded):
    text = "model: {hidden_size: 64, num_attention_heads: 4, hidden_dropout_prob: 0.2, max_length: 32}\n"
    experiment = loaded(text).experiment
    assert experiment.model == LanguageModelConfig(d_model=64, num_heads=4, dropout=0.2)
    assert experiment.data.max_length == 32
