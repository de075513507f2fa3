"""The vocoder task, as the engine calls it.

- ``prepare``: corpora as cut stores, once (prepare.py)
- ``dataset``: crops of recordings (data.py)
- ``objectives``: the discriminators', then the generator's
- ``meters``: distances of spectra, next to Griffin–Lim's (metrics.py)
- ``vocoder``: what text-to-speech makes audio with; ``predict``: recordings by way of their spectrograms (predict.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vaak.audio.audio_file import speech_file
from vaak.config.yaml.text import flow_text
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Objective
from vaak.data.batching import largest_rows
from vaak.nn.lora import add_lora
from vaak.nn.speech.waveform_losses import discriminator_loss, feature_matching_loss, generator_loss, stft_loss
from vaak.runs.prepared import Recipe
from vaak.tasks.pretrained import PRETRAINED_KEY, load_or_init
from vaak.tasks.speech_task import Datasets, PreparedCuts, SpeechTask, collect_results
from vaak.tasks.vocoder.config import (
    ADVERSARIAL,
    DISCRIMINATOR,
    LOSSES,
    MATCHING,
    MEL,
    STFT,
    DiscriminatorsConfig,
    VocoderDataConfig,
    VocoderExperiment,
    VocoderModelConfig,
)
from vaak.tasks.vocoder.data import Crops, VocoderDataset, VocoderExample, collate, recipe
from vaak.tasks.vocoder.metrics import Distances, VocoderMeters
from vaak.tasks.vocoder.model import VocoderModel
from vaak.tasks.vocoder.predict import Vocoded, export_onnx, vocode, vocode_files
from vaak.tasks.vocoder.spec import SPEC
from vaak.tasks.vocoding import NetworkVocoder, Published, Vocoder, require_mel


class VocoderTask(SpeechTask[VocoderExperiment, PreparedCuts, VocoderDataset]):
    """Trains a network that makes audio of mel spectrograms."""

    options: VocoderModelConfig
    data: VocoderDataConfig
    SPEC = SPEC
    PREPARED = PreparedCuts
    auxiliary_losses = LOSSES

    @property
    def begins_pretrained(self) -> bool:  # type: ignore[override]
        return self.options.pretrained is not None

    def __init__(self, experiment: VocoderExperiment, directory: Path, folder: Path) -> None:
        super().__init__(experiment, directory, folder)
        assert self.audio.mel is not None
        self.mel = self.audio.mel
        generator = Objective("generator", ("generator",), self.losses)
        if self.options.discriminators is None:
            self.objectives = (generator,)
        else:
            others = Objective("discriminators", ("discriminators",), self.discriminator_losses)
            # The discriminators step first: the generator then learns from those of this step.
            self.objectives = (others, generator)
        self._griffin_lim: dict[str, dict[int, Distances]] = {}

    # Data.

    def prepare(self) -> None:
        if self.options.pretrained is not None:
            # A mistake shows now.
            self.model()
        super().prepare()

    def make_recipe(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedCuts | None = None
    ) -> Recipe:
        return recipe(datasets, self.audio, self.experiment.skips_bad_examples, splits)

    def prepare_eval_data(self, own: VocoderExperiment, folder: Path, splits: tuple[str, ...]) -> None:
        super().prepare_eval_data(own, folder, splits)
        self._griffin_lim.clear()

    def make_dataset(self, split: str) -> VocoderDataset:
        data = self.data
        crops = Crops(data.crop_frames * self.mel.hop_length, data.gain) if split == "train" else None
        return VocoderDataset(self.prepared.cut_stores(split), self.audio, data.evaluation_window, crops)

    # Training.

    def meta_model(self) -> VocoderModel:
        """Return the model: no data decide its sizes."""
        return self._add_lora(VocoderModel(self.options, self.mel))

    def meta_batch(self) -> Batch:
        """Return a microbatch of training, of silence."""
        num_samples = self.data.crop_frames * self.mel.hop_length
        example = VocoderExample("sketch", np.zeros(num_samples, np.float32))
        return collate(
            [example] * largest_rows(self.experiment.training, num_samples / self.mel.sampling_rate), self.mel
        )

    def model(self) -> VocoderModel:
        """Return the model, with published weights if the options name some.

        Where a run has checkpoints, which have all weights, these may have gone.
        """
        model = VocoderModel(self.options, self.mel)
        if self.options.pretrained is not None:
            read = partial(self._read_weights, self.options.pretrained, model.generator)
            model.generator.load_state_dict(load_or_init(self.directory, read, model.generator.state_dict))
        return self._add_lora(model)

    def _add_lora(self, model: VocoderModel) -> VocoderModel:
        return add_lora(model, self.options.lora, () if model.discriminators is None else ("discriminators",))

    def _read_weights(self, name: str, generator: nn.Module) -> dict[str, Tensor]:
        """Return published weights of the generator.

        Raises UserError if they can't be read, or are of other spectrograms or sizes.
        """
        places = (Path(name).expanduser(), self.folder / name)
        found = Published.of(PRETRAINED_KEY, next((str(path.resolve()) for path in places if path.exists()), name))
        require_mel(PRETRAINED_KEY, found.folder, found.mel, self.mel)
        ours = self.options.model_dump(mode="json", include={*found.model, "hifigan"})
        if any(ours[option] != value for option, value in {"hifigan": None, **found.model}.items()):
            raise UserError(f"{PRETRAINED_KEY}: {found.folder} has other sizes; write model: {flow_text(found.model)}")
        return found.weights_for(generator)

    def discriminator_losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """Return the loss of telling recordings from generated audio; nothing before the discriminators begin."""
        # torch.compile gives something of another type that has all it has.
        own = cast("VocoderModel", model)
        options = self._discriminators_at(batch)
        if options is None or own.discriminators is None:
            return {}
        with torch.no_grad():
            # This loss trains the discriminators alone.
            generated = self._generate(model, batch["samples"])
        real, false = own.discriminators(batch["samples"]), own.discriminators(generated)
        return {DISCRIMINATOR: discriminator_loss(real, false, options.loss)}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """Return the generator's losses: distances of spectra and, once they begin, those of the discriminators."""
        own, real = cast("VocoderModel", model), batch["samples"]
        generated = self._generate(model, real)
        ours, theirs = own.compared(generated), own.compared(real)
        every = torch.ones_like(theirs, dtype=torch.bool)
        terms = {MEL: self.main_loss(ours, theirs, every, per="mel_bin")}
        terms |= self.main_loss.further(ours, theirs, every, per="mel_bin")
        if STFT in self.experiment.training.loss.auxiliary:
            terms[STFT] = stft_loss(generated, real)
        options = self._discriminators_at(batch)
        if options is not None and own.discriminators is not None:
            scored = own.discriminators(generated)
            with torch.no_grad():
                # What the generator's are to be like.
                real_scored = own.discriminators(real)
            terms[ADVERSARIAL] = generator_loss(scored, options.loss)
            terms[MATCHING] = feature_matching_loss(real_scored, scored)
        return terms

    def _discriminators_at(self, batch: Batch) -> DiscriminatorsConfig | None:
        """Return the options of discriminators, if they take part in the batch's step; outside of training they do."""
        options = self.options.discriminators
        return None if options is None or not batch.has_reached(options.start_step) else options

    def _generate(self, model: nn.Module, samples: Tensor) -> Tensor:
        """Generate audio from the spectrograms of samples ``(row, time)``."""
        with torch.no_grad():
            mel = cast("VocoderModel", model).to_mel(samples)
        # The last frame's hop goes beyond the recording.
        generated: Tensor = model(mel)[:, : samples.shape[1]]
        return generated

    def meters(self, split: str) -> VocoderMeters:
        known = self._griffin_lim.setdefault(split, {})
        return VocoderMeters(split, self.data.evaluation_window, self.data.num_iterations, known)

    def show(self, batch: Batch) -> list[str]:
        """Return the name of each row."""
        return [*batch.extra["names"]]

    # Use.

    def vocoder(self, model: nn.Module) -> Vocoder:
        """Return the maker of audio of spectrograms (vaak.tasks.vocoding)."""
        return NetworkVocoder(cast("VocoderModel", model).generator, self.mel.hop_length)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write FOLDER/model.onnx, checked by onnxruntime: audio of spectrograms of any number and length."""
        export_onnx(cast("VocoderModel", model), folder)

    def predict(self, model: nn.Module, inputs: Iterable[Any], batch_size: int | None = None) -> Iterator[Vocoded]:
        """Return each audio file by way of its spectrogram, next to what Griffin–Lim makes of it.

        Raises UserError for one that can't be read.
        """
        return collect_results(self.predict_files(model, [*map(Path, inputs)], batch_size))

    def predict_files(
        self, model: nn.Module, paths: Sequence[Path], batch_size: int | None = None
    ) -> Iterator[tuple[Path, Vocoded | UserError]]:
        """Return each audio file by way of its spectrogram, or, at the end, why it can't be read."""
        return vocode_files(cast("VocoderModel", model), paths, self.data.num_iterations, batch_size)

    def samples(self, model: nn.Module) -> list[str]:
        """Return a line for each of the first parts of valid, which are written to the run as audio."""
        dataset, lines = self.dataset("valid"), []
        for index in range(min(self.data.num_samples, len(dataset.lengths))):
            example = dataset.example(index, np.random.default_rng(0))
            recording = example.name, example.samples
            [made] = vocode(cast("VocoderModel", model), self.data.num_iterations, [recording])
            audio = {"": made.samples, "-griffin-lim": made.griffin_lim, "-recording": made.recording}
            for kind, samples in audio.items():
                with speech_file(self._sample(index, kind), self.mel.sampling_rate, pause=0.0) as file:
                    file.append(samples.clip(-1, 1))
            lines.append(f"{self._sample(index)}: {made}")
        return lines

    def _sample(self, index: int, kind: str = "") -> Path:
        return self.directory / f"sample-{index + 1}{kind}.wav"
