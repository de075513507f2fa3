"""Bad configurations: every mistake at once, each with file, line, key, what was expected and a suggestion."""

import pytest

from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import UserError


@pytest.fixture
def mistakes(tmp_path, monkeypatch):
    """A function from YAML text (and overrides) to the lines of the error."""
    monkeypatch.chdir(tmp_path)

    def lines(text, *overrides, **others):
        (tmp_path / "f.yml").write_text(text)
        for name, other in others.items():
            (tmp_path / f"{name}.yml").write_text(other)
        with pytest.raises(ConfigError) as error:
            load(["f.yml"], overrides)
        assert isinstance(error.value, UserError)
        return str(error.value).splitlines()

    return lines


def training(text):
    return "task: lm\ntraining:\n" + "".join(f"  {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epoch: 3", "f.yml:3: training.epoch: unknown key; did you mean epochs?"),
        ("learning_rat: 3", "f.yml:3: training.learning_rat: unknown key; did you mean learning_rate?"),
        ("optimizer: {type: sgd, lrr: 1}", "f.yml:3: training.optimizer.lrr: unknown key; did you mean lr?"),
        ("optimizer:\n  groups:\n    - {match: x, lr_scal: 1}",
         "f.yml:5: training.optimizer.groups.0.lr_scal: unknown key; did you mean lr_scale?"),
        ("min_lr: 0.1", "f.yml:3: training.min_lr: unknown key; did you mean training.scheduler.min_lr?"),
        ("zzz: 1", "f.yml:3: training.zzz: unknown key; expected one of epochs, max_steps"),
        ("checkpoint: {save_dir: 's3://b/runs'}",
         "f.yml:3: training.checkpoint.save_dir: is a URL; give a folder of this machine; training."),
        ("checkpoint: {upload_to: bucket/run}", "f.yml:3: training.checkpoint.upload_to: "),
        ("epochs: many", 'f.yml:3: training.epochs: is "many"; expected a whole number above 0'),
        ("epochs: '3'", 'f.yml:3: training.epochs: is "3"; expected a whole number above 0'),
        ("epochs: 2.5", "f.yml:3: training.epochs: is 2.5; expected a whole number above 0"),
        ("max_steps: 1e5",
         "f.yml:3: training.max_steps: is 100000.0; expected a whole number above 0, or null; write 100000"),
        ("epochs: true", "f.yml:3: training.epochs: is true; expected a whole number above 0"),
        ("epochs: 0", "f.yml:3: training.epochs: is 0; expected a whole number above 0"),
        ("epochs: -1", "f.yml:3: training.epochs: is -1; expected a whole number above 0"),
        ("epochs: null", "f.yml:3: training.epochs: is null; expected a whole number above 0"),
        ("epochs: [1]", "f.yml:3: training.epochs: is [1]; expected a whole number above 0"),
        ("deterministic: 1", "f.yml:3: training.deterministic: is 1; expected true or false"),
        ("deterministic: yes",
         'f.yml:3: training.deterministic: is "yes"; expected true or false (yes, no, on and off are'),
        ("device: gpu",
         'f.yml:3: training.device: is "gpu"; expected one of auto, cuda, mps, cpu; did you mean cpu?'),
        ("mixed_precision: fp8", 'f.yml:3: training.mixed_precision: is "fp8"; expected one of auto, no, bf16, fp16'),
        ("optimizer: adamww",
         'f.yml:3: training.optimizer.type: is "adamww"; expected one of adamw, adam, sgd, adafactor, lion, muon, '),
        ("optimizer:\n  lr: 0", "f.yml:4: training.optimizer.lr: is 0; expected a number above 0"),
        ("optimizer: {lr: .nan}", "f.yml:3: training.optimizer.lr: is NaN; expected a number above 0"),
        ("optimizer: {lr: 1e999}", "f.yml:3: training.optimizer.lr: is Infinity; expected a number above 0"),
        ("optimizer: {betas: [0.9]}", "f.yml:3: training.optimizer.betas"),
        ("optimizer: {betas: [0.9, 1.5]}", "f.yml:3: training.optimizer.betas.1: is 1.5; expected a number"),
        ("optimizer: [adamw]", 'f.yml:3: training.optimizer: is ["adamw"]; expected a section of keys'),
        ("optimizer:", "f.yml:3: training.optimizer"),
        ("validation: 5", "f.yml:3: training.validation: is 5; expected a section of keys"),
        ("scheduler:\n  warmup_ratio: 1.0",
         "f.yml:4: training.scheduler.warmup_ratio: is 1.0; expected a number at least 0"),
        ("optimizer: {groups: [{lr_scale: 1}]}", "f.yml:3: training.optimizer.groups.0: match is missing"),
        ("loss: {auxiliary: {z_loss: x}}", 'f.yml:3: training.loss.auxiliary.z_loss: is "x"; expected a number'),
        ("logging: {trackers: [1]}", "f.yml:3: training.logging.trackers.0: is 1; expected text"),
        ("callbacks: [{patience: 3}]", "f.yml:3: training.callbacks.0: type is missing"),
        ("callbacks: [early_stoping]", "f.yml:3: training.callbacks.0.type: 'early_stoping' is not known"),
        ("loss: cross_entrop", "f.yml:3: training.loss.main.type: 'cross_entrop' is not known"),
        ("loss: ./nope.py:Huber", "f.yml:3: training.loss.main.type: nope.py can't be read"),
        ("loss: no_such_package.losses:Huber",
         "f.yml:3: training.loss.main.type: no package no_such_package in this environment"),
        ("fp16: maybe", "f.yml:3: training.fp16: is 'maybe'; expected true or false"),
        ("fp16: [1, {a: b}]", "f.yml:3: training.fp16: is [1, {'a': 'b'}]; expected true or false"),
        ("fp16: maybe\nbf16: true", "f.yml:3: training.fp16: is 'maybe'; expected true or false"),
    ],
)  # fmt: skip
def test_one_wrong_option(mistakes, text, expected):
    lines = mistakes(training(text))
    assert len(lines) == 1, lines
    assert lines[0].startswith(expected)


@pytest.mark.parametrize("text", ["max_steps: 1e30", "epochs: 1e20", "batch_size: 1e12", "num_workers: -3.0"])
def test_nothing_is_suggested_that_would_be_refused_again(mistakes, text):
    (line,) = mistakes(training(text))
    assert "expected a whole number" in line
    assert "write" not in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task: lm\ntraining:\n", "f.yml:2: training: is empty (null); expected a section of keys"),
        ("task: lm\ntraining: []\n", "f.yml:2: training: is []; expected a section of keys"),
        ("task: lm\ntrainig: {}\n", "f.yml:2: trainig: unknown key; did you mean training?"),
        ("task: lm\nname: a/b\n", 'f.yml:2: name: is "a/b"; expected text without / or \\'),
        ("task: lm\nmodel: {d_model: 10, num_heads: 4}\n",
         "f.yml:2: model: d_model (10) must be a multiple of num_heads (4)"),
        ("task: lm\nmodel:\n  num_heads: 3\n", "f.yml:3: model: d_model (512) must be a multiple"),
        ("task: ocr\n", "f.yml:1: task: is 'ocr'; expected one of asr, classification, diarization, lm"),
        ("task: [lm]\n", "f.yml:1: task: is ['lm']; expected one of asr, classification, diarization, lm"),
        ("training: {epochs: 3}\n", "f.yml: task: is not given and can't be inferred from the sections"),
        (
            "task: lm\ndistillation: {teacher: x, hidden: [{student: a, teacher: b}]}\n"
            "training: {performance: {compile: true}}\n",
            "f.yml:2: distillation.hidden: a compiled model gives no hidden states",
        ),
        ("task: lm\ntraining:\n  callbacks:\n    - {type: gradient_clipping, norm: 0.5}\n",
         "f.yml:4: training.callbacks.0.norm: gradient_clipping has no option norm; its options are max_norm, max_v"),
        ("task: lm\ntraining:\n  callbacks: [early_stopping, {type: lr_monitor, evry: 2}]\n",
         "f.yml:3: training.callbacks.1.evry: lr_monitor has no option evry; its options are every"),
        ("task: tts\ndistillation: {teacher: x}\n",
         "f.yml:2: distillation: the task tts predicts no probabilities to learn from a teacher; leave it out"),
        ("task: vocoder\ndistillation: {teacher: x}\n",
         "f.yml:2: distillation: the task vocoder predicts no probabilities to learn from a teacher; leave it out"),
        ("task: lm\ndistillation: {alpha: 0.5}\n", "f.yml:2: distillation: teacher is missing"),
        ("task: lm\ndistillation: {teacher: x, alpha: 70}\n", "f.yml:2: distillation.alpha: is 70"),
        ("task: lm\ntasks: {a: {}}\n", "f.yml:2: tasks: belongs to training on several tasks (task: multitask)"),
        ("task: lm\ndatasets:\n  - name: ami\n", "f.yml:2: datasets: is for audio, which the task lm doesn't read"),
        ("task: lm\ntraining: {curriculum: length}\ndata: {layout: stream}\n",
         "f.yml:2: training.curriculum.difficulty: length: windows of a stream are all equally long"),
        ("task: lm\nglobal_config: {num_mel_bins: 80}\n",
         "f.yml:2: global_config: is for audio, which the task lm doesn't read"),
    ],
)  # fmt: skip
def test_one_wrong_section(mistakes, text, expected):
    lines = mistakes(text)
    assert len(lines) == 1, lines
    assert lines[0].startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer: {type: adamw, momentum: 0.9}",
         "f.yml:3: training.optimizer.momentum: is read by the type sgd, muon only, and the type here is adamw"),
        ("optimizer: {momentum: 0.9}",
         "f.yml:3: training.optimizer.momentum: is read by the type sgd, muon only, and the type here is adamw"),
        ("scheduler:\n  type: constant\n  min_lr: 0.1", "f.yml:5: training.scheduler.min_lr: is read by the"),
        ("loss: {auxiliary: {norm_reg: 0.1}}", "f.yml:3: training.loss.auxiliary.norm_reg: no layer of this model"),
        ("memory: {thresholds: [0.9, 0.5, 0.6]}", "f.yml:3: training.memory.thresholds: [0.9, 0.5, 0.6] do not inc"),
        ("device: cpu\ndistributed: {backend: nccl}", "f.yml:4: training.distributed.backend: nccl needs CUDA"),
        ("distributed: {reduction: exact, reduce_dtype: bf16}", "f.yml:3: training.distributed.reduce_dtype: exact"),
        ("distributed: {reduction: exact, strategy: zero1}", "f.yml:3: training.distributed.reduction: exact"),
        (
            "distributed: {reduction: exact, world_size: 3}",
            "f.yml:2: training.gradient_accumulation_steps: exact sums need a microbatch for each process",
        ),
        ("optimizer: adafactor\ndistributed: {strategy: fsdp}",
         "f.yml:3: training.optimizer.type: adafactor needs whole"),
        ("optimizer: adamw_8bit\ndistributed: {strategy: fsdp}",
         "f.yml:3: training.optimizer.type: adamw_8bit needs whole"),
        ("performance: {compile: max-autotune}\ndistributed: {strategy: fsdp}",
         "f.yml:3: training.performance.compile: max-autotune records CUDA graphs"),
        ("performance: {cuda_graphs: true, compile: true}", "f.yml:3: training.performance.cuda_graphs: a compiled"),
        ("performance: {cuda_graphs: true, gradient_checkpointing: attention}",
         "f.yml:3: training.performance.cuda_graphs: what is recomputed"),
        ("performance: {cuda_graphs: true}\ndistributed: {strategy: fsdp}",
         "f.yml:3: training.performance.cuda_graphs: is not possible with training.distributed.strategy: fsdp"),
        ("optimizer: {type: sgd, fused: true}\ndistributed: {strategy: fsdp}",
         "f.yml:3: training.optimizer.fused: sgd has no fused kernels"),
        ("eval_knobs: {max_duration: 30.0}", "f.yml:3: training.batching.max_duration: text has no duration"),
        ("scheduler: {warmup_steps: 3, warmup_ratio: 0.1}", "f.yml:3: training.scheduler.warmup_ratio: given together"),
        ("validation: {interval_epochs: null}\nearly_stopping: 3", "f.yml:4: training.early_stopping: needs"),
        ("validation: {interval_epochs: null}\nscheduler: plateau", "f.yml:4: training.scheduler.type: plateau needs"),
        ("curriculum: {initial_difficulty: 0.5, final_difficulty: 0.4}",
         "f.yml:3: training.curriculum.final_difficulty: is below initial_difficulty (0.5)"),
    ],
)  # fmt: skip
def test_options_that_cannot_apply_are_errors(mistakes, text, expected):
    lines = mistakes(training(text))
    assert len(lines) == 1, lines
    assert lines[0].startswith(expected)


def test_all_mistakes_come_at_once_in_reading_order(mistakes):
    lines = mistakes(
        "extends: base.yml\ntraining:\n  epoch: 3\n  loss: {auxiliary: {norm_reg: 1}}\nmodel: {dropout: 2}\n",
        "training.optimizer.lr=fast",
        "data.corpu.type=text",
        base="task: lm\ntraining:\n  batch_size: 0\n  fp16: true\n  mixed_precision: bf16\nwandb: {tags: [1]}\n",
    )
    assert [line.split(": ")[:2] for line in lines] == [
        ["base.yml:3", "training.batch_size"],
        ["base.yml:4", "training.fp16"],
        ["base.yml:6", "wandb.tags.0"],
        ["f.yml:3", "training.epoch"],
        ["f.yml:4", "training.loss.auxiliary.norm_reg"],
        ["f.yml:5", "model.dropout"],
        ["command line", "data.corpu"],
        ["command line", "training.optimizer.lr"],
    ]


def test_the_line_is_that_of_the_file_which_won(mistakes):
    lines = mistakes(
        "extends: base.yml\ntraining:\n  optimizer:\n    lr: -1\n",
        base="task: lm\ntraining: {optimizer: {lr: -2, eps: -3}}\n",
    )
    assert [line.split(": ")[0] for line in lines] == ["base.yml:2", "f.yml:4"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.optimzer.lr=1", "command line: training.optimzer: unknown key; did you mean optimizer?"),
        ("training.epochs", "command line: 'training.epochs' is not of the form key.path=value"),
        ("=3", "command line: '=3' is not of the form key.path=value"),
        ("training..epochs=3", "command line: 'training..epochs=3' is not of the form key.path=value"),
        ("training.epochs=[1", "command line: training.epochs: not valid YAML"),
        ("training.epochs=x", 'command line: training.epochs: is "x"; expected a whole number above 0'),
        ("extends=x.yml", "command line: extends: belongs in a file"),
        ("training.callbacks.7.type=lr_monitor", 'command line: training.callbacks: is {"7": {"type": "lr_monitor"}}'),
        ("data.minimal_pairs.x=1", 'command line: data.minimal_pairs: is {"x": 1}; expected a list, each text'),
        ("training.epochs.x=1", 'command line: training.epochs: is {"x": 1}; expected a whole number above 0'),
    ],
)
def test_wrong_overrides(mistakes, override, expected):
    lines = mistakes("task: lm\n", override)
    assert len(lines) == 1, lines
    assert lines[0].startswith(expected)


def test_extends_circle_and_missing_base(mistakes):
    assert mistakes("extends: a.yml\ntask: lm\n", a="x: 1\nextends: f.yml\n") == [
        "a.yml:2: extends: forms a cycle back to f.yml"
    ]
    assert mistakes("task: lm\nextends: none.yml\n") == ["f.yml:2: extends: none.yml does not exist"]
    assert mistakes("task: lm\nextends: 3\n") == ["f.yml:2: extends: expected the path of a YAML file"]


def test_no_files():
    with pytest.raises(ConfigError, match="no configuration file given"):
        load([])


def test_keys_of_other_systems_say_what_they_are_for(mistakes):
    """As the research kit and the TTS trainer write them; "did you mean num_layers?" helped nobody."""
    kit = "task: lm\nmodel: {name: cnn, architecture: cnn, embed_size: 128, num_filters: 100, num_labels: 2}\n"
    found = mistakes(kit + "data: {augmentation: {enabled: true}}\nn_encoder_layers: 8\n")
    assert found == [
        *(
            f"f.yml:2: model.{key}: belongs to text classification (task: classification); leave it out"
            for key in ("architecture", "embed_size", "num_filters", "num_labels")
        ),
        "f.yml:3: data.augmentation: belongs to text classification (task: classification); leave it out",
        "f.yml:4: n_encoder_layers: belongs to text to speech (task: tts); leave it out",
    ]


def test_accelerates_own_configuration_is_one_line(mistakes):
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: fp16\nnum_processes: 4\n"
    [line] = mistakes("task: lm\nextends: accelerate.yml\n", accelerate=text)
    assert line.startswith("accelerate.yml: this is accelerate's own configuration; give it to accelerate: accelerate")


def test_nothing_is_said_of_the_default_of_a_section_with_a_mistake(mistakes):
    text = "task: tts\nglobal_config: {mel: {n_mels: 16}, num_mel_bins: 17}\n"
    (line,) = mistakes(text)
    assert "num_mel_bins is 17, but 16 by the options of mel" in line


@pytest.mark.parametrize("task", ["tts", "vocoder"])
def test_other_features_than_mel_are_refused_for_speech_synthesis(mistakes, task):
    (line,) = mistakes(f"task: {task}\nglobal_config: {{feature_type: mfcc}}\n")
    assert line == "f.yml:2: global_config.feature_type: mfcc is not for speech synthesis; expected mel"


def test_a_runs_own_configuration_has_no_warnings_but_what_is_added_to_it_has(tmp_path):
    """It has every option of its run, which said at its start which of them have no effect."""
    text = training("epochs: 7\nmax_steps: 3\nperformance: {persistent_workers: false}")
    (tmp_path / "mine.yml").write_text(text)
    assert len(load([tmp_path / "mine.yml"]).warnings) == 3
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yml").write_text(text)
    assert len(load([tmp_path / "run/config.yml"]).warnings) == 3, "no run made it"
    (tmp_path / "run/run.json").write_text("{}")
    assert load([tmp_path / "run/config.yml"]).warnings == []
    (warning,) = load([tmp_path / "run/config.yml"], ["training.amp_loss_scale=2.0"]).warnings
    assert "training.amp_loss_scale" in warning
