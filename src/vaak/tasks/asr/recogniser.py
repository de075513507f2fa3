"""Recognisers of all architectures: their data, and how they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.tasks.asr.config import SCRATCH, AsrDataConfig, AsrExperiment, AsrModelConfig
from vaak.tasks.asr.data import AsrDataset
from vaak.tasks.asr.features import AudioFeatures
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.prepare import MAY_DIFFER, READING, PreparedUtterances
from vaak.tasks.asr.spec import SPEC
from vaak.tasks.asr.transcripts import Transcript
from vaak.tasks.asr.whisper import base_of
from vaak.tasks.base import refuse_other_options
from vaak.tasks.speech_task import SpeechTask

SHOWN = 5
"""Validation utterances whose transcripts are shown after training."""


class Recogniser(SpeechTask[AsrExperiment, PreparedUtterances, AsrDataset]):
    """Transcribes speech.

    OF_BEAMS
        Options of ``data.decoding`` that a beam search reads.
    """

    options: AsrModelConfig
    data: AsrDataConfig
    SPEC = SPEC
    PREPARED = PreparedUtterances
    MAY_DIFFER = READING
    LISTS_UNUSABLE = True
    OF_BEAMS: ClassVar[tuple[str, ...]] = ("beam_size",)
    grouped_by = "speaker"

    def sources(self) -> list[Path]:
        """Return the files of corpora, tokenizer and base. Raises DataError for one that doesn't exist."""
        path = self.data.tokenizer.path
        if self.options.base == SCRATCH:
            return [*super().sources(), *([Path(path).expanduser()] if path else [])]
        base = Path(base_of(self.options, self.folder))
        return [*super().sources(), *(sorted(base.glob("*.safetensors")) if base.is_dir() else [])]

    def examples_at_most(self) -> Iterator[float] | None:
        cuts = None if self.data.too_long == "split" else self.training_cuts()
        return None if cuts is None else (float(max(1, len(cut.supervisions))) for cut in cuts)

    def refuse_other_inputs(self, own: AsrExperiment) -> None:
        super().refuse_other_inputs(own)
        refuse_other_options(own.data, self.data, "data", MAY_DIFFER)

    def has_other_corpora(self, own: AsrExperiment) -> bool:
        return super().has_other_corpora(own) or self.data.group != own.data.group

    def protocol(self, split: str) -> dict[str, str]:
        """Return the conditions under which a split is evaluated."""
        decoding, dataset = self.data.decoding, self.dataset(split)
        found = {"split": split, "normaliser": self.data.normaliser, "decoding": decoding.method}
        if decoding.method == "beam":
            found |= {name: str(getattr(decoding, name)) for name in self.OF_BEAMS}
        return {**found, "transcribed": str(min(dataset.num_transcribed, len(dataset.utterances)))}

    @property
    def features(self) -> AudioFeatures:
        """The features that the model reads."""
        raise NotImplementedError

    @property
    def samples_of(self) -> AudioFeatures:
        """Makes features on the device."""
        raise NotImplementedError

    def read_by(self, split: str) -> AudioFeatures:
        """Return what the loader makes of a split's audio."""
        return self.samples_of if split == "train" and self.data.features_on == "device" else self.features

    def features_of(self, batch: Batch) -> Tensor:
        """Return the features of a batch ``(row, bin, frame)``, made here, on its device, if it has samples."""
        return batch["features"] if "features" in batch.tensors else self.samples_of.of_batch(batch.tensors)

    def show(self, batch: Batch) -> list[str]:
        """The name and the transcript of each row."""
        return [f"{name}: {text}" for name, text in zip(batch.extra["names"], batch.extra["texts"], strict=True)]

    def transcriber(self, model: nn.Module, **options: Any) -> Transcriber:
        """The model with what it reads and writes; ``options`` override those of ``data.decoding``."""
        raise NotImplementedError

    def predict(
        self, model: nn.Module, inputs: Iterable[Path | str], batch_size: int | None = None
    ) -> Iterator[Transcript]:
        """The transcript of each audio file."""
        for found in self.transcriber(model).transcribe_files(map(Path, inputs), batch_size):
            if isinstance(found, UserError):
                raise found
            yield found

    def samples(self, model: nn.Module) -> list[str]:
        """Return the model's transcripts of the first validation utterances, with the true ones."""
        dataset, rng = self.dataset("valid"), np.random.default_rng(0)
        examples = [dataset.example(index, rng) for index in range(min(SHOWN, len(dataset.utterances)))]
        texts = self.transcriber(model).texts([one.features for one in examples])
        return [f"{one.name}: {text} (reference: {one.text})" for one, text in zip(examples, texts, strict=True)]
