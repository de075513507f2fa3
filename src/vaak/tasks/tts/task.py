"""The text-to-speech task: what the engine asks, answered.

- ``prepare``: corpora as symbols, spectrograms and durations, once (prepare.py)
- ``dataset``: utterances (data.py)
- ``losses``: of the spectrogram, the durations, the end and, where there are such, alignment, pitch, energy and flow
- ``meters``: each loss, and the error of durations (metrics.py)
- ``predict``: texts as audio (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.audio_file import speech_file
from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.findings import cut_findings
from vaak.audio.cuts.recordings import UNUSABLE
from vaak.core.batch import Batch, Term
from vaak.core.task import DataFinding
from vaak.nn.kernels.random_features import NORM_REG, SquaredNorms, norm_reg
from vaak.nn.lora import add_lora
from vaak.nn.speech.alignment import forward_sum_loss
from vaak.nn.speech.flow_matching import Draws
from vaak.nn.speech.masks import exact, length_mask, masked_sum
from vaak.nn.speech.variance_adaptor import duration_loss
from vaak.runs.prepared import Recipe
from vaak.tasks.base import PreparedTask, refuse_other_options
from vaak.tasks.prepared_cuts import corpora_of, read_for, training_cuts
from vaak.tasks.tts.checks import ALIGNMENT, DURATION, LOSSES, MEL, STOP
from vaak.tasks.tts.config import SpeakingConfig, TtsExperiment
from vaak.tasks.tts.data import TtsDataset, unusual_rates
from vaak.tasks.tts.estimate import meta_batch, meta_model, source_files
from vaak.tasks.tts.export import export_acoustic
from vaak.tasks.tts.metrics import Scored, ShownMeters, SpokenMeters, TtsMeters
from vaak.tasks.tts.model import Inventory, Recording, Text, TtsModel, TtsOutputs
from vaak.tasks.tts.predict import Speaker, Speech
from vaak.tasks.tts.prepare import READING, PreparedSpeech, SpeechSources, recipe
from vaak.tasks.tts.spec import SPEC
from vaak.tasks.vocoding import trained_vocoder

VOICES = (DatasetConfig(type="voices"),)


class TtsTask(PreparedTask[TtsExperiment, PreparedSpeech]):
    """Trains a model that speaks texts."""

    SPEC = SPEC
    PREPARED = PreparedSpeech
    auxiliary_losses = LOSSES

    def __init__(self, experiment: TtsExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        self.options, self.data, self.audio = experiment.model, experiment.data, experiment.global_config
        self.datasets = experiment.datasets or VOICES
        self._datasets: dict[str, TtsDataset] = {}

    # Data.

    def corpora(self) -> list[AudioCorpus]:
        return corpora_of(self.datasets, self.audio)

    def examples_at_most(self) -> Iterator[float] | None:
        cuts = training_cuts(self.corpora())
        return None if cuts is None else (float(max(1, len(cut.supervisions))) for cut in cuts)

    def recipe(self, splits: tuple[str, ...] | None = None) -> Recipe:
        return recipe(SpeechSources.of(self.experiment, self.datasets), splits)

    def prepare(self) -> None:
        vocoder = self.data.speaking.vocoder
        if vocoder is not None and self.audio.mel is not None:  # a mistake shows now, and not after training
            trained_vocoder(vocoder, self.directory, self.audio.mel, torch.device("cpu"))
        super().prepare()

    def prepare_eval_data(self, own: TtsExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        """With the run's front end, speakers and normalisation. If the corpora are the run's own, so are their data.

        Raises UserError for other features.
        """
        refuse_other_options(own.global_config, self.audio, "global_config", READING)
        datasets = own.datasets or VOICES
        if splits and (datasets != self.datasets or self.prepared.lacks(splits)):
            others = read_for(splits, self.datasets)
            made = recipe(SpeechSources.of(self.experiment, others), splits, self.prepared)
            self.prepared = PreparedSpeech.make(made, folder)
        self._datasets.clear()

    def dataset(self, split: str) -> TtsDataset:
        if split not in self._datasets:
            prepared = self.prepared
            store, pad_id = prepared.store(split), prepared.processor.pad_id
            draws_noise = self.options.matches_flows
            self._datasets[split] = TtsDataset(store, prepared.speakers, pad_id, draws_noise=draws_noise)
        return self._datasets[split]

    def prepare_for_check(self) -> None:
        data = self.data.model_copy(update={"on_bad_example": "skip", "cache_dir": None})
        self.experiment = self.experiment.model_copy(update={"data": data})
        self.prepare()

    def data_findings(self, split: str) -> Iterator[DataFinding]:
        """What can't be used, what is wrong with its audio, and texts that are too long or too short for theirs."""
        about, store = self.prepared.about["statistics"][split], self.prepared.store(split)
        mark: Literal["problem", "warning"] = "warning" if self.data.on_bad_example == "skip" else "problem"
        yield from (DataFinding("", "unusable", message, mark) for message in about["unusable"])
        for reason, number in about["left_out"].items():
            if reason != UNUSABLE:
                yield DataFinding("", "left out", f"{number:,} {reason}", "warning")
        yield from cut_findings(store.cuts, self.audio)
        yield from unusual_rates(store)

    def sources(self) -> list[Path]:
        """The files that ``prepare`` would read. Raises DataError for one that doesn't exist."""
        return source_files(self.experiment, self.datasets)

    # Training.

    def meta_model(self) -> TtsModel:
        """A model like the trained one, before the speakers are known."""
        return add_lora(meta_model(self.experiment), self.options.lora)

    def meta_batch(self) -> Batch:
        """A microbatch as large as one of training may become."""
        return meta_batch(self.experiment)

    def model(self) -> TtsModel:
        processor, speakers = self.prepared.processor, self.prepared.speakers
        inventory = Inventory(processor.num_symbols, processor.pad_id, len(speakers))
        return add_lora(TtsModel(self.options, inventory, self.prepared.normalisation), self.options.lora)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return self.score(model, batch)[0]

    def score(self, model: nn.Module, batch: Batch) -> Scored:
        """The losses of a batch, with the outputs that they were made of."""
        model = cast("TtsModel", model)  # torch.compile gives something of another type that has all it has
        text = Text(batch["symbols"], batch["symbol_lengths"], batch["speakers"])
        symbol_mask, frame_lengths = text.mask, batch["frame_lengths"]
        frame_mask = length_mask(frame_lengths, batch["mel"].shape[1])
        norms = None
        if NORM_REG in self.experiment.training.loss.auxiliary:
            norms = SquaredNorms(symbol_mask), SquaredNorms(frame_mask)
        target, given = model.normalised(batch["mel"]), batch.tensors.get
        draws = Draws(batch["noise"], batch["times"]) if self.options.matches_flows else None
        recording = Recording(target, frame_lengths, given("durations"), given("prosody"), draws)
        outputs: TtsOutputs = model(text, recording, norms)
        bin_mask = frame_mask[..., None].expand_as(target)
        terms = {
            MEL: self.main_loss(outputs.mel, target, bin_mask, per="mel_bin"),
            **self.main_loss.further(outputs.mel, target, bin_mask, per="mel_bin"),
            DURATION: duration_loss(outputs.log_durations, outputs.durations, symbol_mask),
            **outputs.terms,
        }
        if outputs.stop is not None:
            terms[STOP] = stop_loss(outputs.stop, frame_lengths, frame_mask)
        if outputs.alignment is not None:
            terms[ALIGNMENT] = forward_sum_loss(outputs.alignment, frame_lengths, text.lengths)
        if norms is not None:
            terms[NORM_REG] = norm_reg(*norms)
        return terms, outputs

    def meters(self, split: str) -> ShownMeters:
        weights = self.experiment.training.loss.auxiliary
        numbers = {name: weight for name, weight in weights.items() if isinstance(weight, float)}
        speaker = cache(self.speaker)  # one for all that this evaluation speaks: a vocoder is opened once
        spoken = None
        if self.data.evaluation.speak != 0:
            spoken = SpokenMeters(self.dataset(split), self.audio, self.data.evaluation, speaker)
        figures = TtsMeters(split, self.score, numbers, self.audio.frame_shift, self.options.durations, spoken)
        return ShownMeters(figures, self.dataset(split), self.score, speaker, self.data.samples)

    def show(self, batch: Batch) -> list[str]:
        """The name and the text of each row."""
        return [f"{name}: {text}" for name, text in zip(batch.extra["names"], batch.extra["texts"], strict=True)]

    # Use.

    def speaker(self, model: nn.Module, **options: Any) -> Speaker:
        """The model with what turns texts into symbols and spectrograms into audio.

        ``options`` override those of ``data.speaking``. Raises UserError for a speaker that the model doesn't know.
        """
        assert isinstance(model, TtsModel)
        assert self.audio.mel is not None
        speaking = SpeakingConfig(**{**self.data.speaking.model_dump(), **options})
        return Speaker(model, self.prepared.processor, self.prepared.speakers, self.audio.mel, speaking, self.directory)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write a folder with the acoustic model for onnxruntime."""
        assert isinstance(model, TtsModel)
        assert self.audio.mel is not None
        export_acoustic(model, self.prepared.processor, self.audio.mel, self.data.speaking, folder)

    def predict(self, model: nn.Module, inputs: Iterable[str]) -> Iterator[Speech]:
        """Each text as audio."""
        speaker = self.speaker(model)
        for text in inputs:
            yield speaker.speech(text)

    def samples(self, model: nn.Module) -> list[str]:
        """A line for each of ``data.samples``, which are written to the run as audio."""
        speaker, lines = self.speaker(model), []
        for number, text in enumerate(self.data.samples, start=1):
            path, speech = self.directory / f"sample-{number}.wav", speaker.speech(text)
            with speech_file(path, speech.sampling_rate, pause=0.0) as file:
                file.append(speech.samples)
            lines.append(f"{path}: {speech}")
        return lines


def stop_loss(logits: Tensor, frame_lengths: Tensor, mask: Tensor) -> Term:
    """Cross-entropy of which frame is the last, summed over frames; logits and ``mask`` are ``(row, frame)``."""
    is_last = torch.arange(logits.shape[1], device=logits.device) == frame_lengths[:, None] - 1
    logits = exact(logits)
    return Term(
        masked_sum(F.binary_cross_entropy_with_logits(logits, is_last.to(logits.dtype), reduction="none"), mask),
        per="frame",
    )
