"""Estimates before the data is prepared: the files that will be read, the size of model and batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.asr.config import SCRATCH, AsrExperiment
from vaak.tasks.asr.data import AsrExample, collate
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.prepare import AsrSources
from vaak.tasks.asr.whisper import (
    PURPOSE,
    SpecialIds,
    Vocabulary,
    base_of,
    positions_of,
    random_whisper,
    scratch_config,
)
from vaak.tasks.prepared_cuts import Datasets
from vaak.tasks.pretrained import transformers_of

if TYPE_CHECKING:
    from transformers import WhisperConfig


def source_files(experiment: AsrExperiment, datasets: Datasets, folder: Path) -> list[Path]:
    """The files of all corpora, of the tokenizer and of the base. Raises DataError for one that doesn't exist."""
    files = [path for corpus in AsrSources.of(experiment, datasets, folder).corpora() for path in corpus.files]
    if experiment.model.base == SCRATCH:
        path = experiment.data.tokenizer.path
        return [*files, *([Path(path).expanduser()] if path else [])]
    base = Path(base_of(experiment.model, folder))
    return [*files, *(sorted(base.glob("*.safetensors")) if base.is_dir() else [])]


def meta_model(experiment: AsrExperiment, folder: Path) -> AsrModel | None:
    """A model as large as the trained one may become; None for a base of the Hub, which isn't contacted."""
    config = config_before(experiment, folder)
    return None if config is None else AsrModel(random_whisper(config), experiment.model.lora, experiment.model.experts)


def meta_batch(experiment: AsrExperiment, folder: Path) -> Batch | None:
    """The largest possible microbatch, of silence; None for a base of the Hub."""
    config, seconds = config_before(experiment, folder), experiment.data.max_duration
    if config is None:
        return None
    features = np.zeros((config.num_mel_bins, 2 * positions_of(seconds)), np.float32)
    example = AsrExample("sketch", "", "all", features, np.ones(config.max_target_positions - 1, np.int64), True)
    return collate([example] * largest_rows(experiment.training, seconds), Vocabulary("", _ids(2)))


def config_before(experiment: AsrExperiment, folder: Path) -> WhisperConfig | None:
    """The sizes of the model before its data are prepared; None for a base of the Hub."""
    options, data = experiment.model, experiment.data
    if options.base == SCRATCH:
        ids, num_bins = _ids(data.tokenizer.vocab_size), experiment.global_config.num_mel_bins
        return scratch_config(options.scratch, ids, num_bins, data.max_duration)
    source = base_of(options, folder)
    if not Path(source).is_dir():
        return None
    config: WhisperConfig = transformers_of(PURPOSE, "asr").WhisperConfig.from_pretrained(source)
    config.max_source_positions = positions_of(data.max_duration)
    return config


def _ids(size: int) -> SpecialIds:
    """Those of a vocabulary of which only the size is known."""
    return SpecialIds((0,), 0, 0, size, ())
