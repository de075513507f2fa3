"""Configurations in the original systems' documents load as written, with the documented meaning."""

import pytest

from vaak.audio.config import AudioConfig
from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError

SEED_1 = """\
training:
  # Basic settings
  epochs: 50
  batch_size: 32
  random_seed: 42

  # Optimizer
  optimizer:
    type: adamw
    lr: 2e-4
    weight_decay: 0.01
    betas: [0.9, 0.999]

  # Scheduler
  scheduler:
    type: cosine
    min_lr: 1e-6
    warmup_steps: 1000

  # Training behavior
  gradient_clipping: 1.0
  gradient_accumulation_steps: 4
  mixed_precision: true

  # Performer-specific
  feature_redraw_interval: 100
  fixed_projection: false

  # Loss configuration
  loss:
    main: cross_entropy
    label_smoothing: 0.1
    auxiliary:
      norm_reg: 0.1

  # Validation
  validation:
    interval: 500
    batch_size: 64

  # Early stopping
  early_stopping:
    patience: 5
    metric: val_loss
    min_delta: 0.001
    mode: min

  # Checkpointing
  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
    save_total_limit: 5
    resume: null

  # Logging (via Accelerate)
  logging:
    interval: 50
    tensorboard: true
    wandb: true
    wandb_project: my-project
    log_metrics: [loss, accuracy]

  # Performance
  performance:
    num_workers: 4
    pin_memory: true

  # Diarization settings
  eval_knobs:
    label_type: binary  # binary, speaker_id, or custom
    max_duration: null  # for dynamic bucketing
"""

SEED_1_MODEL = """\
model:
  model_type: encoder_decoder
  name: performer_translator

  global_config:
    dropout: 0.1
    batch_size: 32
    d_ff: 4

  encoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: linear

  decoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: causal_linear
"""

SEED_1_DATA = """\
global_config:
  corpus_dir: ./data
  output_dir: ./manifests

  # Feature extraction configuration (unified for all datasets)
  feature_type: fbank  # Options: fbank, mfcc, spectrogram

  # Basic parameters
  num_mel_bins: 80
  frame_length: 0.025  # 25ms
  frame_shift: 0.01  # 10ms
  sampling_rate: 16000

  # Window and preprocessing (optional)
  preemph_coeff: 0.97  # Pre-emphasis
  window_type: povey  # povey, hanning, hamming
  dither: 0.0
  snip_edges: false
  remove_dc_offset: true

  # Mel filterbank (optional)
  low_freq: 20.0
  high_freq: -400.0  # -400 = nyquist - 400

  # MFCC-specific (when feature_type: mfcc)
  num_ceps: 13
  cepstral_lifter: 22
  use_energy: false

  # Feature computation
  storage_path: null  # null = in-memory
  num_jobs: 1  # Parallel jobs
  progress_bar: true

datasets:
  - name: ami
"""

SEED_1_MINIMAL = """\
training:
  epochs: 10
  batch_size: 32

  optimizer:
    type: adamw
    lr: 1e-4

  scheduler:
    type: cosine
    min_lr: 1e-6

  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
"""

SEED_5_BASIC = """\
training:
  learning_rate: 2e-5
  batch_size: 16
  num_epochs: 10
  warmup_steps: 500
  weight_decay: 0.01

  # Gradient settings
  gradient_accumulation_steps: 1
  max_grad_norm: 1.0

  # Mixed precision
  fp16: true

  # Logging
  logging_steps: 100
  eval_steps: 500
"""

SEED_5_ADVANCED = """\
training:
  # Optimizer
  optimizer: "adamw"
  adam_epsilon: 1e-8
  adam_beta1: 0.9
  adam_beta2: 0.999

  # Scheduler
  scheduler_type: "linear"

  # Early stopping
  early_stopping_patience: 3
  early_stopping_threshold: 0.01

  # Checkpointing
  save_steps: 1000
  save_total_limit: 3
"""

SEED_5_WANDB = """\
wandb:
  project: "your-project-name"
  entity: "your-wandb-entity"
  name: null  # Auto-generated
  tags: ["experiment", "baseline"]
  notes: "Baseline model training"
"""

SEED_1_FRAGMENTS = {
    "logging:\n  tensorboard: true\n  interval: 50\n": ("logging.interval", 50),
    "logging:\n  wandb: true\n  wandb_project: my-diarization-project\n  wandb_entity: my-team\n": (
        "logging.wandb",
        True,
    ),
    "training:\n  mixed_precision: true\n  amp_loss_scale: null  # dynamic scaling\n": ("mixed_precision", "fp16"),
    "training:\n  distributed:\n    backend: nccl\n    world_size: 8\n    sync_gradient_barrier: true\n": (
        "distributed.world_size",
        8,
    ),
    "training:\n  profiling: true\n": ("profiling", True),
}


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def from_text(*texts, task="lm"):
        for number, text in enumerate(texts):
            (tmp_path / f"f{number}.yml").write_text(text)
        return load([f"f{number}.yml" for number in range(len(texts))], [f"task={task}"] if task else [])

    return from_text


def without(text, *lines):
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() not in lines)


def test_seed_1s_model_and_training_load_as_written(loaded):
    result = loaded(SEED_1_MODEL, SEED_1, task=None)
    experiment = result.experiment
    model, training = experiment.model, experiment.training
    assert (experiment.task, model.model_type, model.name) == ("seq2seq", "encoder_decoder", "performer_translator")
    sides = (model.encoder, model.decoder)
    assert [(side.d_model, side.num_layers, side.num_heads) for side in sides] == [(512, 6, 8)] * 2
    assert [(side.dropout, side.d_ff) for side in sides] == [(0.1, 4)] * 2
    assert [side.attention_type for side in sides] == ["linear", "causal_linear"]
    assert (training.feature_redraw_interval, training.fixed_projection) == (100, False)
    assert training.loss.auxiliary == {"norm_reg": 0.1}
    assert (training.batch_size, training.validation.batch_size) == (32, 64)
    assert sorted(warning.split(": ")[1] for warning in result.warnings) == [
        "model.decoder.attention_type",  # linear attention, at lengths at which softmax is faster
        "model.encoder.attention_type",
        "training.eval_knobs",
    ]


def test_seed_1s_model_loads_alone(loaded):
    experiment = loaded(SEED_1_MODEL, task=None).experiment
    assert (experiment.task, experiment.training.batch_size) == ("seq2seq", 32)


def test_seed_1_needs_performer_layers_for_norm_reg_only(loaded):
    with pytest.raises(
        Exception, match=r"^f0.yml:34: training.loss.auxiliary.norm_reg: no layer of this model draws random.*$"
    ) as error:
        loaded(SEED_1)
    assert len(str(error.value).splitlines()) == 1


def test_seed_1(loaded):
    result = loaded(without(SEED_1, "auxiliary:", "norm_reg: 0.1"))
    training = result.experiment.training
    assert (training.epochs, training.batch_size, training.random_seed) == (50, 32, 42)
    assert (training.optimizer.type, training.optimizer.lr, training.optimizer.betas) == ("adamw", 2e-4, (0.9, 0.999))
    assert (training.scheduler.type, training.scheduler.min_lr, training.scheduler.warmup_steps) == (
        "cosine",
        1e-6,
        1000,
    )
    assert (training.gradient_clipping.norm, training.gradient_accumulation_steps) == (1.0, 4)
    assert training.mixed_precision == "fp16"
    assert (training.loss.main.type, training.loss.label_smoothing) == ("cross_entropy", 0.1)
    assert (training.validation.interval, training.validation.batch_size) == (500, 64)
    assert (training.early_stopping.patience, training.early_stopping.min_delta) == (5, 0.001)
    assert (training.checkpoint.save_dir, training.checkpoint.interval) == ("./checkpoints", 1000)
    assert (training.logging.wandb, training.logging.log_metrics) == (True, ("loss", "accuracy"))
    assert (training.performance.num_workers, training.performance.pin_memory) == (4, True)
    assert result.experiment.wandb.project == "my-project"
    assert sorted(warning.split(": ")[1] for warning in result.warnings) == [
        "training.eval_knobs",
        "training.feature_redraw_interval",
    ]


def test_seed_1s_data_load_as_written_and_are_the_defaults(loaded):
    result = loaded(SEED_1_DATA, without(SEED_1, "auxiliary:", "norm_reg: 0.1"), task="diarization")
    experiment = result.experiment
    assert experiment.global_config == AudioConfig(output_dir="./manifests")
    assert [(dataset.name, dataset.type) for dataset in experiment.datasets] == [("ami", "recipe")]
    assert experiment.training.eval_knobs.label_type.type == "binary"
    assert experiment.training.batching.type == "fixed"
    assert sorted(warning.split(": ")[1] for warning in result.warnings) == [
        "global_config.cepstral_lifter",
        "global_config.num_ceps",
        "global_config.num_jobs",
        "training.feature_redraw_interval",
        "training.logging.log_metrics",
    ]


def test_seed_1s_options_of_audio_mean_what_they_say(loaded):
    values = {"num_filters": 40, "storage_path": "features", "storage_type": "float16", "num_jobs": 4, "low_freq": 0.0}
    given = "".join(f"  {name}: {value}\n" for name, value in values.items())
    knobs = "training: {eval_knobs: {label_type: speaker_id, max_duration: 30.0}}\n"
    experiment = loaded(f"global_config:\n{given}{knobs}", task="diarization").experiment
    audio, training = experiment.global_config, experiment.training
    assert (audio.num_mel_bins, audio.storage_path, audio.storage_type) == (40, "features", "float16")
    assert (audio.num_jobs, audio.low_freq) == (4, 0.0)
    assert training.eval_knobs.label_type.type == "speaker_id"
    assert (training.batching.type, training.batching.max_duration) == ("bucketed", 30.0)


def test_seed_1_minimal(loaded):
    result = loaded(SEED_1_MINIMAL)
    assert result.experiment.training.optimizer.lr == 1e-4
    assert result.warnings == []


@pytest.mark.parametrize("fragment", SEED_1_FRAGMENTS)
def test_seed_1_fragments(loaded, fragment):
    name, expected = SEED_1_FRAGMENTS[fragment]
    value = loaded(fragment).experiment.training
    for key in name.split("."):
        value = getattr(value, key)
    assert value == expected


def test_seed_5_keeps_training_and_tracking_apart(loaded):
    basic, advanced = SEED_5_BASIC, SEED_5_ADVANCED
    result = loaded(basic, advanced, SEED_5_WANDB)
    training, wandb = result.experiment.training, result.experiment.wandb
    assert (training.optimizer.type, training.optimizer.lr, training.optimizer.weight_decay) == ("adamw", 2e-5, 0.01)
    assert (training.optimizer.eps, training.optimizer.betas) == (1e-8, (0.9, 0.999))
    assert (training.epochs, training.batch_size, training.gradient_accumulation_steps) == (10, 16, 1)
    assert (training.scheduler.type, training.scheduler.warmup_steps) == ("linear", 500)
    assert (training.gradient_clipping.norm, training.mixed_precision) == (1.0, "fp16")
    assert (training.logging.interval, training.validation.interval) == (100, 500)
    assert (training.early_stopping.patience, training.early_stopping.min_delta) == (3, 0.01)
    assert (training.checkpoint.interval, training.checkpoint.save_total_limit) == (1000, 3)
    assert (wandb.project, wandb.entity, wandb.name) == ("your-project-name", "your-wandb-entity", None)
    assert (wandb.tags, wandb.notes) == (("experiment", "baseline"), "Baseline model training")
    assert len(result.warnings) == 1
    assert "nothing is sent to Weights & Biases unless training.logging.wandb is true" in result.warnings[0]


def test_seed_4_flat_configuration(loaded):
    experiment = loaded(
        "learning_rate: 3e-4\nweight_decay: 0.01\nnum_epochs: 10\nbatch_size: 32\n"
        "project_name: hindi\ncheckpoint_dir: checkpoints\nexperiment_name: base\n"
        "vocab_size: 8000\nmax_length: 128\nhidden_size: 256\n"
    ).experiment
    assert (experiment.name, str(experiment.run_dir)) == ("base", "runs/base")
    assert experiment.training.optimizer.lr == 3e-4
    assert experiment.training.checkpoint.save_dir == "checkpoints"
    assert experiment.wandb.project == "hindi"
    assert (experiment.data.tokenizer.vocab_size, experiment.data.max_length, experiment.model.d_model) == (
        8000,
        128,
        256,
    )


def test_the_language_models_defaults_are_seed_4s(loaded):
    experiment = loaded("task: lm\n").experiment
    training, optimizer = experiment.training, experiment.training.optimizer
    assert optimizer.type == "adamw"
    assert (optimizer.lr, optimizer.betas, optimizer.eps, optimizer.weight_decay) == (3e-4, (0.9, 0.999), 1e-8, 0.01)
    assert (training.batch_size, training.epochs) == (32, 10)
    assert training.gradient_clipping.norm == 1.0
    assert training.mixed_precision == "auto"  # fp32 where bf16 isn't multiplied in hardware; theirs is fp32 everywhere
    assert training.early_stopping is None
    assert training.gradient_accumulation_steps == 1
    assert (training.validation.interval_epochs, training.checkpoint.interval_epochs) == (1, 1)
    assert (training.checkpoint.metric, training.checkpoint.mode) == ("val_loss", "min")
    assert experiment.model.dropout == 0.1
    assert experiment.data.corpus.train_fraction == 0.8
    assert experiment.wandb.project == "hindi-babylm"


SEED_1_ENCODER = SEED_1_MODEL.partition("\n  decoder:")[0].replace("encoder_decoder", "encoder")
SEED_1_DECODER = SEED_1_ENCODER.replace("encoder", "decoder").replace("linear", "causal_linear")


def test_seed_1s_three_sections_in_one_file_are_a_diarizer(loaded):
    result = loaded(SEED_1_ENCODER + SEED_1_DATA + SEED_1, task=None)
    experiment, model = result.experiment, result.experiment.model
    assert (experiment.task, model.attention_type, model.d_model) == ("diarization", "linear", 512)
    assert (model.dropout, model.d_ff, model.name) == (0.1, 4, "performer_translator")
    assert [dataset.name for dataset in experiment.datasets] == ["ami"]
    (faster,) = [warning for warning in result.warnings if "softmax" in warning]
    assert "attention_type: linear takes less time than softmax from about 850 tokens on" in faster


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            SEED_1_MODEL,
            "f0.yml:2: model.model_type: is encoder_decoder, which only the task seq2seq has; the task diarization "
            "has encoder: write model_type: encoder and leave out model.decoder",
        ),
        (
            SEED_1_DECODER,
            "f0.yml:2: model.model_type: is decoder, which only the task lm has; the task diarization has encoder: "
            "write model_type: encoder and leave out model.decoder",
        ),
    ],
)
def test_a_model_of_text_with_audio_is_one_line(loaded, model, line):
    with pytest.raises(ConfigError) as error:
        loaded(model + SEED_1_DATA + SEED_1, task=None)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("text", "task"),
    [
        (SEED_1_DATA, "diarization"),
        (SEED_1_ENCODER + SEED_1, "diarization"),
        (SEED_1_ENCODER + "data: {corpus: grammar}\n", "lm"),
        (SEED_1_DECODER + SEED_1, "lm"),
        (SEED_1_MODEL + SEED_1, "seq2seq"),
    ],
)
def test_a_fragments_task_is_what_its_keys_say(loaded, text, task):
    assert loaded(text, task=None).experiment.task == task


@pytest.mark.parametrize("text", [SEED_1_MINIMAL, SEED_5_BASIC, SEED_1_ENCODER, SEED_1 + "data: {corpus: grammar}\n"])
def test_where_its_keys_do_not_say_one_line_offers_the_tasks(loaded, text):
    with pytest.raises(ConfigError) as error:
        loaded(text, task=None)
    assert len(str(error.value).splitlines()) == 1
    assert "write task: with one of asr, classification, diarization, lm, multitask, seq2seq" in str(error.value)
