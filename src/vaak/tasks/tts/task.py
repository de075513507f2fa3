"""The text-to-speech task, as the engine calls it.

- ``prepare``: corpora as symbols, spectrograms and durations, once (prepare.py)
- ``dataset``: utterances (data.py)
- ``losses``: spectrogram, durations, end and, where the model has them, alignment, pitch, energy and flow
- ``meters``: each loss, and the error of durations (metrics.py)
- ``predict``: texts as audio (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.audio.audio_file import speech_file
from vaak.core.batch import Batch, Term
from vaak.core.errors import DataError, UserError
from vaak.core.storage.text_lines import read_text_lines
from vaak.core.task import DataFinding
from vaak.data.batching import largest_rows
from vaak.nn.kernels.random_features import NORM_REG, SquaredNorms, norm_reg
from vaak.nn.lora import add_lora
from vaak.nn.speech.alignment import forward_sum_loss
from vaak.nn.speech.flow_matching import Draws
from vaak.nn.speech.masks import exact, length_mask, masked_sum
from vaak.nn.speech.variance_adaptor import duration_loss
from vaak.runs.prepared import Recipe
from vaak.tasks.speech_task import Datasets, SpeechTask
from vaak.tasks.tts.config import SpeakingConfig, TtsDataConfig, TtsExperiment, TtsModelConfig
from vaak.tasks.tts.data import Normalisation, TtsDataset, TtsExample, collate, unusual_rates
from vaak.tasks.tts.metrics import ScoredBatch, ShownMeters, SpokenMeters, TtsMeters
from vaak.tasks.tts.model import Inventory, Recording, Text, TtsModel, TtsOutputs
from vaak.tasks.tts.predict import Speaker, Speech, export_acoustic
from vaak.tasks.tts.prepare import READING_OPTIONS, PreparedSpeech, SpeechSources, recipe
from vaak.tasks.tts.sherpa import write_voice
from vaak.tasks.tts.spec import ALIGNMENT, DURATION, LOSSES, MEL, SPEC, STOP, SYMBOLS_PER_SECOND
from vaak.tasks.vocoding import trained_vocoder
from vaak.text.speech.phonemes.alphabets import list_symbols


class TtsTask(SpeechTask[TtsExperiment, PreparedSpeech, TtsDataset]):
    """Trains a model that speaks texts."""

    options: TtsModelConfig
    data: TtsDataConfig
    SPEC = SPEC
    PREPARED = PreparedSpeech
    MAY_DIFFER = READING_OPTIONS
    auxiliary_losses = LOSSES

    # Data.

    def sources(self) -> list[Path]:
        """Return the files of corpora, and the lexicon. Raises DataError for one that doesn't exist."""
        lexicon = self.data.front_end.lexicon
        return [*super().sources(), *([Path(lexicon).expanduser()] if lexicon else [])]

    def examples_at_most(self) -> Iterator[float] | None:
        cuts = self.training_cuts()
        return None if cuts is None else (float(max(1, len(cut.supervisions))) for cut in cuts)

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedSpeech | None = None
    ) -> Recipe:
        return recipe(SpeechSources.of(self.experiment, datasets), splits, own)

    def prepare(self) -> None:
        vocoder = self.data.speaking.vocoder
        # A vocoder of other spectrograms is reported here, and not after training.
        if vocoder is not None and self.audio.mel is not None:
            trained_vocoder(vocoder, self.directory, self.audio.mel, torch.device("cpu"))
        super().prepare()

    def make_dataset(self, split: str) -> TtsDataset:
        prepared = self.prepared
        store, pad_id = prepared.store(split), prepared.processor.pad_id
        return TtsDataset(store, prepared.speakers, pad_id, draws_noise=self.options.matches_flows)

    def data_findings(self, split: str) -> Iterator[DataFinding]:
        """Yield the findings on audio, and texts that are too long or too short for theirs."""
        yield from super().data_findings(split)
        yield from unusual_rates(self.prepared.store(split))

    # Training.

    def meta_model(self) -> TtsModel:
        """Return a model like the trained one, before the speakers are known."""
        symbols = list_symbols(self.data.front_end)
        model = TtsModel(self.options, Inventory(len(symbols), 0, 1), Normalisation.none(self.audio.num_mel_bins))
        return add_lora(model, self.options.lora)

    def meta_batch(self) -> Batch:
        """Return a microbatch of silence, as large as one may become."""
        longest, model = self.data.max_duration, self.options
        num_frames = 1 + int(longest / self.audio.frame_shift)
        num_symbols = min(num_frames, int(longest * SYMBOLS_PER_SECOND))
        durations = np.full(num_symbols, num_frames // num_symbols)
        durations[0] += num_frames - durations.sum()
        mel = np.zeros((num_frames, self.audio.num_mel_bins), np.float32)
        given = durations if model.durations == "given" else None
        prosody, key = np.zeros((num_frames, 2 * model.has_prosody), np.float32), 0 if model.matches_flows else None
        example = TtsExample("sketch", "", np.ones(num_symbols, np.int64), mel, given, 0, prosody, key)
        return collate([example] * largest_rows(self.experiment.training, longest), pad_id=0)

    def model(self) -> TtsModel:
        processor, speakers = self.prepared.processor, self.prepared.speakers
        inventory = Inventory(processor.num_symbols, processor.pad_id, len(speakers))
        return add_lora(TtsModel(self.options, inventory, self.prepared.normalisation), self.options.lora)

    def row_names(self) -> dict[str, Sequence[str]]:
        return {"symbols": self.prepared.processor.symbols, "speakers": self.prepared.speakers}

    def named_rows(self, model: nn.Module) -> Iterator[tuple[Tensor | None, str]]:
        voice = cast("TtsModel", model)
        yield voice.embedding.weight, "symbols"
        yield getattr(voice.speakers, "weight", None), "speakers"

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        return self.score(model, batch)[0]

    def score(self, model: nn.Module, batch: Batch) -> ScoredBatch:
        """Return the losses of a batch, with the outputs that they were made of."""
        # torch.compile gives something of another type that has all it has.
        model = cast("TtsModel", model)
        text = Text(batch["symbols"], batch["symbol_lengths"], batch["speakers"])
        frame_lengths, norms = batch["frame_lengths"], None
        if NORM_REG in self.experiment.training.loss.auxiliary:
            norms = SquaredNorms(text.mask), SquaredNorms(length_mask(frame_lengths, batch["mel"].shape[1]))
        target, given = model.normalised(batch["mel"]), batch.tensors.get
        draws = Draws(batch["noise"], batch["times"]) if self.options.matches_flows else None
        recording = Recording(target, frame_lengths, given("durations"), given("prosody"), draws)
        outputs: TtsOutputs = model(text, recording, norms)
        symbol_mask, frame_mask = outputs.symbol_mask, outputs.frame_mask
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
        # One for all that this evaluation speaks: a vocoder is opened once.
        speaker = cache(self.speaker)
        spoken = None
        if self.data.evaluation.speak != 0:
            spoken = SpokenMeters(self.dataset(split), self.audio, self.data.evaluation, speaker)
        metrics = TtsMeters(split, self.score, numbers, self.audio.frame_shift, self.options.durations, spoken)
        return ShownMeters(metrics, self.dataset(split), self.score, speaker, self.data.samples, self.audio)

    def show(self, batch: Batch) -> list[str]:
        """Return the name and the text of each row."""
        return [f"{name}: {text}" for name, text in zip(batch.extra["names"], batch.extra["texts"], strict=True)]

    # Use.

    def speaker(self, model: nn.Module, **options: Any) -> Speaker:
        """Return the model with what turns texts into symbols and spectrograms into audio.

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

    def export_sherpa_onnx(
        self,
        model: nn.Module,
        folder: Path,
        quantization: str | None = None,
        vocoder: str | None = None,
        words: Path | None = None,
    ) -> None:
        """Write a voice that sherpa-onnx loads, with its vocoder, or another, and a lexicon.

        The lexicon has the words of the training texts, and of the text file ``words``. Raises UserError if there is
        no trained vocoder, or no such file.
        """
        store = self.prepared.store("train")
        texts = [store.line(index).text for index in range(len(store))]
        if words is not None:
            try:
                texts += read_text_lines(words)
            except DataError as error:
                raise UserError(f"--words: {error}") from None
        speaker = self.speaker(model, **({} if vocoder is None else {"vocoder": vocoder}))
        write_voice(speaker, texts, folder, quantization)

    def predict(self, model: nn.Module, inputs: Iterable[str], batch_size: int | None = None) -> Iterator[Speech]:
        """Return each text as audio."""
        return self.speaker(model).speeches(inputs, batch_size)

    def samples(self, model: nn.Module) -> list[str]:
        """Return a line for each of ``data.samples``, which are written to the run as audio."""
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
