"""Files over files and the command line on top."""

import pytest

from vaak.config.load import load


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def from_texts(files, *overrides, **texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.yml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return load([f"{name}.yml" for name in files.split()], overrides)

    return from_texts


def test_later_wins_from_base_to_command_line(loaded):
    experiment = loaded(
        "run more",
        "training.checkpoint.interval=7",
        "run_dir=elsewhere/x",
        sub__base="task: lm\ntraining: {epochs: 1, batch_size: 1, random_seed: 1, max_steps: 1}\n",
        sub__middle="extends: base.yml\ntraining: {batch_size: 2, random_seed: 2, max_steps: 2}\n",
        run="extends: sub/middle.yml\ntraining: {random_seed: 3, max_steps: 3}\n",
        more="training: {max_steps: 4}\n",
    ).experiment
    training = experiment.training
    assert (training.epochs, training.batch_size, training.random_seed, training.max_steps) == (1, 2, 3, 4)
    assert training.checkpoint.interval == 7
    assert (experiment.name, str(experiment.run_dir)) == ("more", "elsewhere/x")


def test_a_base_shared_by_two_files_lies_beneath_both(loaded):
    experiment = loaded(
        "a b",
        base="task: lm\ntraining: {epochs: 1, batch_size: 1}\n",
        a="extends: base.yml\ntraining: {epochs: 2}\n",
        b="extends: base.yml\ntraining: {batch_size: 3}\n",
    ).experiment
    assert (experiment.training.epochs, experiment.training.batch_size) == (2, 3)


def test_a_bare_value_replaces_one_field_only(loaded):
    base = "task: lm\ntraining:\n  optimizer: {type: adamw, lr: 0.5}\n  gradient_clipping: {norm: 2, value: 3}\n"
    training = loaded(
        "a", base=base, a="extends: base.yml\ntraining: {optimizer: muon, gradient_clipping: 1.5}\n"
    ).experiment.training
    assert (training.optimizer.type, training.optimizer.lr) == ("muon", 0.5)
    assert (training.gradient_clipping.norm, training.gradient_clipping.value) == (1.5, 3)


def test_null_for_sections(loaded):
    base = "task: lm\ntraining: {early_stopping: {patience: 2}, gradient_clipping: 2}\n"
    training = loaded(
        "a", base=base, a="extends: base.yml\ntraining: {early_stopping: null, gradient_clipping: null}\n"
    ).experiment.training
    assert training.early_stopping is None
    assert training.gradient_clipping.norm is None
    assert loaded("a", "training.early_stopping=9").experiment.training.early_stopping.patience == 9


def test_options_of_the_type_that_was_replaced_are_dropped_with_a_warning(loaded):
    base = "task: lm\ntraining:\n  optimizer:\n    betas: [0.8, 0.9]\n  loss: {main: {type: focal, gamma: 3}}\n"
    result = loaded("a", base=base, a="extends: base.yml\ntraining: {optimizer: sgd, loss: cross_entropy}\n")
    assert result.experiment.training.loss.main.options == {}
    assert result.warnings == [
        "base.yml:4: training.optimizer.betas: not used: a.yml:2 makes the type sgd, which does not read it",
        "base.yml:5: training.loss.main.gamma: not used: a.yml:2 makes the type cross_entropy, which does not read it",
    ]


def test_bare_values_and_sections_meet_on_the_command_line(loaded):
    optimizer = loaded("a", "training.optimizer.lr=0.5", "training.optimizer=sgd", a="task: lm\n").experiment
    assert (optimizer.training.optimizer.type, optimizer.training.optimizer.lr) == ("sgd", 0.5)
    optimizer = loaded("a", "training.optimizer=muon", "training.optimizer.lr=0.5").experiment
    assert (optimizer.training.optimizer.type, optimizer.training.optimizer.lr) == ("muon", 0.5)


def test_lists_are_replaced_and_their_items_reached_by_place(loaded):
    text = "task: lm\ntraining:\n  callbacks: [{type: lr_monitor, every: 5}, early_stopping]\n"
    callbacks = loaded("a", "training.callbacks.1.patience=3", a=text).experiment.training.callbacks
    assert [(callback.type, callback.options) for callback in callbacks] == [
        ("lr_monitor", {"every": 5}),
        ("early_stopping", {"patience": 3}),
    ]
    assert len(loaded("a", "training.callbacks=[lr_monitor]").experiment.training.callbacks) == 1
    assert loaded("a", "training.callbacks=lr_monitor").experiment.training.callbacks[0].type == "lr_monitor"
    assert loaded("a", "data.corpus.train=a.txt", "data.corpus=text").experiment.data.corpus.train == ("a.txt",)


def test_a_preset_gives_sizes_that_other_keys_replace(loaded):
    model = loaded("a", a="task: lm\nmodel: {preset: tiny, num_layers: 3}\n").experiment.model
    assert (model.d_model, model.num_layers, model.num_heads) == (64, 3, 4)


def test_the_task_is_told_by_its_own_keys(loaded):
    assert loaded("a", a="data: {tokenizer: character}\n").experiment.task == "lm"


def test_given_keys_are_those_the_user_wrote(loaded):
    given = loaded("a", "model.dropout=0.2", a="task: lm\ntraining: {learning_rate: 1}\n").given
    assert {"task", "model.dropout", "training.optimizer.lr", "training.optimizer"} <= given
    assert "training.epochs" not in given
    assert "training.optimizer.type" not in given


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.fixed_projection=true", "no layer of this model draws random features"),
        ("training.eval_knobs.label_type=binary", "options of diarization; the task lm does not read them"),
        ("training.amp_loss_scale=8", "only fp16 scales the loss"),
        ("training.performance.prefetch_factor=4", "num_workers is null and this is text"),
        ("training.curriculum.num_epochs=99", "training ends earlier, after"),
        ("wandb.project=x", "nothing is sent to Weights & Biases unless"),
    ],
)
def test_what_does_nothing_is_said(loaded, override, expected):
    warnings = loaded("a", override, a="task: lm\n").warnings
    assert len(warnings) == 1
    assert expected in warnings[0]


def test_fp16_on_a_cpu_and_epochs_beside_max_steps_are_said(loaded):
    warnings = loaded("a", a="task: lm\ntraining: {device: cpu, fp16: true, max_steps: 3, epochs: 2}\n").warnings
    assert sorted(warning.split(": ", 2)[2] for warning in warnings) == [
        "fp16 needs an accelerator; on a CPU, training continues in fp32",
        "max_steps (3) decides when training ends",
    ]


def test_what_asks_for_nothing_is_not_said(loaded):
    text = "task: lm\ntraining: {profiling: false, fixed_projection: false, feature_redraw_interval: null}\n"
    assert loaded("a", a=text).warnings == []


def test_false_is_said_where_true_is_the_default(loaded):
    text = "task: diarization\nglobal_config: {raw_energy: false}\n"
    (said,) = loaded("a", a=text).warnings
    assert "raw_energy: use_energy is false, so no energy is computed" in said


@pytest.mark.parametrize(("task", "kind", "size"), [("asr", "character", 1000), ("classification", "word", 30000)])
def test_one_option_of_a_tokenizer_leaves_the_tasks_defaults_of_others(loaded, task, kind, size):
    tokenizer = loaded("a", a=f"task: {task}\ndata: {{tokenizer: {{min_frequency: 3}}}}\n").experiment.data.tokenizer
    assert (tokenizer.type, tokenizer.vocab_size, tokenizer.min_frequency) == (kind, size, 3)
