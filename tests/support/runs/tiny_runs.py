"""A tiny language model trained in this process on a few hundred lines, and what tests ask of it."""

from __future__ import annotations

import functools
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from folders import contents
from vaak.config.load import Loaded, load
from vaak.config.tasks import task_class
from vaak.runs.start import Outcome
from vaak.runs.start import train as train_run
from vaak.text.grammar import sentences

if TYPE_CHECKING:
    from vaak.tasks.lm.task import LanguageModelTask

CONFIG = """\
task: lm
name: tiny
model: {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}
data:
  corpus: {type: text, train: [train.txt], valid: [valid.txt], test: [test.txt]}
  tokenizer: {type: byte_level, vocab_size: 500}
  max_length: 48
  token_dropout: 0.1
training:
  max_steps: 8
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  validation: {interval: 4}
  checkpoint: {interval: 4, resume: null}
  logging: {interval: 1, tensorboard: false, progress_bar: false}
  memory: {rehearsal: false}
"""
MODEL_AND_DATA = """\
task: lm
model: {d_model: 16, num_layers: 1, num_heads: 2}
data:
  corpus: {type: text, train: corpus.txt}
  tokenizer: {type: character, vocab_size: 300}
  max_length: 32
"""
"""A model of the characters of one file; how it is trained is for the test to say."""
SIZES = {"train": 300, "valid": 30, "test": 40}


@functools.cache
def lines_of(split: str) -> str:
    """The sentences of a split, drawn once: this takes as long as the steps of a run."""
    return "".join(f"{line}\n" for line in sentences(split, SIZES[split], 0))


def write_corpus(folder: Path) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt`` with sentences of the grammar, and ``tiny.yml`` that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SIZES:
        (folder / f"{split}.txt").write_text(lines_of(split))
    text = CONFIG
    for split in SIZES:
        text = text.replace(f"[{split}.txt]", f"['{folder / split}.txt']")
    (folder / "tiny.yml").write_text(text)


def loaded(folder: Path, run: Path, *overrides: str) -> Loaded:
    """The tiny configuration with a run directory and options over it."""
    return load([folder / "tiny.yml"], [f"run_dir={run}", *overrides])


def train(folder: Path, run: Path, *overrides: str) -> Outcome:
    """Train the tiny configuration into a run directory."""
    return train_run(loaded(folder, run, *overrides))


def train_and_keep(folder: Path) -> None:
    """Train the tiny configuration into FOLDER/run, on FOLDER/text; ``as_trained`` gives it back after each test."""
    write_corpus(folder / "text")
    train(folder / "text", folder / "run")
    shutil.copytree(folder / "run", folder / "kept", symlinks=True)


def as_trained(folder: Path) -> Path:
    """Return the run of ``train_and_keep``, in its own place, as it was when it had been trained."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    return shutil.copytree(folder / "kept", folder / "run", symlinks=True)


def prepared_task(folder: Path, run: Path, *overrides: str) -> LanguageModelTask:
    """The tiny configuration's task with its data prepared, nothing trained."""
    given = loaded(folder, run, *overrides)
    run.mkdir(parents=True, exist_ok=True)
    task = cast("LanguageModelTask", task_class("lm")(given.experiment, run, given.folder))
    task.prepare()
    return task


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder, by its path there, but for locks, which name who had them last."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents(folder).items()}
