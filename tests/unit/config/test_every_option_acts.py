"""Each option of each task, varied alone in a tiny run, changes something, or loading it says that it doesn't.

An option that is read in some circumstances only is varied in those; that it says so in others is for the tests of
the checks. What can't be seen in a tiny run on a CPU is listed, with the reason.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import tiny_runs
import toy_speech
from option_sweep import Sweep, candidates, leaf_options, type_override, value_at

UNSEEN = {
    "task": "another task is another configuration",
    "run_dir": "where everything is, and so in everything that is compared",
    "model.name": "documented as having no effect",
    "training.logging.progress_bar": "a terminal's",
    "training.logging.json_lines": "the console's",
    "training.device": "there is one device here",
    "training.deterministic": "a CPU's kernels always are",
    "training.performance.pin_memory": "CUDA's",
    "training.performance.num_workers": "other processes load the same data",
    "training.performance.prefetch_factor": "other processes load the same data",
    "training.performance.persistent_workers": "other processes load the same data",
    "training.performance.compile": "takes a minute, and changes the last bits",
    "training.performance.gradient_checkpointing": "saves memory, with the same numbers",
    "training.distributed.backend": "of several processes",
    "training.distributed.sync_gradient_barrier": "of several processes",
    "training.distributed.timeout_minutes": "of several processes",
    "training.memory.manager": "where memory runs short",
    "training.memory.thresholds": "where memory runs short",
    "training.memory.recovery": "where memory runs short",
    "training.optimizer.fused": "the same update by another kernel",
    "training.non_finite.max_skipped": "where a loss is not finite",
    "training.checkpoint.interval_minutes": "takes minutes",
    "wandb": "of a service",
    "training.optimizer.options": "of a user's class",
    "training.scheduler.options": "of a user's class",
    "datasets.0.options": "of a recipe",
    "data.cache_dir": "where the same data are kept",
    "data.on_bad_example": "where an example can't be read",
    "data.corpus.name": "of the Hub",
    "data.corpus.subset": "of the Hub",
    "data.corpus.on_invalid_utf8": "where a file is damaged",
    "datasets.0.corpus_dir": "of a recipe",
    "global_config.corpus_dir": "of a recipe",
    "datasets.0.output_dir": "of a recipe",
    "global_config.output_dir": "of a recipe",
    "model.head": "attractors need a loss that the other head must not have",
    "global_config.mel": "of speech synthesis; a diarizer refuses feature_type mel",
    "global_config.pitch": "of speech synthesis; a diarizer refuses feature_type mel",
    "global_config.progress_bar": "a terminal's",
    "global_config.cache_gigabytes": "the same numbers, faster",
}
"""Options, or whole sections, whose effect a tiny run on a CPU can't show, each with the reason."""

BASES = {
    "lm": """\
task: lm
name: tiny
model: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}
data:
  corpus: {type: text, train: [FOLDER/train.txt], valid: [FOLDER/valid.txt], test: [FOLDER/test.txt]}
  tokenizer: {type: byte_level, vocab_size: 320}
  max_length: 48
  token_dropout: 0.1
  cache_dir: FOLDER/cache
training:
  max_steps: 6
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  validation: {interval: 2}
  checkpoint: {interval: 2, interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
    "seq2seq": """\
task: seq2seq
name: tiny
model: {global_config: {d_model: 16, num_layers: 2, num_heads: 2, dropout: 0.1}}
data:
  corpus: {num_sentences: 60}
  tokenizer: {type: character}
  token_dropout: 0.1
  cache_dir: FOLDER/cache
  decoding: {max_new_tokens: 4}
training:
  max_steps: 3
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  checkpoint: {interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
    "diarization": """\
task: diarization
name: tiny
model: {d_model: 16, num_layers: 1, num_heads: 2, num_convolutions: 1, embedding_dim: 8, dropout: 0.1}
global_config: {sampling_rate: 8000, num_mel_bins: 16, high_freq: 0.0}
datasets: [{name: toy, type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: [FOLDER/test.jsonl]}]
data: {window: 1.5, inference: {window: 1.2}, cache_dir: FOLDER/cache}
training:
  max_steps: 3
  batch_size: 4
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  eval_knobs: {label_type: multilabel}
  loss: {auxiliary: {clustering: 0.5, speaker: 0.1}}
  checkpoint: {interval_epochs: null}
  logging: {interval: 1, tensorboard: false, system_metrics: false, progress_bar: false}
""",
}
QUICK = ("model.dropout", "model.window", "training.optimizer.lr", "training.scheduler.power", "training.ema.decay")
"""What is varied where there are only seconds."""

LOOP = ("training", "wandb", "name")
"""Sections that are the same for every task, varied for one."""

CONVERSATIONS = (
    "datasets=[{name: toy, type: json, train: [FOLDER/voices/train.jsonl], valid: [FOLDER/voices/valid.jsonl], "
    "test: [FOLDER/voices/test.jsonl], conversations: {train: 12, valid: 3, test: 2, duration: [1.0, 2.0]}}]"
)
CIRCUMSTANCES: dict[str, tuple[str, ...]] = {
    "training.epochs": ("training.max_steps=null",),
    "training.scheduler.min_lr": ("training.scheduler.type=cosine",),
    "training.scheduler.first_cycle_steps": ("training.max_steps=8",),
    "training.scheduler.cycle_growth": ("training.scheduler.first_cycle_steps=2",),
    "training.scheduler.patience": ("training.scheduler.metric=val_accuracy", "training.max_steps=8"),
    "training.scheduler.factor": (
        "training.scheduler.metric=val_perplexity",
        "training.scheduler.patience=0",
        "training.scheduler.mode=max",
    ),
    "training.scheduler.metric": ("training.scheduler.patience=0",),
    "training.scheduler.mode": ("training.scheduler.patience=0",),
    "training.early_stopping": ("training.early_stopping={patience: 1, mode: max}",),
    "training.early_stopping.min_delta": ("training.early_stopping={patience: 1}",),
    "training.batching.max_tokens": ("training.batching.max_tokens=200",),
    "training.ema": ("training.ema={decay: 0.5}",),
    "training.freeze.0": ("training.freeze=[{match: embedding}]",),
    "training.optimizer.groups.0": ("training.optimizer.groups=[{match: embedding, lr_scale: 0.5}]",),
    "training.curriculum": (
        "training.curriculum={initial_difficulty: 0.1}",
        "training.max_steps=60",
        "training.validation.interval=30",
        "training.checkpoint.interval=30",
    ),
    "training.feature_redraw_interval": ("model.attention_type=causal_linear",),
    "training.fixed_projection": ("model.attention_type=causal_linear", "training.feature_redraw_interval=2"),
    "training.amp_loss_scale": ("training.mixed_precision=fp16",),
    "training.checkpoint.init_except": ("training.checkpoint.init_from=FOLDER/other",),
    "training.checkpoint.init_rename": ("training.checkpoint.init_from=FOLDER/other",),
    "training.checkpoint.metric": ("training.checkpoint.mode=max",),
    "training.logging.log_metrics": ("training.logging.tensorboard=true",),
    "training.logging.interval": ("training.logging.interval=2",),
    "training.validation.interval_epochs": (
        "training.max_steps=80",
        "training.validation.interval=null",
        "training.checkpoint.interval=null",
    ),
    "training.checkpoint.interval_epochs": ("training.max_steps=80", "training.validation.interval=60"),
    "model.window": ("model.attention_type=local",),
    "model.kernel_type": ("model.attention_type=causal_linear",),
    "model.num_features": ("model.attention_type=causal_linear",),
    "model.orthogonal_features": ("model.attention_type=causal_linear",),
    "model.rope_scaling_type": ("model.rope_scaling_factor=2",),
    "data.corpus.text_column": ("data.corpus={type: json, train: [FOLDER/train.jsonl], valid: [], test: []}",),
    "data.corpus.num_sentences": (
        "data.corpus={type: grammar, num_sentences: 200}",
        "data.corpus.train=[]",
        "data.corpus.valid=[]",
        "data.corpus.test=[]",
    ),
    "data.corpus.train_fraction": ("data.corpus.valid=[]", "data.corpus.test=[]"),
    "data.target_tokenizer.min_frequency": ("data.target_tokenizer={type: character, min_frequency: 1}",),
    "data.target_tokenizer.vocab_size": ("data.target_tokenizer={type: byte_level, vocab_size: 320}",),
    "data.tokenizer.min_frequency": ("data.tokenizer={type: character, min_frequency: 1}",),
    "data.masking_probability": ("model.model_type=encoder",),
    "data.shift_windows": ("data.layout=stream",),
    "data.stride": ("data.layout=stream",),
    "data.target_tokenizer": ("data.target_tokenizer={type: character}",),
    "data.decoding.beam_size": ("data.decoding.method=beam",),
    "data.decoding.length_penalty": ("data.decoding.method=beam",),
    "data.decoding.num_samples": ("data.decoding.method=mbr",),
    "data.decoding.temperature": ("data.decoding.method=sampling",),
    "data.decoding.top_k": ("data.decoding.method=sampling",),
    "data.decoding.top_p": ("data.decoding.method=sampling",),
    "model.context": ("model.front_end=stacked",),
    "data.augmentation.noise": ("data.augmentation.noise=coloured",),
    "data.augmentation.room": ("data.augmentation.room=0.3",),
    "data.augmentation.spec_augment": ("data.augmentation.spec_augment={time_mask: 0.5}",),
    "data.augmentation.codec_probability": ("data.augmentation.codecs=[mulaw]",),
    "datasets.0.conversations": (CONVERSATIONS,),
    "datasets.0.conversations.room": (CONVERSATIONS, "datasets.0.conversations.room=0.3"),
    "datasets.0.conversations.noise": (CONVERSATIONS, "datasets.0.conversations.noise=coloured"),
    "datasets.0.conversations.noise.folder": (
        CONVERSATIONS,
        "datasets.0.conversations.noise={type: files, folder: FOLDER}",
    ),
    "global_config.energy_floor": ("global_config.use_energy=true", "global_config.energy_floor=1.0"),
    "global_config.raw_energy": ("global_config.use_energy=true",),
    "global_config.num_ceps": ("global_config.feature_type=mfcc",),
    "global_config.cepstral_lifter": ("global_config.feature_type=mfcc",),
    "data.corpus.type": (),
    "global_config.storage_type": ("global_config.storage_path=FOLDER/features",),
}
"""What must hold for an option, or for all of a section, to be read."""
PAIRS = ("data.corpus={type: json, train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl], test: []}",)
LINES = (
    "data.corpus={type: text, train: [FOLDER/train.en], train_target: [FOLDER/train.hi], valid: [FOLDER/valid.en], "
    "valid_target: [FOLDER/valid.hi], test: [FOLDER/valid.en], test_target: [FOLDER/valid.hi]}",
)
LONGER = "training.max_steps=30"
OF_A_TASK: dict[tuple[str, str], tuple[str, ...]] = {
    **{("seq2seq", f"data.corpus.{name}"): PAIRS for name in ("source_column", "target_column")},
    **{("seq2seq", f"data.corpus.{name}"): PAIRS for name in ("training_references", "deduplicate", "train", "valid")},
    **{("seq2seq", f"data.corpus.{split}_target"): LINES for split in ("train", "valid", "test")},
    ("seq2seq", "data.tokenizer.vocab_size"): ("data.tokenizer={type: byte_level, vocab_size: 320}",),
    ("seq2seq", "data.decoding.beam_size"): ("data.decoding={method: beam, beam_size: 1, max_new_tokens: 24}", LONGER),
    ("seq2seq", "data.decoding.length_penalty"): ("data.decoding={method: beam, max_new_tokens: 24}", LONGER),
    ("seq2seq", "data.corpus.num_sentences"): (),
    ("seq2seq", "data.corpus.seed"): (),
    ("seq2seq", "data.corpus.train_fraction"): (),
    ("seq2seq", "data.corpus.valid_fraction"): (),
    ("diarization", "data.shift_windows"): ("data.window=0.6",),
    ("diarization", "data.augmentation.noise.folder"): ("data.augmentation.noise={type: files, folder: FOLDER}",),
    **{
        ("diarization", f"model.{name}"): ("model.attention_type=linear",)
        for name in ("kernel_type", "num_features", "orthogonal_features")
    },
}
"""The same for options that several tasks have, in other circumstances."""

CIRCUMSTANCES["data.corpus.seed"] = CIRCUMSTANCES["data.corpus.num_sentences"]
CIRCUMSTANCES["data.corpus.valid_fraction"] = CIRCUMSTANCES["data.corpus.train_fraction"]

VALUES: dict[str, Any] = {
    "name": "other",
    "data.corpus.type": "json",
    "data.corpus.train": ["FOLDER/more.txt"],
    "data.corpus.valid": ["FOLDER/test.txt"],
    "data.corpus.document": "file",
    "data.corpus.test": ["FOLDER/valid.txt"],
    "data.corpus.text_column": "other",
    "data.corpus.source_column": "other",
    "data.corpus.target_column": "other",
    "data.corpus.train_target": ["FOLDER/swapped.hi"],
    "data.corpus.valid_target": ["FOLDER/train.hi"],
    "data.corpus.test_target": ["FOLDER/train.hi"],
    "training.optimizer.type": "sgd",
    "training.scheduler.type": "linear",
    "training.scheduler.min_lr": 0.005,
    "training.batching.max_tokens": 100,
    "training.batching.max_duration": 10.0,
    "data.minimal_pairs": ["FOLDER/pairs.jsonl"],
    "data.tokenizer.path": "FOLDER/tokenizer",
    "data.tokenizer.min_frequency": 40,
    "data.target_tokenizer.path": "FOLDER/tokenizer",
    "data.target_tokenizer.min_frequency": 40,
    "global_config.snip_edges": True,
    "global_config.high_freq": 3000.0,
    "global_config.storage_path": "FOLDER/features",
    "datasets.0.name": "other",
    "datasets.0.alignments": "FOLDER/alignments",
    "datasets.0.train": ["FOLDER/valid.jsonl"],
    "datasets.0.valid": ["FOLDER/test.jsonl"],
    "datasets.0.test": ["FOLDER/valid.jsonl"],
    "datasets.0.conversations.num_speakers": [1, 2],
    "datasets.0.conversations.duration": [2.0, 3.0],
    "datasets.0.conversations.train_duration": [2.0, 3.0],
    "datasets.0.conversations.speed": [0.8, 1.2],
    "datasets.0.conversations.noise.folder": "FOLDER/voices",
    "datasets.0.conversations.noise.snr": [0.0, 1.0],
    "datasets.0.conversations.room.t60": [0.5, 0.6],
    "data.augmentation.speed": [0.8, 1.2],
    "data.augmentation.volume": [-9.0, -6.0],
    "data.augmentation.noise.folder": "FOLDER/voices",
    "data.augmentation.noise.snr": [0.0, 1.0],
    "data.augmentation.room.t60": [0.5, 0.6],
    "data.augmentation.codecs": ["mulaw"],
    "data.max_source_length": 30,
    "data.max_target_length": 30,
    "data.corpus.max_length_ratio": 1.05,
    "training.max_steps": 4,
    "training.optimizer.betas": [0.5, 0.6],
    "training.optimizer.groups.0.match": "norm",
    "training.freeze.0.match": "norm",
    "training.loss.auxiliary": {"z_loss": 0.5},
    "training.loss.main": "focal",
    "training.early_stopping.metric": "val_accuracy",
    "training.scheduler.metric": "val_accuracy",
    "training.checkpoint.metric": "val_accuracy",
    "training.checkpoint.save_dir": "FOLDER/elsewhere",
    "training.checkpoint.init_from": "FOLDER/other",
    "training.checkpoint.init_except": ["embedding"],
    "training.checkpoint.resume": "FOLDER/other/checkpoints/last",
    "training.logging.trackers": ["nothing"],
    "training.logging.log_metrics": ["loss"],
    "training.callbacks": ["lr_monitor"],
    "training.performance.num_threads": 2,
    "training.early_stopping.patience": 2,
    "training.curriculum.difficulty": "lexical",
    "training.scheduler.warmup_steps": 2,
    "training.scheduler.warmup_ratio": 0.5,
    "training.distributed.world_size": 2,
}
"""Other values, of options whose type doesn't say which are valid."""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory) -> dict[str, Sweep]:
    return {task: _sweep_of(task, tmp_path_factory.mktemp(task)) for task in BASES}


def _sweep_of(task: str, folder: Path) -> Sweep:
    data = folder / "data"
    if task == "lm":
        tiny_runs.write_corpus(data)
        lines = (data / "train.txt").read_text().splitlines()
        (data / "train.txt").write_text("\n".join([*lines, *lines[:30]]))
        (data / "more.txt").write_text("\n".join(lines[:50]))
        columns = [{"text": line, "other": f"{line} {line}"} for line in lines]
        (data / "train.jsonl").write_text("\n".join(map(json.dumps, columns)))
        pairs = [{"sentence_good": lines[1], "sentence_bad": lines[2], "UID": "some"}]
        (data / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        tiny_runs.train(data, data / "other")
        shutil.copytree(data / "other" / "prepared" / "tokenizer", data / "tokenizer")
    elif task == "seq2seq":
        _write_pairs(data)
    elif task == "diarization":
        toy_speech.write_recordings(data)
        toy_speech.write_utterances(data / "voices")
        (data / "alignments").mkdir()
        (data / "alignments" / "train0.json").write_text('{"word": [[0, 0.3, "so"]]}')
    data.mkdir(exist_ok=True)
    (data / "base.yml").write_text(BASES[task].replace("FOLDER", str(data)))
    return Sweep(task, folder, data / "base.yml")


def _write_pairs(folder: Path) -> None:
    """Pairs with two references each, some of them twice, and parallel files."""
    folder.mkdir(exist_ok=True)
    for split, size in (("train", 40), ("valid", 6)):
        sides = [(f"a boy reads {number} books of {split}", f"किताब {number} {split}") for number in range(size)]
        pairs = [{"en": one, "hi": [two, f"{two} फिर"], "other": f"{one} and {two}"} for one, two in sides]
        text = [json.dumps(pair) for pair in [*pairs, *pairs[:5]]]
        (folder / f"{split}.jsonl").write_text("\n".join(text))
        (folder / f"{split}.en").write_text("\n".join(one for one, _ in sides))
        (folder / f"{split}.hi").write_text("\n".join(two for _, two in sides))
    (folder / "swapped.hi").write_text("\n".join(reversed((folder / "train.hi").read_text().splitlines())))
    shutil.copytree(_trained_tokenizer(folder), folder / "tokenizer")


def _trained_tokenizer(folder: Path) -> Path:
    tiny_runs.write_corpus(folder / "lm")
    return tiny_runs.prepared_task(folder / "lm", folder / "lm" / "run").prepared.folder / "tokenizer"


def _circumstances(task: str, key: str) -> tuple[str, ...]:
    if (task, key) in OF_A_TASK:
        return OF_A_TASK[task, key]
    names = [name for name in CIRCUMSTANCES if key == name or key.startswith(f"{name}.")]
    return CIRCUMSTANCES[max(names, key=len)] if names else ()


def _is_unseen(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in UNSEEN)


def _options() -> Iterator[Any]:
    for task in BASES:
        for key, annotation, section in leaf_options(task):
            of_the_loop = task != "lm" and key.partition(".")[0] in LOOP
            if of_the_loop or (get_origin(annotation) is Literal and len(get_args(annotation)) == 1):
                continue
            if not _is_unseen(key) and key not in ("global_config", "datasets"):
                marks = () if task == "lm" and key in QUICK else pytest.mark.slow
                yield pytest.param(task, key, annotation, section, id=f"{task}-{key}", marks=marks)


def _in(folder: Path, value: Any) -> Any:
    return json.loads(json.dumps(value).replace("FOLDER", str(folder)))


@pytest.mark.parametrize(("task", "key", "annotation", "section"), list(_options()))
def test_an_option_acts_or_says_that_it_does_not(sweeps, task, key, annotation, section):
    sweep = sweeps[task]
    data = sweep.file.parent
    own = _in(data, list(_circumstances(task, key)))
    circumstances = (*own, *(() if (task, key) in OF_A_TASK else type_override(key, section)))
    present = value_at(sweep.load(circumstances), key)
    metadata = section.model_fields[key.rpartition(".")[2]].metadata
    values = [VALUES[key]] if key in VALUES else candidates(annotation, present, metadata)
    tried = {}
    for value in _in(data, values):
        tried[json.dumps(value)] = effect = sweep.effect(key, value, circumstances)
        if effect is not None and (key in VALUES or not effect.startswith("refused")):
            return
    pytest.fail(f"{key} is silent in {circumstances}, where it is {present!r}: {tried or 'no value to try'}")
