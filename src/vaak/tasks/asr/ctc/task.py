"""Speech recognition by CTC: what differs from a Whisper.

- ``prepare``: transcripts that don't fit the encoder's frames are left out (data.py)
- ``dataset``: features of any number of frames and tokens of transcripts (data.py)
- ``losses``: the negative log-probability of each transcript, summed over all its places in the frames; per token
- ``predict``: audio files as transcripts (predict.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from vaak.core.batch import Batch, Term, places_of
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Outputs
from vaak.data.batching import largest_rows
from vaak.nn.speech.masks import length_mask
from vaak.runs.prepared import Recipe
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.ctc.data import CtcDataset, CtcSources, FrameFeatures, collate, longest_example
from vaak.tasks.asr.ctc.export import write_ctc_onnx
from vaak.tasks.asr.ctc.metrics import CtcMeters, ctc_loss
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.ctc.predict import CtcTranscriber
from vaak.tasks.asr.prepare import PreparedUtterances, recipe
from vaak.tasks.asr.recogniser import Recogniser
from vaak.tasks.speech_task import Datasets

LOSS = "ctc"


class CtcTask(Recogniser):
    """Trains an encoder to transcribe speech by connectionist temporal classification."""

    OF_BEAMS = (*Recogniser.OF_BEAMS, "ngram", "alpha", "beta")

    # Data.

    def recipe_of(
        self, datasets: Datasets, splits: tuple[str, ...] | None = None, own: PreparedUtterances | None = None
    ) -> Recipe:
        return recipe(CtcSources.of(self.experiment, datasets, self.folder), splits, own)

    def make_dataset(self, split: str) -> CtcDataset:
        return CtcDataset(
            self.prepared.utterances(split),
            self.prepared.vocabulary,
            self.features,
            self.audio,
            self.data.augmentation if split == "train" else None,
            self.data.decoding.valid_examples if split == "valid" else None,
        )

    @property
    def features(self) -> FrameFeatures:
        """The features that the model reads."""
        return FrameFeatures(self.audio, self.data.max_duration, self.options.conformer.subsampling)

    # Training.

    def meta_model(self) -> CtcModel:
        """Return a model like the trained one, before its vocabulary is known."""
        return CtcModel(self.options.conformer, self.features.num_bins, self.data.tokenizer.vocab_size)

    def meta_batch(self) -> Batch:
        """Return a microbatch of silence, as large as one may become."""
        rows = largest_rows(self.experiment.training, self.data.max_duration)
        return collate([longest_example(self.features)] * rows, self.features)

    def model(self) -> CtcModel:
        return CtcModel(self.options.conformer, self.features.num_bins, self.prepared.vocabulary.ids.size)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        outputs: CtcOutputs = model(batch["features"], batch["feature_lengths"])
        return {LOSS: Term(ctc_loss(outputs, batch, self._blank), per="token")}

    @property
    def _blank(self) -> int:
        return self.prepared.vocabulary.ids.pad

    def outputs(self) -> Outputs:
        vocabulary = self.prepared.vocabulary
        reading = fingerprint_of([vocabulary.content, self.features.key, self.features.subsampling])
        return Outputs({"token": vocabulary.tokens()}, "position", reading)

    def logits(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs: CtcOutputs = model(batch["features"], batch["feature_lengths"])
        mask = length_mask(outputs.lengths, outputs.logits.shape[1])
        return {"token": outputs.logits.flatten(0, 1)[places_of(mask, batch.totals()["position"])]}

    def meters(self, split: str) -> CtcMeters:
        def transcribe(model: CtcModel, outputs: CtcOutputs) -> list[str]:
            return self.transcriber(model).texts_of(outputs)

        return CtcMeters(
            self.protocol(split), transcribe, self.dataset(split).utterances.group_names, blank=self._blank
        )

    # Use.

    def transcriber(self, model: nn.Module, **options: Any) -> CtcTranscriber:
        decoding = AsrDecodingConfig(**{**self.data.decoding.model_dump(), **options})
        features = cast("Any", self.features)
        return CtcTranscriber(cast("Any", model), self.prepared.vocabulary, features, decoding, self.audio.channels)

    def export_onnx(self, model: nn.Module, folder: Path) -> None:
        """Write the encoder for onnxruntime, with its vocabulary and the options of its features."""
        write_ctc_onnx(cast("CtcModel", model), self.prepared.vocabulary, self.features, folder)

    def refused_exports(self) -> dict[str, str]:
        reason = "a Conformer of Vaak's has no counterpart there; use --format onnx"
        return {"hf": reason, "peft": "this model has no low-rank adapters (model.lora)", "mixture": reason}
