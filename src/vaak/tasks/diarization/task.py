"""The diarization task: what the engine asks, answered.

- ``prepare``: corpora as cut stores, once (prepare.py)
- ``dataset``: features of recordings, windows or simulated conversations (data.py)
- ``losses``: the label type's cross-entropy in the best order of speakers, and its helpers (losses.py)
- ``meters``: loss and accuracy per frame, DER and JER of recordings (metrics.py)
- ``predict``: who spoke when in audio files (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from torch import nn

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.features import Features
from vaak.audio.labelled import AudioSource
from vaak.config.catalog import LABEL_TYPES
from vaak.config.components import resolve_class
from vaak.config.experiment import Experiment
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.engine.losses import Loss, losses_of_logits, make_loss
from vaak.nn.squared_norms import NORM_REG, SquaredNorms, norm_reg
from vaak.runs.prepared import prepared_folder
from vaak.tasks.diarization.config import DiarizationDataConfig, DiarizationModelConfig
from vaak.tasks.diarization.data import DiarizationDataset, audio_source, training_speakers
from vaak.tasks.diarization.labels import DiarizationCollator, LabelOptions
from vaak.tasks.diarization.losses import (
    ATTRACTOR,
    CLUSTERING,
    SPEAKER,
    attractor_loss,
    best_orders,
    clustering_loss,
    one_hot_sets,
    reordered,
    speaker_loss,
)
from vaak.tasks.diarization.metrics import DiarizationMeters, Scored
from vaak.tasks.diarization.model import DiarizationModel, alone, frame_mask
from vaak.tasks.diarization.outlook import sketch_batch, source_files
from vaak.tasks.diarization.predict import Diarized, Diarizer
from vaak.tasks.diarization.prepare import Prepared, prepare_run
from vaak.tasks.diarization.showcase import show_timelines

SHOWN_RECORDINGS = 4


class DiarizationTask:
    """Trains an encoder to say who speaks when."""

    auxiliary_losses = (CLUSTERING, SPEAKER, ATTRACTOR, NORM_REG)
    evaluation_splits: tuple[str, ...] = ("valid",)

    def __init__(
        self,
        experiment: Experiment[DiarizationModelConfig, DiarizationDataConfig, AudioConfig, DatasetConfig],
        directory: Path,
        folder: Path,
    ) -> None:
        """``directory`` is the run's; ``folder`` is where a user's ``./file.py`` in the configuration is looked for."""
        self.experiment, self.directory, self.folder = experiment, directory, folder
        self.options, self.data, self.audio = experiment.model, experiment.data, experiment.global_config
        self.datasets = experiment.datasets or (DatasetConfig(type="voices"),)

    # Data.

    def prepare(self) -> None:
        prepare_run(self.datasets, self.audio, self.directory, self.data.cache_dir)

    @cached_property
    def prepared(self) -> Prepared:
        """The cut stores that ``prepare`` made."""
        return Prepared.open(prepared_folder(self.directory))

    def source(self, split: str) -> AudioSource:
        """The recordings of a split, with who speaks when."""
        return audio_source(self.prepared, split, self.datasets, self.audio, self.data)

    def dataset(self, split: str) -> DiarizationDataset:
        augmentation = self.data.augmentation if split == "train" else None
        return DiarizationDataset(self.source(split), Features(self.audio), self.collator, augmentation)

    def sources(self) -> list[Path]:
        """The files that ``prepare`` would read. Raises DataError for one that isn't there."""
        return source_files(self.datasets, self.audio)

    @cached_property
    def collator(self) -> DiarizationCollator:
        """What a frame's label is: ``training.eval_knobs.label_type``."""
        return self._collator(training_speakers(self.prepared, self.datasets))

    def _collator(self, training_speakers: tuple[str, ...]) -> DiarizationCollator:
        label_type, model = self.experiment.training.eval_knobs.label_type, self.options
        found = resolve_class(label_type, LABEL_TYPES, self.folder)
        if not (isinstance(found, type) and issubclass(found, DiarizationCollator)):
            raise UserError(f"training.eval_knobs.label_type: {label_type} is no DiarizationCollator")
        frame_seconds = self.audio.frame_shift * model.output_subsampling
        steps = model.output_subsampling, model.subsampling
        return found(LabelOptions(frame_seconds, *steps, model.max_speakers, training_speakers))

    # Training.

    def sketch(self) -> DiarizationModel:
        """A model like the trained one, before there are speakers to tell apart."""
        return DiarizationModel(self.options, Features(self.audio).dims, self._collator(("speaker",)))

    def sketch_batch(self) -> Batch:
        """A microbatch as large as one of training may become."""
        return sketch_batch(self.experiment, self.datasets, self._collator(("speaker",)), Features(self.audio))

    def model(self) -> DiarizationModel:
        model = DiarizationModel(self.options, Features(self.audio).dims, self.collator)
        model.encoder.gradient_checkpointing = self.experiment.training.performance.gradient_checkpointing
        return model

    @cached_property
    def main_loss(self) -> Loss:
        """The loss of ``training.loss.main``; of labels that are no classes, cross-entropy is the binary one."""
        config = self.experiment.training.loss
        if config.main.type == "cross_entropy" and not self.collator.has_classes:
            config = config.model_copy(update={"main": config.main.model_copy(update={"type": "bce"})})
        return make_loss(config, self.folder)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return self.score(model, batch).terms

    def score(self, model: nn.Module, batch: Batch) -> Scored:
        """The losses of a batch, with what they were made of."""
        assert isinstance(model, DiarizationModel)
        collator, auxiliary, mask = model.collator, self.experiment.training.loss.auxiliary, batch["mask"]
        encoder_mask = frame_mask(batch["feature_mask"], self.options.subsampling)
        norms = SquaredNorms(encoder_mask) if NORM_REG in auxiliary else None
        outputs = model(batch["features"], batch["feature_mask"], norms)
        labels, numbers = batch["labels"], batch["speaker_numbers"]
        if collator.orders:
            orders = best_orders(collator.speaker_scores(outputs.logits), labels, mask)
            labels, numbers = reordered(labels, orders), numbers.gather(1, orders)
        main = self.main_loss
        targets = collator.targets(labels)
        terms = losses_of_logits(main, auxiliary, outputs.logits, targets, "frame", mask)
        if norms is not None:
            terms[NORM_REG] = norm_reg(norms)
        if CLUSTERING in auxiliary:
            terms[CLUSTERING] = clustering_loss(model.cluster_vectors(outputs), one_hot_sets(batch["activity"]), mask)
        if SPEAKER in auxiliary and (embeddings := model.embeddings(outputs, alone(labels))) is not None:
            terms[SPEAKER] = speaker_loss(embeddings, numbers, model.speaker_table)
        if ATTRACTOR in auxiliary and outputs.existence is not None:
            terms[ATTRACTOR] = attractor_loss(outputs.existence, labels.any(1).sum(-1))
        return Scored(outputs, terms, main.name, labels)

    def meters(self, split: str) -> DiarizationMeters:
        return DiarizationMeters(self.data, split, self.diarizer, self.score)

    def show(self, batch: Batch) -> list[str]:
        """The name of each row, how long it is, and who speaks."""
        return [
            f"{example.name}: {example.duration:.2f} s, {', '.join(sorted({one.speaker for one in example.segments}))}"
            for example in batch.extra["examples"]
        ]

    # Use.

    def diarizer(self, model: nn.Module) -> Diarizer:
        """The model with what turns its scores into segments."""
        assert isinstance(model, DiarizationModel)
        return Diarizer(model, self.data.inference, self.audio.frame_shift)

    def predict(self, model: nn.Module, inputs: Iterable[Path | str]) -> Iterator[Diarized]:
        """Who speaks when in each audio file."""
        diarizer = self.diarizer(model)
        for path in inputs:
            yield diarizer.diarize_file(Path(path), self.audio)

    def showcase(self, model: nn.Module) -> list[str]:
        """A line for each of the first validation recordings; leaves a picture of their timelines."""
        return show_timelines(self.dataset("valid"), self.diarizer(model), self.directory, SHOWN_RECORDINGS)
